# SPDX-License-Identifier: Apache-2.0
"""A packet socket on one interface: the kernel's filter, the interface, the port, and the datagrams of a GSO buffer."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from hopsum_wire import HOPSUM_BYTES, Header
from hopsum_wire._layout import ETHERTYPE_ARP, ETHERTYPE_IPV4, PROTO_ICMP, PROTO_UDP

# linux/sockios.h, linux/if_arp.h
_SIOCGIFMTU, _SIOCGIFHWADDR = 0x8921, 0x8927
_ARPHRD_ETHER: Final = 1
_SO_ATTACH_FILTER: Final = 26
_INSTRUCTION: Final = struct.Struct("=HBBI")
# linux/bpf_common.h: load 32, 16, 8 bits from a fixed place; jump if equal, if bits are set; return
_WORD, _HALF, _BYTE, _EQUAL, _ANY, _RETURN = 0x20, 0x28, 0x30, 0x15, 0x45, 0x06
_TAKE: Final = 0xFFFFFFFF
ICMP_UNREACHABLE: Final = 3
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
    own_ip, switch_ip, hop_ip = (ip_number(ip) for ip in (own[0], switch[0], hop))
    return [
        # Offsets in an Ethernet frame: 12 type, 14 IPv4 header, 20 fragment, 23 protocol, 26 and 30 addresses, 34 and
        # 36 UDP ports.
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
        _Step(_EQUAL, ICMP_UNREACHABLE, "take", "drop"),
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
    # The kernel copies the program during setsockopt, so the buffer has to live only until then.
    held = ctypes.create_string_buffer(program, len(program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(held)))


def ip_number(ip: str) -> int:
    """Return an IPv4 address as the number that a filter compares."""
    return int.from_bytes(socket.inet_aton(ip), "big")


def inspect_interface(sock: socket.socket, interface: str) -> tuple[int, int]:
    """Return MAC and MTU of an Ethernet interface. Raises OSError."""
    request = struct.pack("16s24x", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(sock, _SIOCGIFHWADDR, request)
        (mtu_bytes,) = struct.unpack_from("=i", fcntl.ioctl(sock, _SIOCGIFMTU, request), 16)
    except OSError as error:
        known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        raise OSError(
            error.errno, f"no interface {interface!r} in this network namespace; there are: {known}"
        ) from None
    (kind,) = struct.unpack_from("=H", answer, 16)
    if kind != _ARPHRD_ETHER:
        raise OSError(errno.EINVAL, f"interface {interface} is not Ethernet (its hardware type is {kind}): use file://")
    return int.from_bytes(answer[18:24], "big"), int(mtu_bytes)


def hold_port(local: tuple[str, int], switch: tuple[str, int]) -> socket.socket | None:
    """Return a socket that keeps the port and takes nothing; None if the address is none of this host's."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        # The socket must bind the port so that nobody else gets it, and take no datagram that the packet socket shall
        # have.
        attach(holder, NOTHING)
        holder.bind(local)
        with suppress(OSError):  # the kernel need not know a way there
            holder.connect(switch)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return holder


def split_segments(buffer: memoryview) -> list[memoryview]:
    """Return the datagrams of a GSO buffer, views into it.

    All segments but the last have the same size (UDP_SEGMENT and UDP_GRO make them so), and the header of the first
    one holds that size. A buffer that holds no whole hopsum packet stays in one piece, for its receiver to refuse.
    """
    if len(buffer) <= HOPSUM_BYTES:
        return [buffer]
    each = HOPSUM_BYTES + Header.unpack(buffer).length
    return [buffer[at : at + each] for at in range(0, len(buffer), each)]
