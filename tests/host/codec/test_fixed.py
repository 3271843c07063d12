# SPDX-License-Identifier: Apache-2.0
"""Codec fixed: exact sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec import ReductionContext, SharedRanges, make_codec
from hopsum.codec.fixed import Fixed
from hopsum.codec.simulate import simulate_allreduce, simulate_switch

from .vectors import Floats, layered, normal

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
