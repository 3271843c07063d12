# SPDX-License-Identifier: Apache-2.0
"""Elements per second, bytes and memory of codec `lossless` on a sparse vector, for `bench codec` and the report.

One rank, no network: its payloads are handed back to it as sums. "encode" is from the vector to the payloads of the
sums, sizing and peeling of the sketch included. "all" is from the vector to the mean.
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ReductionContext
from hopsum.codec.lossless import Lossless, LosslessReduction
from hopsum_evaluation.bench.timing import measure


def measure_reduction(codec: Lossless, x: NDArray[np.float32], runs: int, seed: int) -> dict[str, Any]:
    """Measure rates ("encode" and "all"), bytes and memory of a vector. Return the figures for JSON.

    `runs` is the number of timed runs of each action. The module explains the two actions.
    """
    actions = {"encode": partial(reduce_alone, codec, x, seed, 2), "all": partial(reduce_alone, codec, x, seed, 3)}
    row: dict[str, Any] = {"backend": codec.backend}
    for action, rate in measure(actions, x.size, runs).items():
        row |= rate.as_json(f"{action}_elements_per_s")
    reductions = [reduce_alone(codec, x, seed, phases) for phases in range(3)]
    sent = [each.phase.payloads.nbytes for each in reductions if each.phase is not None]
    row |= zip(("ranges_bytes", "index_bytes", "sums_bytes"), sent, strict=True)
    plan = reductions[-1].plan
    assert plan is not None
    row["lanes_per_nonzero"] = round(plan.lanes / int(np.count_nonzero(x)), 4)
    row["bytes_of_dense"] = round((sent[1] + sent[2]) / x.nbytes, 5)
    row["memory_of_dense"] = round(_memory(codec, x, seed) / x.nbytes, 3)
    return row


def reduce_alone(codec: Lossless, x: NDArray[np.float32], seed: int, phases: int) -> LosslessReduction:
    """Reduce a vector of one rank through so many phases, and return the reduction: two are its encoding, three all."""
    reduction = codec.start(x, ReductionContext(seed, 0, 0))
    for _ in range(phases):
        assert reduction.phase is not None
        payloads = reduction.phase.payloads
        reduction.on_results(payloads, np.ones(len(payloads), np.uint64))
    return reduction


def _memory(codec: Lossless, x: NDArray[np.float32], seed: int) -> int:
    """Measure the most bytes that numpy held at a time beyond payloads, results, input and mean."""
    most = 0
    tracemalloc.start()
    reduction = codec.start(x, ReductionContext(seed, 0, 0))
    while reduction.phase is not None:
        results = reduction.phase.payloads
        tracemalloc.reset_peak()
        reduction.on_results(results, np.ones(len(results), np.uint64))
        made = x.nbytes if reduction.phase is None else reduction.phase.payloads.nbytes
        most = max(most, tracemalloc.get_traced_memory()[1] - results.nbytes - made)
    tracemalloc.stop()
    return most
