# SPDX-License-Identifier: Apache-2.0
"""`hopsum switch-ctl`: look at a running switch from the command line.

Exit status: 0 done, 2 wrong use or no answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hopsum_base.quiet_grpc import grpc
from hopsum_switch.grpc_address import default_address
from hopsum_switch.management import ManagementClient, ManagementError

_TIMEOUT_S = 30.0


def main(argv: Sequence[str] | None = None, *, prog: str = "hopsum switch-ctl") -> int:
    """Run one command and print its answer as JSON. Return the exit status: 0, or 2 after an error on stderr.

    `argv`: the arguments without the program's name. None: those of this process. Wrong arguments raise SystemExit(2).
    """
    arguments = build_parser(prog).parse_args(argv)
    try:
        with _client(arguments) as client:
            if arguments.command == "ports":
                answer: object = client.list_ports()
            elif arguments.command == "stats":
                answer = client.stats()
            else:
                answer = client.snapshot(arguments.name)
    except (ManagementError, OSError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answer, indent=2))
    return 0


def _client(arguments: argparse.Namespace) -> ManagementClient:
    """Return a client of the switch. Raises OSError for a file of TLS that cannot be read."""
    files = (arguments.tls_ca, arguments.tls_key, arguments.tls_certificate)
    contents = [None if file is None else file.read_bytes() for file in files]
    credentials = grpc.ssl_channel_credentials(*contents) if arguments.tls_ca else None
    return ManagementClient(arguments.grpc, timeout_s=_TIMEOUT_S, credentials=credentials)


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options --tls-ca, --tls-certificate and --tls-key of a client. Each value is a Path or None."""
    for name, what in (
        ("ca", "certificate authority of the switch (PEM): it is asked with TLS"),
        ("certificate", "certificate to be known by to the switch (PEM), with --tls-key"),
        ("key", "key of this certificate (PEM)"),
    ):
        parser.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=what)


def build_parser(prog: str = "hopsum switch-ctl") -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog=prog, description="Look at a running embedded switch.")
    parser.add_argument(
        "--grpc",
        default=default_address(),
        metavar="ADDRESS",
        help="address where the switch listens (default %(default)s)",
    )
    add_tls_arguments(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("ports", help="show ports with their counters, as JSON")
    commands.add_parser("stats", help="show the counts of the whole switch, as JSON")
    snapshot = commands.add_parser("snapshot", help="take all registers and counters at one moment between packets")
    snapshot.add_argument(
        "--name",
        action="append",
        default=[],
        help="register or counter by its full name or its last part, in place of all; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(prog="python -m hopsum_switch.management_command"))
