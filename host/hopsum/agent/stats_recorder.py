# SPDX-License-Identifier: Apache-2.0
"""The recorder of an agent's statistics, for its owner and for heartbeats."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from hopsum.agent.allreduce_results import CommunicatorStatistics
from hopsum.agent.task import Task
from hopsum.codec.interface import CollectivePhase
from hopsum_wire import Op
from hopsum_wire.watch.heartbeat import LATENCY_BOUNDS_S, WORKER_COUNTS, codes_name, latency_name


class StatsRecorder:
    """Counts for the thread that serves. `statistics` is replaced as a whole, so others may read it at any time."""

    def __init__(self) -> None:
        self.statistics = CommunicatorStatistics()
        self._codes: dict[Op, int] = {}

    def begin(self, task: Task) -> None:
        """Let the vector of an all-reduce that begins look at its sample."""
        task.vector.note_number(task.number)

    def receive(self, phase: CollectivePhase | None) -> None:
        """Count the lanes of a phase of which the sums are here."""
        if phase is not None:
            self._codes[phase.op] = self._codes.get(phase.op, 0) + phase.lanes

    def finish(self, task: Task, *, skipped: bool) -> None:
        """Count an all-reduce that ended on all ranks alike. Its error feedback is committed."""
        counted = self.statistics
        took_s = time.perf_counter() - task.started_s
        late = bisect_left(LATENCY_BOUNDS_S, took_s)
        error, vector = (0.0, 0.0) if skipped else task.vector.squares()
        # A new object each time: heartbeats read it from the lease thread without a lock.
        self.statistics = replace(
            counted,
            allreduces=counted.allreduces + 1,
            skipped=counted.skipped + skipped,
            elements=counted.elements + task.vector.elements,
            seconds=counted.seconds + took_s,
            within=(*counted.within[:late], *[count + 1 for count in counted.within[late:]]),
            codes=dict(self._codes),
            error_squares=counted.error_squares + error,
            vector_squares=counted.vector_squares + vector,
        )


def heartbeat_counts(counted: CommunicatorStatistics) -> Mapping[str, float]:
    """Return the counts that an agent's heartbeats carry, by the names of `hopsum_wire.watch.heartbeat`."""
    return {
        **{count.name: attrgetter(count.field)(counted) for count in WORKER_COUNTS},
        **{latency_name(bound_s): count for bound_s, count in zip(LATENCY_BOUNDS_S, counted.within, strict=True)},
        **{codes_name(op): lanes for op, lanes in counted.codes.items()},
    }
