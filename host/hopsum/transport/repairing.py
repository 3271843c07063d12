# SPDX-License-Identifier: Apache-2.0
"""Blocking all-reduce with peers to repair from: a link to the switch, a worker, and a side channel to the others.

The caller's thread runs `allreduce`; the channel's thread answers peers, between all-reduces too. One lock keeps them
apart in the worker; nobody waits for the network with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import PeerMessage
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import AllReduceDone, Membership, Timing, Worker
from hopsum.transport.link import Link
from hopsum.transport.side_channel import SideChannel, SideStatistics
from hopsum.transport.udp import TransportStatistics

PEER_POLL_S: Final = 0.005
"""How long the switch alone is listened to while an answer of a peer would help as well."""
LEAVE_EVERY_S: Final = 0.1


class RepairingTransport:
    """One worker on a link, with peers. One all-reduce at a time.

    Args:
        membership: this worker's part in the job.
        link: to the switch; closed with the transport.
        channel: of the same rank and epoch, not started yet; closed with the transport.
        peers: (IPv4 address, TCP port) of every rank's channel.
        timing: also when to FLUSH.
        policy: when peers are asked, and how much is kept for them.
        farewell_s: how long `close` serves peers that have not said to need nothing more.

    Raises:
        ValueError: a rank of the job has no address among `peers`. Link and channel are as they were.
    """

    def __init__(
        self,
        membership: Membership,
        link: Link,
        channel: SideChannel,
        peers: Mapping[int, tuple[str, int]],
        *,
        timing: Timing | None = None,
        policy: RepairPolicy | None = None,
        farewell_s: float = 10.0,
    ) -> None:
        others = {rank for rank in range(membership.workers) if rank != membership.rank}
        if missing := sorted(others - set(peers)):
            raise ValueError(f"no side channel address for ranks {missing} of {membership.workers} workers")
        self.worker = Worker(membership, timing, repair=policy or RepairPolicy())
        self._link, self._channel, self._farewell_s = link, channel, farewell_s
        self._closed = False
        self._changed = threading.Condition()
        channel.start({rank: peers[rank] for rank in others}, self._hear)

    @property
    def statistics(self) -> TransportStatistics:
        """Counts so far towards the switch, live."""
        return TransportStatistics(self._link.statistics, self.worker.statistics)

    @property
    def side_statistics(self) -> SideStatistics:
        """Counts so far towards the peers, live."""
        return self._channel.statistics

    def allreduce(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> AllReduceDone:
        """Sum chunks over the workers; blocks until every result is here or the deadline passes.

        All ranks make the same calls in the same order.

        Args:
            op: what the switch does with the payloads.
            payloads: uint8[chunks, up_bytes(op)].
            counts: [chunks] or a scalar, elements in use.

        Raises:
            NoAnswer: no result by the deadline; the message says what was sent and what came back.
            Expelled: this rank is further behind than its peers keep results: it must resynchronise.
            EpochOver: an earlier all-reduce failed, or the epoch's rounds are used up.
                After these three, continue in a new epoch with a new transport.
            WireError: unknown op or payloads of another shape; nothing was sent.
            HopsumError: the side channel has ended; its cause is attached.
        """
        with self._changed:
            handle = self.worker.submit(op, payloads, now=time.monotonic(), counts=counts)
        while True:
            self._step()
            with self._changed:
                while (event := self.worker.next_event()) is not None:
                    if event.handle != handle:
                        continue
                    if isinstance(event, AllReduceDone):
                        return event
                    raise event.error

    def close(self) -> None:
        """Serve peers until they need nothing more, `farewell_s` at most; then close link and channel."""
        if self._closed:
            return
        self._closed = True
        repair, until = self.worker.repair, time.monotonic() + self._farewell_s
        with self._changed:
            while repair is not None and self._channel.failure is None:
                repair.leave()
                self._say()
                if repair.everybody_left or time.monotonic() >= until:
                    break
                self._changed.wait(min(LEAVE_EVERY_S, self._farewell_s))
        self._channel.close()
        self._link.close()

    def __enter__(self) -> RepairingTransport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self) -> None:
        """Send, wait for one thing to happen, and hand it to the worker."""
        worker, unreachable = self.worker, self._link.statistics.unreachable
        with self._changed:
            datagrams = worker.datagrams_to_send(time.monotonic())
            self._say()
            timer, waits_for_peers = worker.get_timer(), worker.waits_for_peers
        for datagram in datagrams:
            self._link.send(datagram)
        wait_s = 0.0 if timer is None else max(0.0, timer - time.monotonic())
        received = self._link.receive(min(wait_s, PEER_POLL_S) if waits_for_peers else wait_s)
        if self._channel.failure is not None:
            raise HopsumError(
                f"the side channel of rank {worker.membership.rank} has ended: {self._channel.failure}"
            ) from self._channel.failure
        with self._changed:
            now = time.monotonic()
            for each in received:
                worker.receive_datagram(each, now)
            for _ in range(self._link.statistics.unreachable - unreachable):
                worker.note_unreachable()
            worker.handle_timer(now)
            self._say()

    def _hear(self, message: PeerMessage) -> None:
        """Take one message, in the channel's thread."""
        with self._changed:
            self.worker.receive_peer(message, time.monotonic())
            self._say()
            self._changed.notify_all()

    def _say(self) -> None:
        for rank, message in self.worker.messages_to_peers():
            self._channel.send(rank, message)
