# SPDX-License-Identifier: Apache-2.0
"""The thread that has the transport: puts phases into the worker's streams and says when their results are there.

A job over several shards has a stream for each. They change their generation together: a phase is submitted to all
shards or to none before a generation is sealed.

    state    input                           next     also
    RUN      phase submitted                 RUN      into the stream; one that is refused fails its task
    RUN      seal, in any thread             SEALED   the transport sends and accepts nothing more in this generation
    SEALED   phase submitted                 SEALED   kept: nothing enters the stream behind what was reported
    SEALED   resume, in any thread           RUN      the stream goes on in another generation
    any      stop                            over

In SEALED the thread waits. Peers are served by the transport's own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import CollectivePhase
from hopsum.communicator.allreduce_results import SocketTraffic
from hopsum.communicator.task import Arrived, ArrivedPart, Task
from hopsum.notice import AFTER_S, WaitMonitor
from hopsum.protocol.worker import AllReduceDone
from hopsum.protocol.worker_state import AllReducePart
from hopsum.transport.sharded import ShardedTransport, shards_of
from hopsum.transport.transport import Transport
from hopsum_wire.generations import Resume, Sealed

# A wait that no wake-up ends is a bug, or a network without any datagram: then the thread still looks around.
_WAIT_S: Final = 1.0
"""The longest wait for a datagram. New phases end the wait."""
STALL_S: Final = 1.0
"""The time in which nothing comes, though datagrams were sent again, before somebody is told."""


class Failed(NamedTuple):
    """A phase of a task has no results. Without a task the thread itself failed: nothing more comes."""

    task: Task | None
    error: BaseException


class Submission(NamedTuple):
    """A phase of a task, as `NetworkThread.submit` takes it."""

    task: Task
    parts: tuple[CollectivePhase, ...]
    ready: int | None
    part_chunks: int


class Filling(NamedTuple):
    """The payloads of the next chunks of a task's phase, whose first ones are in the stream."""

    task: Task
    payloads: NDArray[np.uint8]


class ResumeCommand(NamedTuple):
    """The program knows that workers were replaced: the stream goes on where the newcomers begin."""

    start_generation: int
    starts: tuple[int, ...]
    """The position of the newcomers' first phase, by shard."""
    allreduces: int
    """Begun before."""
    error: BaseException
    """The error of all-reduces that cannot go on."""


class ShardContinuation(NamedTuple):
    """The next generation of a worker's stream at one shard. See `Transport.resume`."""

    peers: Mapping[int, tuple[str, int]]
    resume: Resume
    rack: tuple[int, ...] | None
    key: bytes


class StallDetector:
    """Detects that nothing comes back while datagrams are sent again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.begin()

    def begin(self) -> None:
        """Count from now."""
        self._since_s = time.monotonic()
        self._received, self._retransmits = self._counts()

    @property
    def lasted_s(self) -> float:
        """Return the seconds since something came, as `lasts` saw it last."""
        return time.monotonic() - self._since_s

    def lasts(self) -> bool:
        """Say whether nothing has come for STALL_S, in spite of retransmissions."""
        if self._transport.worker.is_idle:
            self.begin()
            return False
        received, retransmits = self._counts()
        if received != self._received:
            self.begin()
        # Without a retransmission nothing was overdue: all ranks may just compute.
        return retransmits > self._retransmits and time.monotonic() - self._since_s >= STALL_S

    def _counts(self) -> tuple[int, int]:
        found = self._transport.statistics
        return found.link.datagrams_received, found.worker.retransmits


class NetworkThread:
    """A thread around the transport of a worker, which is its own until it has ended.

    Args:
        deliver: called in the thread, with what became of each phase.
        on_stall: called in the thread when nothing comes back, again and again while that lasts.
        begun: all-reduces that the stream had before.
    """

    def __init__(
        self,
        transport: Transport | ShardedTransport,
        deliver: Callable[[Arrived | ArrivedPart | Failed], None],
        name: str,
        *,
        on_stall: Callable[[], None] = lambda: None,
        begun: int = 0,
    ) -> None:
        self._transport = transport
        self._deliver = deliver
        self._on_stall = on_stall
        # From the agent's thread to this one. `deliver` is the way back: it puts into the agent's inbox.
        self._submitted: SimpleQueue[Submission | Filling | ResumeCommand | None] = SimpleQueue()
        self._tasks: dict[int, tuple[Task, int]] = {}
        """The task of each handle's phase, and the part of it."""
        self._begun = begun
        self._shards = shards_of(transport)
        self._stalls = [StallDetector(shard) for shard in self._shards]
        self._progress = [Progress(shard) for shard in self._shards]
        self._sealed = self._waits = False
        # Who seals or resumes takes the transport out of this thread's hands with it.
        self._changed = threading.Condition()
        """Held by who uses the transport, but for `wake`."""
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stalled_s(self) -> float:
        """Return the seconds since the switch said anything, or since something is in progress, of the worst shard."""
        return max(stall.lasted_s for stall in self._stalls)

    def submit(self, task: Task, *parts: CollectivePhase, ready: int | None = None, part_chunks: int = 0) -> None:
        """Append a phase to the stream, in parts that arrive each by itself. No generation ends between them.

        Args:
            ready: chunks of the last part whose payloads are there; those behind them come by `fill`. None: all.
            part_chunks: of the least results that are delivered before the last part is whole. 0: none are.
        """
        self._hand_in(Submission(task, parts, ready, part_chunks))

    def fill(self, task: Task, payloads: NDArray[np.uint8]) -> None:
        """Let the next chunks of a task's last phase be sent; nobody changes `payloads` any more."""
        self._hand_in(Filling(task, payloads))

    def go_on(self, message: ResumeCommand) -> None:
        """Let what is submitted from now on follow where the newcomers begin."""
        self._hand_in(message)

    def seal(self) -> tuple[Sealed, int]:
        """Let nothing more happen in this generation. Return what the worker holds, and all-reduces begun. Any thread.

        What it holds at further shards is in `further_shards`. Raises TypeError for a transport without peers, which
        knows no other generation.
        """
        self._sealed = True  # before the lock is free, so that the thread does not take it again
        self._transport.wake()
        with self._changed:
            # The step that was in progress has ended by now: it holds the condition, and `wake` ended its wait.
            first, *further = [shard.seal() for shard in self._shards]
            return replace(first, further_shards=tuple(further)), self._begun

    def resume(self, generation: int, continuations: Sequence[ShardContinuation]) -> None:
        """Go on in another generation, after `seal`, as is said for each shard. Any thread."""
        with self._changed:
            for shard, (peers, resume, rack, key) in zip(self._shards, continuations, strict=True):
                shard.resume(generation, peers, resume, rack, key=key)
            self._begin_watch()
            self._transport.wake()
            # Last: the thread must find all shards in the new generation.
            self._sealed = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the thread end, whatever is in progress, and wait for it. Harmless when it has ended."""
        self._stopping.set()
        # Two waits may have to end: the queue's, and the one for a generation change.
        self._submitted.put(None)
        self._transport.wake()
        with self._changed:
            self._changed.notify_all()
        self.thread.join()

    def _hand_in(self, message: Submission | Filling | ResumeCommand) -> None:
        """Let the thread have a message. Its step is woken only where it may be in one: that costs it another step."""
        self._submitted.put(message)
        if not self._waits:  # read after the message is there: the thread looks for messages after it changes this
            self._transport.wake()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take_in()
                if self._tasks:
                    self._move()
        except BaseException as error:
            self._deliver(Failed(None, error))

    def _take_in(self) -> None:
        """Submit what is waiting. Wait for it when nothing is in progress."""
        try:
            while True:
                # Set before `get` and cleared after it: `_hand_in` skips the wake-up, a system call, while the thread
                # waits here.
                self._waits = not self._tasks
                submitted = self._submitted.get(block=self._waits)
                self._waits = False
                if submitted is None:
                    return
                with self._changed:
                    # Sealed while this thread waited: the phase stays out of the stream, which was reported without it.
                    if not self._unsealed():
                        return
                    if isinstance(submitted, ResumeCommand):
                        for shard, start in zip(self._shards, submitted.starts, strict=True):
                            shard.go_on(submitted.start_generation, start)
                        self._transport.wake()
                        self._begun = submitted.allreduces
                    elif isinstance(submitted, Filling):
                        self._fill(*submitted)
                    else:
                        self._submit(*submitted)
        except Empty:
            return

    def _fill(self, task: Task, payloads: NDArray[np.uint8]) -> None:
        for handle, (owner, _) in self._tasks.items():
            if owner is task:
                self._transport.fill(handle, payloads)

    def _submit(self, task: Task, parts: tuple[CollectivePhase, ...], ready: int | None, part_chunks: int) -> None:
        if not self._tasks:
            self._begin_watch()
        for number, part in enumerate(parts):
            try:
                handle = self._transport.submit(
                    part.op, part.payloads, part.counts(), ready=ready, part_chunks=part_chunks
                )
            except Exception as error:
                self._deliver(Failed(task, error))
                return
            # From here on events of this handle belong to the task; a phase that was refused has none.
            self._tasks[handle] = task, number
            # The controller asks how many all-reduces have begun: only those in the stream count.
            self._begun = max(self._begun, task.number + 1)

    def _unsealed(self) -> bool:
        """Wait until no generation is being changed. Say whether there is anything left to do. With the lock."""
        while self._sealed and not self._stopping.is_set():
            self._changed.wait()
        return not self._stopping.is_set()

    def _move(self) -> None:
        with self._changed:
            if not self._unsealed():
                return
            events = self._transport.step(_WAIT_S)
        for event in events:
            if isinstance(event, AllReducePart):
                self._deliver(ArrivedPart(self._tasks[event.handle][0], event))
                continue
            task, part = self._tasks.pop(event.handle)
            if isinstance(event, AllReduceDone):
                self._deliver(Arrived(task, event, SocketTraffic.of(self._transport.statistics), part))
            else:
                self._deliver(Failed(task, event.error))
        if not self._tasks:
            return
        for shard, progress in zip(self._shards, self._progress, strict=True):
            with shard.lock if len(self._shards) > 1 else nullcontext():  # a shard's thread has its worker
                progress.check()
        # A list, not a generator: every detector has to see this moment.
        if any([stall.lasts() for stall in self._stalls]):
            self._on_stall()

    def _begin_watch(self) -> None:
        for stall, progress in zip(self._stalls, self._progress, strict=True):
            stall.begin()
            progress.begin()


# The lines that a worker's log has where results do not come: whom they wait for, and a switch that is not there.


ABSENT_S: Final = 2.0
"""The time in which everything comes back as 'port unreachable' before that is said."""
ASK_S: Final = AFTER_S - 1.0
"""The time without a result before the switch is asked whom it waits for. Its answer is here when the line is written.
"""
ASK_EVERY_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class Progress:
    """Looks at a transport between its steps, in the thread that has it.

    Args:
        clock: seconds that do not go back.
    """

    def __init__(self, transport: Transport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport, self._clock = transport, clock
        own = transport.worker.membership
        self._who, self._switch = f"rank {own.rank}", own.switch
        self._waiting = WaitMonitor(_log, self._who, clock=clock)
        self._results = 0
        self._ask_in_s = ASK_S
        self._absent = False

    def begin(self) -> None:
        """Count from now: the first phase is in progress, or another generation."""
        self._results, self._ask_in_s = self._transport.statistics.worker.results, ASK_S
        self._waiting.over()
        self._say_absence()

    def check(self) -> None:
        """Say what is to be said, and ask the switch if it is time."""
        self._say_absence()
        worker = self._transport.worker
        if self._transport.statistics.worker.results != self._results or worker.is_idle:
            self.begin()
            return
        if self._waiting.lasted_s >= self._ask_in_s:
            self._ask_in_s = self._waiting.lasted_s + ASK_EVERY_S
            self._transport.probe()
        self._waiting.check(worker.missing_text, worker.left_s(self._clock()))

    def _say_absence(self) -> None:
        absence = self._transport.worker.absence
        if self._absent and not absence.answers:
            self._absent = False
            _log.warning("%s: %s is there again", self._who, self._switch)
        elif not self._absent and absence.lasted_s >= ABSENT_S:
            self._absent = True
            limit_s = self._transport.worker.timing.unreachable_s
            until = "until its deadline" if limit_s is None else f"for {limit_s - absence.lasted_s:.0f} s more"
            _log.warning(
                "%s: %s is not there: all that was sent to it for %.1f s came back as 'port unreachable' (%d times), "
                "and nothing came from it; this rank waits %s",
                self._who, self._switch, absence.lasted_s, absence.answers, until,
            )  # fmt: skip
