# SPDX-License-Identifier: Apache-2.0
"""The words after `hopsum topology`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hopsum.codec.arguments import check_codec, switch_codec_argument
from hopsum_base.arguments import existing_file
from hopsum_base.units import whole
from hopsum_cli.program_arguments import add_p4info, program_with_p4info
from hopsum_cli.topology.drawing import link_lines, topology_text
from hopsum_topologies.description import CATALOGUE, MAX_HOSTS, Topology, as_document, find_topology, topology
from hopsum_topologies.errors import TopologyError
from hopsum_wire import MAX_SLOTS

TARGETS: Final = ("native", "bmv2", "mininet")
_RUN: Final = """\
COMMAND runs on the host of every worker, in its network namespace, with HOPSUM_URL, HOPSUM_RANK and HOPSUM_CODEC for
`hopsum.connect()`, and RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME for torch.distributed. Its
output comes with the rank in front. The exit status is the worst of the workers'. Without COMMAND the network is
brought up, every host asks every other and every switch, and all is taken down again.

With --program the switches run a program of yours. --control writes its entries; COMMAND runs on every worker, or on
every host of a network without jobs. Both find the network in the JSON file $HOPSUM_NETWORK.

Targets: native, the embedded switch, and bmv2 run in network namespaces; mininet runs bmv2 in Mininet. All need root.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum topology", description="Networks of switches and hosts, here.")
    words = parser.add_subparsers(required=True, metavar="WORD")
    _word(words, "list", "the networks that have a name", _list)
    showing = _word(words, "show", "the links of a network, with addresses and workers", _show)
    _add_network(showing)
    showing.add_argument("--json", action="store_true", help="print its description; FILE.json may be given as NAME")
    running = _word(words, "run", "bring a network up, run a command on every worker, take it down", _run)
    running.epilog, running.formatter_class = _RUN, argparse.RawDescriptionHelpFormatter
    _add_network(running)
    running.add_argument(
        "--target", choices=TARGETS, default="native", help="switches and hosts of the network (default %(default)s)"
    )
    running.add_argument(
        "--codec", type=switch_codec_argument, default="thc",
        help="codec of the jobs, as in thc:bits=2 (default %(default)s)",
    )  # fmt: skip
    running.add_argument(
        "--slots", type=whole(1, MAX_SLOTS), default=32, metavar="N", help="slots of every job (default %(default)s)"
    )
    running.add_argument(
        "--aggregate-at",
        metavar="SWITCH",
        help="switch where jobs whose workers are at several switches are summed, in place of a tree",
    )
    running.add_argument(
        "--program",
        type=existing_file,
        metavar="X.json",
        help="compiled program for every switch in place of hopsum's: no job is made, nothing forwarded but by it",
    )
    add_p4info(running)
    running.add_argument(
        "--control",
        metavar="COMMAND",
        help="command that writes the entries of --program, before the workers start; it reads $HOPSUM_NETWORK",
    )
    running.add_argument(
        "--cli", action="store_true", help="give Mininet's prompt in place of COMMAND; with --target mininet"
    )
    running.add_argument("--output", type=Path, metavar="FILE", help="file for the counts of every link, JSON")
    running.usage = "hopsum topology run NAME [options] [-- COMMAND ...]"
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return its exit status: 0, for `run` the worst of the workers', or 1 with a printed reason."""
    ours, command = split_command(arguments)
    options = build_parser().parse_args(ours)
    # The part after `--` belongs to workers and was never parsed: only `run` may have one.
    if command is not None and options.run is not _run:
        options.parser.error(f"-- {' '.join(command)}: only `run` takes a command")
    options.command = command or ()
    try:
        status: int = options.run(options)
    except TopologyError as error:
        print(f"hopsum topology: {error}", file=sys.stderr)
        return 1
    return status


def split_command(arguments: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...] | None]:
    """Return the arguments before and after the first `--`. The second part is None without a `--`."""
    if "--" not in arguments:
        return arguments, None
    # Only the first `--` is ours; the workers' command may have its own.
    place = list(arguments).index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


def topology_from_options(options: argparse.Namespace) -> Topology:
    """Return the network of the parsed NAME and --workers. Raises TopologyError when there is none."""
    return find_topology(options.name, options.workers)


def _word(words: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    word: argparse.ArgumentParser = words.add_parser(
        name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}."
    )
    word.set_defaults(run=run, parser=word)
    return word


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"network: {', '.join(CATALOGUE)}, or a description, FILE.json")
    parser.add_argument(
        "--workers", type=whole(1, MAX_HOSTS), metavar="N", help="number of workers (default: the network's own)"
    )


def _list(options: argparse.Namespace) -> int:
    table = Table(box=None, header_style="")
    for heading in ("name", "workers", "switches", "what it is"):
        table.add_column(heading, justify="right" if heading in ("workers", "switches") else "left")
    for name, entry in CATALOGUE.items():
        made = topology(name)
        table.add_row(name, str(entry.workers), str(len(made.switches)), entry.summary)
    Console().print(table)
    return 0


def _show(options: argparse.Namespace) -> int:
    shown = topology_from_options(options)
    if options.json:
        print(json.dumps(as_document(shown), indent=2))
    else:
        console = Console(highlight=False)
        console.print(topology_text(shown), soft_wrap=True)
        for line in link_lines(shown):
            console.print(line, markup=False, soft_wrap=True)
    return 0


def _run(options: argparse.Namespace) -> int:
    # Here, not above: `list` and `show` need neither switch nor controller.
    from hopsum_cli.topology.run import Request, run

    if options.program is None and (options.control or options.p4info):
        options.parser.error("--control and --p4info are for a program of your own: give --program X.json")
    if options.program is not None and options.aggregate_at is not None:
        options.parser.error("--aggregate-at is for hopsum's program: --program makes no jobs")
    # Mininet's prompt reads the terminal, which workers would share.
    if options.cli and (options.target != "mininet" or options.command):
        options.parser.error("--cli gives Mininet's prompt: it needs --target mininet, and no COMMAND")
    program = program_with_p4info(options.program, options.p4info) if options.program else None
    network = topology_from_options(options)
    for job in network.jobs if program is None else ():
        check_codec(options.parser, options.codec, len(job.workers))
    asked = Request(
        network, options.target, options.command, options.codec, options.slots, options.aggregate_at,
        options.output, program, tuple(shlex.split(options.control or "")), options.cli,
    )  # fmt: skip
    return run(asked)
