# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology`: networks on this machine.

command   the words: list, show, run
drawing   a network in the terminal and as SVG
run       a network from its start to its end, with a command on every worker
workers   which commands, in which environment; what they say
stops     signals as exceptions
"""

from __future__ import annotations

from hopsum_cli.topology.command import build_parser, main

__all__ = ["build_parser", "main"]
