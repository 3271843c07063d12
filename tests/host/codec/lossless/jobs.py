# SPDX-License-Identifier: Apache-2.0
"""All-reduces of `lossless` through a simulated switch, rank by rank, and what numpy makes of the same vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import CollectiveError, CollectivePhase, ErrorFeedback, ReductionContext
from hopsum.codec.fixed import fixed_exponents
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.lossless_codec import LosslessReduction
from hopsum.codec.simulate import simulate_switch

from .supports import Floats

Present = Callable[[int, CollectivePhase], "NDArray[np.bool_] | None"]
Tamper = Callable[[int, NDArray[np.uint8]], None]


def start(
    codec: Lossless,
    vectors: Sequence[Floats],
    kept: Sequence[ErrorFeedback] | None = None,
    seed: int = 1,
    step: int = 1,
) -> list[LosslessReduction]:
    return [
        codec.start(x, ReductionContext(seed, step, rank), None if kept is None else kept[rank], on_nonfinite="skip")
        for rank, x in enumerate(vectors)
    ]


def run(
    reductions: list[LosslessReduction],
    present: Present = lambda number, phase: None,
    tamper: Tamper = lambda number, results: None,
) -> CollectiveError | None:
    """Bring reductions to their end; return the error that all of them raised, if they did. Phases count from 0."""
    number = 0
    while (phase := reductions[0].phase) is not None:
        payloads = [reduction.phase.payloads for reduction in reductions if reduction.phase is not None]
        results, contributors = simulate_switch(phase.op, payloads, present=present(number, phase))
        tamper(number, results)
        errors = []
        for reduction in reductions:
            try:
                reduction.on_results(results, contributors)
            except CollectiveError as error:
                errors.append(error)
        assert len(errors) in (0, len(reductions)), "all ranks alike"
        if errors:
            assert len({str(error) for error in errors}) == 1
            return errors[0]
        number += 1
    return None


def exact(codec_workers: int, vectors: Sequence[Floats]) -> tuple[NDArray[np.int64], Floats]:
    """Return the sums of integers, in Python-sized arithmetic, and the mean that is due."""
    elements = vectors[0].size
    runs = -(-elements // 1024)
    padded = [np.pad(np.abs(x), (0, 1024 * runs - elements)).reshape(runs, 1024) for x in vectors]
    ranges = np.max([rows.max(axis=1) for rows in padded], axis=0)
    exponents = fixed_exponents(ranges, codec_workers).repeat(1024)[:elements]
    sums = np.sum([np.rint(np.ldexp(x.astype(np.float64), exponents)).astype(np.int64) for x in vectors], axis=0)
    mean = sums / np.ldexp(float(len(vectors)), exponents)
    return sums, mean.astype(np.float32)
