# SPDX-License-Identifier: Apache-2.0
"""The recorder of an agent's statistics, for its owner and for heartbeats.

The error that a codec makes is measured where there is an error feedback: before an all-reduce the vector that is to be
sent is x + residual, afterwards the residual is what was not delivered. Both are looked at in a sample of at most
RUNS * RUN_ELEMENTS elements, whose place changes with every all-reduce, so that nothing passes over whole vectors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CollectivePhase
from hopsum.communicator.results import CommunicatorStatistics
from hopsum.communicator.task import Task
from hopsum_wire import Op
from hopsum_wire.watch.heartbeat import LATENCY_BOUNDS_S, codes_name, latency_name

RUNS: Final = 16
"""Parts of a vector, each with one run of elements in the sample."""
RUN_ELEMENTS: Final = 256
_GOLDEN: Final = 0.6180339887498949
"""Its multiples, without their whole parts, lie evenly in 0 .. 1, whatever number of vectors a step has."""


class StatsRecorder:
    """Counts for the thread that serves. `statistics` is replaced as a whole, so others may read it at any time."""

    def __init__(self) -> None:
        self.statistics = CommunicatorStatistics()
        self._codes: dict[Op, int] = {}

    def begin(self, task: Task) -> None:
        """Look at the vector of an all-reduce that begins: nobody else has its error feedback any more."""
        if task.feedback is not None:
            task.vector_squares = _squares(sample(task.x, task.number), sample(task.feedback.residual, task.number))

    def receive(self, phase: CollectivePhase | None) -> None:
        """Count the lanes of a phase of which the sums are here."""
        if phase is not None:
            self._codes[phase.op] = self._codes.get(phase.op, 0) + phase.lanes

    def finish(self, task: Task, *, skipped: bool) -> None:
        """Count an all-reduce that ended on all ranks alike. Its error feedback is committed."""
        counted = self.statistics
        took_s = time.perf_counter() - task.started_s
        error = vector = 0.0
        if task.feedback is not None and not skipped:
            error, vector = _squares(sample(task.feedback.residual, task.number)), task.vector_squares
        self.statistics = replace(
            counted,
            allreduces=counted.allreduces + 1,
            skipped=counted.skipped + skipped,
            elements=counted.elements + task.x.size,
            seconds=counted.seconds + took_s,
            within=tuple(
                count + (took_s <= bound_s) for count, bound_s in zip(counted.within, LATENCY_BOUNDS_S, strict=True)
            ),
            codes=dict(self._codes),
            error_squares=counted.error_squares + error,
            vector_squares=counted.vector_squares + vector,
        )


def sample(vector: NDArray[np.float32], number: int) -> NDArray[np.float32]:
    """Return the elements of a vector that are looked at in an all-reduce of this number: a view, or all of them.

    float32[RUNS, RUN_ELEMENTS] where the vector has more: one run in each of RUNS equal parts, at the same place.
    """
    if vector.size <= RUNS * RUN_ELEMENTS:
        return vector
    part = vector.size // RUNS
    first = int(number * _GOLDEN % 1.0 * (part - RUN_ELEMENTS + 1))
    return vector[: RUNS * part].reshape(RUNS, part)[:, first : first + RUN_ELEMENTS]


def heartbeat_counts(counted: CommunicatorStatistics) -> Mapping[str, float]:
    """Return what an agent's heartbeats carry, by the names of `hopsum_wire.watch.heartbeat`."""
    traffic = counted.traffic
    return {
        "allreduces": counted.allreduces,
        "skipped": counted.skipped,
        "elements": counted.elements,
        "seconds": counted.seconds,
        **{latency_name(bound_s): count for bound_s, count in zip(LATENCY_BOUNDS_S, counted.within, strict=True)},
        **{codes_name(op): lanes for op, lanes in counted.codes.items()},
        "error_squares": counted.error_squares,
        "vector_squares": counted.vector_squares,
        "datagrams_sent": traffic.datagrams_sent,
        "datagrams_received": traffic.datagrams_received,
        "retransmits": traffic.retransmits,
        "bytes_sent": traffic.bytes_sent,
        "bytes_received": traffic.bytes_received,
    }


def _squares(*summands: NDArray[np.float32]) -> float:
    """Return the sum of squares of the sum of vectors, as float64. It is not finite where they are not."""
    total = summands[0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        for other in summands[1:]:
            total += other
        return float(np.vdot(total, total))
