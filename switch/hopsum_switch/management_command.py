# SPDX-License-Identifier: Apache-2.0
"""`hopsum switch-ctl`: look at a running switch from the command line, and set its registers.

Exit status: 0 done (compare: nothing differs), 1 something differs, 2 wrong use or no answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc

from hopsum_switch.grpc_address import default_address
from hopsum_switch.management import ManagementClient, ManagementError
from hopsum_switch.observe.snapshot import Change, Snapshot, SnapshotError, compare
from hopsum_switch.observe.trace import shortened

_TIMEOUT_S = 30.0


def main(argv: Sequence[str] | None = None, *, prog: str = "hopsum switch-ctl") -> int:
    """Run one command. Return the exit status."""
    arguments = build_parser(prog).parse_args(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except (ManagementError, SnapshotError, OSError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2


def _client(arguments: argparse.Namespace) -> ManagementClient:
    """Return a client of the switch. Raises OSError for a file of TLS that cannot be read."""
    files = (arguments.tls_ca, arguments.tls_key, arguments.tls_certificate)
    contents = [None if file is None else file.read_bytes() for file in files]
    credentials = grpc.ssl_channel_credentials(*contents) if arguments.tls_ca else None
    return ManagementClient(arguments.grpc, timeout_s=_TIMEOUT_S, credentials=credentials)


def _ports(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        print(json.dumps(client.list_ports(), indent=2))
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        print(json.dumps(client.stats(), indent=2))
    return 0


def _snapshot(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        snapshot = client.snapshot(arguments.name, arguments.first, arguments.count)
    if arguments.file is None:
        print(json.dumps(snapshot.as_json(), indent=2))
    else:
        snapshot.save(arguments.file)
    return 0


def _write_register(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        client.write_register(arguments.name, arguments.index, arguments.value)
    return 0


def _clear_register(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        client.clear_register(arguments.name)
    return 0


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, as 12 or 0xc") from None


def _compare(arguments: argparse.Namespace) -> int:
    changes = compare(Snapshot.load(arguments.old), Snapshot.load(arguments.new))
    for change in changes:
        print(_shown(change, full=arguments.no_truncate))
    return 1 if changes else 0


def _shown(change: Change, *, full: bool) -> str:
    place = f"{change.kind} {change.name}[{change.index}]"
    if isinstance(change.old, tuple) and isinstance(change.new, tuple):
        sides = zip(("packets", "bytes"), change.old, change.new, strict=True)
        return f"{place}: {', '.join(f'{unit} {old} -> {new}' for unit, old, new in sides if old != new)}"
    old, new = (f"{value:#x}" for value in (change.old, change.new))
    return f"{place}: {old} -> {new}" if full else f"{place}: {shortened(old)} -> {shortened(new)}"


def build_parser(prog: str = "hopsum switch-ctl") -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog=prog, description="Look at a running embedded switch, and set its registers.")
    parser.add_argument(
        "--grpc",
        default=default_address(),
        metavar="ADDRESS",
        help="address where the switch listens (default %(default)s)",
    )
    for name, what in (
        ("ca", "certificate authority of the switch (PEM): it is asked with TLS"),
        ("certificate", "certificate to be known by to the switch (PEM), with --tls-key"),
        ("key", "key of this certificate (PEM)"),
    ):
        parser.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=what)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("ports", help="show ports with their counters, as JSON")
    commands.add_parser("stats", help="show the counts of the whole switch, as JSON")
    snapshot = commands.add_parser("snapshot", help="take all registers and counters at one moment between packets")
    snapshot.add_argument(
        "file", nargs="?", type=Path, help="file to write, as .npz or JSON by its name (default: JSON on stdout)"
    )
    snapshot.add_argument(
        "--name",
        action="append",
        default=[],
        help="register or counter by its full name or its last part, in place of all; may be repeated",
    )
    snapshot.add_argument("--first", type=int, default=0, metavar="INDEX", help="first cell of each array (default 0)")
    snapshot.add_argument("--count", type=int, metavar="N", help="cells of each array, at most")
    writing = commands.add_parser("write-register", help="set one cell of a register between two packets")
    clearing = commands.add_parser("clear-register", help="set all cells of a register to 0 between two packets")
    for parser_of_one in (writing, clearing):
        parser_of_one.add_argument("name", metavar="NAME", help="register, by its full name or its last part")
    writing.add_argument("index", type=_number, metavar="INDEX", help="cell, from 0")
    writing.add_argument("value", type=_number, metavar="VALUE", help="new value, as 12 or 0xc")
    comparison = commands.add_parser("compare", help="list the cells that differ between two snapshots")
    comparison.add_argument("old", type=Path, help="snapshot to compare with")
    comparison.add_argument("new", type=Path, help="snapshot to compare")
    comparison.add_argument("--no-truncate", action="store_true", help="print long values in full")
    return parser


_COMMANDS = {
    "ports": _ports,
    "stats": _stats,
    "snapshot": _snapshot,
    "write-register": _write_register,
    "clear-register": _clear_register,
    "compare": _compare,
}

if __name__ == "__main__":
    sys.exit(main(prog="python -m hopsum_switch.management_command"))
