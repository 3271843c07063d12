# SPDX-License-Identifier: Apache-2.0
"""The `hopsum` command: one table of commands, each imported when it runs.

So `hopsum` starts quickly, and a dependency that is missing has a message that names the extra to install.
"""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from hopsum_base import __version__
from hopsum_base.internal_error import internal_error
from hopsum_base.linux import unsupported_reason


class Command(NamedTuple):
    """A command, by the one or two words after `hopsum`."""

    summary: str
    module: str
    """Has `main(arguments) -> exit status` and `build_parser()`."""
    extra: str = ""
    """The extra that brings what it imports, empty where the distribution alone does."""


SECTIONS: Mapping[str, Sequence[str]] = {
    "run training jobs and switches": (
        *("switch", "controller", "job"),
        *("top", "doctor", "shell", "switch-ctl"),
    ),
    "try hopsum": ("demo", "selftest", "topology", "packet", "ptf", "lab"),
    "evaluate": ("plan", "bench", "codec", "table", "report"),
}
"""The first words of commands, by the heading of their list in `hopsum --help`."""
GROUPS = {
    "bench": "measure a part of hopsum on this machine",
    "codec": "compare codecs on vectors: error against bits",
}
"""The summaries of first words that need a second one."""
COMMANDS = {
    "switch": Command("run the embedded switch with a compiled v1model program", "hopsum_switch.cli", "switch"),
    "controller": Command(
        "run the controller: jobs, slots and leases on switches",
        "hopsum_cli.controller.controller_command",
        "controller",
    ),
    "controller backup": Command("write a running controller's database to a file", "hopsum_cli.controller.backup"),
    "job": Command("create, show and delete a controller's jobs", "hopsum_cli.job.job_command"),
    "top": Command("show a controller's switches, jobs and rates, live", "hopsum_cli.top.top_command"),
    "doctor": Command("diagnose a worker's path to its switch", "hopsum_cli.doctor"),
    "shell": Command("open p4runtime-shell on a running switch", "hopsum_cli.shell", "shell"),
    "switch-ctl": Command(
        "show ports, counters and registers of a running switch", "hopsum_switch.management_command", "switch"
    ),
    "demo": Command(
        "train a small model through a switch, against fp32", "hopsum_evaluation.demo.training_demo", "demo"
    ),
    "selftest": Command(
        "sum vectors of worker processes through a switch, against numpy",
        "hopsum_evaluation.selftest",
        "switch,controller",
    ),
    "topology": Command(
        "draw a network, or run a command on each of its workers", "hopsum_cli.topology.topology_command", "demo"
    ),
    "packet": Command(
        "send one packet to a switch by hand, and show the answers", "hopsum_cli.packet.packet_command", "scapy"
    ),
    "ptf": Command("run PTF tests of any compiled P4 program on a switch", "hopsum_cli.ptf", "ptf,shell"),
    "lab": Command(
        "take the course: write a P4 switch that aggregates, and have it graded",
        "hopsum_labs.lab_command",
        "switch,controller,scapy",
    ),
    "plan": Command(
        "count the bytes of a step, and time them on a link and on this machine", "hopsum_evaluation.plan.step_plan"
    ),
    "plan paper": Command(
        "evaluate the time model of Homomorphic Parameter Compression", "hopsum_evaluation.plan.paper_command"
    ),
    "bench allreduce": Command(
        "time an all-reduce over rate-limited links, compared with gloo fp32 and fp16 (root)",
        "hopsum_evaluation.bench.allreduce",
        "demo",
    ),
    "bench accuracy": Command(
        "time trainings to a target over rate-limited links, compared with other schemes (root)",
        "hopsum_evaluation.training.accuracy_bench",
        "demo",
    ),
    "bench training": Command(
        "time steps of models of published size over rate-limited links, compared with other schemes (root)",
        "hopsum_evaluation.training.training_bench",
        "demo",
    ),
    "bench dataplane": Command(
        "measure codes per second of the embedded switch and of bmv2", "hopsum_evaluation.bench.dataplane", "demo"
    ),
    "bench codec": Command(
        "measure encoding, decoding and error of the codecs", "hopsum_evaluation.bench.codec_speed", "demo"
    ),
    "bench scaling": Command(
        "time all-reduces over 2 to 16 hosts, with the processor time of each (root)",
        "hopsum_evaluation.bench.scaling",
        "demo",
    ),
    "codec compare": Command(
        "plot the error of the mean against bits per element, every method", "hopsum_evaluation.compare.compare"
    ),
    "table": Command("solve lookup tables of codec thc, or search the best one for a job", "hopsum_cli.table"),
    "report": Command(
        "reproduce the papers' claims on two pages", "hopsum_evaluation.report.reporting", "demo,plot,estimation"
    ),
}
EXIT_STATUSES = """\
exit status:
  0    success
  1    failed, refused, or a check did not hold; the reason is on stderr or in the output
  2    wrong arguments
  130  interrupted with Ctrl-C (SIGINT); `switch` and `controller` end in order then, with 0
  141  the reader of the output has ended, as with `| head`"""
INTERRUPTED = 130
"""Exit status of a command that SIGINT ended: 128 plus the signal's number, as in shells."""
UNREAD = 141
"""Exit status of a command that SIGPIPE ended."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the first word, as `word`. `arguments` has the rest, which the command parses."""
    summaries = {**GROUPS, **{name: command.summary for name, command in COMMANDS.items()}}
    lists = [_list(heading, {word: summaries[word] for word in words}) for heading, words in SECTIONS.items()]
    summaries = {word: summaries[word] for words in SECTIONS.values() for word in words}
    parser = _parser("", "In-network aggregation of compressed gradients.", lists, summaries)
    parser.add_argument("--version", action="version", version=f"hopsum {__version__}")
    return parser


def build_group_parser(first: str) -> argparse.ArgumentParser:
    """Return the parser of the second word of a group, as `word`. `arguments` has the rest, which the command parses.

    `first` is a key of GROUPS.
    """
    rows = {name.partition(" "): row for name, row in COMMANDS.items()}
    summaries = {second: row.summary for (word, _, second), row in rows.items() if word == first}
    description = f"{GROUPS[first][:1].upper()}{GROUPS[first][1:]}."
    return _parser(f" {first}", description, [_list(f"{first} commands", summaries)], summaries)


def _list(title: str, summaries: Mapping[str, str]) -> str:
    """Return a heading with a line for each word below it."""
    return "\n".join([f"{title}:", *(f"  {word:13} {summary}" for word, summary in summaries.items())])


def _parser(prefix: str, description: str, lists: Sequence[str], words: Iterable[str]) -> argparse.ArgumentParser:
    epilog = [*lists, EXIT_STATUSES, f"`hopsum{prefix} COMMAND --help` says more."]
    parser = argparse.ArgumentParser(
        prog=f"hopsum{prefix}",
        description=description,
        epilog="\n\n".join(epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("word", choices=list(words), metavar="COMMAND", help="one of the commands below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed words. Without any, print the list of commands and raise SystemExit(2)."""
    if not arguments:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    return parser.parse_args(arguments)


def load(command: Command) -> Callable[[Sequence[str]], int]:
    """Import the module of a command, and return its `main`.

    Raises SystemExit, with a message, on a system that hopsum does not support, and when a dependency is missing, with
    the extra to install.
    """
    # Elsewhere a module of Python's own would be missing, for which no extra is the remedy.
    if reason := unsupported_reason():
        raise SystemExit(f"hopsum: {reason}")
    try:
        main: Callable[[Sequence[str]], int] = import_module(command.module).main
    except ModuleNotFoundError as error:
        # A module of ours that is missing is a fault of the installation, for which no extra is the remedy.
        if (error.name or "").split(".")[0].startswith("hopsum"):
            raise
        wanted = f"'hopsum[{command.extra}]'" if command.extra else "hopsum"
        raise SystemExit(f"hopsum: this command needs the module {error.name}; pip install {wanted}") from error
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, or `argv` without the program's name, and return its exit status, see EXIT_STATUSES.

    An error of a command is printed to stderr. Raises SystemExit for wrong arguments.
    """
    options = _parse(build_parser(), sys.argv[1:] if argv is None else argv)
    name, rest = options.word, options.arguments
    if name in GROUPS:
        options = _parse(build_group_parser(name), rest)
        name, rest = f"{name} {options.word}", options.arguments
    # `plan` and `controller` are commands themselves, and have second words too.
    elif rest and f"{name} {rest[0]}" in COMMANDS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    try:
        status = load(COMMANDS[name])(rest)
        # A reader that has ended is noticed here, not when the interpreter exits, where it would be a traceback.
        sys.stdout.flush()
        # A command that takes every OSError for a failure of its own takes a broken pipe for one.
        return UNREAD if status and _has_lost_its_reader() else status
    except KeyboardInterrupt:
        print(f"hopsum {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as end:
        # Rich ends a command in this way, with a status of its own, and has put /dev/null in the place of the pipe.
        if isinstance(end.__context__, BrokenPipeError):
            return UNREAD
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _has_lost_its_reader():
            return UNREAD
        print(f"hopsum {name}: {internal_error(error)}", file=sys.stderr)
        return 1


def _has_lost_its_reader() -> bool:
    """Say whether nobody reads the output any more, as in `hopsum ... | head`. What is left of it goes nowhere then."""
    # poll() reports POLLERR for a pipe without a reader whatever is asked for, so nothing is asked for.
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:
        return False
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    # The interpreter flushes stdout once more at its exit, which would fail on the lost pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


if __name__ == "__main__":
    sys.exit(main())
