# SPDX-License-Identifier: Apache-2.0
"""The kernel's filter of a packet socket (classic BPF): a worker does not wake up for the frames of others."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Final, NamedTuple

from hopsum_wire._layout import ETHERTYPE_ARP, ETHERTYPE_IPV4, PROTO_ICMP, PROTO_UDP

_SO_ATTACH_FILTER: Final = 26
_INSTRUCTION: Final = struct.Struct("=HBBI")
# linux/bpf_common.h: load 32, 16, 8 bits from a fixed place; jump if equal, if bits are set; return
_WORD, _HALF, _BYTE, _EQUAL, _ANY, _RETURN = 0x20, 0x28, 0x30, 0x15, 0x45, 0x06
_TAKE: Final = 0xFFFFFFFF
_ICMP_UNREACHABLE: Final = 3
_PLAIN_IPV4: Final = 0x45
"""Version 4, no options."""
_FRAGMENT: Final = 0x3FFF
"""More fragments, or an offset."""


class _Step(NamedTuple):
    """An instruction, its label, and the labels that a jump goes to ("": the next one)."""

    code: int
    value: int
    yes: str = ""
    no: str = ""
    label: str = ""


def frames_for(own: tuple[str, int], switch: tuple[str, int], hop: str) -> list[_Step]:
    """Return a filter for one worker.

    It lets through: UDP from the switch to the worker, ICMP "unreachable" to its address, ARP about its address or from
    the next hop.
    """
    own_ip, switch_ip, hop_ip = (_number(ip) for ip in (own[0], switch[0], hop))
    return [
        _Step(_HALF, 12),
        _Step(_EQUAL, ETHERTYPE_ARP, "arp"),
        _Step(_EQUAL, ETHERTYPE_IPV4, no="drop"),
        _Step(_BYTE, 14),
        _Step(_EQUAL, _PLAIN_IPV4, no="drop"),
        _Step(_HALF, 20),
        _Step(_ANY, _FRAGMENT, "drop"),
        _Step(_WORD, 30),
        _Step(_EQUAL, own_ip, no="drop"),
        _Step(_BYTE, 23),
        _Step(_EQUAL, PROTO_ICMP, "icmp"),
        _Step(_EQUAL, PROTO_UDP, no="drop"),
        _Step(_WORD, 26),
        _Step(_EQUAL, switch_ip, no="drop"),
        _Step(_HALF, 34),
        _Step(_EQUAL, switch[1], no="drop"),
        _Step(_HALF, 36),
        _Step(_EQUAL, own[1], "take", "drop"),
        _Step(_BYTE, 34, label="icmp"),
        _Step(_EQUAL, _ICMP_UNREACHABLE, "take", "drop"),
        _Step(_WORD, 38, label="arp"),
        _Step(_EQUAL, own_ip, "take"),
        _Step(_WORD, 28),
        _Step(_EQUAL, hop_ip, "take", "drop"),
        _Step(_RETURN, 0, label="drop"),
        _Step(_RETURN, _TAKE, label="take"),
    ]


NOTHING: Final = [_Step(_RETURN, 0)]


def attach(sock: socket.socket, steps: list[_Step]) -> None:
    """Let a socket receive only what a filter lets through. Raises OSError when the kernel refuses it."""
    at = {step.label: number for number, step in enumerate(steps) if step.label}
    program = b"".join(
        _INSTRUCTION.pack(
            step.code, *(at[target] - number - 1 if target else 0 for target in (step.yes, step.no)), step.value
        )
        for number, step in enumerate(steps)
    )
    held = ctypes.create_string_buffer(program, len(program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(held)))


def _number(ip: str) -> int:
    return int.from_bytes(socket.inet_aton(ip), "big")
