# SPDX-License-Identifier: Apache-2.0
"""One worker's end at one shard of its job: the link to the switch, the slot protocol, and the peers.

`Transport` drives the shards of a worker in one thread. Without peers there is no other thread. With peers a side
channel's thread answers them, between all-reduces too. Any thread may seal the generation, resume in another one, offer
a state or fetch one. One lock keeps these threads apart in the worker. The compiled loop alone waits for the network
while it holds the lock. A thread that wants the lock wakes that loop (`StepLock`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, NamedTuple

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
from hopsum.transport.udp_link import UdpLink
from hopsum_base.spare_arrays import spare_array
from hopsum_wire.generations import Resume, Sealed

# A lock whose holder may wait for the network: whoever wants the lock wakes the holder, who then lets go of it.


class StepLock:
    """A reentrant lock for `threading.Condition`.

    Args:
        wake: called by a thread that finds the lock taken. Ends the holder's wait. Any thread may call it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self._lock: Final[Any] = threading.RLock()
        self._guard: Final = threading.Lock()
        self.waiting = 0
        """The number of threads that wait for the lock. Until it is 0 the holder must not wait for the network."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.RLock.acquire`."""
        # The common case: nobody holds the lock, so nobody has to be woken.
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        # Counted before the wake-up: the holder that wakes looks at `waiting`, and must see this thread.
        self._want(1)
        try:
            return bool(self._lock.acquire(timeout=timeout))
        finally:
            self._want(-1)

    def release(self) -> None:
        """Let go of the lock."""
        self._lock.release()

    __enter__ = acquire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _want(self, change: int) -> None:
        with self._guard:
            # A plain int is not atomic for += between threads.
            self.waiting += change
        if change > 0:
            self._wake()

    # threading.Condition calls these three by name on a lock that is no plain lock (CPython, threading.py).
    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> Any:
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._want(1)
        try:
            self._lock._acquire_restore(state)
        finally:
            self._want(-1)


_log: Final = logging.getLogger(__name__)
# A LEAVE may be lost with its connection. It is repeated while `close` lingers, after twice as long each time: all
# ranks of a job tell all others, for each shard.
LEAVE_AFTER_S: Final = 0.1
LINGER_SHORT_S: Final = 0.5
# Longer than a process waits for a processor, and short against deadlines.
TIMERS_WAIT_S: Final = 1.0
"""The longest time for which datagrams that keep coming put off the worker's timers."""
_ANSWERS: Final = (PeerKind.FOUND, PeerKind.GONE, PeerKind.LEAVE)
"""The messages that may let the caller's thread go on."""


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """Counts of the traffic at the socket."""

    link: LinkStatistics
    worker: WorkerStatistics
    side: SideStatistics
    """Towards the peers; all 0 without peers."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The other workers of a job, from whom one repairs.

    Args:
        channel: of this rank and generation, the same for all shards; closed with the last of them.
        addresses: (IPv4 address, TCP port) of every rank's channel.
        policy: when peers are asked, and how much is kept for them.
        linger_s: seconds for which `close` serves peers that have not said to need nothing more.
        resume: of a newcomer, how the job's stream stands.
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
    """One worker's link, protocol and peers at one shard. With peers, for any thread where its methods say so.

    Args:
        link: to the switch; closed with the shard.
        membership: this worker's part in the job.
        peers: without them, a result that the switch no longer has ends the generation (ResultLostError).
        lock: of the same worker's other shards. None: it has none yet.

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
        # The link counts; the worker wants to hear of the growth only.
        self._unreachable, self._failures = 0, Counter[str]()
        """The part of the link's counts that the worker was told."""
        # Links that make frames answer for their address themselves.
        who = f"rank {membership.rank}"
        self._own_address = OwnAddress(link.local[0], who) if isinstance(link, UdpLink) else None
        self.lock: Final = lock or StepLock(link.wake)
        """The lock of the worker, at all of its shards."""
        self._changed = threading.Condition(self.lock)  # type: ignore[arg-type]  # a lock of another class
        self._put_off_at: float | None = None
        """The time since which datagrams put off the worker's timers, None while they do not."""
        self._closed = False
        self._dones: dict[int, PeerMessage] = {}
        """The latest DONE of each rank, where the worker has not taken it yet."""
        self._waits = False
        """True while a message of a peer would help a step."""
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
        """Counts so far, live."""
        return TransportStatistics(self.link.statistics, self.worker.statistics, self._side_statistics)

    # ---- a step of the transport ---------------------------------------------------------------------------

    def begin_step(self) -> float | None:
        """Hear and tell what there is, with the lock. Return the time at which the worker is due, None: never."""
        if self._peers is not None:
            # Set before the DONEs are taken: `_on_message` looks after it has put one there. So a DONE is taken here,
            # or ends the wait.
            self._waits = self.worker.waits_for_peers
            self._pop_dones()
            self.flush_messages()
        return self.worker.get_timer()

    def end_step(self) -> None:
        """Give the worker the DONEs of its peers where no step is in progress: there may be none for a long time."""
        # Both threads look here: the channel's after it put a DONE there, the other one after it let go of the lock.
        while self._dones and self.lock.acquire(blocking=False):
            try:
                self._pop_dones()
            finally:
                self.lock.release()

    def send(self, batches: Sequence[NDArray[np.uint8]]) -> None:
        """Send batches of datagrams, uint8[n, bytes] each, in this order."""
        for segments in batches:
            if isinstance(self.link, UdpLink):
                self.link.send_rows(segments)
            else:
                for datagram in segments:
                    self.link.send(memoryview(datagram))

    def hand_over(self, arrived: Sequence[bytes | memoryview], now: float, *, emptied: bool) -> None:
        """Give the worker what arrived, what the network said since the last time, and the time; with the lock.

        Put what the worker has to say of it into the channel.
        """
        link, worker = self.link, self.worker
        for received in arrived:
            worker.receive_datagram(received, now)
        said, counts = link.statistics, worker.statistics
        for _ in range(said.unreachable - self._unreachable):
            worker.note_unreachable(now)
        self._unreachable = said.unreachable
        if said.failures and said.failures != self._failures:
            for name in (said.failures - self._failures).elements():
                worker.note_failed_send(name)
            self._failures = Counter(said.failures)
        own = self._own_address
        if own is not None and not worker.is_idle and own.is_found_gone(said.datagrams_received, now):
            worker.note_address_gone(own.ip, now)
        if isinstance(link, UdpLink):
            link.judge(counts.results - counts.repaired, counts.retransmits, worker.queue.in_flight, now)
        # A process that waited for a processor finds its timers due and their results in the socket: first the results.
        # The bound keeps a flood from putting off deadlines for ever.
        if emptied or (self._put_off_at is not None and now - self._put_off_at >= TIMERS_WAIT_S):
            self._put_off_at = None
            worker.handle_timer(now)
        elif self._put_off_at is None:
            self._put_off_at = now
        if self._peers is not None:
            self.flush_messages()

    def flush_messages(self) -> None:
        """Put what the worker has to say into the channel; with the lock."""
        if self._peers is not None:
            channel, number = self._peers.channel, self._peers.shard
            # The slot protocol knows its own shard only.
            channel.send_all([(rank, said._replace(shard=number)) for rank, said in self.worker.messages_to_peers()])
            done = self.worker.done_for_peers()
            if done is not None:
                channel.broadcast(done._replace(shard=number))

    def require_open(self) -> None:
        """Raise HopsumError if the side channel has ended. Its cause is attached."""
        if self._peers is not None:
            self._peers.channel.require_open()

    def probe(self) -> None:
        """Have the switch asked, at the next step, whom the oldest open sum waits for."""
        with self.lock:
            self.worker.probe()

    def wake(self) -> None:
        """Let the step in progress go on at once, or else the next one. Any thread, also after `close`."""
        self.link.wake()

    # ---- generations -------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """Send nothing and accept nothing more of this generation, as `Worker.seal`. Peers are answered as before.

        Raises TypeError without peers: what the next generation begins with comes from them.
        """
        self._with_peers()
        with self._changed:
            return self.worker.seal()

    def resume(self, generation: int, given: ShardContinuation) -> None:
        """Continue in another generation, as `Worker.resume`, with the generation's key and its addresses of peers.

        Raises:
            TypeError: the shard was made without peers.
            ValueError: as `Worker.resume`, or a peer has no address, or the key a wrong length. Nothing was changed.
        """
        channel, key, peers = self._with_peers().channel, GenerationKey(generation, given.key), given.peers
        _require_all(peers, replace(self.worker.membership, rack=given.rack, absent=given.absent))
        with self._changed:
            # Worker first: when the channel takes messages of the new generation the worker must know it.
            self.worker.resume(generation, given.resume, time.monotonic(), given.rack, given.absent)
            # The key changes with the generation, so a worker that was evicted can prove nothing any more.
            channel.move(key, {other: peers[other] for other in _others_of(self.worker.membership)})
            self.flush_messages()
            self._changed.notify_all()
        self.wake()

    def resume_at(self, start_generation: int, start: int) -> None:
        """Take the program's word that the newcomers of a generation have its state, as `Worker.resume_at`.

        Raises TypeError without peers.
        """
        self._with_peers()
        with self._changed:
            self.worker.resume_at(start_generation, start)
            self.flush_messages()

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        """Keep nothing for workers that were evicted while this generation goes on, if it is ours. Any thread."""
        with self._changed:
            # The call comes from the lease thread and may be older than a change of generation, or than `close`, which
            # takes this lock before it closes the link.
            if not self._closed and self.worker.membership.generation == generation:
                self.worker.repair.on_ranks_lost(ranks)
                self.worker.handle_timer(time.monotonic())  # what was held back for them may begin
                self._changed.notify_all()
                self.wake()

    # ---- the program's state -----------------------------------------------------------------------------

    @property
    def states(self) -> StateExchange:
        """The exchange of the program's state with the other workers. Raises TypeError without peers."""
        self._with_peers()
        return self._states

    def end_fetch(self) -> None:
        """Let nobody wait for a state any more: this worker is of no use for one. Any thread; for good."""
        if self._peers is not None:
            self._states.end_fetch("waits for no state any more: it has failed")

    def close(self, *, linger: bool = True) -> None:
        """Serve peers until they need nothing more, `linger_s` at most. Then close channel and link.

        Without `linger` they are hardly waited for: they need nothing of a generation that is over, but may not know
        yet.
        Neither are they by a worker that never sent anything: it holds nothing that they could need.
        """
        if self._closed:
            return
        # Set first: a second `close` from another thread must not linger again.
        self._closed = True
        if self._peers is not None:
            self._states.end_fetch("was closed while it waited for the state of another worker")
            self._close_channel(self._peers.channel, linger=linger)
            self._peers.channel.close(self._peers.shard)
        self.link.close()

    # ---- messages ------------------------------------------------------------------------------------------

    def _on_message(self, message: PeerMessage) -> None:
        """Take one message, in the channel's thread."""
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
        """Take a DONE, in the channel's thread. It frees memory, and is not worth the end of a wait for the network."""
        self._dones[message.sender] = message
        if self._waits:
            self.wake()
        self.end_step()

    def _pop_dones(self) -> None:
        """Give the worker the DONEs of its peers; with the lock."""
        while self._dones:
            # One call takes the message out: the channel's thread may put another one there at any moment.
            _, message = self._dones.popitem()
            self.worker.receive_peer(message, time.monotonic())

    def _close_channel(self, channel: SideChannel, *, linger: bool) -> None:
        """Serve peers until everybody has left, or it is time."""
        patience_s = self._linger_s if linger and self.worker.statistics.updates else LINGER_SHORT_S
        repair, began = self.worker.repair, time.monotonic()
        until, said_until, pause_s = began + patience_s, began, LEAVE_AFTER_S
        waiting = WaitMonitor(_log, f"rank {self.worker.membership.rank}")
        with self._changed:
            while channel.failure is None:
                now = time.monotonic()
                # Not for every message that comes: those are the LEAVEs of all others.
                if now >= said_until:
                    repair.leave(finished=linger)
                    self.flush_messages()
                    said_until, pause_s = now + pause_s, 2 * pause_s
                if repair.everybody_left or now >= until:
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
