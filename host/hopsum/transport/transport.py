# SPDX-License-Identifier: Apache-2.0
"""One worker on one link: all-reduces, blocking or several at a time; with peers, repair and changes of generation.

One loop, `step`: send what the worker wants sent, by the batch where the link can, wait for datagrams or the worker's
timer, and hand them over. On a UDP socket a compiled loop does all of it as long as nothing but plain RESULTs comes
(worker_loop.py). Without peers there is no thread. With peers a side channel's thread answers them, between
all-reduces too. Any thread may seal the generation, resume in another one, offer a state or fetch one. One lock keeps
these threads apart in the worker. The compiled loop alone waits for the network while it holds the lock. A thread that
wants the lock wakes that loop (`StepLock`). Datagrams that `step` is sending while `seal` runs count as sent before the
seal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.codec.interface import ChunkStream
from hopsum.notice import WaitMonitor
from hopsum.protocol.peer_messages import STATE_KINDS, PeerKind, PeerMessage
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.result_acceptor import AllReduceEvent
from hopsum.protocol.state_transfer import STATE_BYTES_MAX
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Timing, Worker, WorkerStatistics
from hopsum.transport.link import DatagramLink, LinkStatistics, RowLink
from hopsum.transport.side_channel import GenerationKey, SideChannel, SideStatistics
from hopsum.transport.state_exchange import StateExchange
from hopsum.transport.udp_link import UdpLink
from hopsum.transport.worker_loop import worker_loop
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
        self._waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Say whether a thread waits for the lock: its holder must not wait for the network again."""
        return self._waiting > 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.RLock.acquire`."""
        # The common case: nobody holds the lock, so nobody has to be woken.
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        # Counted before the wake-up: the holder that wakes looks at `is_wanted`, and must see this thread.
        self._want(1)
        try:
            return bool(self._lock.acquire(timeout=timeout))
        finally:
            self._want(-1)

    def release(self) -> None:
        """Let go of the lock."""
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _want(self, change: int) -> None:
        with self._guard:
            # A plain int is not atomic for += between threads.
            self._waiting += change
        if change > 0:
            self._wake()

    # What threading.Condition asks of a reentrant lock.

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
# A blocking all-reduce looks up once a second at least, so that a side channel that ended is noticed.
_STEP_S: Final = 1.0
# A LEAVE may be lost with its connection. It is repeated this often while `close` lingers.
LEAVE_EVERY_S: Final = 0.1
LINGER_SHORT_S: Final = 0.5
UNMADE_WAIT_S: Final = 0.01
"""The longest wait for datagrams of a worker without the compiled loop that should have made payloads."""
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
        channel: of this rank and generation, not started yet; closed with the transport.
        addresses: (IPv4 address, TCP port) of every rank's channel.
        policy: when peers are asked, and how much is kept for them.
        linger_s: seconds for which `close` serves peers that have not said to need nothing more.
        resume: of a newcomer, how the job's stream stands.
    """

    channel: SideChannel
    addresses: Mapping[int, tuple[str, int]]
    policy: RepairPolicy = field(default_factory=RepairPolicy)
    linger_s: float = 10.0
    resume: Resume | None = None


class Transport:
    """One worker on one link. Without peers, for one thread at a time but for `wake`; with peers, see the module.

    Args:
        link: to the switch; closed with the transport.
        membership: this worker's part in the job.
        peers: without them, a result that the switch no longer has ends the generation (ResultLostError).

    Raises:
        ValueError: a rank has no address among the peers, or `resume` does not fit the slots.
    """

    def __init__(
        self, link: DatagramLink, membership: Membership, timing: Timing | None = None, peers: Peers | None = None
    ) -> None:
        self._link = link
        self._rows = link if isinstance(link, RowLink) else None
        # The link counts; the worker wants to hear of the growth only.
        self._unreachable, self._failures = 0, Counter[str]()
        """The part of the link's counts that the worker was told."""
        self._step_lock = StepLock(link.wake)
        self._changed = threading.Condition(self._step_lock)  # type: ignore[arg-type]  # a lock of another class
        self._loop = worker_loop(link, membership.slots)
        self.interrupt: BaseException | None = None
        """The error that a signal handler raised while `step` waited. What `step` did is whole all the same."""
        self._put_off_at: float | None = None
        """The time since which datagrams put off the worker's timers, None while they do not."""
        self._closed = False
        self._dones: dict[int, PeerMessage] = {}
        """The latest DONE of each rank, where the worker has not taken it yet."""
        self._waits = False
        """True while a message of a peer would help a `step`."""
        self._others = [other for other in range(membership.workers) if other != membership.rank]
        self._peers, self._linger_s = peers, 0.0
        self._side_statistics = SideStatistics() if peers is None else peers.channel.statistics
        if peers is None:
            self.worker = Worker(membership, timing)
            return
        _require_all(peers.addresses, membership.workers, membership.rank)
        self._linger_s = peers.linger_s
        self.worker = Worker(membership, timing, repair=peers.policy, resume=peers.resume)
        self._states = StateExchange(self.worker, peers.channel, self._others, self._changed)
        peers.channel.start({other: peers.addresses[other] for other in self._others}, self._hear)

    @property
    def statistics(self) -> TransportStatistics:
        """Counts so far, live."""
        return TransportStatistics(self._link.statistics, self.worker.statistics, self._side_statistics)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Return the lock with which another thread may look at the worker."""
        return self._changed

    @property
    def timer(self) -> float | None:
        """The time of `time.monotonic` at which `step` is due without any arrival, None: never."""
        with self._changed:
            return self.worker.get_timer()

    def allreduce(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> AllReduceDone:
        """Sum chunks over all workers. Blocks until every result is here or the deadline passes.

        All ranks make the same calls in the same order.

        Args:
            op: what the switch does with the payloads.
            payloads: uint8[chunks, up_bytes(op)].
            counts: [chunks] or a scalar, elements in use.

        Raises:
            AllReduceTimeoutError: no result by the deadline. The message says what was sent and what came back.
            ResultLostError: the switch no longer has a result that this rank lacks, and there are no peers.
            FellBehindError: neither has any peer.
            GenerationEndedError: an earlier all-reduce failed, or the generation's rounds are used up, or it is sealed.
                After these four, continue in a new generation with a new transport.
            WireError: unknown op or payloads of another shape; nothing was sent.
            HopsumError: the side channel has ended. Its cause is attached.
        """
        handle = self.submit(op, payloads, counts)
        while True:
            for event in self.step(_STEP_S):
                if event.handle != handle:
                    continue
                if isinstance(event, AllReduceDone):
                    return event
                if isinstance(event, AllReduceFailed):
                    raise event.error
            if (interrupt := self.interrupt) is not None:
                self.interrupt = None
                raise interrupt

    def submit(
        self,
        op: int,
        payloads: NDArray[np.uint8],
        counts: ArrayLike | None = None,
        *,
        ready: int | None = None,
        part_chunks: int = 0,
        stream: ChunkStream | None = None,
    ) -> int:
        """Append an all-reduce to the stream and return its handle. `step` sends it and brings its events.

        Several may be in progress. Arguments and errors as for `allreduce`; nothing is sent where it raises.

        Args:
            ready: chunks whose payloads count; those behind them come by `fill`. None: all.
            part_chunks: the least chunks of an AllReducePart. 0: no such events.
            stream: the compiled loop makes the payloads behind `ready` while it serves the worker, and decodes sums.
                Its `encoded` is `ready` then, and `taken` 0.
        """
        with self._changed:
            handle = self.worker.submit(
                op, payloads, now=time.monotonic(), counts=counts, ready=ready, part_chunks=part_chunks
            )
            if stream is not None and self._loop is not None:
                self._loop.streams[handle] = stream
            return handle

    @property
    def has_loop(self) -> bool:
        """Say whether there is a compiled loop, which encodes and decodes streams."""
        return self._loop is not None

    @property
    def serves_streams(self) -> bool:
        """Say whether the compiled loop can serve the worker now. Otherwise payloads come by `fill`."""
        return self._loop is not None and self._loop.is_plain(self.worker)

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        """Take the payloads of an all-reduce's next chunks, uint8[n, up_bytes(op)], copied; ignore one that is over."""
        with self._changed:
            self.worker.fill(handle, payloads)

    def step(self, wait_s: float) -> list[AllReduceEvent]:
        """Send what is to be sent, wait for datagrams, a timer or `wake`, for `wait_s` at most; return events.

        Raises:
            HopsumError: the side channel has ended. Its cause is attached.
        """
        worker, loop = self.worker, self._loop
        batches: list[NDArray[np.uint8]] = []
        emptied = False
        with self._changed:
            # Set before the DONEs are taken: `_hear` looks after it has put one there. So it is taken here, or ends the
            # wait.
            self._waits = worker.waits_for_peers
            self._take_dones()
            self._say()
            begun = time.monotonic()
            timer = worker.get_timer()
            # A thread that wants the worker gets it before the loop waits for the network with it.
            runs = loop is not None and not self._step_lock.is_wanted and loop.is_plain(worker)
            if loop is not None and runs:
                limit_at = begun if timer is None else min(timer, begun + wait_s)
                batches = loop.run(worker, limit_at)
                emptied = loop.has_emptied
                self.interrupt, loop.interrupt = loop.interrupt, None
            else:
                # Decided under the lock, sent without it: a system call must not keep the side channel from answering
                # peers. What is on its way out when `seal` runs counts as sent before the seal.
                batches = worker.segments_to_send(begun)
                timer = worker.get_timer()
                if loop is not None and loop.awaits(worker):
                    wait_s = min(wait_s, UNMADE_WAIT_S)
        self._send(batches)
        arrived: Sequence[bytes | memoryview] = ()
        if not runs and not (loop is not None and loop.has_rest):
            # Read again: sending may have taken milliseconds, and the timer is absolute.
            now = time.monotonic()
            arrived = self._receive(0.0 if timer is None else min(timer - now, wait_s))
            emptied = not arrived
        if self._peers is not None:
            self._peers.channel.require_open()
        with self._changed:
            if loop is not None and not runs and loop.has_rest:
                loop.take_rest(worker, None)
            self._hand_over(arrived, time.monotonic(), emptied=emptied)
            if loop is not None:
                loop.forget(worker)
            self._say()
        return list(iter(worker.next_event, None))

    def probe(self) -> None:
        """Have the switch asked, at the next step, whom the oldest open sum waits for."""
        with self._changed:
            self.worker.probe()

    def wake(self) -> None:
        """Let the `step` in progress go on at once, or else the next one. Any thread may call it until `close`."""
        self._link.wake()

    # ---- generations -------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """Send nothing and accept nothing more of this generation, as `Worker.seal`. Peers are answered as before.

        Raises TypeError without peers: what the next generation begins with comes from them.
        """
        self._with_peers()
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
            TypeError: without peers.
            ValueError: as `Worker.resume`, a rank has no address among `peers`, or `key` is none. Nothing was changed.
        """
        channel, generation_key = self._with_peers().channel, GenerationKey(generation, key)
        own = self.worker.membership
        _require_all(peers, own.workers, own.rank)
        with self._changed:
            # Worker first: when the channel takes messages of the new generation the worker must know it.
            self.worker.resume(generation, resume, time.monotonic(), rack)
            # The key changes with the generation, so a worker that was evicted can prove nothing any more.
            channel.move(generation_key, {other: peers[other] for other in self._others})
            self._say()
            self._changed.notify_all()
        self.wake()

    def go_on(self, start_generation: int, start: int) -> None:
        """Take the program's word that the newcomers of a generation have its state, as `Worker.go_on`.

        Raises TypeError without peers.
        """
        self._with_peers()
        with self._changed:
            self.worker.go_on(start_generation, start)
            self._say()

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        """Keep nothing for workers that were evicted while this generation goes on, if it is ours. Any thread."""
        with self._changed:
            # The call comes from the lease thread and may be older than a change of generation.
            if self.worker.repair is not None and self.worker.membership.generation == generation:
                self.worker.repair.on_ranks_lost(ranks)
                self.worker.handle_timer(time.monotonic())  # what was held back for them may begin
                self._changed.notify_all()
        self.wake()

    # ---- the program's state -----------------------------------------------------------------------------

    def offer_state(self, state: bytes, start_generation: int, newcomers: Mapping[int, int]) -> None:
        """Have the program's state ready for the newcomers of a generation, until they have taken it.

        Args:
            state: kept, not copied.
            newcomers: by rank, the generation in which it began, for all that may have no state yet.

        Raises:
            TypeError: without peers.
        """
        self._with_peers()
        self._states.offer(state, start_generation, newcomers)

    def fetch_state(self, start_generation: int, wait_s: float, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Return the state that a worker offers to the newcomers of a generation. Wait for it up to `wait_s`.

        Raises:
            HopsumError: it is not here in time, it is longer than `bytes_max`, the transport was closed, `end_fetch`
                was called, or its side channel has ended.
            StateMovedError: there are newcomers of a later generation.
            TypeError: without peers.
        """
        self._with_peers()
        return self._states.fetch(start_generation, wait_s, bytes_max)

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
            self._take_leave(self._peers.channel, linger=linger)
            self._peers.channel.close()
        self._link.close()

    # ---- datagrams and messages --------------------------------------------------------------------------

    def _send(self, batches: Sequence[NDArray[np.uint8]]) -> None:
        """Send batches of datagrams, uint8[n, bytes] each, in this order."""
        for segments in batches:
            if self._rows is not None:
                self._rows.send_rows(segments)
            else:
                for datagram in segments:
                    self._link.send(memoryview(datagram))

    def _receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        """Wait for what arrives."""
        try:
            return self._link.receive(timeout_s)
        except Exception:
            raise
        except BaseException as error:
            self.interrupt = error
            return ()

    def _hand_over(self, arrived: Sequence[bytes | memoryview], now: float, *, emptied: bool) -> None:
        """Give the worker what arrived, what the network said since the last time, and the time."""
        for received in arrived:
            self.worker.receive_datagram(received, now)
        said = self._link.statistics
        for _ in range(said.unreachable - self._unreachable):
            self.worker.note_unreachable(now)
        for name in (said.failures - self._failures).elements():
            self.worker.note_failed_send(name)
        self._unreachable, self._failures = said.unreachable, Counter(said.failures)
        if isinstance(self._link, UdpLink):
            counts = self.worker.statistics
            self._link.judge(counts.results - counts.repaired, counts.retransmits, self.worker.queue.on_the_way)
        # A process that waited for a processor finds its timers due and their results in the socket: first the results.
        # The bound keeps a flood from putting off deadlines for ever.
        if emptied or (self._put_off_at is not None and now - self._put_off_at >= TIMERS_WAIT_S):
            self._put_off_at = None
            self.worker.handle_timer(now)
        elif self._put_off_at is None:
            self._put_off_at = now

    def _say(self) -> None:
        """Put what the worker has to say into the channel; with the lock."""
        if self._peers is not None:
            self._peers.channel.send_all(self.worker.messages_to_peers())
            done = self.worker.done_for_peers()
            if done is not None:
                self._peers.channel.tell_all(done)

    def _hear(self, message: PeerMessage) -> None:
        """Take one message, in the channel's thread."""
        if message.kind is PeerKind.DONE:
            self._hear_done(message)
            return
        with self._changed:
            if message.kind in STATE_KINDS:
                self._states.hear(message)
            else:
                self.worker.receive_peer(message, time.monotonic())
                self._say()
            self._changed.notify_all()
        if message.kind in _ANSWERS:
            self.wake()

    def _hear_done(self, message: PeerMessage) -> None:
        """Take a DONE, in the channel's thread. It frees memory, and is not worth the end of a wait for the network."""
        self._dones[message.sender] = message
        if self._waits:
            self.wake()
        elif self._step_lock.acquire(blocking=False):
            # No step is in progress, and perhaps none will be for a long time.
            try:
                self._take_dones()
            finally:
                self._step_lock.release()

    def _take_dones(self) -> None:
        """Give the worker the DONEs of its peers; with the lock."""
        while self._dones:
            # One call takes the message out: the channel's thread may put another one there at any moment.
            _, message = self._dones.popitem()
            self.worker.receive_peer(message, time.monotonic())

    def _take_leave(self, channel: SideChannel, *, linger: bool) -> None:
        """Serve peers until everybody has left, or it is time."""
        patience_s = self._linger_s if linger and self.worker.statistics.updates else LINGER_SHORT_S
        repair, until = self.worker.repair, time.monotonic() + patience_s
        waiting = WaitMonitor(_log, f"rank {self.worker.membership.rank}")
        with self._changed:
            while repair is not None and channel.failure is None:
                repair.leave(finished=linger)
                self._say()
                if repair.everybody_left or time.monotonic() >= until:
                    break
                waiting.check(lambda: "the others to say that they need nothing more of it", until - time.monotonic())
                self._changed.wait(min(LEAVE_EVERY_S, self._linger_s))

    def _with_peers(self) -> Peers:
        """Return the peers. Raises TypeError if there are none."""
        if self._peers is None:
            raise TypeError("only a transport with peers goes on in another generation, with what these have")
        return self._peers

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _require_all(peers: Mapping[int, tuple[str, int]], workers: int, rank: int) -> None:
    """Raise ValueError unless every other rank has an address."""
    if missing := sorted(set(range(workers)) - {rank} - set(peers)):
        raise ValueError(f"no side channel address for ranks {missing} of {workers} workers")
