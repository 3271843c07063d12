# SPDX-License-Identifier: Apache-2.0
"""A UDP transport with peers to repair from: a link to the switch, a worker, and a side channel to the others.

The caller's thread runs `step`; the channel's thread answers peers, between all-reduces too. One lock keeps them apart
in the worker; nobody waits for the network with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import AllReduceDone, AllReduceGone, Timing, Worker
from hopsum.transport.link import Link
from hopsum.transport.side_channel import SideChannel, SideStatistics
from hopsum.transport.udp import UdpTransport

PEER_POLL_S: Final = 0.005
"""How long a link that cannot be woken is listened to while an answer of a peer would help as well."""
LEAVE_EVERY_S: Final = 0.1
HASTE_S: Final = 0.5
_ANSWERS: Final = (PeerKind.FOUND, PeerKind.GONE, PeerKind.DONE, PeerKind.LEAVE)
"""What may let the caller's thread go on."""


class RepairingTransport(UdpTransport):
    """One worker on one socket, with peers. It raises what `UdpTransport` does, and Expelled.

    Args:
        local, switch, epoch, rank, workers, slots, timing, link: as for `UdpTransport`.
        channel: of the same rank and epoch, not started yet; closed with the transport.
        peers: (IPv4 address, TCP port) of every rank's channel.
        policy: when peers are asked, and how much is kept for them.
        farewell_s: how long `close` serves peers that have not said to need nothing more.

    Raises:
        OSError: the socket cannot be opened at `local`.
        ValueError: rank, workers or slots are out of range, or a rank has no address among `peers`.
    """

    def __init__(
        self,
        local: tuple[str, int],
        switch: tuple[str, int],
        channel: SideChannel,
        peers: Mapping[int, tuple[str, int]],
        *,
        epoch: int,
        rank: int,
        workers: int,
        slots: int,
        timing: Timing | None = None,
        link: Link | None = None,
        policy: RepairPolicy | None = None,
        farewell_s: float = 10.0,
    ) -> None:
        others = {other for other in range(workers) if other != rank}
        if missing := sorted(others - set(peers)):
            raise ValueError(f"no side channel address for ranks {missing} of {workers} workers")
        super().__init__(local, switch, epoch=epoch, rank=rank, workers=workers, slots=slots, timing=timing, link=link)
        self.worker = Worker(self.worker.membership, timing, repair=policy or RepairPolicy())
        self._channel, self._farewell_s = channel, farewell_s
        self._closed = False
        self._changed = threading.Condition()
        channel.start({other: peers[other] for other in others}, self._hear)

    @property
    def side_statistics(self) -> SideStatistics:
        """Counts so far towards the peers, live."""
        return self._channel.statistics

    def submit(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> int:
        """Append an all-reduce to the stream and return its handle, as `UdpTransport.submit`."""
        with self._changed:
            return super().submit(op, payloads, counts)

    def step(self, wait_s: float) -> list[AllReduceDone | AllReduceGone]:
        """Send what is to be sent, wait for something to happen, for `wait_s` at most; return events.

        Raises:
            HopsumError: the side channel has ended; its cause is attached.
        """
        worker, unreachable = self.worker, self._link.statistics.unreachable
        with self._changed:
            trains = worker.trains_to_send(time.monotonic())
            self._say()
            timer = worker.get_timer()
            polls = worker.waits_for_peers and not self.can_wake
        self._send(trains)
        due_s = 0.0 if timer is None else timer - time.monotonic()
        arrived = self._receive(min(wait_s, due_s, PEER_POLL_S) if polls else min(wait_s, due_s))
        if self._channel.failure is not None:
            raise HopsumError(
                f"the side channel of rank {worker.membership.rank} has ended: {self._channel.failure}"
            ) from self._channel.failure
        with self._changed:
            self._hand_over(arrived, unreachable, time.monotonic())
            self._say()
        events = []
        while (event := worker.next_event()) is not None:
            events.append(event)
        return events

    def close(self, *, farewell: bool = True) -> None:
        """Serve peers until they need nothing more, `farewell_s` at most; then close link and channel.

        Without `farewell` they are hardly waited for: they need nothing of an epoch that is over, but may not know yet.
        """
        if self._closed:
            return
        self._closed = True
        repair, until = self.worker.repair, time.monotonic() + (self._farewell_s if farewell else HASTE_S)
        with self._changed:
            while repair is not None and self._channel.failure is None:
                repair.leave()
                self._say()
                if repair.everybody_left or time.monotonic() >= until:
                    break
                self._changed.wait(min(LEAVE_EVERY_S, self._farewell_s))
        self._channel.close()
        super().close()

    def _hear(self, message: PeerMessage) -> None:
        """Take one message, in the channel's thread."""
        with self._changed:
            self.worker.receive_peer(message, time.monotonic())
            self._say()
            self._changed.notify_all()
        if message.kind in _ANSWERS:
            self.wake()

    def _say(self) -> None:
        for rank, message in self.worker.messages_to_peers():
            self._channel.send(rank, message)
