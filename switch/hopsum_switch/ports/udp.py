# SPDX-License-Identifier: Apache-2.0
"""Ports over UDP sockets: the kernel's IP stack is the wire, the headers are made up and taken off here.

In: a datagram from peer P becomes Ethernet/IPv4/UDP from P's real address and UDP port to the bound
address (or to the address given as `as=`), with right lengths and checksums and fixed MACs per port. Out:
an IPv4/UDP frame is checked as its receiver would, stripped, and sent from the port's socket to the IP
address and UDP port it names. Any other frame is dropped and counted:

  not_ipv4, not_udp, fragment    what a UDP socket cannot send
  truncated                      the frame ends before its headers or lengths say
  bad_checksum                   IPv4 header, or a UDP checksum that is not 0
  bad_destination                address or UDP port that no single host can have
  queue_full, send_error         the kernel took no more, or refused
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from typing import Any, NamedTuple

from hopsum_switch.ports.base import RECEIVE_BATCH, PortCounters, PortError, check_port_number

ETHERTYPE_IPV4 = 0x0800
PROTO_UDP = 17
_TTL = 64
_DONT_FRAGMENT = 0x4000
_MORE_OR_OFFSET = 0x3FFF  # "more fragments" and the fragment offset
_ETHERNET_BYTES = 14
_IPV4_BYTES = 20
_UDP_BYTES = 8
_MAX_DATAGRAM_BYTES = 65535
_RECEIVE_BUFFER_BYTES = 4 << 20
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")


class UdpAddress(NamedTuple):
    """An IPv4 address in dotted form and a UDP port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


class UdpPort:
    """A port over one UDP socket; any number of peers may send to it."""

    def __init__(self, sock: socket.socket, number: int, shown_as: UdpAddress | None = None) -> None:
        """Take over `sock`, bound to one local address, as switch port `number`."""
        self.counters = PortCounters()
        sock.setblocking(False)
        self._sock = sock
        self.address = UdpAddress(*sock.getsockname())
        self.shown_as = shown_as or self.address
        self._ethernet = mac(number, peer=False) + mac(number, peer=True) + struct.pack("!H", ETHERTYPE_IPV4)
        self._destination = socket.inet_aton(self.shown_as.ip)

    @classmethod
    def bind(cls, number: int, address: UdpAddress, shown_as: UdpAddress | None = None) -> UdpPort:
        """Open switch port `number` on a local address (UDP port 0: any free one).

        Raises PortError: the address cannot stand in a frame or cannot be bound; the message says what to
        give.
        """
        check_port_number(number)
        _check_bound(number, address, shown_as)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            sock.bind(address)
        except OSError as error:
            sock.close()
            raise PortError(f"switch port {number}: cannot bind UDP {address}: {error.strerror}") from error
        return cls(sock, number, shown_as)

    def fileno(self) -> int | None:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def receive(self) -> list[bytes]:
        """Return waiting datagrams as frames."""
        frames: list[bytes] = []
        while len(frames) < RECEIVE_BATCH:
            try:
                payload, peer = self._sock.recvfrom(_MAX_DATAGRAM_BYTES)
            except OSError:  # nothing waits
                break
            frame = self._frame(payload, peer)
            self.counters.count_received(frame)
            frames.append(frame)
        return frames

    def send(self, frame: bytes) -> None:
        """Strip one frame and send its UDP payload to the address it names."""
        try:
            payload, peer = strip(frame)
        except FrameError as error:
            self.counters.dropped[error.reason] += 1
            return
        try:
            self._sock.sendto(payload, peer)
        except OSError as error:
            full = isinstance(error, BlockingIOError) or error.errno == errno.ENOBUFS
            self.counters.dropped["queue_full" if full else "send_error"] += 1
        else:
            self.counters.count_sent(frame)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def describe(self) -> dict[str, Any]:
        """Return kind, bound address and the address that frames carry."""
        return {"kind": "udp", "address": str(self.address), "as": str(self.shown_as)}

    def _frame(self, payload: bytes, peer: tuple[str, int]) -> bytes:
        return self._ethernet + ipv4_udp(
            socket.inet_aton(peer[0]), self._destination, peer[1], self.shown_as.port, payload
        )


class FrameError(Exception):
    """A frame that a UDP socket cannot send; `reason` is the counter's name."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def mac(number: int, *, peer: bool) -> bytes:
    """Return the fixed MAC address of a port's switch side or peer side: 02:00:00:hh:0s:pp."""
    return bytes((0x02, 0, 0, number >> 8, int(peer), number & 0xFF))


def ipv4_udp(source: bytes, destination: bytes, source_port: int, destination_port: int, payload: bytes) -> bytes:
    """Return an IPv4/UDP packet with right lengths and checksums. Addresses are 4 bytes."""
    udp_bytes = _UDP_BYTES + len(payload)
    pseudo = source + destination + struct.pack("!HH", PROTO_UDP, udp_bytes)
    udp = _UDP.pack(source_port, destination_port, udp_bytes, 0)
    # 0 means "no checksum" on the wire, so a computed 0 travels as its other form (RFC 768)
    udp = _UDP.pack(source_port, destination_port, udp_bytes, checksum(pseudo + udp + payload) or 0xFFFF)
    fields = (0x45, 0, _IPV4_BYTES + udp_bytes, 0, _DONT_FRAGMENT, _TTL, PROTO_UDP)
    header = _IPV4.pack(*fields, checksum(_IPV4.pack(*fields, 0, source, destination)), source, destination)
    return header + udp + payload


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of `data`; over data that holds its own checksum it is 0."""
    if len(data) % 2:
        data += b"\0"
    # A sum with end-around carry is a remainder mod 2^16 - 1, with 0xffff in place of 0 unless all is zero.
    value = int.from_bytes(data, "big")
    return 0xFFFF ^ (value % 0xFFFF or (0xFFFF if value else 0))


def strip(frame: bytes) -> tuple[bytes, tuple[str, int]]:
    """Return the UDP payload of a frame and the address it goes to.

    Raises FrameError: drop the frame and count.
    """
    if len(frame) < _ETHERNET_BYTES:
        raise FrameError("truncated")
    if int.from_bytes(frame[12:14], "big") != ETHERTYPE_IPV4:
        raise FrameError("not_ipv4")
    packet = frame[_ETHERNET_BYTES:]
    if len(packet) < _IPV4_BYTES:
        raise FrameError("truncated")
    version, _, total, _, fragment, _, protocol, _, source, destination = _IPV4.unpack_from(packet)
    header_bytes = (version & 15) * 4
    if version >> 4 != 4 or header_bytes < _IPV4_BYTES:
        raise FrameError("not_ipv4")
    if protocol != PROTO_UDP:
        raise FrameError("not_udp")
    if total > len(packet) or total < header_bytes + _UDP_BYTES:
        raise FrameError("truncated")
    if checksum(packet[:header_bytes]):
        raise FrameError("bad_checksum")
    if fragment & _MORE_OR_OFFSET:
        raise FrameError("fragment")
    return _strip_udp(packet[header_bytes:total], source, destination)


def parse_udp_address(text: str) -> UdpAddress:
    """Read HOST:PORT. Raises PortError unless HOST is a dotted IPv4 address and PORT is 0..65535."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise PortError(f"{text!r} is not HOST:PORT with a UDP port 0..65535, as in 127.0.0.1:24677")
    try:
        return UdpAddress(str(ipaddress.IPv4Address(host)), int(port))
    except ValueError as error:
        raise PortError(
            f"{text!r}: {host!r} is not a dotted IPv4 address (names and IPv6 are not supported)"
        ) from error


def _strip_udp(datagram: bytes, source: bytes, destination: bytes) -> tuple[bytes, tuple[str, int]]:
    _, port, udp_bytes, udp_checksum = _UDP.unpack_from(datagram)
    if not _UDP_BYTES <= udp_bytes <= len(datagram):
        raise FrameError("truncated")
    datagram = datagram[:udp_bytes]
    pseudo = source + destination + struct.pack("!HH", PROTO_UDP, udp_bytes)
    if udp_checksum and checksum(pseudo + datagram):
        raise FrameError("bad_checksum")
    if port == 0 or not _is_unicast(ipaddress.IPv4Address(destination)):
        raise FrameError("bad_destination")
    return datagram[_UDP_BYTES:], (socket.inet_ntoa(destination), port)


def _is_unicast(address: ipaddress.IPv4Address) -> bool:
    # 0.0.0.0/8 is "this network", 224.0.0.0/3 is multicast, reserved and broadcast
    return 0x01000000 <= int(address) < 0xE0000000


def _check_bound(number: int, address: UdpAddress, shown_as: UdpAddress | None) -> None:
    bound = ipaddress.IPv4Address(address.ip)
    if bound.is_unspecified:
        if shown_as is None:
            raise PortError(
                f"switch port {number}: {address} stands for every local address, and a frame needs one:"
                f" bind one address, or add as=IP:UDPPORT"
            )
    elif not _is_unicast(bound):
        raise PortError(f"switch port {number}: {address} is not the address of one host: bind a local address")
    if shown_as is not None and (shown_as.port == 0 or not _is_unicast(ipaddress.IPv4Address(shown_as.ip))):
        raise PortError(
            f"switch port {number}: as={shown_as} cannot stand in a frame:"
            f" give one host's IPv4 address and a UDP port 1..65535"
        )
