# SPDX-License-Identifier: Apache-2.0
"""Elements per second, bytes and memory of codec `lossless` on a sparse vector, for `bench codec` and the report.

One rank, no network: its payloads are handed back to it as sums. "encode" is from the vector to the payloads of the
sums, sizing and peeling of the sketch included. "all" is from the vector to the mean. Settings take turns, so that
other load on the machine hits them alike.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ReductionContext
from hopsum.codec.lossless import Lossless, LosslessReduction
from hopsum_evaluation.bench.timing import Rate, measure


@dataclass(frozen=True, slots=True)
class LosslessSetting:
    """A codec to measure, and the options that name it."""

    codec: Lossless
    gamma: float
    threads: int

    @property
    def label(self) -> str:
        """Name of the setting among the others."""
        return f"gamma={self.gamma:g}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def measure_settings(
    settings: Sequence[LosslessSetting], x: NDArray[np.float32], runs: int, seed: int
) -> list[dict[str, Any]]:
    """Measure all settings in turn. Return a row of figures for each."""
    actions: dict[str, Callable[[], object]] = {}
    for setting in settings:
        actions[f"{setting.label} encode"] = partial(reduce_alone, setting.codec, x, seed, 2)
        actions[f"{setting.label} all"] = partial(reduce_alone, setting.codec, x, seed, 3)
    rates = measure(actions, x.size, runs)
    return [_row(setting, rates, x, seed) for setting in settings]


def reduce_alone(codec: Lossless, x: NDArray[np.float32], seed: int, phases: int) -> LosslessReduction:
    """Reduce a vector of one rank through so many phases: two are its encoding, three all of it."""
    reduction = codec.start(x, ReductionContext(seed, 0, 0))
    for _ in range(phases):
        assert reduction.phase is not None
        payloads = reduction.phase.payloads
        reduction.take(payloads, np.ones(len(payloads), np.uint64))
    return reduction


def _row(setting: LosslessSetting, rates: dict[str, Rate], x: NDArray[np.float32], seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": setting.label, "gamma": setting.gamma, "threads": setting.threads}
    row["backend"] = setting.codec.backend
    for action in ("encode", "all"):
        row |= rates[f"{setting.label} {action}"].as_json(f"{action}_elements_per_s")
    sent = [_phase_bytes(reduce_alone(setting.codec, x, seed, phase)) for phase in range(3)]
    plan = reduce_alone(setting.codec, x, seed, 2).plan
    assert plan is not None
    row["lanes_per_nonzero"] = round(plan.lanes / int(np.count_nonzero(x)), 4)
    for name, count in zip(("ranges", "index", "sums"), sent, strict=True):
        row[f"{name}_bytes"] = count
    row["bytes_of_dense"] = round((sent[1] + sent[2]) / x.nbytes, 5)
    row["memory_of_dense"] = round(_memory(setting.codec, x, seed) / x.nbytes, 3)
    return row


def _phase_bytes(reduction: LosslessReduction) -> int:
    assert reduction.phase is not None
    return reduction.phase.payloads.nbytes


def _memory(codec: Lossless, x: NDArray[np.float32], seed: int) -> int:
    """Measure the most bytes that numpy held at a time beyond payloads, results, input and mean."""
    most = 0
    tracemalloc.start()
    reduction = codec.start(x, ReductionContext(seed, 0, 0))
    while reduction.phase is not None:
        results = reduction.phase.payloads
        tracemalloc.reset_peak()
        reduction.take(results, np.ones(len(results), np.uint64))
        made = x.nbytes if reduction.phase is None else reduction.phase.payloads.nbytes
        most = max(most, tracemalloc.get_traced_memory()[1] - results.nbytes - made)
    tracemalloc.stop()
    return most
