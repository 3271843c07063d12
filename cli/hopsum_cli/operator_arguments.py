# SPDX-License-Identifier: Apache-2.0
"""What every command that asks a controller as its operator has: where it is, how it is known, who asks.

Needs no gRPC, unlike `operator`, which asks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_CONTROLLER = "127.0.0.1:4700"


def add_operator_arguments(parser: argparse.ArgumentParser, controller: str | None = DEFAULT_CONTROLLER) -> None:
    """Add --controller, --admin-token-file and what TLS takes to a parser."""
    shown = f" (default {controller})" if controller else ""
    parser.add_argument(
        "--controller", default=controller, metavar="HOST:PORT", help=f"the controller's service, or unix:PATH{shown}"
    )
    parser.add_argument(
        "--admin-token-file", type=Path, metavar="PATH", help="the administrator's token, where the controller asks"
    )
    parser.add_argument(
        "--ca-file", default="", metavar="PATH", help="PEM of who certified the controller; TLS is used then"
    )
    parser.add_argument(
        "--certificate-file", default="", metavar="PATH", help="PEM to be known by, where the controller asks"
    )
    parser.add_argument("--key-file", default="", metavar="PATH", help="PEM of its key")
    parser.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help="or not; left out: where there is a file for it, or the controller is on another machine",
    )
