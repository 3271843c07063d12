# SPDX-License-Identifier: Apache-2.0
"""A communicator that lacks only the sum itself.

A thread serves the submitted vectors strictly one after the other, so phases come in the same order on all ranks.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.allreduce_results import (
    AllReduceResult,
    CommunicatorClosedError,
    SocketTraffic,
)
from hopsum.agent.communicator import Communicator
from hopsum.agent.signature import MismatchError, digest_of
from hopsum.agent.task import Task
from hopsum.codec import Codec, CollectiveError, CollectivePhase, ReductionContext
from hopsum.errors import AllReduceError, GenerationEndedError, HopsumError

_CALL_CHARACTERS: Final = 200


def call_in_words(task: Task) -> str:
    """Return a text of the facts about an all-reduce that all ranks need in common, ASCII, at most 200 characters."""
    # A digest: the names of a model's tensors may be longer than a packet of a Unix socket.
    names = digest_of(repr([(name, int(elements)) for name, elements in task.tensors]))
    told = (
        f"all-reduce {task.number} of {task.vector.elements} elements, step {task.step}, "
        f"on_nonfinite={task.on_nonfinite}, names with digest {names:08x}"
    )
    # A hook may compare more than tensors: such a value is a name without elements. The digest has all of them.
    words = [name.encode("ascii", "backslashreplace").decode() for name, elements in task.tensors if not elements]
    return ", ".join([told, *words])[:_CALL_CHARACTERS]


def require_agreement(calls: Mapping[int, str]) -> None:
    """Raise MismatchError unless all ranks have the same text of `call_in_words`. `calls` has the texts by rank."""
    first, *others = calls.values()
    if all(call == first for call in others):
        return
    told = [f"rank {rank} has {call}" for place, (rank, call) in enumerate(calls.items()) if not place or call != first]
    more = f"; and {len(told) - 4} more ranks" if len(told) > 4 else ""
    raise MismatchError(
        f"the ranks are not at the same all-reduce: {'; '.join(told[:4])}{more}. All ranks submit vectors of the same "
        "lengths and names in the same order"
    )


class Summed(NamedTuple):
    """One phase, summed over the ranks."""

    results: NDArray[np.uint8]
    """RESULT payloads, uint8[chunks, down_bytes(op)]."""
    contributors: NDArray[np.uint64]
    """[chunks], bitmap of the workers in each sum."""
    bytes_sent: int
    """The payload bytes that this rank sent."""


class SerialCommunicator(Communicator):
    """A communicator that runs one all-reduce after the other in its thread. Groups change nothing.

    A subclass implements `_agree`, `_sum`, `_leave` and `_interrupt`. Its constructor calls this one last, because this
    one starts the thread.

    Args:
        name: for messages.
        seed: of rotations and roundings, the same on all ranks.
    """

    def __init__(self, name: str, *, rank: int, codec: Codec, seed: int) -> None:
        super().__init__(f"rank {rank} of {name}", rank=rank, codec=codec, thread=f"hopsum {name} {rank}")
        self.name = name
        self._seed = seed
        self._failure: BaseException | None = None
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        # Subclasses call this constructor last: the thread uses what they have set up.
        self._thread.start()

    @abstractmethod
    def _agree(self, call: str) -> None:
        """Return once all ranks have the same call, as `call_in_words` has it. Raises MismatchError on all of them."""

    @abstractmethod
    def _sum(self, phase: CollectivePhase) -> Summed:
        """Sum a phase over the ranks as a switch would: the same bytes on all ranks. The caller owns the arrays."""

    @abstractmethod
    def _leave(self, why: BaseException | None) -> None:
        """Part from the other ranks, so that none waits for this one any longer. It is called at least once."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Make `_agree` and `_sum` fail soon, if that can be done. Called by `close` in any thread."""

    def _queue_task(self, task: Task) -> None:
        self._queue.put(task)

    def _queue_end_of_group(self) -> None:
        """Do nothing: all-reduces follow one after the other anyway."""

    def _stop(self) -> None:
        self._queue.put(None)
        self._interrupt()

    def _why_over(self) -> HopsumError | None:
        if self._failure is None:
            return None
        over = GenerationEndedError(
            f"rank {self.rank} has left {self.name}, as an all-reduce failed: {self._failure}. Connect all ranks again"
        )
        over.__cause__ = self._failure
        return over

    # ---- the thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        # No task has a name in this loop: while it waits for the next one, the vector would stay in memory.
        while self._end(self._queue.get()):
            pass
        self._leave(None)

    def _end(self, task: Task | None) -> bool:
        """Do a task's all-reduce, and give its future the result or the error. Return False for None."""
        if task is None:
            return False
        start = time.perf_counter()
        try:
            result = self._reduce(task)
        # All ranks have this error for the same all-reduce, so the stream stays in step and the next one can follow.
        except CollectiveError as error:
            self._counted.count(task.vector.elements, time.perf_counter() - start, skipped=True)
            task.future.set_exception(error)
        except BaseException as error:
            # The vector is not delivered: the error feedback keeps it. This communicator has failed.
            task.rollback(error)
            task.future.set_exception(self._fail(error))
        else:
            task.future.set_result(result)
        return True

    def _reduce(self, task: Task) -> AllReduceResult:
        start, before = time.perf_counter(), self._counted.traffic
        with self._lock:
            self._require_open()
        # Facts first: ranks that are at different calls find out before one of them waits for a phase that never comes.
        self._agree(call_in_words(task))
        context = ReductionContext(self._seed, task.step, self.rank)
        task.reduction = reduction = task.vector.start(
            self.codec, context, tensors=task.tensors, on_nonfinite=task.on_nonfinite
        )
        while (phase := reduction.phase) is not None:
            summed = self._sum(phase)
            # Of payloads: there are no datagrams.
            was = self._counted.traffic
            sent, received = was.bytes_sent + summed.bytes_sent, was.bytes_received + summed.results.nbytes
            self._counted.traffic = SocketTraffic(bytes_sent=sent, bytes_received=received)
            reduction.on_results(summed.results, summed.contributors)
        seconds = time.perf_counter() - start
        self._counted.count(task.vector.elements, seconds, skipped=reduction.mean is None)
        return AllReduceResult(
            mean=task.vector.all_nan() if reduction.mean is None else reduction.mean,
            contributors=reduction.contributors,
            skipped=reduction.mean is None,
            traffic=self._counted.traffic - before,
            seconds=seconds,
        )

    def _fail(self, error: BaseException) -> BaseException:
        """Leave the other ranks because of an error, unless that was done. Return the error for the future."""
        with self._lock:
            # `close` interrupts the sum in progress, which then fails with an error of the other side.
            if self._closed and isinstance(error, AllReduceError):
                closed = CommunicatorClosedError(
                    f"rank {self.rank} of {self.name} was closed in the middle of this all-reduce"
                )
                closed.__cause__ = error
                return closed
            if self._closed or self._failure is not None:
                return error
            self._failure = error
        self._leave(error)
        return error
