# SPDX-License-Identifier: Apache-2.0
"""`hopsum shell`: p4runtime-shell on a switch that is running."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hopsum_base.units import whole
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.shell_prompt import SHELL_ELECTION_ID, open_shell
from hopsum_controlplane.switch_tls import SwitchTls
from hopsum_switch.grpc_address import default_address
from hopsum_switch.management_command import add_tls_arguments


def _election_id(text: str) -> tuple[int, int]:
    high, _, low = text.partition(",")
    return int(high), int(low)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum shell",
        description="Open p4runtime-shell on a running switch, native or bmv2. Nothing is pushed unless asked.",
    )
    parser.add_argument(
        "address",
        nargs="?",
        default=default_address(),
        help="address of the switch's P4Runtime server, HOST:PORT or unix:PATH (default %(default)s)",
    )
    parser.add_argument(
        "--device-id",
        type=whole(0, (1 << 64) - 1),
        default=0,
        help="P4Runtime device id of the switch (default %(default)s)",
    )
    parser.add_argument(
        "--election-id",
        type=_election_id,
        default=SHELL_ELECTION_ID,
        metavar="HIGH,LOW",
        help="election id: only the highest on the switch may write (default %(default)s: look only)",
    )
    parser.add_argument(
        "--push",
        nargs=2,
        type=Path,
        metavar=("JSON", "P4INFO"),
        help="install this program first; that removes everything from the switch",
    )
    add_tls_arguments(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Open the prompt, and return when it is left: 0, or 1 with a printed reason when there is no session."""
    options = build_parser().parse_args(arguments)
    try:
        open_shell(
            options.address,
            options.device_id,
            election_id=options.election_id,
            pipeline=tuple(options.push) if options.push else None,
            tls=SwitchTls(options.tls_ca, options.tls_certificate, options.tls_key) if options.tls_ca else None,
        )
    except ControlPlaneError as error:
        print(f"hopsum shell: {error}", file=sys.stderr)
        return 1
    return 0
