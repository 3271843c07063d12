# SPDX-License-Identifier: Apache-2.0
"""No phase of an all-reduce needs more than twice the vector beyond its input and output; most need next to nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges, make_codec
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_switch
from hopsum_wire.payload import up_bytes

from .vectors import normal

pytestmark = pytest.mark.system
ELEMENTS = (1 << 20) + 5
CODECS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"lane_bits": 16}),
    ("uhc", {"bits": 8}),
    ("fixed", {}),
]


def beyond_output(work: Callable[[], np.ndarray | None]) -> float:
    """Return the most memory that work had at any time, less what it returned, in vectors."""
    tracemalloc.start()
    try:
        result = work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - (0 if result is None else result.nbytes)) / (4 * ELEMENTS)


@pytest.mark.parametrize(("name", "options"), CODECS)
def test_every_phase_needs_little_beyond_input_and_output(name: str, options: dict[str, Any], backend: str) -> None:
    codec = make_codec(name, workers=2, backend=backend, **options)
    assert isinstance(codec, RangeCodec)
    x, context = normal(ELEMENTS), ReductionContext(1, 1, 0)
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32).copy())
    payloads = codec.encode(x, own, shared, context)
    results, everybody = simulate_switch(codec.op, [payloads], codec.lookup)
    tail = 4 * 1024 / ELEMENTS
    used = {
        "ranges": beyond_output(lambda: codec.ranges(x)),
        "encode": beyond_output(lambda: codec.encode(x, own, shared, context)),
        "decode": beyond_output(lambda: codec.decode(results, everybody, shared, x.size, context)),
        "contribution": beyond_output(lambda: codec.contribution(payloads, shared, x.size, context)),
        "subtract_contribution": beyond_output(lambda: codec.subtract_contribution(x, payloads, shared, context)),
    }
    assert max(used.values()) < (1.2 if name == "fixed" else 0.4) + tail, used


@pytest.mark.parametrize(("name", "options"), CODECS)
def test_an_all_reduce_with_error_feedback_needs_less_than_three_vectors(
    name: str, options: dict[str, Any], backend: str
) -> None:
    """One of them is the feedback's second vector. Besides them there are the residual, payloads and the mean."""
    codec = make_codec(name, workers=2, backend=backend, **options)
    assert isinstance(codec, RangeCodec)
    x, feedback, context = normal(ELEMENTS), ErrorFeedback(ELEMENTS), ReductionContext(1, 1, 0)
    given: list[tuple[np.ndarray, np.ndarray]] = []
    practice = codec.start(x, context)
    while (phase := practice.phase) is not None:
        given.append(simulate_switch(phase.op, [phase.payloads], codec.lookup))
        practice.take(*given[-1])
    payload_bytes = len(given[1][0]) * up_bytes(codec.op)

    def all_reduce() -> np.ndarray | None:
        reduction = codec.start(x, context, feedback)
        for results, contributors in given:
            reduction.take(results, contributors)
        return reduction.mean

    assert beyond_output(all_reduce) - payload_bytes / (4 * ELEMENTS) < 3


def test_error_feedbacks_of_one_length_share_the_second_vector() -> None:
    """Eight in turn have nine vectors, and give all of them back at the end."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        feedbacks = [ErrorFeedback(ELEMENTS) for _ in range(8)]
        for _ in range(3):
            for feedback in feedbacks:
                feedback.compensate(np.ones(ELEMENTS, np.float32))
                feedback.commit(None)
        _, peak = tracemalloc.get_traced_memory()
        assert [int(each.residual[0]) for each in feedbacks] == [3] * 8
        assert (peak - before) / (4 * ELEMENTS) == pytest.approx(10, abs=0.1)  # and the ones
        del feedbacks, feedback
        after, _ = tracemalloc.get_traced_memory()
        assert (after - before) / (4 * ELEMENTS) == pytest.approx(0, abs=0.1)
    finally:
        tracemalloc.stop()
