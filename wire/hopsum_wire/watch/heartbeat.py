# SPDX-License-Identifier: Apache-2.0
"""The counts of a worker in its heartbeats, since the worker was made: the one table of a worker's metrics.

A new count is a field of `hopsum.agent.CommunicatorStatistics` and a row of `WORKER_COUNTS`: heartbeats carry
the count, and the controller's metrics page has it. Beside the rows heartbeats have

seconds_le_BOUND    all-reduces that took no longer than BOUND seconds (`latency_name`)
codes_OP            lanes of which the worker has the sums, by the op of the switch (`codes_name`)
position            chunks of the worker's stream so far: the controller ends the generation before its rounds run out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hopsum_wire import Op
from hopsum_wire._layout import ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES

FP32_BYTES: Final = 4
HEADER_BYTES: Final = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
"""The bytes of a datagram's headers at an interface."""
POSITION: Final = "position"
"""Not a metric."""
LATENCY_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The bounds of the counts of all-reduces by duration."""


class WorkerCount(NamedTuple):
    """The definition of a worker's counter, for heartbeats and for the controller's metrics page."""

    name: str
    """The name in heartbeats, and of the attribute of `CommunicatorStatistics` in its group."""
    word: str
    """A part of the metric's name. Empty: the count is the sum of the histogram of durations."""
    meaning: str
    """The help text of the metric."""
    group: str = ""
    """The attribute of `CommunicatorStatistics` that has the count, empty for the statistics themselves."""

    @property
    def field(self) -> str:
        """The attribute of `CommunicatorStatistics`, dotted."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def metric(self) -> str:
        """The metric on the page, after `hopsum_controller_`. Empty for a count without a metric of its own."""
        return f"member_{self.word}_total" if self.word else ""


WORKER_COUNTS: Final = (
    WorkerCount("allreduces", "allreduces", "All-reduces that the agent finished."),
    WorkerCount("seconds", "", "Time of all-reduces, from vector to mean."),
    WorkerCount("skipped", "skipped", "All-reduces without a mean."),
    WorkerCount("steps", "training_steps", "Training steps that a hook noted."),
    WorkerCount("step_seconds", "training_step_seconds", "Time of training steps."),
    WorkerCount(
        "wait_seconds",
        "training_wait_seconds",
        "Time of training steps in which they waited for all-reduces and computed nothing.",
    ),
    WorkerCount("elements", "elements", "Elements that the agent summed."),
    WorkerCount("error_squares", "quantization_error_energy", "Sum of squares of a sample of the residuals."),
    WorkerCount("vector_squares", "gradient_energy", "Sum of squares of a sample of the gradients, with residuals."),
    WorkerCount("datagrams_sent", "datagrams_sent", "Datagrams that the agent sent.", "traffic"),
    WorkerCount("datagrams_received", "datagrams_received", "Datagrams that the agent received.", "traffic"),
    WorkerCount("retransmits", "retransmits", "Datagrams that the agent sent again.", "traffic"),
    WorkerCount("bytes_sent", "sent_bytes", "UDP payload that the agent sent.", "traffic"),
    WorkerCount("bytes_received", "received_bytes", "UDP payload that the agent received.", "traffic"),
)


def latency_name(bound_s: float) -> str:
    """Return the name of the count of all-reduces that took `bound_s` seconds or less."""
    return f"seconds_le_{bound_s:g}"


def codes_name(op: Op) -> str:
    """Return the name of the count of the lanes that a worker has received by an op."""
    return f"codes_{op.name.lower()}"


NAMES: Final = (*(count.name for count in WORKER_COUNTS), *map(latency_name, LATENCY_BOUNDS_S), *map(codes_name, Op))
"""All names of counts that are metrics."""


def nmse(counts: Mapping[str, float]) -> float | None:
    """Return a worker's own quantisation error, None where it is not known: without error feedback, or of all zeros.

    It is the squared length of the remainder in the worker's error feedback, divided by that of the vectors that it
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
    """Return a worker's bytes divided by those of a ring of float32 for the same elements; None before there are any.

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
    """Return the mean seconds of an all-reduce, None where there was none."""
    allreduces = counts.get("allreduces", 0.0)
    return counts.get("seconds", 0.0) / allreduces if allreduces > 0 else None
