# SPDX-License-Identifier: Apache-2.0
"""IPv4/UDP frames one at a time: the headers that are put on, and the checks before they are taken off.

`udp` does the same for many frames at once and must agree.
"""

from __future__ import annotations

import socket
import struct

ETHERTYPE_IPV4 = 0x0800
PROTO_UDP = 17
ETHERNET_BYTES = 14
IPV4_BYTES = 20
UDP_BYTES = 8
HEADERS_BYTES = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
MORE_OR_OFFSET = 0x3FFF  # "more fragments" and the fragment offset
FIRST_UNICAST, END_UNICAST = 0x01000000, 0xE0000000  # IPv4 addresses of single hosts
_TTL = 64
_DONT_FRAGMENT = 0x4000
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")


class FrameError(Exception):
    """A frame cannot leave through a UDP socket. `reason` is the counter's name."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def mac(number: int, *, peer: bool) -> bytes:
    """Return the fixed MAC address of the switch's side, or the peer's, of port `number`: 02:00:00:hh:0s:pp."""
    return bytes((0x02, 0, 0, number >> 8, int(peer), number & 0xFF))


def headers(source: tuple[bytes, int], destination: tuple[bytes, int], payload_bytes: int) -> bytes:
    """Return the IPv4 and UDP headers of a datagram between two (4 bytes of address, UDP port).

    The UDP checksum is 0, "none" (RFC 768): a datagram from a socket has been verified by the kernel.
    """
    udp_bytes = UDP_BYTES + payload_bytes
    fields = (0x45, 0, IPV4_BYTES + udp_bytes, 0, _DONT_FRAGMENT, _TTL, PROTO_UDP)
    addresses = (source[0], destination[0])
    ipv4 = _IPV4.pack(*fields, checksum(_IPV4.pack(*fields, 0, *addresses)), *addresses)
    return ipv4 + _UDP.pack(source[1], destination[1], udp_bytes, 0)


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of `data`. It is 0 for data that includes its own correct checksum."""
    if len(data) % 2:
        data += b"\0"
    # A sum with end-around carry is a remainder mod 2^16 - 1, with 0xffff in place of 0 unless all is zero.
    value = int.from_bytes(data, "big")
    return 0xFFFF ^ (value % 0xFFFF or (0xFFFF if value else 0))


def strip(frame: bytes) -> tuple[bytes, tuple[str, int]]:
    """Return the UDP payload of a frame and its destination (dotted IPv4 address, UDP port).

    Raises FrameError: the frame cannot leave. Its `reason` is the counter to add to.
    """
    if len(frame) < ETHERNET_BYTES:
        raise FrameError("truncated")
    if int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4:
        raise FrameError("not_ipv4")
    # The order of the tests is that of `udp` and `udp_kernel`: the first fault names the counter.
    packet = frame[ETHERNET_BYTES:]
    if len(packet) < IPV4_BYTES:
        raise FrameError("truncated")
    version, _, total, _, fragment, _, protocol, _, source, destination = _IPV4.unpack_from(packet)
    header_bytes = (version & 15) * 4
    if version >> 4 != 4 or header_bytes < IPV4_BYTES:
        raise FrameError("not_ipv4")
    if protocol != PROTO_UDP:
        raise FrameError("not_udp")
    if total > len(packet) or total < header_bytes + UDP_BYTES:
        raise FrameError("truncated")
    if checksum(packet[:header_bytes]):
        raise FrameError("bad_checksum")
    if fragment & MORE_OR_OFFSET:
        raise FrameError("fragment")
    return _strip_udp(packet[header_bytes:total], source, destination)


def is_unicast(address: int) -> bool:
    """Return whether a single host can have an IPv4 address, given as a number."""
    # 0.0.0.0/8 is "this network", 224.0.0.0/3 is multicast, reserved and broadcast
    return FIRST_UNICAST <= address < END_UNICAST


def _strip_udp(datagram: bytes, source: bytes, destination: bytes) -> tuple[bytes, tuple[str, int]]:
    _, port, udp_bytes, udp_checksum = _UDP.unpack_from(datagram)
    if not UDP_BYTES <= udp_bytes <= len(datagram):
        raise FrameError("truncated")
    # Bytes after the datagram, such as Ethernet padding, belong to nobody.
    datagram = datagram[:udp_bytes]
    pseudo = source + destination + struct.pack("!HH", PROTO_UDP, udp_bytes)
    if udp_checksum and checksum(pseudo + datagram):
        raise FrameError("bad_checksum")
    if port == 0 or not is_unicast(int.from_bytes(destination, "big")):
        raise FrameError("bad_destination")
    return datagram[UDP_BYTES:], (socket.inet_ntoa(destination), port)
