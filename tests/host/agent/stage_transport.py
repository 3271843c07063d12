# SPDX-License-Identifier: Apache-2.0
"""A transport of one worker without any network: a test decides what becomes of each phase."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.agent.allreduce_engine import CLOSE, AllReduceEngine
from hopsum.agent.allreduce_results import CommunicatorStatistics
from hopsum.agent.task import Task
from hopsum.agent.vector import HostVector
from hopsum.codec import Codec, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.interface import Reduction
from hopsum.codec.simulate import simulate_switch
from hopsum.errors import AllReduceError, WorkersReplacedError
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Worker, WorkerStatistics
from hopsum.protocol.worker_state import AllReduceEvent
from hopsum.transport.link import LinkStatistics
from hopsum.transport.shard import ShardContinuation, TransportStatistics
from hopsum.transport.side_channel import SideStatistics
from hopsum.transport.transport import Transport
from hopsum_wire.generations import Sealed

WAIT_S = 60


class Exchanged(NamedTuple):
    """The phases that were put into the stream: handles count from 0, each phase is one position."""

    handle: int
    op: int
    payloads: NDArray[np.uint8]


class BusyWorker(Worker):
    """A worker that has nothing in progress and says that it has: the stage has it."""

    @property
    def is_idle(self) -> bool:
        return False


class StageTransport(Transport):
    """Its own only shard. Phases are in `stream`; `do` and `void` end them. With `limit`, later ones are refused."""

    def __init__(self, codec: Codec | None = None) -> None:
        self._codec = codec
        self.changed = threading.Condition()
        self.stream: list[Exchanged] = []
        self.ready: list[int] = []
        """By handle, the chunks that have payloads."""
        self.coders: dict[int, Reduction] = {}
        self.made: list[int] = []
        """The handle of each part that a coder made."""
        self.read: list[int] = []
        """The same of parts that were read."""
        self._parts: list[tuple[int, int, int]] = []
        self.shards = (self,)  # type: ignore[assignment]
        self.limit: int | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.worker = BusyWorker(Membership(generation=70, rank=0, workers=1, slots=8))
        self.counts = TransportStatistics(LinkStatistics(), WorkerStatistics(), SideStatistics())
        self._events: list[AllReduceEvent] = []
        self._woken = False
        self._loop = None
        self.interrupt = None
        self.is_sealed, self._stepping = False, threading.Lock()
        self.lock = self.changed  # type: ignore[assignment, misc]

    # ---- as a transport ---------------------------------------------------------------------------------

    @property
    def statistics(self) -> TransportStatistics:
        return self.counts

    def probe(self) -> None:
        """Ask nobody."""

    def wake(self) -> None:
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def submit(
        self,
        op: int,
        payloads: NDArray[np.uint8],
        counts: ArrayLike | None = None,
        *,
        coder: Reduction | None = None,
        **begin: Any,
    ) -> int:
        with self.changed:
            if self.limit is not None and len(self.stream) >= self.limit:
                raise WorkersReplacedError("rank 1 was replaced", (1,))
            self.stream.append(Exchanged(len(self.stream), op, payloads.copy()))
            self.ready.append(len(payloads) if coder is None else coder.encoded)
            if coder is not None:
                self.coders[self.stream[-1].handle] = coder
            self.changed.notify_all()
            return self.stream[-1].handle

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        self.ready[handle] = len(payloads)

    def _step(self, wait_s: float) -> list[AllReduceEvent]:
        with self.changed:
            self.changed.wait_for(lambda: self._woken or self._parts or any(self._unmade()), wait_s)
            self._woken = False
            for handle in list(self._unmade()):
                self._make(handle)
            parts, self._parts = self._parts, []
            for handle, first, end in parts:
                results, contributors = self._sums(handle)
                self.coders[handle].on_part(first, results[first:end], contributors[first:end])
                self.read.append(handle)
            self.changed.notify_all()
            events, self._events = self._events, []
            return events

    def _unmade(self) -> Iterator[int]:
        """Yield the handles of phases that lack payloads."""
        for handle, coder in self.coders.items():
            if coder.phase is not None and coder.is_begun and self.ready[handle] < len(self.stream[handle].payloads):
                yield handle

    def _make(self, handle: int) -> None:
        try:
            payloads = self.coders[handle].encode_part()
        except Exception as error:
            del self.coders[handle]
            self._events.append(AllReduceFailed(handle, error))
            return
        first = self.ready[handle]
        self.stream[handle].payloads[first : first + len(payloads)] = payloads
        self.ready[handle] += len(payloads)
        self.made.append(handle)

    def seal(self) -> Sealed:
        self.is_sealed = True
        self.wake()
        with self._stepping, self.changed:
            self.calls.append(("seal",))
            return Sealed(70, 0, len(self.stream), ())

    def resume(self, generation: int, continuations: Sequence[ShardContinuation]) -> None:
        with self._stepping, self.changed:
            self.calls.append(("resume", generation))
            for each in continuations:
                if each.resume.start is not None:
                    self.limit = each.resume.start
            self.is_sealed = False

    def resume_at(self, start_generation: int, starts: Sequence[int]) -> None:
        with self.changed:
            self.calls.append(("resume_at", start_generation, *starts))
            self.limit = None
            self.changed.notify_all()

    def close(self, *, linger: bool = True) -> None:
        self.calls.append(("close", linger))

    # ---- for tests --------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), (self.stream, self.calls)

    def wait_for_phases(self, count: int) -> None:
        self.wait(lambda: len(self.stream) >= count)

    def do(self, handle: int) -> None:
        """Let a sum of this worker alone arrive."""
        self._end(AllReduceDone(handle, *self._sums(handle)))

    def void(self, handle: int, error: AllReduceError | None = None) -> None:
        self._end(AllReduceFailed(handle, error or WorkersReplacedError("rank 1 was replaced", (1,))))

    def do_part(self, handle: int, first: int, end: int) -> None:
        """Let the sums of some chunks arrive; of none: take back those that did."""
        with self.changed:
            self._parts.append((handle, first, end))
        self.wake()

    def _sums(self, handle: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        phase = self.stream[handle]
        if self._codec is None:
            return simulate_switch(phase.op, [phase.payloads])
        return simulate_switch(phase.op, [phase.payloads], self._codec.lookup, None, self._codec.code_group)

    def _end(self, event: AllReduceEvent) -> None:
        with self.changed:
            self._events.append(event)
        self.wake()


class Stage:
    """The engine of one worker at a transport of the test, in a thread until `stop`."""

    def __init__(self, codec_name: str, backend: str = "numpy") -> None:
        codec = make_codec(codec_name, workers=1, backend=backend)
        self.transport = StageTransport(codec)
        self.failures: list[BaseException] = []
        self.silences = 0
        self.engine = AllReduceEngine(
            codec,
            ReductionContext(0, 0, 0),
            self.transport,
            generation=70,
            overlap=True,
            follow_s=60.0,
            trace=None,
            on_failure=self.failures.append,
            on_stall=self._hear_silence,
            counted=CommunicatorStatistics(),
        )
        self.thread = threading.Thread(target=self.engine.driver.run)
        self.thread.start()

    def submit(
        self, x: NDArray[np.float32], feedback: ErrorFeedback | None = None, number: int = 0, *, more: bool = False,
        in_place: bool = False,
    ) -> Task:  # fmt: skip
        task = Task(HostVector(x, feedback, x if in_place else None), (), "raise", more, number=number, step=number)
        self.engine.driver.put(task)
        return task

    def stop(self) -> None:
        self.engine.driver.put(CLOSE)
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()

    def _hear_silence(self) -> None:
        with self.transport.changed:
            self.silences += 1
            self.transport.changed.notify_all()
