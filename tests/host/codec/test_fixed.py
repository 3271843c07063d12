# SPDX-License-Identifier: Apache-2.0
"""Codec fixed: exact sums, means where the caller wants them, and sums by the protocol's own aggregator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec import (
    CODECS,
    Codec,
    CodecError,
    ErrorFeedback,
    ReductionContext,
    SharedRanges,
    job_tables,
    make_codec,
)
from hopsum.codec.fixed import Fixed
from hopsum.codec.simulate import simulate_phase, simulate_switch
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_oracle.aggregator import Aggregator

from ...support.jobs import job, update, worker
from .vectors import Floats, layered, normal, require_given_back

CONTEXT = ReductionContext(0, 0, 0)


def numpy_mean(codec: Fixed, vectors: list[Floats]) -> tuple[np.ndarray, Floats]:
    """Sum rounded vectors in Python-sized integers and divide: what the codec must return, and the sums."""
    own = np.maximum.reduce([codec.ranges(x) for x in vectors])
    exponents = codec.exponents(SharedRanges(own.view(np.float32)), len(own)).repeat(256)[: vectors[0].size]
    integers = [np.rint(np.ldexp(x.astype(np.float64), exponents)).astype(np.int64) for x in vectors]
    sums = np.sum(integers, axis=0)
    return sums, (sums / np.ldexp(float(len(vectors)), exponents)).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("elements", [1, 256, 1000])
def test_sums_and_means_are_numpys(backend: str, workers: int, elements: int) -> None:
    codec = make_codec("fixed", workers=workers, backend=backend)
    assert isinstance(codec, Fixed)
    vectors = [layered(elements, seed=rank) for rank in range(workers)]
    sums, mean = numpy_mean(codec, vectors)
    assert np.abs(sums).max() < 1 << 31
    own = [codec.ranges(x) for x in vectors]
    shared = SharedRanges(np.maximum.reduce(own).view(np.float32))
    payloads = [codec.encode(x, o, shared, CONTEXT) for x, o in zip(vectors, own, strict=True)]
    results, contributors = simulate_switch(codec.op, payloads)
    np.testing.assert_array_equal(results.reshape(-1).view(">i4")[:elements], sums)
    assert codec.decode(results, contributors, shared, elements, CONTEXT).tobytes() == mean.tobytes()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    workers=st.integers(1, 64),
    bits=st.lists(st.integers(0, 0x7F7FFFFF), min_size=1, max_size=8),
    negative=st.booleans(),
)
def test_the_largest_sums_do_not_overflow(workers: int, bits: list[int], negative: bool) -> None:
    """All workers with the same values, of any bits: the sum of the largest must stay in 32 bits."""
    codec = make_codec("fixed", workers=workers, backend="numpy")
    assert isinstance(codec, Fixed)
    x = np.array(bits, np.uint32).view(np.float32) * np.float32(-1 if negative else 1)
    sums, mean = numpy_mean(codec, [x] * workers)
    assert np.abs(sums).max() <= (1 << 31) - 128
    means = simulate_allreduce(codec, [x] * workers, seed=0, step=0)
    assert means is not None
    assert means[0].tobytes() == mean.tobytes()
    coarse = np.ldexp(1.0, -codec.exponents(SharedRanges(codec.ranges(x).view(np.float32)), 1)[0])
    assert np.abs(means[0].astype(np.float64) - x).max() <= max(coarse / 2, np.abs(x).max() * 2.0**-24)


def test_resolution_is_that_of_the_largest_element(backend: str) -> None:
    codec, x = make_codec("fixed", workers=8, backend=backend), normal(256)
    means = simulate_allreduce(codec, [x] * 8, seed=0, step=0)
    assert means is not None
    assert np.abs(means[0] - x).max() <= 2.0 ** (np.ceil(np.log2(np.abs(x).max())) - 28) / 2


def test_results_need_not_be_aligned(backend: str) -> None:
    codec, x = make_codec("fixed", workers=1, backend=backend), normal(512)
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32))
    payloads = codec.encode(x, own, shared, CONTEXT)
    odd = np.zeros(payloads.size + 1, np.uint8)[1:].reshape(payloads.shape)
    odd[:] = payloads
    everybody = np.ones(2, np.uint64)
    expected = codec.decode(payloads, everybody, shared, 512, CONTEXT)
    assert codec.decode(odd, everybody, shared, 512, CONTEXT).tobytes() == expected.tobytes()


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
    while reductions[0].phase is not None:
        summed = simulate_phase(codec, [each.phase for each in reductions if each.phase is not None])
        for each in reductions:
            each.on_results(*summed)
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
    codec = make_codec("thc:result_bits=8", workers=1, backend="numpy")
    x, feedback = vectors()[0], ErrorFeedback(5000)
    reduction = codec.start(x, ReductionContext(0, 0, 0), feedback, out=x)
    for _ in range(2):
        phase = reduction.phase
        assert phase is not None
        results, contributors = simulate_switch(phase.op, [phase.payloads], codec.lookup, None)
        if phase.last:
            results[:] = 255
            with pytest.raises(CodecError):
                reduction.on_results(results, contributors)
        else:
            reduction.on_results(results, contributors)
    reduction.abort()
    require_given_back(feedback.residual, vectors()[0])


@pytest.mark.parametrize("out", [np.zeros(4, np.float32), np.zeros(5000), np.zeros(10000, np.float32)[::2]])
def test_a_place_that_does_not_fit(out: np.ndarray) -> None:
    with pytest.raises(CodecError, match="out is float"):
        make_codec("thc", workers=1, backend="numpy").start(vectors()[0], ReductionContext(0, 0, 0), out=out)


def sums_of_the_aggregator(codec: Codec, op: int, payloads: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return RESULT payloads of the oracle, which gets every chunk of all ranks in a slot of its own."""
    switch = Aggregator(jobs=[job(workers=WORKERS, slots=64, **job_tables(codec))])
    results = []
    for slot in range(len(payloads[0])):
        for rank, own in enumerate(payloads):
            data = update(rank, op=op, slot=slot).pack() + own[slot].tobytes()
            outcome = switch.receive(worker(rank).port, worker(rank).ip, worker(rank).udp_port, data)
        results.append(np.frombuffer(outcome.outputs[0].payload, np.uint8))
    return np.stack(results)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("thc", {}),
        ("thc", {"bits": 3}),
        ("thc", {"bits": 2}),
        ("thc", {"result_bits": 8}),
        ("thc", {"rounding": "stochastic", "lane_bits": 16}),
        ("uhc", {"bits": 2, "lane_bits": 16}),
        ("uhc", {"bits": 6}),
        ("uhc", {"bits": 8}),
        ("fixed", {}),
        ("lossless", {}),
    ],
)
def test_all_reduce_through_the_aggregator(name: str, options: dict[str, Any]) -> None:
    codec = make_codec(name, workers=WORKERS, backend="numpy", **options)
    vectors = [layered(9000, seed=rank) for rank in range(WORKERS)]
    kept = [ErrorFeedback(9000) for _ in range(WORKERS)]
    reductions = [codec.start(x, ReductionContext(1, 0, r), kept[r]) for r, x in enumerate(vectors)]
    while (phase := reductions[0].phase) is not None:
        payloads = [reduction.phase.payloads for reduction in reductions if reduction.phase is not None]
        results = sums_of_the_aggregator(codec, phase.op, payloads)
        for reduction in reductions:
            reduction.on_results(results, np.full(len(results), (1 << WORKERS) - 1, np.uint64))
    means = [reduction.mean for reduction in reductions if reduction.mean is not None]
    assert len(means) == WORKERS
    simulated = simulate_allreduce(codec, vectors, seed=1, step=0)
    assert simulated is not None
    assert {mean.tobytes() for mean in means} == {simulated[0].tobytes()}
    assert all(feedback.residual.any() for feedback in kept)
