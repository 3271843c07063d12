# SPDX-License-Identifier: Apache-2.0
"""The counts of a worker in its heartbeats, since the worker was made, by these names.

allreduces, skipped, elements, seconds          of its all-reduces, as in `hopsum.agent.CommunicatorStatistics`
seconds_le_BOUND                                of the all-reduces: how many took no longer than BOUND seconds
codes_OP                                        lanes of which it has the sums, by what the switch did with them
error_squares, vector_squares                   sums of squares over a sample; `nmse` is their ratio
datagrams_sent ... bytes_received               at its socket
position                                        chunks of its stream so far: the controller ends the generation in time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hopsum_wire import Op

POSITION: Final = "position"
"""Not a metric."""
LATENCY_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The bounds of the counts of all-reduces by duration."""
COUNTS: Final = (
    "allreduces",
    "skipped",
    "elements",
    "seconds",
    "error_squares",
    "vector_squares",
    "datagrams_sent",
    "datagrams_received",
    "retransmits",
    "bytes_sent",
    "bytes_received",
)
"""Names that stand alone."""


def latency_name(bound_s: float) -> str:
    """Return the name of the count of all-reduces that took no longer."""
    return f"seconds_le_{bound_s:g}"


def codes_name(op: Op) -> str:
    """Return the name of the count of an op's lanes."""
    return f"codes_{op.name.lower()}"


NAMES: Final = (*COUNTS, *map(latency_name, LATENCY_BOUNDS_S), *map(codes_name, Op))
"""All of them."""


def nmse(counts: Mapping[str, float]) -> float | None:
    """Return a worker's own quantisation error, None where nothing tells: without error feedback, or all zeros.

    It is the squared length of what all-reduces left in the worker's error feedback, over that of the vectors that it
    handed to its codec (gradient and earlier remainder), both over a sample of the elements. It is not the error of
    the mean, which is smaller as a rule: errors of different workers partly cancel.
    """
    vector = counts.get("vector_squares", 0.0)
    return counts.get("error_squares", 0.0) / vector if vector > 0 else None


def latency_s(counts: Mapping[str, float]) -> float | None:
    """Return the mean time of an all-reduce, None where there was none."""
    allreduces = counts.get("allreduces", 0.0)
    return counts.get("seconds", 0.0) / allreduces if allreduces > 0 else None
