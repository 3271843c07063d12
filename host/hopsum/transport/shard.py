# SPDX-License-Identifier: Apache-2.0
"""One worker's connection to one shard of its job: the link to the switch, the slot protocol, and the peers.

`Transport` drives the shards of a worker in one thread. With peers, a side channel's thread answers them, also between
all-reduces. Any thread may seal the generation, resume in another one, offer a state or fetch one. One lock protects
the worker from concurrent threads. Only the compiled loop waits for the network while it holds the lock: a thread that
wants the lock wakes the loop (step_lock.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.notice import WaitMonitor
from hopsum.protocol.peer_messages import STATE_KINDS, PeerKind, PeerMessage
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import Membership, Timing, Worker, WorkerStatistics
from hopsum.transport.link import DatagramLink, LinkStatistics
from hopsum.transport.own_address import OwnAddress
from hopsum.transport.side_channel import GenerationKey, SideChannel, SideStatistics
from hopsum.transport.state_exchange import StateExchange
from hopsum.transport.step_lock import StepLock
from hopsum.transport.udp_link import UdpLink
from hopsum_base.spare_arrays import spare_array
from hopsum_wire.generations import Resume, Sealed

_log: Final = logging.getLogger(__name__)
# A LEAVE may be lost with its connection, so it is repeated while `close` lingers. The interval doubles, because all
# ranks of a job send it to all others, for each shard.
LEAVE_AFTER_S: Final = 0.1
LINGER_SHORT_S: Final = 0.5
# Longer than a process waits for a processor, and shorter than deadlines.
TIMERS_WAIT_S: Final = 1.0
"""The longest time for which a stream of datagrams delays the worker's timers."""
_ANSWERS: Final = (PeerKind.FOUND, PeerKind.GONE, PeerKind.LEAVE)
"""The messages that may unblock the caller's thread."""


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """Counts of a worker's traffic: at the socket, of the slot protocol, and of the side channel."""

    link: LinkStatistics
    worker: WorkerStatistics
    side: SideStatistics
    """Of the side channel; all 0 without peers."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The other workers of a job, from which this worker fetches lost results.

    Args:
        channel: of this rank and generation, the same for all shards; closed with the last of them.
        addresses: (IPv4 address, TCP port) of every rank's channel.
        policy: of requests to peers, and of results kept for them.
        linger_s: seconds for which `close` serves peers that have not sent LEAVE.
        resume: for a newcomer, the state of the job's stream.
        shard: this shard's number in the job.
    """

    channel: SideChannel
    addresses: Mapping[int, tuple[str, int]]
    policy: RepairPolicy = field(default_factory=RepairPolicy)
    linger_s: float = 10.0
    resume: Resume | None = None
    shard: int = 0


class ShardContinuation(NamedTuple):
    """The next generation of a worker's stream at one shard. See `Shard.resume`."""

    peers: Mapping[int, tuple[str, int]]
    resume: Resume
    rack: tuple[int, ...] | None
    key: bytes
    absent: frozenset[int] = frozenset()


class Shard:
    """One worker's link, protocol and peers at one shard. Methods for any thread say so.

    Args:
        link: to the switch; closed with the shard.
        membership: of this worker.
        peers: without peers, a result that the switch no longer has ends the generation (ResultLostError).
        lock: of the same worker's other shards. None for its first shard.

    Raises:
        ValueError: a rank has no address among the peers, or `resume` does not fit the slots.
    """

    def __init__(
        self,
        link: DatagramLink,
        membership: Membership,
        timing: Timing | None = None,
        peers: Peers | None = None,
        lock: StepLock | None = None,
    ) -> None:
        self.link = link
        self._unreachable, self._failures = 0, Counter[str]()
        """The part of the link's counts that the worker has processed."""
        # Links that make frames do not depend on the host's addresses.
        who = f"rank {membership.rank}"
        self._own_address = OwnAddress(link.local[0], who) if isinstance(link, UdpLink) else None
        self.lock: Final = lock or StepLock(link.wake)
        """The lock of the worker, at all of its shards."""
        self._changed = threading.Condition(self.lock)  # type: ignore[arg-type]  # a lock of another class
        self._put_off_at: float | None = None
        """The time since which datagrams delay the worker's timers, None without a delay."""
        self._closed = False
        self._dones: dict[int, PeerMessage] = {}
        """The latest DONE of each rank that the worker has not processed yet."""
        self._waits = False
        """Whether a step waits for a message of a peer."""
        self._peers, self._linger_s = peers, 0.0
        self._side_statistics = SideStatistics() if peers is None else peers.channel.statistics
        if peers is None:
            self.worker = Worker(membership, timing, allocate=spare_array)
            return
        _require_all(peers.addresses, membership)
        self._linger_s = peers.linger_s
        self.worker = Worker(membership, timing, repair=peers.policy, resume=peers.resume, allocate=spare_array)
        repair = self.worker.repair
        self._states = StateExchange(self.worker, repair, peers.channel, self._changed)
        peers.channel.start({other: peers.addresses[other] for other in repair.peers}, self._on_message, peers.shard)

    @property
    def statistics(self) -> TransportStatistics:
        """Return the counts so far, live: the object's parts change with the traffic."""
        return TransportStatistics(self.link.statistics, self.worker.statistics, self._side_statistics)

    # ---- a step of the transport ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Exchange pending peer messages. The lock is held."""
        if self._peers is not None:
            # Set before the DONEs are popped, and read after `_on_message` has added one: so each DONE is popped here
            # or ends the wait.
            self._waits = self.worker.waits_for_peers
            self._pop_dones()
            self.flush_messages()

    def end_step(self) -> None:
        """Pass pending DONEs to the worker if no step is in progress, because the next step may be far away."""
        # Both threads call this: the channel's after it added a DONE, the other after it released the lock.
        while self._dones and self.lock.acquire(blocking=False):
            try:
                self._pop_dones()
            finally:
                self.lock.release()

    def send(self, batches: Sequence[NDArray[np.uint8]]) -> None:
        """Send batches of datagrams, uint8[n, bytes] each, in this order, or lose some of them."""
        for segments in batches:
            if isinstance(self.link, UdpLink):
                self.link.send_rows(segments)
            else:
                for datagram in segments:
                    self.link.send(memoryview(datagram))

    def hand_over(self, arrived: Sequence[bytes | memoryview], now: float, *, emptied: bool) -> None:
        """Pass datagrams, network errors and the time to the worker; send its peer messages. The lock is held."""
        link, worker = self.link, self.worker
        for received in arrived:
            worker.receive_datagram(received, now)
        said, counts = link.statistics, worker.statistics
        for _ in range(said.unreachable - self._unreachable):
            worker.note_unreachable(now)
        self._unreachable = said.unreachable
        if said.failures and said.failures != self._failures:
            for name in (said.failures - self._failures).elements():
                worker.watch.on_failed_send(name)
            self._failures = Counter(said.failures)
        own = self._own_address
        if own is not None and not worker.is_idle and own.is_found_gone(said.datagrams_received, now):
            worker.note_address_gone(own.ip, now)
        if isinstance(link, UdpLink):
            link.judge(counts.results - counts.repaired, counts.retransmits, worker.queue.in_flight, now)
        # After a wait for a processor, timers are due whose results are already in the socket: results go first. The
        # bound keeps a flood of datagrams from delaying deadlines for ever.
        if emptied or (self._put_off_at is not None and now - self._put_off_at >= TIMERS_WAIT_S):
            self._put_off_at = None
            worker.handle_timer(now)
        elif self._put_off_at is None:
            self._put_off_at = now
        if self._peers is not None:
            self.flush_messages()

    def flush_messages(self) -> None:
        """Send the worker's peer messages. The lock is held. Only with peers."""
        assert self._peers is not None
        channel, number = self._peers.channel, self._peers.shard
        # The worker does not know its shard's number.
        channel.send_all([(rank, said._replace(shard=number)) for rank, said in self.worker.messages_to_peers()])
        done = self.worker.done_for_peers()
        if done is not None:
            channel.broadcast(done._replace(shard=number))

    def require_open(self) -> None:
        """Raise HopsumError if the side channel has ended. The cause is attached."""
        if self._peers is not None:
            self._peers.channel.require_open()

    def probe(self) -> None:
        """Queue a PROBE for the missing ranks of the oldest open sum. The next step sends it. Any thread."""
        with self.lock:
            self.worker.probe()

    def wake(self) -> None:
        """End the wait of the current step at once, or else of the next one. Any thread, also after `close`."""
        self.link.wake()

    # ---- generations -------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """Send and accept nothing more in this generation, as `Worker.seal`; peers are still served. Any thread.

        Raises TypeError without peers, whose results the next generation needs.
        """
        self._with_peers()
        with self._changed:
            return self.worker.seal()

    def resume(self, generation: int, given: ShardContinuation) -> None:
        """Continue in another generation, as `Worker.resume`, with the generation's key and addresses. Any thread.

        Raises:
            TypeError: the shard has no peers.
            ValueError: as `Worker.resume`, or a peer has no address, or the key a wrong length. Nothing has changed.
        """
        channel, key, peers = self._with_peers().channel, GenerationKey(generation, given.key), given.peers
        _require_all(peers, replace(self.worker.membership, rack=given.rack, absent=given.absent))
        with self._changed:
            # Worker first: the channel then receives messages of the new generation.
            self.worker.resume(generation, given.resume, time.monotonic(), given.rack, given.absent)
            # The key changes with the generation, so an evicted worker cannot authenticate any more.
            channel.move(key, {other: peers[other] for other in _others_of(self.worker.membership)})
            self.flush_messages()
            self._changed.notify_all()
        self.wake()

    def resume_at(self, start_generation: int, start: int) -> None:
        """Note that the program knows of the newcomers of a generation, as `Worker.resume_at`. Any thread.

        Raises TypeError without peers.
        """
        self._with_peers()
        with self._changed:
            self.worker.resume_at(start_generation, start)
            self.flush_messages()

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        """Drop results kept for workers that were evicted from a generation. Ignore another generation. Any thread."""
        with self._changed:
            # The lease thread's call may come after a change of generation, or after `close`, which takes this lock
            # before it closes the link.
            if not self._closed and self.worker.membership.generation == generation:
                self.worker.repair.on_ranks_lost(ranks)
                self.worker.handle_timer(time.monotonic())  # an all-reduce that waited for their proof may begin
                self._changed.notify_all()
                self.wake()

    # ---- the program's state -----------------------------------------------------------------------------

    @property
    def states(self) -> StateExchange:
        """The exchange of the program's state with the other workers. Raises TypeError without peers."""
        self._with_peers()
        return self._states

    def end_fetch(self) -> None:
        """End every wait for another worker's program state, now and later, because this worker has failed. Any thread.

        `fetch` raises HopsumError then.
        """
        if self._peers is not None:
            self._states.end_fetch("waits for no state any more: it has failed")

    def close(self, *, linger: bool = True) -> None:
        """Serve peers until all have sent LEAVE, at most `linger_s`. Then close channel and link. May be called again.

        Without `linger` the wait is short, because peers need nothing of an ended generation, but may not know of its
        end yet. The wait is also short for a worker that never sent an UPDATE, because it holds no result.
        """
        if self._closed:
            return
        # First: a second `close` from another thread must not linger again.
        self._closed = True
        if self._peers is not None:
            self._states.end_fetch("was closed while it waited for the state of another worker")
            self._close_channel(self._peers.channel, linger=linger)
            self._peers.channel.close(self._peers.shard)
        self.link.close()

    # ---- messages ------------------------------------------------------------------------------------------

    def _on_message(self, message: PeerMessage) -> None:
        """Process one message, in the channel's thread."""
        if message.kind is PeerKind.DONE:
            self._on_done(message)
            return
        with self._changed:
            if message.kind in STATE_KINDS:
                self._states.on_message(message)
            else:
                self.worker.receive_peer(message, time.monotonic())
                self.flush_messages()
            self._changed.notify_all()
        if message.kind in _ANSWERS:
            self.wake()

    def _on_done(self, message: PeerMessage) -> None:
        """Queue a DONE, in the channel's thread. It only frees memory, so it need not end a wait for the network."""
        self._dones[message.sender] = message
        if self._waits:
            self.wake()
        self.end_step()

    def _pop_dones(self) -> None:
        """Pass the pending DONEs to the worker. The lock is held."""
        while self._dones:
            # One call removes the message, because the channel's thread may add another one at any moment.
            _, message = self._dones.popitem()
            self.worker.receive_peer(message, time.monotonic())

    def _close_channel(self, channel: SideChannel, *, linger: bool) -> None:
        """Serve peers until all have left, or the limit has passed."""
        patience_s = self._linger_s if linger and self.worker.statistics.updates else LINGER_SHORT_S
        repair, began = self.worker.repair, time.monotonic()
        until, said_until, pause_s = began + patience_s, began, LEAVE_AFTER_S
        waiting = WaitMonitor(_log, f"rank {self.worker.membership.rank}")
        with self._changed:
            while channel.failure is None:
                now = time.monotonic()
                # Not after every received message: most are LEAVEs of other ranks.
                if now >= said_until:
                    repair.leave(finished=linger)
                    self.flush_messages()
                    said_until, pause_s = now + pause_s, 2 * pause_s
                if repair.all_left or now >= until:
                    break
                waiting.check(lambda: "the others to say that they need nothing more of it", until - now)
                self._changed.wait(max(0.0, min(said_until, until) - time.monotonic()))

    def _with_peers(self) -> Peers:
        """Return the peers. Raises TypeError if there are none."""
        if self._peers is None:
            raise TypeError("only a transport with peers continues in another generation, with the peers' results")
        return self._peers


def _others_of(own: Membership) -> list[int]:
    """Return the other ranks that have a worker in a generation."""
    return [other for other in range(own.workers) if other != own.rank and other not in own.absent]


def _require_all(peers: Mapping[int, tuple[str, int]], own: Membership) -> None:
    """Raise ValueError unless every other worker has an address."""
    if missing := sorted(set(_others_of(own)) - set(peers)):
        raise ValueError(f"no side channel address for ranks {missing} of {own.workers} workers")
