# SPDX-License-Identifier: Apache-2.0
"""The ends of all-reduces: their futures, their error feedback, and their place among the unfinished ones."""

from __future__ import annotations

from hopsum.agent.allreduce_record import AllReduceRecord
from hopsum.agent.allreduce_results import AllReduceResult
from hopsum.agent.phase_order import PhaseOrder
from hopsum.agent.task import Task


class TaskEnds:
    """Resolves the futures of unfinished all-reduces. For the thread that drives.

    Args:
        order: has the unfinished ones. An ended one leaves it, once its zeros are in the stream (O5).
    """

    def __init__(self, order: PhaseOrder, record: AllReduceRecord) -> None:
        self._order, self._record = order, record

    def finish(self, task: Task) -> None:
        """Resolve a task's future with the result of its reduction, which has ended."""
        reduction = task.reduction
        assert reduction is not None
        mean = reduction.mean
        self._leave(task)
        traffic, seconds = self._record.end(task, skipped=mean is None)
        task.future.set_result(
            AllReduceResult(
                mean=task.vector.all_nan() if mean is None else mean,
                # A copy: a view would keep the payloads of all results in memory.
                contributors=reduction.contributors.copy(),
                skipped=mean is None,
                traffic=traffic,
                seconds=seconds,
            )
        )

    def refuse(self, task: Task, error: BaseException) -> None:
        """Resolve a task's future with an error of all ranks, after which the error feedback is as it was before."""
        self._record.end(task, skipped=True)
        self._leave(task)
        task.future.set_exception(error)

    def fail(self, task: Task, error: BaseException) -> None:
        """Resolve a task's future with an error, and return the vector to the error feedback."""
        if task.has_ended:  # only its zeros were left
            self._order.tasks.remove(task)
            return
        self._leave(task)
        task.rollback(error)
        task.future.set_exception(error)

    def _leave(self, task: Task) -> None:
        """Remove a task whose future is about to be done, unless its zeros are not in the stream yet."""
        task.has_ended = True
        self._record.forget(task)
        if task.zeros is None:
            self._order.tasks.remove(task)
