# SPDX-License-Identifier: Apache-2.0
"""The inputs of a plan: the job, its workers, their links."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final

from hopsum.errors import HopsumError
from hopsum_wire import MAX_WORKERS

LEAST_BITS_PER_S: Final = 1e5
MOST_BITS_PER_S: Final = 1e13


class PlanError(HopsumError):
    """A plan was asked for with a value that no job has, or with costs that are none."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A data-parallel job: every worker has all gradients, and needs their mean in every step.

    Raises:
        PlanError: a value out of range. The message has its name, the value and the range.
    """

    elements: int
    """float32 of all gradients together."""
    workers: int
    compute_s: float
    """The seconds of forward and backward pass and optimiser, on one worker, without any communication."""
    link_bits_per_s: float
    """The rate of each worker's link, each way."""
    overlap: float = 0.0
    """Share of `compute_s` that communication may run beside: the backward pass, where buckets go as they fill."""
    vectors: int = 8
    """Buckets that the gradients are cut into, all of the same size."""
    density: float = 0.05
    """Share of a worker's gradients that are not zero: codec lossless needs it."""
    round_trip_s: float = 100e-6
    """The time from a worker to where sums are made and back, in an empty network."""
    worker_cores: int = 2
    """The cores that codec and network of a worker may use."""
    shared_cores: int | None = None
    """All workers and the aggregator stand on one machine with so many cores.

    With None each has a machine of its own.
    """
    codec_overlap: bool = True
    """The codec works on one vector while the network has another."""
    racks: int = 1
    """Switches with equally many workers each, below one more that completes the sums. With 1 one switch has all."""
    trunk_bits_per_s: float | None = None
    """The rate of the link from a rack to the switch above, each way. None: a worker's rate."""

    def __post_init__(self) -> None:
        _require("elements", self.elements, 1, 1e13)
        _require("workers", self.workers, 2, MAX_WORKERS)
        _require("compute_s", self.compute_s, 0, 1e6)
        _require("link_bits_per_s", self.link_bits_per_s, LEAST_BITS_PER_S, MOST_BITS_PER_S)
        _require("overlap", self.overlap, 0, 1)
        _require("vectors", self.vectors, 1, self.elements)
        _require("density", self.density, 1e-9, 1)
        _require("round_trip_s", self.round_trip_s, 0, 10)
        _require("worker_cores", self.worker_cores, 1, 1024)
        _require("racks", self.racks, 1, self.workers)
        if self.shared_cores is not None:
            _require("shared_cores", self.shared_cores, 1, 1024)
        if self.trunk_bits_per_s is not None:
            _require("trunk_bits_per_s", self.trunk_bits_per_s, LEAST_BITS_PER_S, MOST_BITS_PER_S)
        if self.workers % self.racks:
            raise PlanError(f"racks: {self.workers} workers do not stand in {self.racks} racks of equal size")


def _require(name: str, value: float, least: float, most: float) -> None:
    if not isfinite(value) or not least <= value <= most:
        raise PlanError(f"{name}: {value:g}, where {least:g} to {most:g} is possible")
