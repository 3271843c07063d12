# SPDX-License-Identifier: Apache-2.0
"""The mean goes where the caller wants it, also into the vector itself, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsum.codec import CODECS, CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch

WORKERS = 3
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in sorted(CODECS)]


def vectors(elements: int = 5000) -> list[np.ndarray]:
    return [np.random.default_rng(rank).standard_normal(elements, dtype=np.float32) for rank in range(WORKERS)]


def run(name: str, options: dict[str, Any], *, in_place: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rank 0's mean, residual and vector."""
    codec = make_codec(name, workers=WORKERS, backend="numpy", **options)
    xs, feedback = vectors(), [ErrorFeedback(5000) for _ in range(WORKERS)]
    reductions = [
        codec.start(x, ReductionContext(1, 2, rank), feedback[rank], out=x if in_place else None)
        for rank, x in enumerate(xs)
    ]
    while (phase := reductions[0].phase) is not None:
        payloads = [each.phase.payloads for each in reductions if each.phase is not None]
        summed = simulate_switch(phase.op, payloads, codec.lookup, None)
        for each in reductions:
            each.take(*summed)
    assert reductions[0].mean is not None
    return reductions[0].mean, feedback[0].residual, xs[0]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_mean_in_the_place_of_the_vector(name: str, options: dict[str, Any]) -> None:
    mean, residual, x = run(name, options, in_place=False)
    there, left, place = run(name, options, in_place=True)
    assert there is place
    assert there.tobytes() == mean.tobytes()
    assert left.tobytes() == residual.tobytes()
    np.testing.assert_array_equal(x, vectors()[0])


def test_results_that_are_refused_leave_the_vector_in_the_feedback() -> None:
    """Sums that cannot be are found out while they are decoded; by then the place of x is written to."""
    codec = make_codec("thc", workers=1, backend="numpy")
    x, feedback = vectors()[0], ErrorFeedback(5000)
    reduction = codec.start(x, ReductionContext(0, 0, 0), feedback, out=x)
    for _ in range(2):
        phase = reduction.phase
        assert phase is not None
        results, contributors = simulate_switch(phase.op, [phase.payloads], codec.lookup, None)
        if phase.last:
            results[:] = 255
            with pytest.raises(CodecError):
                reduction.take(results, contributors)
        else:
            reduction.take(results, contributors)
    reduction.abort()
    np.testing.assert_array_equal(feedback.residual, vectors()[0])


@pytest.mark.parametrize("out", [np.zeros(4, np.float32), np.zeros(5000), np.zeros(10000, np.float32)[::2]])
def test_a_place_that_does_not_fit(out: np.ndarray) -> None:
    with pytest.raises(CodecError, match="out is float"):
        make_codec("thc", workers=1, backend="numpy").start(vectors()[0], ReductionContext(0, 0, 0), out=out)
