# SPDX-License-Identifier: Apache-2.0
"""One worker of a soak: a worker's whole transport on a UDP socket, compiled loop included. It has no peers."""

from __future__ import annotations

from hopsum.protocol.worker import AllReduceDone, Membership, Timing
from hopsum.transport.shard import Shard
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink


class Member:
    """A worker's transport and link, and the all-reduces that are done."""

    def __init__(self, rank: int, switch: tuple[str, int]) -> None:
        self.rank = rank
        self.link = UdpLink(("127.0.0.1", 0), switch)
        self.done: dict[int, AllReduceDone] = {}
        """By number of the all-reduce, from 0."""

    def join(self, membership: Membership, timing: Timing) -> None:
        """Begin a generation."""
        shard = Shard(self.link, membership, timing)
        self.transport, self.worker = Transport([shard]), shard.worker

    @property
    def address(self) -> tuple[str, int]:
        """IPv4 address and UDP port."""
        return self.link.local

    @property
    def sent(self) -> int:
        """Datagrams that the link has sent."""
        return self.link.statistics.datagrams_sent

    @property
    def received(self) -> int:
        """Datagrams that the link has received."""
        return self.link.statistics.datagrams_received

    def fileno(self) -> int:
        """Return the link's descriptor, so that select takes a member."""
        return self.link.fileno()

    def turn(self) -> int:
        """Take one step, without waiting; return how many datagrams came."""
        before = self.received
        for event in self.transport.step(0.0):
            assert isinstance(event, AllReduceDone), f"rank {self.rank}: {event.error}"
            self.done[event.handle - 1] = event
        return self.received - before

    def receive(self) -> list[bytes]:
        """Return datagrams that have come."""
        return [bytes(datagram) for datagram in self.link.receive(0.0)]
