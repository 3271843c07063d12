# SPDX-License-Identifier: Apache-2.0
"""Whole Ethernet/IPv4/UDP frames around hopsum packets: one, or stamped by the thousand from a template.

Frames carry no IPv4 options, identification 0, "do not fragment" and UDP checksum 0 ("none" in IPv4), in both
directions, so that all frames of one op differ in the hopsum header and payload only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum_wire._layout import (
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_IPV4,
    HOPSUM_BYTES,
    HOPSUM_UDP_PORT,
    IPV4_BYTES,
    IPV4_FIELDS,
    PROTO_UDP,
    REPLY_TTL,
    UDP_BYTES,
    UDP_FIELDS,
    Drop,
)
from hopsum_wire.datagrams import stamp_datagrams
from hopsum_wire.errors import WireError
from hopsum_wire.fields import pack_fields
from hopsum_wire.header import Header

IPV4_DO_NOT_FRAGMENT: Final = 2
FRAME_OVERHEAD_BYTES: Final = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + HOPSUM_BYTES
"""Everything in front of the payload."""


@dataclass(frozen=True, slots=True)
class FramePath:
    """Source and destination of a frame: MACs of 48 bits, IPv4 addresses of 32 bits, UDP ports."""

    src_mac: int
    dst_mac: int
    src_ip: int
    dst_ip: int
    src_port: int
    dst_port: int = HOPSUM_UDP_PORT


def ipv4_checksum(header: bytes) -> int:
    """Return the ones' complement checksum of an IPv4 header, or 0 over a header whose checksum is right."""
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def build_frame(path: FramePath, header: Header, payload: bytes = b"") -> bytes:
    """Return one frame with right lengths and IPv4 checksum.

    Raises:
        WireError: `header.length` is not the payload's (BAD_LENGTH), or a value does not fit (BAD_VALUE).
    """
    if header.length != len(payload):
        raise WireError(Drop.BAD_LENGTH, f"header says {header.length} payload bytes, there are {len(payload)}")
    datagram = header.pack() + payload
    return lower_headers(path, len(datagram)) + datagram


def lower_headers(path: FramePath, datagram_bytes: int) -> bytes:
    """Return the Ethernet, IPv4 and UDP headers, 42 bytes, in front of a datagram of this size, whatever is in it.

    Raises:
        WireError: a value does not fit, with reason BAD_VALUE.
    """
    udp = {"src_port": path.src_port, "dst_port": path.dst_port, "length": UDP_BYTES + datagram_bytes}
    ipv4 = {
        "version": 4,
        "ihl": IPV4_BYTES // 4,
        "total_length": IPV4_BYTES + UDP_BYTES + datagram_bytes,
        "flags": IPV4_DO_NOT_FRAGMENT,
        "ttl": REPLY_TTL,
        "protocol": PROTO_UDP,
        "src": path.src_ip,
        "dst": path.dst_ip,
    }
    ethernet = {"dst": path.dst_mac, "src": path.src_mac, "ethertype": ETHERTYPE_IPV4}
    return pack_fields(ETHERNET_FIELDS, ethernet) + _ipv4_bytes(ipv4) + pack_fields(UDP_FIELDS, udp)


def _ipv4_bytes(values: Mapping[str, int]) -> bytes:
    checksum = ipv4_checksum(pack_fields(IPV4_FIELDS, values))
    return pack_fields(IPV4_FIELDS, {**values, "checksum": checksum})


def stamp_frames(
    path: FramePath,
    template: Header,
    *,
    slots: ArrayLike,
    rounds: ArrayLike,
    counts: ArrayLike,
    payloads: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """Return one UPDATE frame a row: uint8[n, 74 + template.length], new and contiguous.

    Arguments and Raises as for `hopsum_wire.datagrams.stamp_datagrams`.
    """
    # All frames have one size, so they share the 42 bytes in front: lengths and IPv4 checksum are equal.
    datagrams = stamp_datagrams(template, slots=slots, rounds=rounds, counts=counts, payloads=payloads)
    lower = np.frombuffer(lower_headers(path, datagrams.shape[1]), np.uint8)
    return np.concatenate((np.broadcast_to(lower, (len(datagrams), len(lower))), datagrams), axis=1)
