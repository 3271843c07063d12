# SPDX-License-Identifier: Apache-2.0
"""The communicator of one rank, as a program sees it. A thread of its own serves what is submitted.

A communicator may let a caller of `allreduce`, who waits anyway, serve in the place of that thread.

state    input                      next     also
OPEN     submit                     OPEN     queued; its future cannot be cancelled
OPEN     CollectiveError            OPEN     its future has the error, on all ranks alike
OPEN     workers were replaced      OPEN     futures have WorkersReplacedError, on all ranks alike, until `resume`
OPEN     an all-reduce fails        FAILED   its future has the error; those queued behind it have GenerationEndedError
FAILED   submit                     FAILED   GenerationEndedError
any      close                      CLOSED   what is in progress or queued ends with CommunicatorClosedError
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
from hopsum.agent.vector import HostVector, Vector, host_vector
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
    """Vectors are summed in the host's memory, so they cannot lie elsewhere, whatever the codec could do."""

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
        """The counts so far. The thread that serves counts all-reduces, `note_step` counts steps."""
        self._groups = 0
        """Groups that are open, one inside the other."""
        self._thread = threading.Thread(target=self._serve, name=thread, daemon=True)

    @abstractmethod
    def _serve(self) -> None:
        """Serve until `_stop`. Then end all that is left with CommunicatorClosedError."""

    @abstractmethod
    def _queue_task(self, task: Task) -> None:
        """Take what was submitted. The lock is held, so the order stays."""

    @abstractmethod
    def _queue_end_of_group(self) -> None:
        """Take note, in the same order, that the last one is followed by none in its group."""

    @abstractmethod
    def _stop(self) -> None:
        """Make `_serve` end soon. It is called once, with the lock held."""

    @abstractmethod
    def _why_over(self) -> HopsumError | None:
        """Return the error that `submit` raises after an all-reduce has failed, or None. The lock is held."""

    @property
    def statistics(self) -> CommunicatorStatistics:
        """Return the counts so far."""
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
        """Return the mean of x over all workers. Blocks until it is here. See `submit`, also for what it raises."""
        if self._serves_here():
            raise RuntimeError(f"allreduce in a callback of a future of {self._who} would wait for itself: use submit")
        if self._groups:
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
        """Queue an all-reduce and return its future, whose callbacks run in the thread that serves.

        Args:
            x: contiguous float32[elements]. Do not change it before the future is done. Or a `Vector` that lies
                elsewhere and has its own feedback: the mean is of its kind. Ranks may differ in the kinds.
            feedback: adds what earlier all-reduces left behind, and is committed before the future is done. It has
                the same length, and nothing else touches it until then. Without one the error is lost.
            step: what randomness follows from, the same on all ranks, counted by default.
            tensors: names and elements of what x consists of, for messages.
            on_nonfinite: the same on all ranks. "raise": if some rank's x has NaN or infinity, the future of every rank
                has NonFiniteError. "skip": a result that says so. Either way the next one can follow.
            out: becomes the mean, contiguous float32[elements]. It may be x itself, which saves memory. As it was where
                the result is skipped. After an error it may have a part of the mean, unless it is x and there is no
                feedback, which would have x.

        Raises:
            GenerationEndedError: an earlier all-reduce failed. Connect all ranks again, agents with a membership of a
                new generation.
            CommunicatorClosedError: it is closed.
            CodecError: x is no such vector, lies elsewhere where vectors are summed `on_host_only`, or the one before
                is in the same group and has the same feedback. After any of these nothing was submitted.
                The future may have AllReduceTimeoutError, ResultLostError or GenerationEndedError from the network,
                CodecError, CommunicatorClosedError, and, in a job of a controller, WorkersReplacedError until `resume`:
                then x is in the feedback.
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
            host_vector(vector)
        with self._lock:
            self._require_open()
            if vector.feedback is not None and vector.feedback is self._followed_by_other:
                raise CodecError(
                    "the all-reduce before is in the same group and has the same error feedback, which serves one at a "
                    "time: use one feedback per vector, or end the group between them"
                )
            task = Task(vector, tensors, on_nonfinite, self._groups > 0, awaited)
            # All ranks submit the same sequence, so the number is taken and the task is queued under one lock.
            task.future.set_running_or_notify_cancel()  # a cancelled one would be missing on this rank alone
            self._followed_by_other = vector.feedback if task.more else None
            task.number = self._submitted
            task.given_step = step
            task.step = task.number if step is None else step
            self._submitted += 1
            self._queue_task(task)
        return task

    def _complete(self, task: Task) -> AllReduceResult:
        """Return the result of a task whose caller waits for it."""
        return task.future.result()

    def _serves_here(self) -> bool:
        """Say whether the calling thread is the one that serves, in a callback of a future."""
        return threading.current_thread() is self._thread

    def note_step(self, step_s: float, wait_s: float) -> None:
        """Count a training step, for statistics and heartbeats. Hooks do. Harmless at any time.

        Args:
            step_s: the whole of it, from its first all-reduce to that of the next step.
            wait_s: the part in which it waited for all-reduces and computed nothing.
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

        Each vector of a group needs an error feedback of its own. At a switch the ranges of a vector go before the
        chunks of the one before, so a vector is encoded while the one before is on its way. The last vector of an open
        group does not go on before another follows, or the group ends. Groups may be inside each other.
        """
        with self._lock:
            self._groups += 1

    def group_end(self) -> None:
        """End the group that was started last. It is harmless where the communicator is closed or has failed.

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
    def is_newcomer(self) -> bool:
        """True where this worker took another worker's place in a running job: call `fetch_state` first."""
        return False

    def fetch_state(self, wait_s: float = 60.0, *, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Fetch the state that another worker gave to `resume`. Ask the workers in turn.

        The bytes are a member's word: any member could have made them up. Load them as data (`weights_only=True`).
        The others wait for this worker meanwhile.

        Args:
            wait_s: seconds until the first bytes, and for which no more may come. The whole may take longer.
            bytes_max: a longer state is refused.

        Raises:
            HopsumError: this worker is no newcomer, or nothing came for `wait_s`, or something too long.
        """
        raise HopsumError(f"{self._who} is no newcomer: there is no state to fetch. Ask is_newcomer first")

    def resume(self, state: Callable[[], bytes] | None = None) -> None:
        """Go on with the newcomers after WorkersReplacedError. Any thread but its own. Harmless where nobody is new.

        What was submitted before goes its own way. What is submitted afterwards is in sums with the newcomers, and
        counts from the number that the job agreed on.

        Args:
            state: returns what a newcomer needs in order to go on with this vector (model, optimiser, step), the same
                on all ranks. It is called at once, in this thread, if there is a newcomer. None: newcomers ask
                another rank.

        Raises:
            GenerationEndedError, CommunicatorClosedError: as `submit`. What `state` raises. Then nothing has changed.
        """
        with self._lock:
            self._require_open()

    def close(self) -> None:
        """End it and wait for its thread. What it has not finished fails. Harmless when it is closed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                # Once only, under the lock: nothing can be queued behind the end.
                self._stop()
        if not self._serves_here():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A `with` block that an exception leaves: the other ranks hear at once that this one will not come back.
        why = why_unfinished(error)
        if why:
            self._abandon(why)
        self.close()

    def _abandon(self, why: str) -> None:  # noqa: B027  (most have nobody to tell)
        """Hear, before `close`, that the program ends before its work is done, and why."""

    def _require_open(self) -> None:
        if self._closed:
            raise CommunicatorClosedError(f"{self._who} is closed")
        over = self._why_over()
        if over is not None:
            raise over
