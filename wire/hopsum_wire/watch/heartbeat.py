# SPDX-License-Identifier: Apache-2.0
"""The counts of a worker in its heartbeats, since the worker was made, by these names.

allreduces, skipped, elements, seconds          of its all-reduces, as in `hopsum.agent.CommunicatorStatistics`
seconds_le_BOUND                                of the all-reduces: how many took no longer than BOUND seconds
codes_OP                                        lanes of which it has the sums, by what the switch did with them
steps, step_seconds, wait_seconds               of training steps that a hook noted; waiting for all-reduces, of these
error_squares, vector_squares                   sums of squares over a sample; `nmse` is their ratio
datagrams_sent ... bytes_received               at its socket
position                                        chunks of its stream so far: the controller ends the generation in time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hopsum_wire import Op
from hopsum_wire._layout import ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES

FP32_BYTES: Final = 4
HEADER_BYTES: Final = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
"""The bytes of a datagram's headers at an interface."""
POSITION: Final = "position"
"""Not a metric."""
LATENCY_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The bounds of the counts of all-reduces by duration."""
COUNTS: Final = (
    "allreduces",
    "skipped",
    "elements",
    "seconds",
    "steps",
    "step_seconds",
    "wait_seconds",
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


def wait_share(counts: Mapping[str, float]) -> float | None:
    """Return the share of training steps spent waiting for all-reduces, None where no hook has noted a step."""
    step_seconds = counts.get("step_seconds", 0.0)
    return counts.get("wait_seconds", 0.0) / step_seconds if step_seconds > 0 else None


def ring_share(counts: Mapping[str, float], workers: int) -> float | None:
    """Return a worker's bytes by those of a ring of float32 for the same elements; None where nothing was summed.

    A ring of n ranks moves 2 (n - 1)/n of the vector's bytes out of each rank, and as many in. The worker's are those
    of its busier direction with Ethernet, IPv4 and UDP headers.
    """
    ring_bytes = 2 * (workers - 1) / workers * FP32_BYTES * counts.get("elements", 0.0)
    own_bytes = max(
        counts.get(f"bytes_{way}", 0.0) + HEADER_BYTES * counts.get(f"datagrams_{way}", 0.0)
        for way in ("sent", "received")
    )
    return own_bytes / ring_bytes if ring_bytes > 0 and own_bytes > 0 else None


def latency_s(counts: Mapping[str, float]) -> float | None:
    """Return the mean time of an all-reduce, None where there was none."""
    allreduces = counts.get("allreduces", 0.0)
    return counts.get("seconds", 0.0) / allreduces if allreduces > 0 else None
