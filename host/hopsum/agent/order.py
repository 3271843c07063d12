# SPDX-License-Identifier: Apache-2.0
"""The order of exchanges in a job's stream: a function of what was submitted, never of when.

r, c are the first exchange of an all-reduce and the others (ranges and codes of most codecs); 0, 1, 2 in the order of
submission. Those submitted with `more` promise that another one follows; every rank's program says the same. A promise
may be taken back: after the end of a series it is as if the last one had been without `more`.

    submitted                  stream
    0, 1, 2                    r0 c0 r1 c1 r2 c2
    0 more, 1 more, 2          r0 r1 c0 r2 c1 c2
    0 more, 1, 2               r0 r1 c0 c1 r2 c2
    0 more, end of series, 1   r0 c0 r1 c1

So with `more` the codes of one vector are encoded while those of the one before are on their way; without it only its
ranges are found meanwhile, since codes need the ranges of all ranks, which stand behind those codes in the stream.

Rules
    O1  The first exchange of k + 1 comes directly before the second of k, if k has `more`; else after the last of k.
        An all-reduce that turns out to have one exchange only (all ranks skip) changes nothing for the others.
    O2  The exchanges of one all-reduce keep their order, and so do second exchanges of different ones.
    O3  Where the next exchange is not there yet, nothing overtakes it.
    O4  An error feedback serves one all-reduce at a time: the next with it begins when that one is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.signature import Call
from hopsum.agent.values import AllReduceResult, Traffic
from hopsum.codec import ErrorFeedback
from hopsum.codec.base import OnNonfinite, Reduction, Tensors
from hopsum.protocol.worker import AllReduceDone


@dataclass(slots=True, eq=False)
class Task:
    """One submitted vector, from `submit` to the end of its future."""

    x: NDArray[np.float32]
    feedback: ErrorFeedback | None
    tensors: Tensors
    on_nonfinite: OnNonfinite
    more: bool
    """Another one was promised; it may be taken back. `call` keeps what was submitted."""
    out: NDArray[np.float32] | None = None
    future: Future[AllReduceResult] = field(default_factory=Future)
    number: int = 0
    step: int = 0
    started_s: float = 0.0
    vector_squares: float = 0.0
    """Of a sample of what is to be delivered, where there is an error feedback (tally.py)."""
    reduction: Reduction | None = None
    begun: bool = False
    """Its first exchange is in the stream."""
    waiting: bool = False
    """The reduction's exchange is in the stream and has not been taken."""
    sealed: bool = False
    """All its exchanges are in the stream."""
    arrived: Arrived | None = None
    """Results that its reduction has not taken."""
    first: dict[int, Arrived] = field(default_factory=dict)
    """Of its first exchange, which is signed: the parts that are here, by number."""
    parts: int = 0
    """Of that exchange, so many; 0 before it is in the stream and once it was handed over."""
    error: BaseException | None = None
    follower: Task | None = None
    """The one submitted next, also when that one is over already."""

    call: Call = field(init=False)
    """The call that all ranks need to have in common; its step is set with the task's."""

    def __post_init__(self) -> None:
        self.call = Call(self.x.size, 0, self.on_nonfinite, self.more, self.tensors)

    def give_back(self) -> None:
        """Put all of the vector into the error feedback; one that is not finite is dropped, as if skipped."""
        if self.reduction is not None and self.reduction.exchange is not None:
            self.reduction.abandon()  # it has the vector, also when x is the mean already
        elif self.feedback is not None:
            self.feedback.withdraw()
            finite = bool(np.isfinite(self.feedback.compensate(self.x)).all())
            self.feedback.settle(None) if finite else self.feedback.withdraw()


class Arrived(NamedTuple):
    """The results of one exchange, or of one part of it, and the traffic of the socket until then."""

    task: Task
    done: AllReduceDone
    traffic: Traffic
    part: int = 0


def append(tasks: list[Task], task: Task) -> None:
    """Append what was submitted to the tasks that are not over."""
    if tasks and tasks[-1].follower is None:
        tasks[-1].follower = task
    tasks.append(task)


def end_series(tasks: list[Task]) -> None:
    """Take the promise of the last one submitted back, unless it was kept."""
    if tasks and tasks[-1].follower is None:
        tasks[-1].more = False


def next_in_stream(tasks: Sequence[Task], *, overlap: bool) -> tuple[Task | None, bool]:
    """Return the task whose exchange is the next in the stream, None while it is not there yet (O3).

    The second value says that one is missing because of `more`: nothing was submitted behind it yet.

    Args:
        tasks: all that are not over, in the order of submission.
        overlap: else one all-reduce is over before the next one begins, and `more` means nothing.
    """
    if not overlap:
        first = tasks[0] if tasks else None
        return (first if first is not None and not first.sealed and not first.waiting else None), False
    for index, task in enumerate(tasks):
        if task.sealed:
            continue
        if not task.begun:
            return (None if _is_busy(task, tasks[:index]) else task), False
        if task.more:
            if task.follower is None:
                return None, True
            if not task.follower.begun:
                return (None if _is_busy(task.follower, tasks[: index + 1]) else task.follower), False
        return (None if task.waiting else task), False
    return None, False


def _is_busy(task: Task, earlier: Sequence[Task]) -> bool:
    """Say whether an all-reduce before it has its error feedback (O4)."""
    return task.feedback is not None and any(other.feedback is task.feedback for other in earlier)
