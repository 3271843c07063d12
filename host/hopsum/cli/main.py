# SPDX-License-Identifier: Apache-2.0
"""`hopsum COMMAND`: what each command needs is imported when it runs, so a missing extra has a clear message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple


class Command(NamedTuple):
    """One word after `hopsum`."""

    summary: str
    module: str
    """Has `main(arguments) -> exit status`."""
    extra: str


COMMANDS = {
    "demo": Command("train a small model through a switch, against fp32", "hopsum.cli.demo.command", "demo"),
    "sum": Command("sum vectors of workers through a switch, against numpy", "hopsum.cli.sums.command", "demo"),
    "doctor": Command("say why a worker cannot begin, or hangs", "hopsum.cli.doctor", "cli"),
    "top": Command("show a controller's switches, jobs and rates", "hopsum.cli.top", "rpc,cli"),
    "controller": Command("run jobs, slots and leases on switches", "hopsum.cli.controller", "controlplane"),
    "job": Command("make, see and delete a controller's jobs", "hopsum.cli.job", "rpc,cli"),
    "drill": Command("break parts of a real system, check that nothing is lost", "hopsum.cli.drill.command", "demo"),
    "switch": Command("run the embedded switch with a compiled v1model program", "hopsum_switch.cli", "switch"),
    "switch-ctl": Command("show ports, counts and registers of a running switch", "hopsum_switch.control", "switch"),
    "table": Command("solve lookup tables of codec thc, search the best one for a job", "hopsum.cli.table", "cli"),
    "bench": Command("measure a part of hopsum on this machine", "hopsum.cli.bench", "demo"),
    "codec": Command("compare codecs on vectors: error against bits", "hopsum.cli.codec", "cli"),
    "topology": Command("draw networks; run a command on every worker of one", "hopsum.cli.topology", "demo"),
    "plan": Command("predict step times of a job: when does it pay, what binds", "hopsum.cli.plan", "cli"),
    "report": Command("reproduce what papers claim, on one page", "hopsum.cli.report.command", "demo,plot,estimation"),
    "shell": Command("open p4runtime-shell on a running switch", "hopsum.cli.shell", "controlplane"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command word; the rest belongs to the command."""
    lines = "\n".join(f"  {name:10} {command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="hopsum",
        description="In-network aggregation of compressed gradients.",
        epilog=f"commands:\n{lines}\n\n`hopsum COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hopsum {version('hopsum')}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def load(command: Command) -> Callable[[Sequence[str]], int]:
    """Import a command. Raises SystemExit naming the extra to install when a dependency is missing."""
    try:
        main: Callable[[Sequence[str]], int] = import_module(command.module).main
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0].startswith("hopsum"):
            raise
        raise SystemExit(
            f"hopsum: this command needs the module {error.name}; pip install 'hopsum[{command.extra}]'"
        ) from error
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = build_parser().parse_args(argv)
    return load(COMMANDS[arguments.command])(arguments.arguments)


if __name__ == "__main__":
    sys.exit(main())
