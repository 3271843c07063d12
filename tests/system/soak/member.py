# SPDX-License-Identifier: Apache-2.0
"""One worker of a soak: the project's own, on a UDP socket, and what it may get from its peers.

`Member` has the worker alone, and sends and receives one datagram at a time. `TransportMember` has what an agent has.

With a quorum below the number of workers a slot can move on before everybody has its RESULT. A worker that is told so
(STALE about a round that it lacks) asks its peers; here that is a look into their hands. The RESULT that one of them
got is given to the worker as if it had come from the switch.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from hopsum.protocol.worker import AllReduceDone, Membership, Timing, Worker
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_wire import Kind

RECEIVE_BUFFER_BYTES = 4 << 20
DATAGRAM_BYTES_MAX = 2048
DATAGRAMS_PER_TURN = 64
_KIND_AT, _RANK_AT, _SLOT_AT = 1, 4, 6
_SLOT_GENERATION_ROUND = struct.Struct("!HII")

Place = tuple[int, int]
"""Slot and round."""


class Member:
    """A worker, its socket, and the RESULTs that its peers may still ask for."""

    def __init__(self, rank: int, switch: tuple[str, int]) -> None:
        self.rank = rank
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.connect(switch)
        self.socket.setblocking(False)
        self.sent = self.received = self.asked = 0
        self.kept: dict[Place, bytes] = {}
        """RESULTs by place, until everybody has them."""
        self.done: dict[int, AllReduceDone] = {}
        """By number of the all-reduce, from 0."""
        self._is_settled: Callable[[Place], bool] = lambda place: False

    def join(self, membership: Membership, timing: Timing, is_settled: Callable[[Place], bool]) -> None:
        """Begin a generation; `is_settled` says whether everybody has the RESULT of a place."""
        self.worker = Worker(membership, timing)
        self._is_settled = is_settled

    @property
    def address(self) -> tuple[str, int]:
        """IPv4 address and UDP port."""
        host, port = self.socket.getsockname()
        return host, port

    def fileno(self) -> int:
        """Return the socket's descriptor, so that select takes a member."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def turn(self, now: float, peers: list[Member]) -> int:
        """Send what is to be sent, take what has come; return how many datagrams came."""
        self.worker.handle_timer(now)
        for datagram in self.worker.datagrams_to_send(now):
            self.socket.send(datagram)
            self.sent += 1
        arrived = self.receive()
        for datagram in arrived:
            self._take(datagram, now, peers)
        while (event := self.worker.next_event()) is not None:
            assert isinstance(event, AllReduceDone), f"rank {self.rank}: {event.error}"
            self.done[event.handle - 1] = event
        return len(arrived)

    def receive(self) -> list[bytes]:
        """Return datagrams that have come."""
        arrived: list[bytes] = []
        try:
            while len(arrived) < DATAGRAMS_PER_TURN:
                arrived.append(self.socket.recv(DATAGRAM_BYTES_MAX))
        except BlockingIOError:
            pass
        self.received += len(arrived)
        return arrived

    def _take(self, datagram: bytes, now: float, peers: list[Member]) -> None:
        slot, generation, round_ = _SLOT_GENERATION_ROUND.unpack_from(datagram, _SLOT_AT)
        place = (slot, round_)
        if generation == self.worker.membership.generation:  # else of the job before this one: the worker ignores it
            if datagram[_KIND_AT] == Kind.STALE:
                datagram = self._ask(place, peers, datagram)
            if datagram[_KIND_AT] == Kind.RESULT and not self._is_settled(place):
                self.kept.setdefault(place, datagram)
        self.worker.receive_datagram(datagram, now)

    def _ask(self, place: Place, peers: list[Member], stale: bytes) -> bytes:
        """Return a peer's RESULT, or the STALE if it is about a round that this worker does not lack."""
        if place in self.kept or self._is_settled(place):
            return stale
        self.asked += 1
        found = [peer.kept[place] for peer in peers if place in peer.kept]
        assert found, f"rank {self.rank} lacks {place} (slot, round), the switch has moved on, and no peer has it"
        return found[0][:_RANK_AT] + self.rank.to_bytes(2, "big") + found[0][_RANK_AT + 2 :]


class TransportMember(Member):
    """A member with the worker's whole transport on its socket, compiled loop included. It has no peers."""

    def __init__(self, rank: int, switch: tuple[str, int]) -> None:
        self.rank = rank
        self.link = UdpLink(("127.0.0.1", 0), switch)
        self.sent = self.received = self.asked = 0
        self.kept, self.done = {}, {}

    def join(self, membership: Membership, timing: Timing, is_settled: Callable[[Place], bool]) -> None:
        """Begin a generation."""
        self.transport = Transport(self.link, membership, timing)
        self.worker = self.transport.worker

    @property
    def address(self) -> tuple[str, int]:
        """IPv4 address and UDP port."""
        return self.link.local

    def fileno(self) -> int:
        """Return the link's descriptor."""
        return self.link.fileno()

    def turn(self, now: float, peers: list[Member]) -> int:
        """Take one step, without waiting; return how many datagrams came."""
        before = self.received
        for event in self.transport.step(0.0):
            assert isinstance(event, AllReduceDone), f"rank {self.rank}: {event.error}"
            self.done[event.handle - 1] = event
        self._count()
        return self.received - before

    def receive(self) -> list[bytes]:
        """Return datagrams that have come."""
        arrived = [bytes(datagram) for datagram in self.link.receive(0.0)]
        self._count()
        return arrived

    def close(self) -> None:
        """Close the socket."""
        self.link.close()

    def _count(self) -> None:
        self.sent, self.received = self.link.statistics.datagrams_sent, self.link.statistics.datagrams_received
