# SPDX-License-Identifier: Apache-2.0
"""The network of an agent: its transport from one generation to the next, and the watch over what does not come.

A job over several shards has a stream for each. They change their generation together: a phase is submitted to all
shards or to none before a generation is sealed.

    state    input                           next     also
    RUN      phase submitted                 RUN      into the stream; one that is refused fails its task
    RUN      seal, in any thread             SEALED   the transport sends and accepts nothing more in this generation
    SEALED   phase submitted                 SEALED   not taken: nothing enters the stream behind what was reported
    SEALED   resume, in any thread           RUN      the stream goes on in another generation

Peers are served by the transport's own thread, in SEALED too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.allreduce_results import SocketTraffic
from hopsum.agent.signature import LANES
from hopsum.codec.interface import CollectivePhase, Reduction
from hopsum.notice import AFTER_S, WaitMonitor
from hopsum.protocol.worker_state import AllReduceEvent
from hopsum.transport.shard import Shard
from hopsum.transport.transport import Transport
from hopsum_wire.generations import Resume, Sealed

STALL_S: Final = 1.0
"""The time in which nothing comes, though datagrams were sent again, before somebody is told."""
# Often enough for lines in a log, and seldom enough to cost a short all-reduce nothing.
WATCH_EVERY_S: Final = 0.05


class ResumeCommand(NamedTuple):
    """The program knows that workers were replaced: the stream goes on where the newcomers begin."""

    newcomers: Mapping[int, int]
    """The generation in which each newcomer begins, by rank."""
    start_generation: int
    starts: tuple[int, ...]
    """The position of the newcomers' first phase, by shard."""
    allreduces: int
    """Begun before."""
    error: BaseException
    """The error of all-reduces that cannot go on."""


class ShardContinuation(NamedTuple):
    """The next generation of a worker's stream at one shard. See `Shard.resume`."""

    peers: Mapping[int, tuple[str, int]]
    resume: Resume
    rack: tuple[int, ...] | None
    key: bytes
    absent: frozenset[int] = frozenset()


class Network:
    """The transport of an agent's worker. One thread at a time uses it but for `seal`, `resume` and `wake`.

    Args:
        on_stall: called by `move` when nothing comes back, again and again while that lasts.
        on_resumed: called in the thread that resumes, once phases are taken again.
        begun: all-reduces that the stream had before.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        on_stall: Callable[[], None],
        on_resumed: Callable[[], None],
        begun: int = 0,
    ) -> None:
        self._transport = transport
        self._on_stall, self._on_resumed = on_stall, on_resumed
        self._begun = begun
        self._shards = transport.shards
        # The same live objects as long as the shards live.
        self._counts = [shard.statistics for shard in self._shards]
        self._watches = [ShardWatch(shard) for shard in self._shards]
        self._watch_at = 0.0
        self.is_sealed = False
        self._lock = threading.Lock()
        """Held by whoever uses the transport, but for `wake`."""

    @property
    def has_loop(self) -> bool:
        """Say whether there is a compiled loop. There may be one later."""
        return self._transport.has_loop

    @property
    def traffic(self) -> SocketTraffic:
        """Return the counts of datagrams so far."""
        # Not of the transport's statistics: each all-reduce asks, and these count everything of all shards.
        return SocketTraffic.of(*self._counts)

    @property
    def stalled_s(self) -> float:
        """Return the seconds since the switch said anything, or since something is in progress, of the worst shard."""
        return max(watch.stalled_s for watch in self._watches)

    @property
    def stalled_shard(self) -> int:
        """Return the number of the shard that `stalled_s` is about."""
        return max(range(len(self._watches)), key=lambda shard: self._watches[shard].stalled_s)

    def wake(self) -> None:
        """Let the `move` in progress return at once, or else the next one. Any thread."""
        self._transport.wake()

    def submit(
        self,
        parts: Sequence[CollectivePhase],
        number: int,
        taken: list[int],
        *,
        coder: Reduction | None = None,
        ranges: Sequence[int] = (),
    ) -> bool:
        """Append a phase to the stream, in parts, each with a handle and results of its own.

        No generation ends between them. Return False, and do nothing, while the generation is sealed.

        Args:
            number: of its all-reduce.
            taken: gets the handle of each part that is in the stream, also where a later part is refused.
            coder: makes the payloads that are not there, and reads sums early, see `Transport.submit`.
            ranges: handles of the phase whose sums the coder begins with, where they are not here yet.
        """
        with self._lock:
            if self.is_sealed:
                return False
            for part in parts:
                given = (part.op, part.payloads, part.counts())
                taken.append(self._transport.submit(*given, coder=coder, ranges=ranges, lanes_before=LANES))
            # The controller asks how many all-reduces have begun: only those in the stream count.
            self._begun = max(self._begun, number + 1)
        return True

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        """Take all payloads of a phase in the stream that has none."""
        with self._lock:
            self._transport.fill(handle, payloads)

    def begin_watch(self) -> None:
        """Count silence from now: the first phase is in progress, or another generation."""
        for watch in self._watches:
            watch.begin()

    def go_on(self, message: ResumeCommand) -> bool:
        """Let what is submitted from now on follow where the newcomers begin. Return False while sealed."""
        with self._lock:
            if self.is_sealed:
                return False
            for shard, start in zip(self._shards, message.starts, strict=True):
                shard.go_on(message.start_generation, start)
            self._begun = message.allreduces
        return True

    def move(self, wait_s: float) -> list[AllReduceEvent]:
        """Send and receive; wait for `wait_s` at most. Return what became of phases, nothing while sealed."""
        with self._lock:
            events = [] if self.is_sealed else self._transport.step(wait_s)
        if (now := time.monotonic()) >= self._watch_at:
            self._watch_at = now + WATCH_EVERY_S
            # A list, not a generator: every watch has to see this moment.
            if any([watch.check() for watch in self._watches]):
                self._on_stall()
        return events

    def take_interrupt(self) -> BaseException | None:
        """Return what a signal handler raised while `move` waited, if one did."""
        error, self._transport.interrupt = self._transport.interrupt, None
        return error

    def seal(self) -> tuple[Sealed, int]:
        """Let nothing more happen in this generation. Return what the worker holds, and all-reduces begun. Any thread.

        What it holds at further shards is in `further_shards`. Raises TypeError for a transport without peers, which
        knows no other generation.
        """
        self.is_sealed = True  # before the lock is free, so that no other step begins
        self._transport.wake()
        with self._lock:
            first, *further = [shard.seal() for shard in self._shards]
            return replace(first, further_shards=tuple(further)), self._begun

    def resume(self, generation: int, continuations: Sequence[ShardContinuation]) -> None:
        """Go on in another generation, after `seal`, as is said for each shard. Any thread."""
        with self._lock:
            for shard, (peers, resume, rack, key, absent) in zip(self._shards, continuations, strict=True):
                shard.resume(generation, peers, resume, rack, key=key, absent=absent)
            self.begin_watch()
            # Last: whoever submits must find all shards in the new generation.
            self.is_sealed = False
        self._on_resumed()


# The lines that a worker's log has where results do not come: whom they wait for, and a switch that is not there.


ABSENT_S: Final = 2.0
"""The time in which everything comes back as 'port unreachable' before that is said."""
ASK_S: Final = AFTER_S - 1.0
"""The time without a result before the switch is asked whom it waits for. Its answer is here when the line is written.
"""
ASK_EVERY_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class ShardWatch:
    """Looks at a shard between the steps of its transport, in the thread that has it.

    Args:
        clock: seconds that do not go back.
    """

    def __init__(self, shard: Shard, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard, self._clock = shard, clock
        self._counts = shard.statistics
        own = shard.worker.membership
        self._who, self._switch = f"rank {own.rank}", own.switch
        self._waiting = WaitMonitor(_log, self._who, clock=clock)
        self._results = 0
        self._ask_in_s = ASK_S
        self._absent = False
        self._begin_stall()

    @property
    def stalled_s(self) -> float:
        """Seconds since a datagram came from the switch, or since something is in progress, as `check` saw it last."""
        return self._clock() - self._since_s

    def begin(self) -> None:
        """Count from now: the first phase is in progress, or another generation."""
        self._begin_stall()
        self._begin_wait()

    def check(self) -> bool:
        """Log what is to be said, and ask the switch if it is time.

        Return whether nothing has come for STALL_S, in spite of retransmissions.
        """
        self._say_absence()
        worker, counts = self._shard.worker, self._counts
        if worker.is_idle:
            self.begin()
            return False
        if counts.worker.results != self._results:
            self._begin_wait()
        else:
            if self._waiting.lasted_s >= self._ask_in_s:
                self._ask_in_s = self._waiting.lasted_s + ASK_EVERY_S
                self._shard.probe()
            left_s, lease_s = worker.left_s(self._clock()), worker.timing.lease_s
            is_sooner = lease_s is not None and lease_s < left_s
            sooner = f"but {lease_s:.3g} s for a rank of which nothing is heard (lease_s)" if is_sooner else ""
            self._waiting.check(worker.missing_text, left_s, sooner)
        if counts.link.datagrams_received != self._received:
            self._begin_stall()
        # Without a retransmission nothing was overdue: all ranks may just compute.
        return counts.worker.retransmits > self._retransmits and self.stalled_s >= STALL_S

    def _begin_stall(self) -> None:
        self._since_s = self._clock()
        self._received, self._retransmits = self._counts.link.datagrams_received, self._counts.worker.retransmits

    def _begin_wait(self) -> None:
        self._results, self._ask_in_s = self._counts.worker.results, ASK_S
        self._waiting.over()

    def _say_absence(self) -> None:
        absence = self._shard.worker.absences.refused
        if self._absent and not absence.answers:
            self._absent = False
            _log.warning("%s: %s is there again", self._who, self._switch)
        elif not self._absent and absence.lasted_s >= ABSENT_S:
            self._absent = True
            limit_s = self._shard.worker.timing.unreachable_s
            until = "until its deadline" if limit_s is None else f"for {limit_s - absence.lasted_s:.0f} s more"
            _log.warning(
                "%s: %s is not there: all that was sent to it for %.1f s came back as 'port unreachable' (%d times), "
                "and nothing came from it; this rank waits %s",
                self._who, self._switch, absence.lasted_s, absence.answers, until,
            )  # fmt: skip
