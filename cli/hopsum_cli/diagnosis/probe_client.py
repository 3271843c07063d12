# SPDX-License-Identifier: Apache-2.0
"""PROBEs to a switch, from an address that it admits, and the STATEs that come back. Nothing else is ever sent.

A switch knows a worker by its source address and port. Where they are free a socket of our own has them. Where the
worker's own socket has them, root can send from there nevertheless (a raw socket) and sees copies of what comes back.
The worker gets the STATEs as well, and forgets what it has not asked for.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from hopsum.transport.offload import IP_MTU, SOL_UDP, UDP_SEGMENT
from hopsum.transport.scapy_link import split_segments
from hopsum_wire import Header, Kind, WireError, split_datagram
from hopsum_wire.membership import Endpoint

Place = tuple[int, int]
"""Slot and round."""
PENDING_MAX: Final = 32
"""PROBEs under way at a time: less than the queue of any switch."""
_TRIES: Final = 3
_RECEIVE_BUFFER_BYTES: Final = 4 << 20
# linux/in.h
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO, _IP_RECVERR = 10, 2, 11
_UDP: Final = struct.Struct("!HHHH")
_UNREACHABLE: Final = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN))


class ProbeSource(NamedTuple):
    """The source of PROBEs: a rank of a generation, at its address."""

    rank: int
    generation: int
    local: Endpoint


class UdpProbeTransport:
    """Moves datagrams between a source and a switch, by a socket at the source's address.

    Raises OSError when it cannot be had.
    """

    how = ""
    """The way of the datagrams in words, empty for the plain one."""

    def __init__(self, local: Endpoint, switch: Endpoint) -> None:
        self._ports = local.udp_port, switch.udp_port
        self.socket = self._open()
        try:
            self.socket.bind(local.address)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            # Never fragment: a probe that is too large shall tell the path's MTU.
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)  # all that ICMP says, "host unreachable" too
            self.socket.connect(switch.address)
        except OSError:
            self.socket.close()
            raise

    def send(self, datagram: bytes) -> None:
        """Send one datagram. Raises OSError."""
        self.socket.send(datagram)

    def receive(self) -> Sequence[bytes | memoryview]:
        """Wait for a datagram from the switch, and return it in a list.

        Raises TimeoutError after the socket's timeout, and OSError.
        """
        return [self.socket.recv(65535)]

    def _open(self) -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class RawProbeTransport(UdpProbeTransport):
    """A raw socket with the address and port of a running worker. Raises PermissionError unless root (CAP_NET_RAW)."""

    how = "by a raw socket while the worker runs"

    def send(self, datagram: bytes) -> None:
        """Send one datagram, with UDP checksum 0, "none". Raises OSError."""
        own, switch = self._ports
        # The kernel makes the IPv4 header of a raw UDP socket, not the UDP header.
        self.socket.send(_UDP.pack(own, switch, _UDP.size + len(datagram), 0) + datagram)

    def receive(self) -> Sequence[memoryview]:
        """Wait for a packet, and return its datagrams: none if the packet is not from the switch to the worker's port.

        Datagrams that the kernel has joined are split. Raises TimeoutError after the socket's timeout, and OSError.
        """
        packet = memoryview(self.socket.recv(65535))
        # A raw socket receives with the IPv4 header, whose length is its lower four bits times 4.
        udp = packet[(packet[0] & 15) * 4 :]
        if len(udp) < _UDP.size:
            return []
        source, destination, length, _ = _UDP.unpack_from(udp)
        return split_segments(udp[_UDP.size : length]) if (destination, source) == self._ports else []

    def _open(self) -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)


def open_probe_client(source: ProbeSource, switch: Endpoint) -> tuple[ProbeClient | None, str]:
    """Return a client with the source's address, by a raw socket if a UDP socket fails, and an empty text.

    If both sockets fail, the client is None, and the text has the UDP socket's error.
    """
    refusal = ""
    for way in (UdpProbeTransport, RawProbeTransport):
        try:
            return ProbeClient(source, way(source.local, switch)), ""
        except OSError as error:
            refusal = refusal or f"no probe can be sent from UDP {source.local}: {error.strerror}"
    return None, refusal


class ProbeClient:
    """Sends PROBEs to one switch, and collects the replies.

    Attributes:
        unreachable: number of errors that the network has reported so far, by errno. Routers report few of them.
    """

    def __init__(self, source: ProbeSource, transport: UdpProbeTransport) -> None:
        self.source = source
        self.transport = transport
        self.unreachable: dict[int, int] = {}

    def ask(self, places: Sequence[Place], *, wait_s: float) -> dict[Place, Header]:
        """Send PROBEs for slots and rounds, up to three times for each without an answer, and return the STATEs.

        PENDING_MAX places are asked at a time, within `wait_s` seconds. After a first handful without any answer no
        more are asked. The answers are of any generation. Errors that the network reports are counted in `unreachable`.

        Raises:
            OSError: nothing can be sent at all, for example because of a firewall of this host.
        """
        answers: dict[Place, Header] = {}
        for first in range(0, len(places), PENDING_MAX):
            # One handful at a time, so that the questions themselves overflow no queue.
            handful = places[first : first + PENDING_MAX]
            for _ in range(_TRIES):
                missing = [place for place in handful if place not in answers]
                if missing:
                    answers |= self._once(missing, wait_s / _TRIES)
            if not answers:  # nobody is there: do not wait for the rest
                break
        return answers

    def ask_together(self, places: Sequence[Place], *, wait_s: float) -> int:
        """Send PROBEs for all places by one send that the kernel cuts into datagrams (UDP_SEGMENT).

        Return the number of places with an answer within `wait_s` seconds. Raises OSError: the kernel refuses it.
        """
        probes = [self._probe(place) for place in places]
        cut = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(probes[0])))]
        return len(self._collect(places, wait_s, lambda: self.transport.socket.sendmsg(probes, cut)))

    def path_mtu(self, datagram_bytes: int, wait_s: float) -> int:
        """Send a PROBE padded to this size, wait `wait_s` seconds, and return the path's MTU in bytes.

        The kernel learns the MTU from ICMP. The switch drops the PROBE and counts it. Answers to other PROBEs are lost.

        Raises:
            OSError: nothing can be sent at all.
        """
        probe = self._probe((0, 1))
        self._send(probe + bytes(datagram_bytes - len(probe)))
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            self._receive(left_s)
        return self.transport.socket.getsockopt(socket.IPPROTO_IP, IP_MTU)

    def close(self) -> None:
        """Close the transport's socket."""
        self.transport.socket.close()

    def _once(self, places: Sequence[Place], wait_s: float) -> dict[Place, Header]:
        def send() -> None:
            for place in places:
                self._send(self._probe(place))

        return self._collect(places, wait_s, send)

    def _collect(self, places: Sequence[Place], wait_s: float, send: Callable[[], object]) -> dict[Place, Header]:
        """Send PROBEs, and return the answers about their places."""
        answers: dict[Place, Header] = {}
        send()
        until = time.monotonic() + wait_s
        while len(answers) < len(places) and (left_s := until - time.monotonic()) > 0:
            for header in self._receive(left_s):
                place = header.slot, header.round
                if place in places:
                    answers.setdefault(place, header)
        return answers

    def _probe(self, place: Place) -> bytes:
        slot, round_ = place
        source = self.source
        return Header(kind=Kind.PROBE, worker=source.rank, generation=source.generation, slot=slot, round=round_).pack()

    def _send(self, datagram: bytes) -> None:
        try:
            self.transport.send(datagram)
        except OSError as error:  # perhaps the ICMP answer to an earlier one, or a datagram above the path's MTU
            if error.errno not in (*_UNREACHABLE, errno.EMSGSIZE):
                raise
            self._note(error)

    def _receive(self, wait_s: float) -> list[Header]:
        """Wait for something to come. Return the headers of STATEs to the source."""
        self.transport.socket.settimeout(wait_s)
        try:
            datagrams = self.transport.receive()
        except TimeoutError:
            return []
        except OSError as error:
            self._note(error)
            return []
        finally:
            self.transport.socket.settimeout(None)
        headers = []
        for datagram in datagrams:
            with suppress(WireError):
                header, _ = split_datagram(datagram)
                if header.kind == Kind.STATE and header.worker == self.source.rank:
                    headers.append(header)
        return headers

    def _note(self, error: OSError) -> None:
        code = error.errno or 0
        self.unreachable[code] = self.unreachable.get(code, 0) + 1
