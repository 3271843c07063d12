# SPDX-License-Identifier: Apache-2.0
"""A UDP transport with peers to repair from: a link to the switch, a worker, and a side channel to the others.

The caller's thread runs `step`; the channel's thread answers peers, between all-reduces too; any thread may seal the
generation, resume in another one, offer a state or fetch one. One lock keeps them apart in the worker; nobody waits for
the network with it. What `step` has on its way out when the generation is sealed is as if it had been sent before.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import HopsumError
from hopsum.notice import WaitMonitor
from hopsum.protocol.peer_messages import STATE_KINDS, PeerKind, PeerMessage
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.state_transfer import STATE_BYTES_MAX, StateFetch, StateOffers
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Timing, Worker
from hopsum.transport.link import DatagramLink
from hopsum.transport.side_channel import GenerationKey, SideChannel, SideStatistics
from hopsum.transport.udp import UdpTransport
from hopsum_wire.generations import Resume, Sealed

_log: Final = logging.getLogger(__name__)
PEER_POLL_S: Final = 0.005
"""The seconds for which a link that cannot be woken is polled while an answer of a peer would help as well."""
LEAVE_EVERY_S: Final = 0.1
LINGER_SHORT_S: Final = 0.5
_ANSWERS: Final = (PeerKind.FOUND, PeerKind.GONE, PeerKind.DONE, PeerKind.LEAVE)
"""The messages that may let the caller's thread go on."""


class StateMovedError(HopsumError):
    """Others were replaced while a newcomer waited for a state: perhaps only theirs is offered now. Ask for that."""


class RepairingTransport(UdpTransport):
    """One worker on one socket, with peers. It raises what `UdpTransport` does, and FellBehindError.

    Args:
        local, switch, generation, rank, workers, slots, rack, timing, link: as for `UdpTransport`.
        channel: of the same rank and generation, not started yet; closed with the transport.
        peers: (IPv4 address, TCP port) of every rank's channel.
        policy: when peers are asked, and how much is kept for them.
        linger_s: how long `close` serves peers that have not said to need nothing more.
        resume: of a newcomer, how the job's stream stands.

    Raises:
        OSError: the socket cannot be opened at `local`.
        ValueError: rank, workers or slots are out of range, a rank has no address among `peers`, or `resume` does not
            fit the slots.
    """

    def __init__(
        self,
        local: tuple[str, int],
        switch: tuple[str, int],
        channel: SideChannel,
        peers: Mapping[int, tuple[str, int]],
        *,
        generation: int,
        rank: int,
        workers: int,
        slots: int,
        timing: Timing | None = None,
        link: DatagramLink | None = None,
        policy: RepairPolicy | None = None,
        linger_s: float = 10.0,
        resume: Resume | None = None,
        rack: tuple[int, ...] | None = None,
    ) -> None:
        _require_all(peers, workers, rank)
        super().__init__(
            local,
            switch,
            generation=generation,
            rank=rank,
            workers=workers,
            slots=slots,
            timing=timing,
            link=link,
            rack=rack,
        )
        self.worker = Worker(self.worker.membership, timing, repair=policy or RepairPolicy(), resume=resume)
        self._others = [other for other in range(workers) if other != rank]
        self._offers = StateOffers(rank)
        self._fetch: StateFetch | None = None
        self._channel, self._linger_s = channel, linger_s
        self._closed = False
        self._fetches_over = False
        self._changed = threading.Condition()
        channel.start({other: peers[other] for other in self._others}, self._hear)

    @property
    def side_statistics(self) -> SideStatistics:
        """Counts so far towards the peers, live."""
        return self._channel.statistics

    def submit(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> int:
        """Append an all-reduce to the stream and return its handle, as `UdpTransport.submit`."""
        with self._changed:
            return super().submit(op, payloads, counts)

    def step(self, wait_s: float) -> list[AllReduceDone | AllReduceFailed]:
        """Send what is to be sent, wait for something to happen, for `wait_s` at most; return events.

        Raises:
            HopsumError: the side channel has ended; its cause is attached.
        """
        worker = self.worker
        with self._changed:
            batches = worker.segments_to_send(time.monotonic())
            self._say()
            timer = worker.get_timer()
            polls = worker.waits_for_peers and not self.can_wake
        self._send(batches)
        due_s = 0.0 if timer is None else timer - time.monotonic()
        arrived = self._receive(min(wait_s, due_s, PEER_POLL_S) if polls else min(wait_s, due_s))
        self._require_channel()
        with self._changed:
            self._hand_over(arrived, time.monotonic())
            self._say()
        events = []
        while (event := worker.next_event()) is not None:
            events.append(event)
        return events

    def probe(self) -> None:
        """Have the switch asked, as `UdpTransport.probe`."""
        with self._changed:
            super().probe()

    def do_without(self, generation: int, ranks: Sequence[int]) -> None:
        """Keep nothing for workers that were given up while this generation goes on, if it is still ours. Any thread.
        """
        with self._changed:
            if self.worker.repair is not None and self.worker.membership.generation == generation:
                self.worker.repair.do_without(ranks)
                self.worker.handle_timer(time.monotonic())  # what was held back for them may begin
                self._changed.notify_all()
        self.wake()

    def seal(self) -> Sealed:
        """Send nothing and accept nothing more of this generation, as `Worker.seal`; peers are answered as before."""
        with self._changed:
            return self.worker.seal()

    def resume(
        self,
        generation: int,
        peers: Mapping[int, tuple[str, int]],
        resume: Resume,
        rack: tuple[int, ...] | None = None,
        *,
        key: bytes,
    ) -> None:
        """Go on in another generation, as `Worker.resume`, with peers where they live now, and the generation's key.

        Raises:
            ValueError: as `Worker.resume`, a rank has no address among `peers`, or `key` is none. Nothing was changed.
        """
        own, generation_key = self.worker.membership, GenerationKey(generation, key)
        _require_all(peers, own.workers, own.rank)
        with self._changed:
            self.worker.resume(generation, resume, time.monotonic(), rack)
            self._channel.move(generation_key, {other: peers[other] for other in self._others})
            self._say()
            self._changed.notify_all()
        self.wake()

    def go_on(self, start_generation: int, start: int) -> None:
        """Take the program's word that the newcomers of a generation have its state, as `Worker.go_on`."""
        with self._changed:
            self.worker.go_on(start_generation, start)
            self._say()

    def offer_state(self, state: bytes, start_generation: int, newcomers: Mapping[int, int]) -> None:
        """Have the program's state ready for the newcomers of a generation, until they have taken it.

        Args:
            state: kept, not copied.
            newcomers: by rank, the generation in which it began, for all that may have no state yet.
        """
        digest = hashlib.sha256(state).digest()
        with self._changed:
            self._offers.offer(state, digest, start_generation, newcomers)

    def fetch_state(self, start_generation: int, wait_s: float, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Return the state that a worker offers to the newcomers of a generation; wait for it up to `wait_s`.

        Raises:
            HopsumError: it is not here in time, it is longer than `bytes_max`, the transport was closed, `end_fetch`
                was called, or its side channel has ended.
            StateMovedError: there are newcomers of a later generation.
        """
        until, rank = time.monotonic() + wait_s, self.worker.membership.rank
        with self._changed:
            new = self.worker.join_point.newcomers(start_generation)
            able = [other for other in self._others if other not in new] or self._others
            if not able:
                raise HopsumError(f"rank {rank} is alone in its job: nobody has a state for it")
            self._fetch = fetch = StateFetch(rank, start_generation, able, bytes_max)
            waiting = WaitMonitor(_log, f"rank {rank}")
            try:
                while fetch.state is None:
                    now = time.monotonic()
                    self._require_fetching(fetch, wait_s, until - now)
                    waiting.check(lambda: f"the state of rank {fetch.source} or another one: {fetch}", until - now)
                    self._send_messages(fetch.asks(self.worker.membership.generation, now))
                    self._changed.wait(min(fetch.due, until) - now)
            finally:
                self._fetch = None
            waiting.over("has the state")
            self._send_messages(fetch.taken(self.worker.membership.generation, self._others))
            return fetch.state

    def end_fetch(self) -> None:
        """Let nobody wait for a state any more: this worker is of no use for one. Any thread; for good."""
        with self._changed:
            self._fetches_over = True
            self._changed.notify_all()

    def close(self, *, linger: bool = True) -> None:
        """Serve peers until they need nothing more, `linger_s` at most; then close link and channel.

        Without `linger` they are hardly waited for: they need nothing of a generation that is over, but may not know
        yet.
        Neither are they by a worker that never sent anything: it holds nothing that they could need.
        """
        if self._closed:
            return
        self._closed = True
        patience_s = self._linger_s if linger and self.worker.statistics.updates else LINGER_SHORT_S
        repair, until = self.worker.repair, time.monotonic() + patience_s
        waiting = WaitMonitor(_log, f"rank {self.worker.membership.rank}")
        with self._changed:
            self._changed.notify_all()
            while repair is not None and self._channel.failure is None:
                repair.leave(finished=linger)
                self._say()
                if repair.everybody_left or time.monotonic() >= until:
                    break
                waiting.check(lambda: "the others to say that they need nothing more of it", until - time.monotonic())
                self._changed.wait(min(LEAVE_EVERY_S, self._linger_s))
        self._channel.close()
        super().close()

    def _hear(self, message: PeerMessage) -> None:
        """Take one message, in the channel's thread."""
        with self._changed:
            if message.kind in STATE_KINDS:
                self._hear_of_state(message)
            else:
                self.worker.receive_peer(message, time.monotonic())
                self._say()
            self._changed.notify_all()
        if message.kind in _ANSWERS:
            self.wake()

    def _hear_of_state(self, message: PeerMessage) -> None:
        if message.kind in (PeerKind.STATE_PIECE, PeerKind.STATE_NONE):
            if self._fetch is not None:
                self._fetch.take(message, time.monotonic())
            return
        answer = self._offers.answer(message, self.worker.membership.generation)
        if answer is not None:
            self._channel.send(message.sender, answer)

    def _require_fetching(self, fetch: StateFetch, wait_s: float, left_s: float) -> None:
        """Raise HopsumError where waiting for a state is no use."""
        rank = self.worker.membership.rank
        if self._closed:
            raise HopsumError(f"rank {rank} was closed while it waited for the state of another worker")
        if self._fetches_over:
            raise HopsumError(f"rank {rank} waits for no state any more: it has failed")
        self._require_channel()
        if fetch.too_large is not None:
            sender, size = fetch.too_large
            raise HopsumError(
                f"the state that rank {sender} has for rank {rank} is {size} bytes long, more than bytes_max: make "
                "it smaller, or call fetch_state(bytes_max=...)"
            )
        if self.worker.join_point.generation > fetch.start_generation:
            raise StateMovedError(
                f"rank {rank} waits for a state of generation {fetch.start_generation}, and others began since"
            )
        if left_s <= 0:
            raise HopsumError(
                f"rank {rank} has not got the state of another worker within {wait_s:.3g} s: {fetch}. The others offer "
                "it once their programs have gone on; check that they do, and ask again"
            )

    def _require_channel(self) -> None:
        """Raise HopsumError if the side channel has ended."""
        failure, rank = self._channel.failure, self.worker.membership.rank
        if failure is not None:
            raise HopsumError(f"the side channel of rank {rank} has ended: {failure}") from failure

    def _say(self) -> None:
        self._send_messages(self.worker.messages_to_peers())

    def _send_messages(self, messages: Iterable[tuple[int, PeerMessage]]) -> None:
        for rank, message in messages:
            self._channel.send(rank, message)


def _require_all(peers: Mapping[int, tuple[str, int]], workers: int, rank: int) -> None:
    """Raise ValueError unless every other rank has an address."""
    if missing := sorted(set(range(workers)) - {rank} - set(peers)):
        raise ValueError(f"no side channel address for ranks {missing} of {workers} workers")
