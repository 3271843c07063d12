# SPDX-License-Identifier: Apache-2.0
"""The kernel's UDP offloads: UDP_SEGMENT cuts one send into datagrams, UDP_GRO hands over many datagrams at once.

The datagrams on the wire are the same with and without.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence
from functools import cache
from typing import Final, Literal, NamedTuple

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SEGMENTS_MAX: Final = 64
"""Datagrams of one send: what every kernel with UDP_SEGMENT takes."""
GSO_BYTES_MAX: Final = 65507
"""Payload of one send: 65535 less the headers of IPv4 and UDP."""
ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4)
REFUSES_SEGMENTS: Final = frozenset((errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP))
"""No checksum offload on the way, an MTU below the datagram, or a kernel with other limits."""

Gso = Literal["auto", "on", "off"]
"""The use of both: as far as the kernel and the path to the switch allow, in any case, or not at all."""
GSO: Final = ("auto", "on", "off")


class Offload(NamedTuple):
    """The offloads that a socket uses."""

    segment: bool
    gro: bool


PLAIN: Final = Offload(segment=False, gro=False)


def offload_for(gso: Gso) -> Offload:
    """Return the offloads of a socket. Raises ValueError: no such word; OSError: "on", and the kernel has none."""
    if gso not in GSO:
        raise ValueError(f"gso={gso!r}: one of {', '.join(GSO)}")
    if gso == "off":
        return PLAIN
    found = probe_offload()
    if gso == "on" and not found.segment:
        raise OSError(errno.EOPNOTSUPP, "gso='on', but this kernel has no UDP_SEGMENT; gso='auto' does without")
    return found


@cache
def probe_offload() -> Offload:
    """Find out this kernel's offloads on loopback, by sending two datagrams at once."""
    # Kept: a running kernel does not change.
    with udp_socket() as receiver, udp_socket() as sender:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(1.0)
        gro = set_option(receiver, UDP_GRO, 1)
        sender.connect(receiver.getsockname())
        if not set_option(sender, UDP_SEGMENT, 8):
            return Offload(False, gro)
        try:
            sender.send(bytes(16))
            first = receiver.recvmsg(64, ANCILLARY_BYTES)
        except OSError:  # refused, or nothing came
            return Offload(False, gro)
        return Offload(True, gro and (len(first[0]) != 16 or datagram_bytes(first[1], 16) == 8))


def segments_per_send(size: int) -> int:
    """Return the number of datagrams of `size` bytes that one send with UDP_SEGMENT takes."""
    return max(1, min(SEGMENTS_MAX, GSO_BYTES_MAX // max(size, 1)))


def udp_socket() -> socket.socket:
    """Return a new UDP socket."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def set_option(sock: socket.socket, option: int, value: int) -> bool:
    """Set an option of SOL_UDP; return whether the kernel took it."""
    try:
        sock.setsockopt(SOL_UDP, option, value)
    except OSError:
        return False
    return True


def datagram_bytes(ancillary: Sequence[tuple[int, int, bytes]], received: int) -> int:
    """Return the size at which to cut a received buffer. The kernel tells none for a datagram that came alone."""
    for level, kind, data in ancillary:
        if level == SOL_UDP and kind == UDP_GRO and len(data) >= 4:
            return int(struct.unpack("=i", data[:4])[0]) or received
    return received
