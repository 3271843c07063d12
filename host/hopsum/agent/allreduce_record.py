# SPDX-License-Identifier: Apache-2.0
"""The cost of all-reduces: counts, spans of time and traffic. Nothing here decides anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hopsum.agent.allreduce_results import CommunicatorStatistics, SocketTraffic, Span
from hopsum.agent.task import Task
from hopsum.codec.interface import CollectivePhase
from hopsum.transport.shard import TransportStatistics


class AllReduceRecord:
    """Counts all-reduces, and traces their spans. For the thread that drives.

    Args:
        counted: gets the counts of all-reduces, but for traffic.
        statistics: of each shard of the transport, live.
        trace: called with every span of time.
    """

    def __init__(
        self,
        counted: CommunicatorStatistics,
        statistics: Sequence[TransportStatistics],
        trace: Callable[[Span], None] | None,
    ) -> None:
        self._counted, self._statistics, self._trace = counted, statistics, trace
        self._traffic = SocketTraffic()
        """Of the network when the last all-reduce ended."""
        self.sent_at: dict[int, float] = {}
        """By number of an all-reduce, the time since which it waits for the network."""

    def span(self, task: Task, stage: str, since_s: float) -> None:
        """Trace a stage of a task from `since_s` (`time.perf_counter`) to now. Does nothing without `trace`."""
        if self._trace is not None:
            self._trace(Span(task.number, stage, since_s, time.perf_counter()))

    def sent(self, task: Task) -> None:
        """Start the clock of a task's wait for the network, unless it runs already."""
        self.sent_at.setdefault(task.number, time.perf_counter())

    def arrived(self, task: Task, phase: CollectivePhase | None) -> None:
        """Trace a task's wait for the network since `sent`, and end that wait: a phase has its results."""
        self.span(task, f"network {phase.op.name if phase else ''}", self.sent_at.pop(task.number))

    def forget(self, task: Task) -> None:
        """Forget the wait of a task that has ended."""
        self.sent_at.pop(task.number, None)

    def count_lanes(self, phase: CollectivePhase | None) -> None:
        """Add a phase's lanes to the counts of its operation. None adds nothing."""
        if phase is not None:
            self._counted.codes[phase.op] = self._counted.codes.get(phase.op, 0) + phase.lanes

    def end(self, task: Task, *, skipped: bool) -> tuple[SocketTraffic, float]:
        """Count an all-reduce that ended on all ranks alike, and add the squares of its sample unless it is skipped.

        The caller has committed its error feedback.

        Returns:
            The traffic since the end of the previous all-reduce, and the seconds of this one.
        """
        seconds = time.perf_counter() - task.started_s
        self._counted.count(task.vector.elements, seconds, skipped=skipped)
        if not skipped:
            error, vector = task.vector.squares()
            self._counted.error_squares += error
            self._counted.vector_squares += vector
        before, self._traffic = self._traffic, SocketTraffic.of(*self._statistics)
        return self._traffic - before, seconds
