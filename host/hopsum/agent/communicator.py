# SPDX-License-Identifier: Apache-2.0
"""The communicator of one rank, the public interface for all-reduces. Its thread runs submitted all-reduces.

`allreduce` blocks anyway, so a communicator may run the all-reduce in its caller's thread.

state    input                      next     also
OPEN     submit                     OPEN     queued; its future cannot be cancelled
OPEN     CollectiveError            OPEN     its future has the error, on all ranks
OPEN     workers were replaced      OPEN     futures have WorkersReplacedError, on all ranks, until `resume`
OPEN     an all-reduce fails        FAILED   its future has the error; futures queued after it have GenerationEndedError
FAILED   submit                     FAILED   GenerationEndedError
any      close                      CLOSED   all-reduces in progress or queued end with CommunicatorClosedError
CLOSED   submit                     CLOSED   CommunicatorClosedError
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.allreduce_results import AllReduceResult, CommunicatorClosedError, CommunicatorStatistics
from hopsum.agent.task import Task
from hopsum.agent.vector import HostVector, Vector, require_host_vector
from hopsum.codec import Codec, CodecError, ErrorFeedback
from hopsum.codec.interface import OnNonfinite, Tensors, require_on_nonfinite
from hopsum.errors import HopsumError, why_unfinished
from hopsum.protocol.state_transfer import STATE_BYTES_MAX


class Communicator(ABC):
    """One rank's handle for all-reduces. Any thread may submit. All ranks submit the same sequence of vectors.

    A subclass implements `_serve`. The last step of its constructor starts the thread that runs `_serve`.

    Args:
        who: the name of this communicator in messages.
        rank: the rank of this communicator.
        codec: makes payloads of vectors, the same on all ranks.
        thread: the name of the thread.
    """

    on_host_only: ClassVar[bool] = False
    """Whether vectors must be in the host's memory, also if the codec has a form for devices."""

    def __init__(self, who: str, *, rank: int, codec: Codec, thread: str) -> None:
        self.rank = rank
        self.codec = codec
        self._who = who
        self._lock = threading.Lock()
        self._closed = False
        self._submitted = 0
        self._followed_by_other: ErrorFeedback | None = None
        """The error feedback of the last vector, if a group is open: it serves one vector at a time."""
        self._counted: Final = CommunicatorStatistics()
        """The counts so far. The communicator's thread counts all-reduces, `note_step` counts steps."""
        self._groups = 0
        """The number of open groups, which may be nested."""
        self._thread = threading.Thread(target=self._serve, name=thread, daemon=True)

    @abstractmethod
    def _serve(self) -> None:
        """Run all-reduces until `_stop`. Then end the others with CommunicatorClosedError."""

    @abstractmethod
    def _queue_task(self, task: Task) -> None:
        """Queue a submitted vector. The lock is held, which keeps the order."""

    @abstractmethod
    def _queue_end_of_group(self) -> None:
        """Queue the end of the group, after its last vector."""

    @abstractmethod
    def _stop(self) -> None:
        """Make `_serve` end soon. Called once, with the lock held."""

    @abstractmethod
    def _why_over(self) -> HopsumError | None:
        """Return the error that `submit` raises after an all-reduce has failed, or None. The lock is held."""

    @property
    def statistics(self) -> CommunicatorStatistics:
        """Return a copy of the counts so far."""
        return self._counted.copy()

    @property
    def workers(self) -> int:
        """The number of workers in the job."""
        return self.codec.workers

    def allreduce(
        self,
        x: NDArray[np.float32] | Vector,
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: NDArray[np.float32] | None = None,
    ) -> AllReduceResult:
        """Return the mean of x over all workers, as a result. Blocks. Arguments as `submit`.

        Raises the errors of `submit` and of its future, and RuntimeError in a callback of a future and in an open
        group.
        """
        if self._serves_here():
            raise RuntimeError(f"allreduce in a callback of a future of {self._who} would wait for itself: use submit")
        if self.is_in_group:
            raise RuntimeError("allreduce in a group would wait for the group's end: use submit")
        return self._complete(self._submit(x, feedback, step, tensors, on_nonfinite, out, awaited=True))

    def submit(
        self,
        x: NDArray[np.float32] | Vector,
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: NDArray[np.float32] | None = None,
    ) -> Future[AllReduceResult]:
        """Queue an all-reduce and return its future, which cannot be cancelled. Does not block.

        Callbacks of the future run in a thread of the communicator, or in that of a caller of `allreduce`. They must
        not wait for other futures.

        The future may have AllReduceError (AllReduceTimeoutError, ResultLostError, RankLeftError, ...),
        GenerationEndedError, CommunicatorClosedError, CodecError, MismatchError or NonFiniteError, and in a job of a
        controller WorkersReplacedError until `resume`. Then x is in the feedback, except after NonFiniteError, and
        except after MismatchError without a switch: these leave the feedback as it was before.

        Args:
            x: contiguous float32[elements], or a `Vector` on a device with its own feedback, whose mean is on the
                device. Ranks may have vectors of different kinds. Do not change x before the future is done.
            feedback: error feedback of the same length, whose residual is added to x. It is committed before the future
                is done; do not use it until then. Without feedback the codec's error is lost.
            step: seed of this all-reduce's randomness, the same on all ranks; counted by default.
            tensors: names and elements of the tensors in x, for messages.
            on_nonfinite: the same on all ranks. "raise": if some rank's x has NaN or infinity, the future of every rank
                has NonFiniteError. "skip": the result is marked `skipped`. The communicator stays usable.
            out: memory for the mean, contiguous float32[elements]. It may be x itself, which saves memory. A skipped
                all-reduce does not change it. After an error it may have a part of the mean, unless it is x and there
                is no feedback to keep x.

        Raises:
            GenerationEndedError: an earlier all-reduce failed. Connect all ranks again, agents with a membership of a
                new generation.
            CommunicatorClosedError: the communicator is closed.
            CodecError: x is no such vector, is on a device although the communicator is `on_host_only`, or the previous
                vector is in the same group and has the same feedback.
                After any of these errors nothing was submitted.
        """
        return self._submit(x, feedback, step, tensors, on_nonfinite, out, awaited=False).future

    def _submit(
        self,
        x: NDArray[np.float32] | Vector,
        feedback: ErrorFeedback | None,
        step: int | None,
        tensors: Tensors,
        on_nonfinite: OnNonfinite,
        out: NDArray[np.float32] | None,
        *,
        awaited: bool,
    ) -> Task:
        require_on_nonfinite(on_nonfinite)
        vector: Vector = HostVector(x, feedback, out) if isinstance(x, np.ndarray) else x
        if vector is x and not (feedback is None and out is None):
            raise CodecError("a Vector brings its own feedback and place of the mean: leave out feedback and out")
        if self.on_host_only:
            require_host_vector(vector)
        with self._lock:
            self._require_open()
            if vector.feedback is not None and vector.feedback is self._followed_by_other:
                raise CodecError(
                    "the all-reduce before is in the same group and has the same error feedback, which serves one at a "
                    "time: use one feedback per vector, or end the group between them"
                )
            task = Task(vector, tensors, on_nonfinite, self.is_in_group, awaited)
            # All ranks submit the same sequence, so one lock covers the number and the queue.
            task.future.set_running_or_notify_cancel()  # the other ranks would wait for a cancelled vector
            self._followed_by_other = vector.feedback if task.more else None
            task.number = self._submitted
            task.given_step = step
            task.step = task.number if step is None else step
            self._submitted += 1
            self._queue_task(task)
        return task

    def _complete(self, task: Task) -> AllReduceResult:
        """Return the result of a task. Blocks."""
        return task.future.result()

    def _serves_here(self) -> bool:
        """Say whether the calling thread runs all-reduces, as in a callback of a future."""
        return threading.current_thread() is self._thread

    def note_step(self, step_s: float, wait_s: float) -> None:
        """Count a training step, for statistics and heartbeats. The hooks of `hopsum.torch` call this. Raises nothing.

        Args:
            step_s: seconds from the step's first all-reduce to the first of the next step.
            wait_s: the part of them in which the step waited for all-reduces and computed nothing.
        """
        with self._lock:
            self._counted.steps += 1
            self._counted.step_seconds += step_s
            self._counted.wait_seconds += wait_s

    @contextmanager
    def group(self) -> Iterator[None]:
        """Group the all-reduces that are submitted inside. See `group_start`. Wait for their futures after it."""
        self.group_start()
        try:
            yield
        finally:
            self.group_end()

    def group_start(self) -> None:
        """Begin a group of all-reduces, at the same place of the program on all ranks, as NCCL's groups.

        Each vector of a group needs a separate error feedback. At a switch the ranges of a vector are sent before the
        codes of the previous vector, so a vector is encoded while the previous one is in flight. The codes of a group's
        last vector are sent when another vector follows or the group ends. Groups may be nested.
        """
        with self._lock:
            self._groups += 1

    def group_end(self) -> None:
        """End the group that was started last. Its all-reduces were in progress already.

        The end of the outermost group sends the codes of the last vector, and waits for nothing. The end of an inner
        group has no effect. Allowed also on a closed or failed communicator.

        Raises:
            RuntimeError: no group is open.
        """
        with self._lock:
            if not self._groups:
                raise RuntimeError("group_end without group_start")
            self._groups -= 1
            if not self._groups:
                self._followed_by_other = None
                self._queue_end_of_group()

    @property
    def is_in_group(self) -> bool:
        """Return whether a group of all-reduces is open, whose last codes wait for its end."""
        return self._groups > 0

    @property
    def has_ended(self) -> bool:
        """Return whether the communicator takes no vector any more: it is closed, or its job has ended."""
        with self._lock:
            return self._closed or self._why_over() is not None

    @property
    def is_newcomer(self) -> bool:
        """Whether this worker replaced a lost worker, or joined a running job: call `fetch_state` first."""
        return False

    def fetch_state(self, wait_s: float = 60.0, *, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Fetch the state that another worker passed to `resume`. Blocks; the other workers wait meanwhile.

        The bytes are not trustworthy, because any member may have sent them: load them as data (`weights_only=True`).

        Args:
            wait_s: most seconds without a byte. The whole transfer may take longer.
            bytes_max: a longer state is refused.

        Raises:
            HopsumError: this worker is no newcomer, no byte came for `wait_s`, or the state is too long.
        """
        raise HopsumError(f"{self._who} is no newcomer: there is no state to fetch. Ask is_newcomer first")

    def resume(self, state: Callable[[], bytes] | None = None) -> None:
        """Continue with the newcomers after WorkersReplacedError. Does nothing if no worker was replaced.

        Any thread but the communicator's. Vectors submitted before this call complete or fail without the newcomers;
        vectors submitted afterwards are in sums with them, and are numbered from the job's common number.

        Args:
            state: returns the state with which a newcomer continues (model, optimiser, step), the same on all ranks. If
                there is a newcomer, it is called at once, in this thread. None: newcomers ask another rank.

        Raises:
            GenerationEndedError, CommunicatorClosedError: as `submit`. Errors of `state` pass through. After an error
                nothing has changed.
            RuntimeError: in a callback of a future, at a switch.
        """
        with self._lock:
            self._require_open()

    def close(self) -> None:
        """End the communicator and wait for its thread. May be called again.

        Unfinished all-reduces fail with CommunicatorClosedError. In a callback of a future the call does not wait.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                # Once only, under the lock: nothing can be queued after the end.
                self._stop()
        if not self._serves_here():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception in a `with` block the other ranks must not wait for this one.
        why = why_unfinished(error)
        if why:
            self._abandon(why)
        self.close()

    def _abandon(self, why: str) -> None:  # noqa: B027  (optional)
        """Called before `close` with the reason if the program ends before its work is done."""

    def _require_open(self) -> None:
        if self._closed:
            raise CommunicatorClosedError(f"{self._who} is closed")
        over = self._why_over()
        if over is not None:
            raise over
