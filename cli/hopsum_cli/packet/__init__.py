# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet`: one packet by hand, and captures as rounds.

command   the words: send, decode                     fields    key=value arguments to a packet
exchange  one packet to a switch, and its answers     layers    a packet as text and as JSON
capture   files of frames to hopsum headers           rounds    headers to generations, slots and rounds
report    tables for people, values for programs
"""

from __future__ import annotations

from hopsum_cli.packet.command import build_parser, main

__all__ = ["build_parser", "main"]
