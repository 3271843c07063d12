# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet`: one packet by hand, and captures as rounds.

packet_exchange   key=value arguments to a packet, one packet to a switch, and its answers
captured_rounds   files of frames to generations, slots and rounds
packet_command    the words send and decode: tables for people, values for programs
"""

from __future__ import annotations

from hopsum_cli.packet.packet_command import build_parser, main

__all__ = ["build_parser", "main"]
