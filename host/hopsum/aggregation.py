# SPDX-License-Identifier: Apache-2.0
"""What sums vectors for one worker: an agent at a switch, a rack in this process, a process group of torch.

`Aggregation` is the contract; `hopsum.agent.Agent` meets it as well. `SerialAggregation` is all of one but the sum
itself: a thread that serves what is submitted strictly one after the other, so that exchanges come in the same
order on all ranks.

    state    input                      next     also
    OPEN     submit                     OPEN     queued; its future cannot be cancelled
    OPEN     AgreedError                OPEN     its future has the error, on all ranks alike
    OPEN     an all-reduce fails        FAILED   its future has the error; those queued behind it have EpochOver
    FAILED   submit                     FAILED   EpochOver
    any      close                      CLOSED   what is in progress or queued ends with AgentClosed
    CLOSED   submit                     CLOSED   AgentClosed
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import AgentClosed, AgentStatistics, AllReduceResult, Traffic
from hopsum.codec import AgreedError, Codec, CodecError, Context, ErrorFeedback, Exchange
from hopsum.codec.base import OnNonfinite, Reduction, Tensors, require_on_nonfinite, require_vector
from hopsum.errors import AllReduceFailed, EpochOver, HopsumError


class JoinError(HopsumError):
    """A rank cannot take part: its place is taken, or its settings are not those of the others."""


class MismatchError(AgreedError):
    """The ranks are not at the same all-reduce. None of them has a mean; residuals are as they were before."""


class Aggregation(Protocol):
    """One worker's way to the sum. Any thread may submit; all together submit the same sequence on all ranks."""

    @property
    def rank(self) -> int:
        """Which worker this is."""

    @property
    def workers(self) -> int:
        """How many there are."""

    @property
    def codec(self) -> Codec:
        """How vectors travel; the same on all ranks."""

    @property
    def statistics(self) -> AgentStatistics:
        """What was done so far."""

    def submit(
        self,
        x: NDArray[np.float32],
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "error",
    ) -> Future[AllReduceResult]:
        """Queue an all-reduce; see `Agent.submit`, also for arguments and what is raised."""

    def allreduce(
        self,
        x: NDArray[np.float32],
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "error",
    ) -> AllReduceResult:
        """Return the mean of x over all workers; blocks until it is here."""

    def close(self) -> None:
        """End it; what it has not begun fails. Harmless when it is closed."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""


class Call(NamedTuple):
    """What all ranks must be agreed about before an all-reduce begins."""

    number: int
    """All-reduces of this aggregation before it."""
    elements: int
    step: int
    skips: int
    """1 if a vector that is not finite is skipped, 0 if it is an error."""


def require_agreement(calls: list[Call]) -> None:
    """Raise MismatchError unless all ranks, in order, have the same call."""
    if all(call == calls[0] for call in calls):
        return
    told = [
        f"rank {rank} has all-reduce {call.number} of {call.elements} elements, step {call.step}, "
        f"on_nonfinite={'skip' if call.skips else 'error'}"
        for rank, call in enumerate(calls)
        if rank == 0 or call != calls[0]
    ]
    more = f"; and {len(told) - 4} more ranks" if len(told) > 4 else ""
    raise MismatchError(
        f"the ranks are not at the same all-reduce: {'; '.join(told[:4])}{more}. All ranks submit vectors of the same "
        "lengths in the same order"
    )


class Summed(NamedTuple):
    """One exchange, summed over the ranks."""

    results: NDArray[np.uint8]
    """RESULT payloads, uint8[chunks, down_bytes(op)]."""
    contributors: NDArray[np.uint64]
    """[chunks], bitmap of the workers in each sum."""
    bytes_sent: int
    """That this rank handed over."""


@dataclass(slots=True)
class _Task:
    """One submitted vector."""

    x: NDArray[np.float32]
    feedback: ErrorFeedback | None
    tensors: Tensors
    on_nonfinite: OnNonfinite
    future: Future[AllReduceResult]
    number: int = 0
    step: int = 0


class SerialAggregation(ABC):
    """All of an aggregation but the sum: subclasses agree, sum and leave, called by one thread.

    Args:
        name: for messages.
        seed: of rotations and roundings, the same on all ranks.
    """

    def __init__(self, name: str, *, rank: int, codec: Codec, seed: int) -> None:
        self.name = name
        self.rank = rank
        self.codec = codec
        self._seed = seed
        self._lock = threading.Lock()
        self._closed = False
        self._failure: BaseException | None = None
        self._submitted = 0
        self._statistics = AgentStatistics()
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"hopsum {name} {rank}", daemon=True)
        self._thread.start()

    @abstractmethod
    def _agree(self, call: Call) -> None:
        """Return once all ranks have the same call. Raises MismatchError on all of them."""

    @abstractmethod
    def _sum(self, exchange: Exchange) -> Summed:
        """Return what a switch would, the same on all ranks; the caller's."""

    @abstractmethod
    def _leave(self, why: BaseException | None) -> None:
        """Part from the other ranks, so that none waits for this one any longer; called at least once."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Make `_agree` and `_sum` fail soon, if that can be done; called by `close` in any thread."""

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return self.codec.workers

    @property
    def statistics(self) -> AgentStatistics:
        """Return the counts so far; bytes are those of payloads, and there are no datagrams."""
        return self._statistics

    def allreduce(
        self,
        x: NDArray[np.float32],
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "error",
    ) -> AllReduceResult:
        """Return the mean of x over all workers; blocks until it is here. See `Agent.submit`."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"allreduce in a callback of a future of {self.name} would wait for itself: use submit")
        return self.submit(x, feedback=feedback, step=step, tensors=tensors, on_nonfinite=on_nonfinite).result()

    def submit(
        self,
        x: NDArray[np.float32],
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "error",
    ) -> Future[AllReduceResult]:
        """Queue an all-reduce and return its future; see `Agent.submit`, which takes and raises the same."""
        require_vector(x)
        if feedback is not None and feedback.residual.shape != x.shape:
            raise CodecError(f"vector of {x.size} elements with an error feedback of {feedback.residual.size}")
        require_on_nonfinite(on_nonfinite)
        task = _Task(x, feedback, tensors, on_nonfinite, Future())
        task.future.set_running_or_notify_cancel()  # a cancelled one would be missing on this rank alone
        with self._lock:
            self._require_open()
            task.number = self._submitted
            task.step = task.number if step is None else step
            self._submitted += 1
            self._queue.put(task)
        return task.future

    def close(self) -> None:
        """End it and wait for its thread; what it has not finished fails. Harmless when it is closed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
                self._interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (task := self._queue.get()) is not None:
            start = time.perf_counter()
            try:
                result = self._reduce(task)
            except AgreedError as error:
                self._count(task, time.perf_counter() - start, skipped=True)
                task.future.set_exception(error)
            except BaseException as error:
                task.future.set_exception(self._fail(error))
            else:
                task.future.set_result(result)
        self._leave(None)

    def _reduce(self, task: _Task) -> AllReduceResult:
        start, before = time.perf_counter(), self._statistics.traffic
        reduction: Reduction | None = None
        try:
            with self._lock:
                self._require_open()
            self._agree(Call(task.number, task.x.size, task.step, int(task.on_nonfinite == "skip")))
            context = Context(self._seed, task.step, self.rank)
            reduction = self.codec.start(
                task.x, context, task.feedback, tensors=task.tensors, on_nonfinite=task.on_nonfinite
            )
            while (exchange := reduction.exchange) is not None:
                summed = self._sum(exchange)
                self._count_bytes(summed)
                reduction.take(summed.results, summed.contributors)
        except AgreedError:
            raise
        except BaseException:
            _give_back(task, reduction)
            raise
        seconds = time.perf_counter() - start
        self._count(task, seconds, skipped=reduction.mean is None)
        return AllReduceResult(
            mean=np.full(task.x.size, np.nan, np.float32) if reduction.mean is None else reduction.mean,
            contributors=reduction.contributors,
            skipped=reduction.mean is None,
            traffic=self._statistics.traffic - before,
            seconds=seconds,
        )

    def _count(self, task: _Task, seconds: float, *, skipped: bool) -> None:
        counted = self._statistics
        self._statistics = replace(
            counted,
            allreduces=counted.allreduces + 1,
            skipped=counted.skipped + skipped,
            elements=counted.elements + task.x.size,
            seconds=counted.seconds + seconds,
        )

    def _count_bytes(self, summed: Summed) -> None:
        was = self._statistics.traffic
        sent, received = was.bytes_sent + summed.bytes_sent, was.bytes_received + summed.results.nbytes
        self._statistics = replace(self._statistics, traffic=Traffic(bytes_sent=sent, bytes_received=received))

    def _require_open(self) -> None:
        if self._closed:
            raise AgentClosed(f"rank {self.rank} of {self.name} is closed")
        if self._failure is not None:
            raise self._over()

    def _fail(self, error: BaseException) -> BaseException:
        """Part from the others over an error, unless that was done; return what the future has."""
        with self._lock:
            if self._closed and isinstance(error, AllReduceFailed):
                closed = AgentClosed(f"rank {self.rank} of {self.name} was closed in the middle of this all-reduce")
                closed.__cause__ = error
                return closed
            if self._closed or self._failure is not None:
                return error
            self._failure = error
        self._leave(error)
        return error

    def _over(self) -> HopsumError:
        over = EpochOver(
            f"rank {self.rank} has left {self.name}, as an all-reduce failed: {self._failure}. Connect all ranks again"
        )
        over.__cause__ = self._failure
        return over


def _give_back(task: _Task, reduction: Reduction | None) -> None:
    """Put all of the vector into the error feedback; one that is not finite is dropped, as if skipped."""
    if reduction is not None:
        if reduction.exchange is not None:
            reduction.abandon()
    elif task.feedback is not None:
        task.feedback.withdraw()
        finite = bool(np.isfinite(task.feedback.compensate(task.x)).all())
        task.feedback.settle(None) if finite else task.feedback.withdraw()
