# SPDX-License-Identifier: Apache-2.0
"""Linux's UDP offloads: UDP_SEGMENT cuts one send into datagrams, UDP_GRO returns many datagrams from one receive.

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
IP_MTU: Final = 14
"""Of linux/in.h: the MTU of the path to a connected address, as far as Linux knows."""
SEGMENTS_MAX: Final = 64
"""Datagrams of one send: every Linux with UDP_SEGMENT takes so many."""
GSO_BYTES_MAX: Final = 65507
"""Payload of one send: 65535 less the headers of IPv4 and UDP."""
ANCILLARY_BYTES: Final = 24
"""Room for one control message of a number: CMSG_SPACE(4), which Windows does not have."""
REFUSES_SEGMENTS: Final = frozenset((errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP))
"""The errnos of a refused send: no checksum offload on the path, an MTU below the datagram, or other limits."""

Gso = Literal["auto", "on", "off"]
"""The use of both: as far as the kernel and the path to the switch allow, in any case, or not at all."""
GSO: Final = ("auto", "on", "off")


class Offload(NamedTuple):
    """The offloads that a socket uses: UDP_SEGMENT for sends (`segment`), and UDP_GRO for receives (`gro`)."""

    segment: bool
    gro: bool


PLAIN: Final = Offload(segment=False, gro=False)


def offload_for(gso: Gso) -> Offload:
    """Return the offloads for a new socket, by a choice. Changes no socket.

    "off": none. "auto": those of `probe_offload`. "on": the same. Raises OSError for "on" if Linux lacks UDP_SEGMENT,
    and ValueError for another word.
    """
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
    """Return the offloads of this Linux, found once by two datagrams in one send on loopback, then cached."""
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
    """Return the most datagrams of `size` bytes for one send with UDP_SEGMENT, at least 1."""
    return max(1, min(SEGMENTS_MAX, GSO_BYTES_MAX // max(size, 1)))


def udp_socket() -> socket.socket:
    """Return a new UDP socket for IPv4, not bound."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def mtu_towards(own_ip: str, place: tuple[str, int]) -> int:
    """Return the MTU in bytes that Linux uses towards an address: the interface's, the route's, or a learnt one.

    Nothing is sent. Raises OSError for an `own_ip` of another host, or without a route.
    """
    with udp_socket() as asked:
        asked.bind((own_ip, 0))
        asked.connect(place)
        return asked.getsockopt(socket.IPPROTO_IP, IP_MTU)


def set_option(sock: socket.socket, option: int, value: int) -> bool:
    """Set an option of SOL_UDP. Return whether Linux accepted it."""
    try:
        sock.setsockopt(SOL_UDP, option, value)
    except OSError:
        return False
    return True


def datagram_bytes(ancillary: Sequence[tuple[int, int, bytes]], received: int) -> int:
    """Return the size of each datagram in a received buffer, `received` for a datagram that came alone.

    Args:
        ancillary: the control messages of the receive.
        received: the bytes in the buffer.
    """
    for level, kind, data in ancillary:
        if level == SOL_UDP and kind == UDP_GRO and len(data) >= 4:
            return int(struct.unpack("=i", data[:4])[0]) or received
    return received
