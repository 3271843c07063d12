# SPDX-License-Identifier: Apache-2.0
"""`hopsum COMMAND`: what each command needs is imported when it runs, so a missing extra has a clear message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple


class Command(NamedTuple):
    """A command, by the one or two words after `hopsum`."""

    summary: str
    module: str
    """Has `main(arguments) -> exit status`."""
    extra: str = ""
    """The extra that brings what it imports; empty where the distribution alone does."""


class Group(NamedTuple):
    """A first word that needs a second one."""

    summary: str
    description: str
    heading: str
    """Stands above the list of second words."""


GROUPS = {
    "bench": Group(
        "measure a part of hopsum on this machine", "Measure a part of hopsum on this machine.", "benchmarks"
    ),
    "codec": Group(
        "compare codecs on vectors: error against bits",
        "See what codecs make of vectors, without a network.",
        "what there is",
    ),
}
COMMANDS = {
    "demo": Command("train a small model through a switch, against fp32", "hopsum_evaluation.demo.command", "demo"),
    "sum": Command(
        "sum vectors of workers through a switch, against numpy", "hopsum_evaluation.sums.command", "switch,controller"
    ),
    "doctor": Command("say why a worker cannot begin, or hangs", "hopsum_cli.doctor"),
    "top": Command("show a controller's switches, jobs and rates", "hopsum_cli.top"),
    "controller": Command("run jobs, slots and leases on switches", "hopsum_cli.controller", "controller"),
    "job": Command("make, see and delete a controller's jobs", "hopsum_cli.job"),
    "drill": Command(
        "break parts of a real system, check that nothing is lost", "hopsum_evaluation.drill.command", "demo"
    ),
    "switch": Command("run the embedded switch with a compiled v1model program", "hopsum_switch.cli", "switch"),
    "switch-ctl": Command("show ports, counts and registers of a running switch", "hopsum_switch.control", "switch"),
    "table": Command("solve lookup tables of codec thc, search the best one for a job", "hopsum_cli.table"),
    "bench allreduce": Command(
        "an all-reduce over shaped links, beside gloo fp32 and fp16 (root)", "hopsum_evaluation.bench.allreduce", "demo"
    ),
    "bench dataplane": Command(
        "codes per second of the embedded switch and of bmv2", "hopsum_evaluation.bench.dataplane", "demo"
    ),
    "bench codec": Command(
        "encode, decode and error of the codecs, without a network", "hopsum_evaluation.bench.codec", "demo"
    ),
    "bench controlplane": Command(
        "jobs made and ended, table writes and adoption by a controller", "hopsum_evaluation.bench.controlplane", "demo"
    ),
    "bench lossless": Command(
        "speed, bytes and memory of codec lossless on a sparse vector", "hopsum_evaluation.bench.lossless", "demo"
    ),
    "codec compare": Command(
        "error of the mean against bits per element, every method", "hopsum_evaluation.compare.compare"
    ),
    "codec capture": Command(
        "record gradients for `compare` again (for developers)", "hopsum_evaluation.compare.capture", "demo"
    ),
    "topology": Command("draw networks; run a command on every worker of one", "hopsum_cli.topology", "demo"),
    "plan": Command("predict step times of a job: when does it pay, what binds", "hopsum_cli.plan"),
    "plan paper": Command("the model of Homomorphic Parameter Compression", "hopsum_evaluation.plan.paper"),
    "report": Command(
        "reproduce what papers claim, on one page", "hopsum_evaluation.report.command", "demo,plot,estimation"
    ),
    "shell": Command("open p4runtime-shell on a running switch", "hopsum_cli.shell", "shell"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the first word; the rest belongs to the command."""
    firsts = dict.fromkeys(name.partition(" ")[0] for name in COMMANDS)
    summaries = {first: (GROUPS.get(first) or COMMANDS[first]).summary for first in firsts}
    parser = _parser("", "In-network aggregation of compressed gradients.", "commands", summaries, "COMMAND")
    parser.add_argument("--version", action="version", version=f"hopsum {version('hopsum')}")
    return parser


def build_group_parser(first: str) -> argparse.ArgumentParser:
    """Return the parser of the second word of a group; the rest belongs to the command."""
    group = GROUPS[first]
    rows = {name.partition(" "): row for name, row in COMMANDS.items()}
    summaries = {second: row.summary for (word, _, second), row in rows.items() if word == first}
    return _parser(f" {first}", group.description, group.heading, summaries, "WHAT")


def _parser(
    prefix: str, description: str, heading: str, summaries: Mapping[str, str], metavar: str
) -> argparse.ArgumentParser:
    width = max(10, *map(len, summaries))
    lines = "\n".join(f"  {word:{width}} {summary}" for word, summary in summaries.items())
    parser = argparse.ArgumentParser(
        prog=f"hopsum{prefix}",
        description=description,
        epilog=f"{heading}:\n{lines}\n\n`hopsum{prefix} {metavar} --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("word", choices=summaries, metavar=metavar)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def load(command: Command) -> Callable[[Sequence[str]], int]:
    """Import a command. Raises SystemExit naming the extra to install when a dependency is missing."""
    try:
        main: Callable[[Sequence[str]], int] = import_module(command.module).main
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0].startswith("hopsum"):
            raise
        wanted = f"'hopsum[{command.extra}]'" if command.extra else "hopsum"
        raise SystemExit(f"hopsum: this command needs the module {error.name}; pip install {wanted}") from error
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = build_parser().parse_args(argv)
    name, rest = options.word, options.arguments
    if name in GROUPS:
        options = build_group_parser(name).parse_args(rest)
        name, rest = f"{name} {options.word}", options.arguments
    elif rest and f"{name} {rest[0]}" in COMMANDS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    return load(COMMANDS[name])(rest)


if __name__ == "__main__":
    sys.exit(main())
