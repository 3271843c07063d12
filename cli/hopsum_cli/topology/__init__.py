# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology`: networks on this machine.

topology_command   the words: list, show, run
drawing            a network in words
run                a network from its start to its end, with a command on every worker
own_program        the same with a P4 program and a control command of the user
worker_commands    commands of workers, their environments and their output
uplinks            frames that went up and down the links between switches
"""

from __future__ import annotations

from hopsum_cli.topology.topology_command import build_parser, main

__all__ = ["build_parser", "main"]
