# SPDX-License-Identifier: Apache-2.0
"""Backends make the same bytes, and each does what kernels.py says."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec.lossless.sketch_kernels import EDGE_SHIFT, RANGE_BLOCK, Bloom, SketchKernels, SketchLayout, places

from .supports import Floats, random_members, sketch_kernels, sparse


def everything(kernels: SketchKernels, x: Floats, scales: Floats, layout: SketchLayout, bloom: Bloom) -> list[bytes]:
    """Return what all kernels make of a vector, but for the order of peeling, which is a backend's own."""
    runs = -(-x.size // RANGE_BLOCK)
    peaks, bits = np.empty(runs, np.uint32), np.empty(-(-x.size // 8), np.uint8)
    held = np.empty_like(bits)
    nonzero = kernels.scan(x, peaks)
    kernels.mark(x, scales, bits)
    members = np.empty(int(np.unpackbits(bits).sum()), np.uint32)
    kernels.select(bits, 0, members)
    held_bits = np.zeros(-(-bloom.bits // 8), np.uint8)
    kernels.bloom_add(members, bloom, held_bits)
    kernels.bloom_query(0, x.size, bloom, held_bits, held)
    values, order = np.empty(members.size, np.int32), np.empty(members.size, np.uint32)
    kernels.quantise(x, scales, members, values)
    peeled = kernels.peel(members, layout, order)
    rest = order[peeled:] >> EDGE_SHIFT
    summed = values.copy()
    summed[rest] = 0
    cells = np.zeros(layout.cells, np.uint32)
    kernels.add(summed, members, layout, cells)
    found = np.zeros(members.size, np.int32)
    left = cells.copy()
    kernels.solve(left, members, layout, order[:peeled], found)
    assert not left.any()
    np.testing.assert_array_equal(found, summed)
    mean = np.zeros(x.size, np.float32)
    kernels.spread(values, members, 3.0 * scales.astype(np.float64) + 1, mean)
    arrays: list[NDArray[Any]] = [peaks, bits, members, held_bits, held, values, rest, cells, mean]
    return [bytes([nonzero % 251]), *(array.tobytes() for array in arrays)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    elements=st.integers(1, 6000),
    density=st.sampled_from([0.0, 0.003, 0.05, 0.5, 1.0]),
    key=st.integers(0, (1 << 64) - 1),
    third=st.integers(1, 3000),
    block=st.sampled_from([1, 16, 256, 1024, 65536]),
    bits=st.integers(1, 1 << 32),
    hashes=st.integers(1, 24),
    exponent=st.integers(-44, 30),
)
def test_numba_equals_numpy(
    elements: int, density: float, key: int, third: int, block: int, bits: int, hashes: int, exponent: int
) -> None:
    x = (sparse(elements, density, key % 1000) * 10.0**exponent).astype(np.float32)
    scales = np.ldexp(1.0, np.random.default_rng(elements).integers(-60, 126, -(-elements // RANGE_BLOCK)))
    scales = np.where(np.abs(scales) * np.abs(x).max() < 1 << 30, scales, 0).astype(np.float32)
    layout, bloom = SketchLayout.of(third, block, key), Bloom(min(bits, 1 << 20), hashes, key ^ 1)
    found = [everything(sketch_kernels(backend), x, scales, layout, bloom) for backend in ("numpy", "numba")]
    assert found[0] == found[1]


def test_blooms_of_any_size_agree() -> None:
    """Places beyond 2^31 need 64-bit arithmetic; only filters of pages that are touched cost memory."""
    members = np.array([0, 1, 77, (1 << 32) - 1], np.uint32)
    bloom = Bloom(1 << 32, 24, (1 << 64) - 1)
    filters = []
    for backend in ("numpy", "numba"):
        bits = np.zeros(1 << 29, np.uint8)
        sketch_kernels(backend).bloom_add(members, bloom, bits)
        words = bits.view(np.uint64)
        filters.append([(int(place), int(words[place])) for place in np.flatnonzero(words)])
    assert len(filters[0]) > 90
    assert filters[0] == filters[1]


def test_sketches_do_not_change_by_accident(backend: str) -> None:
    """All ranks of a job must make the same sketch, whatever release they run."""
    kernels, members = sketch_kernels(backend), random_members(20_000, 0.1)
    layout = SketchLayout.of(900, 1024, 0x0123_4567_89AB_CDEF)
    cells = np.zeros(layout.cells, np.uint32)
    kernels.add(np.arange(members.size, dtype=np.int32) - 1000, members, layout, cells)
    assert hashlib.sha256(cells.tobytes()).hexdigest()[:16] == "b9946efb09b012cf"


def test_values_that_are_not_finite_are_never_sent(backend: str) -> None:
    """Their runs have scale 0 when they come too late to make all ranks skip."""
    kernels = sketch_kernels(backend)
    x = np.ones(2 * RANGE_BLOCK, np.float32)
    x[:3] = np.nan, np.inf, -np.inf
    scales = np.array([0, 8], np.float32)
    bits, peaks = np.empty(x.size // 8, np.uint8), np.empty(2, np.uint32)
    assert kernels.scan(x, peaks) == x.size
    assert peaks[0] > 0x7F80_0000
    assert peaks[1] == 0x3F80_0000
    kernels.mark(x, scales, bits)
    assert not bits[:128].any()
    assert (bits[128:] == 0xFF).all()
    values = np.empty(x.size, np.int32)
    kernels.quantise(x, scales, np.arange(x.size, dtype=np.uint32), values)
    assert not values[:1024].any()
    assert (values[1024:] == 8).all()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1023, 1025])
def test_bitmaps_are_in_the_order_of_the_wire(backend: str, size: int) -> None:
    kernels = sketch_kernels(backend)
    x = sparse(size, 0.3)
    bits = np.empty(-(-size // 8), np.uint8)
    kernels.mark(x, np.full(-(-size // RANGE_BLOCK), 2.0**20, np.float32), bits)
    np.testing.assert_array_equal(np.unpackbits(bits)[:size], np.abs(x) * 2.0**20 > 0.5)
    assert not np.unpackbits(bits)[size:].any()


def test_an_integer_wraps_and_comes_back(backend: str) -> None:
    """Cells are sums modulo 2^32: values of any size come back, as long as the sums of the elements fit."""
    kernels, members = sketch_kernels(backend), np.arange(500, dtype=np.uint32)
    layout = SketchLayout.of(220, 1024, 5)
    values = np.where(members % 2, np.int32(-(1 << 31)), np.int32((1 << 31) - 1)).astype(np.int32)
    order, found, cells = np.empty(500, np.uint32), np.zeros(500, np.int32), np.zeros(layout.cells, np.uint32)
    peeled = kernels.peel(members, layout, order)
    assert peeled == 500
    kernels.add(values, members, layout, cells)
    kernels.solve(cells, members, layout, order, found)
    np.testing.assert_array_equal(found, values)
    assert not cells.any()


def test_cells_of_an_element_are_distinct_and_their_distribution_is_flat() -> None:
    members = np.arange(200_000, dtype=np.uint32)
    layout = SketchLayout.of(1000, 1, 77)
    cells, signs = places(members, layout)
    assert (cells // 1000 == np.arange(3)[:, None]).all()
    for row in cells % 1000:
        counts = np.bincount(row, minlength=1000)
        assert abs(((counts - 200) ** 2).sum() / 200 - 999) < 5 * np.sqrt(2 * 999)
    ones = (signs == 1).sum(axis=1)
    assert (abs(ones - 100_000) < 5 * np.sqrt(200_000) / 2).all()
    assert set(np.unique(signs)) == {1, 0xFFFF_FFFF}
