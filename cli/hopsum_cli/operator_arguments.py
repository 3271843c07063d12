# SPDX-License-Identifier: Apache-2.0
"""Options of every command that asks a controller as its operator. What is left out comes from `hopsum_cli.context`.

Needs no gRPC, unlike `operator`, which asks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hopsum_cli.context import DEFAULT_CONTROLLER, variable


def add_operator_arguments(parser: argparse.ArgumentParser, *, administrator: bool = True) -> None:
    """Add --controller, --admin-token-file and the options of TLS to a parser. An option that is left out is None.

    Without `administrator` the command has no --admin-token-file.
    """
    group = parser.add_argument_group(
        "controller", "Options left out come from the environment, then from [context] of ~/.config/hopsum/config.toml."
    )
    group.add_argument(
        "--controller",
        metavar="HOST:PORT",
        help=f"address of the controller, or unix:PATH ({variable('controller')}; default {DEFAULT_CONTROLLER})",
    )
    if administrator:
        group.add_argument(
            "--admin-token-file",
            type=Path,
            metavar="PATH",
            help=f"file with the administrator's token ({variable('admin_token_file')})",
        )
    else:
        parser.set_defaults(admin_token_file=None)
    group.add_argument(
        "--ca-file",
        metavar="PATH",
        help=f"CA certificate (PEM) to verify the controller; enables TLS ({variable('ca_file')})",
    )
    group.add_argument(
        "--certificate-file",
        metavar="PATH",
        help=f"client certificate (PEM), where the controller requires one ({variable('certificate_file')})",
    )
    group.add_argument(
        "--key-file", metavar="PATH", help=f"private key (PEM) of the client certificate ({variable('key_file')})"
    )
    group.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help=f"use TLS ({variable('tls')}; default: on with a TLS file or a controller on another machine)",
    )
