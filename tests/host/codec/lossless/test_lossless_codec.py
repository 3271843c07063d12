# SPDX-License-Identifier: Apache-2.0
"""The mean is the exact integer sum, divided once; backends make the same bytes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec import CodecError, CollectivePhase, ErrorFeedback, NonFiniteError, ReductionContext, make_codec
from hopsum.codec.interface import ReductionState
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.lossless_codec import LosslessReduction
from hopsum.codec.lossless.sketch_kernels import (
    EDGE_SHIFT,
    RANGE_BLOCK,
    Bloom,
    SketchKernels,
    SketchLayout,
    cells_and_signs,
)
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import Op

from .jobs import exact, run, start
from .supports import Floats, dense_blocks, one_column, random_members, sketch_kernels, sparse


def make(backend: str, workers: int, **options: object) -> Lossless:
    codec = make_codec("lossless", workers=workers, backend=backend, **options)
    assert isinstance(codec, Lossless)
    return codec


def with_members(elements: int, members: NDArray[np.uint32], seed: int) -> Floats:
    x = np.zeros(elements, np.float32)
    x[members] = np.random.default_rng(seed).standard_normal(members.size)
    return x


def require_exact(reductions: list[LosslessReduction], workers: int, vectors: list[Floats]) -> None:
    sums, mean = exact(workers, vectors)
    assert np.abs(sums).max() < 1 << 31
    for reduction in reductions:
        assert reduction.state is ReductionState.DONE
        assert reduction.mean is not None
        assert reduction.mean.tobytes() == mean.tobytes()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    elements=st.integers(1, 9000),
    densities=st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0]), min_size=1, max_size=5),
    spare=st.integers(0, 3),
    seed=st.integers(-(1 << 70), 1 << 70),
    step=st.integers(0, 1 << 40),
    index=st.sampled_from(["auto", "bitmap", "bloom"]),
    gamma=st.sampled_from([0.0, 1.1, 1.25, 3.0]),
    exponent=st.integers(-44, 33),
    backend=st.sampled_from(["numpy", "numba"]),
)
def test_any_sum_is_exact(
    elements: int,
    densities: list[float],
    spare: int,
    seed: int,
    step: int,
    index: str,
    gamma: float,
    exponent: int,
    backend: str,
) -> None:
    if backend == "numba":
        pytest.importorskip("numba")
    workers = len(densities) + spare
    codec = make(backend, workers, index=index, gamma=gamma)
    vectors = [sparse(elements, d, rank) * np.float32(10.0**exponent) for rank, d in enumerate(densities)]
    kept = [ErrorFeedback(elements) for _ in vectors]
    reductions = start(codec, vectors, kept, seed, step)
    assert run(reductions) is None
    require_exact(reductions, workers, vectors)
    peak = np.abs(vectors).max()
    for feedback in kept:
        assert np.abs(feedback.residual).max() <= peak * 2.0**-24 + 2.0**-126


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    elements=st.integers(1, 5000),
    density=st.sampled_from([0.003, 0.05, 1.0]),
    index=st.sampled_from(["bitmap", "bloom"]),
    gamma=st.sampled_from([0.0, 1.15, 1.25]),
    seed=st.integers(0, 1000),
)
def test_numba_equals_numpy(elements: int, density: float, index: str, gamma: float, seed: int) -> None:
    pytest.importorskip("numba")
    traces = []
    for backend in ("numpy", "numba"):
        codec = make(backend, 3, index=index, gamma=gamma)
        trace = []

        def record(number: int, phase: CollectivePhase, trace: list[bytes] = trace) -> None:
            trace.append(phase.payloads.tobytes())

        kept = [ErrorFeedback(elements) for _ in range(3)]
        reductions = start(codec, [sparse(elements, density, seed + rank) for rank in range(3)], kept, seed)
        assert run(reductions, present=record) is None
        assert reductions[1].mean is not None
        traces.append([*trace, reductions[1].mean.tobytes(), kept[0].residual.tobytes()])
    assert traces[0] == traces[1]


def test_threads_change_nothing() -> None:
    pytest.importorskip("numba")
    vectors = [sparse(3_000_001, 0.06, rank) for rank in range(2)]
    segments = []
    for threads in (1, 3):
        reductions = start(make("numba", 2, threads=threads), vectors)
        assert run(reductions) is None
        require_exact(reductions, 2, vectors)
        assert reductions[0].plan is not None
        segments.append(len(reductions[0].plan.segments))
    assert segments == [5, 5], "several jobs for the threads"


@pytest.mark.parametrize(
    "members",
    [
        one_column(1000),
        dense_blocks(1, 1000),
        dense_blocks(40, 1000),
        np.array([234_567], np.uint32),
        np.arange(0, 1_000_000, 1023, dtype=np.uint32),
    ],
    ids=["one column", "one dense block", "40 dense blocks", "one element", "diagonal"],
)
def test_structured_supports(backend: str, members: NDArray[np.uint32]) -> None:
    codec = make(backend, 2)
    vectors = [with_members(1_024_000, members, rank) for rank in range(2)]
    reductions = start(codec, vectors)
    assert run(reductions) is None
    require_exact(reductions, 2, vectors)
    plan = reductions[0].plan
    assert plan is not None
    assert plan.lanes < 1.5 * members.size + 12


def test_one_huge_element_and_denormals(backend: str) -> None:
    codec = make(backend, 3)
    huge, tiny = np.zeros(4000, np.float32), np.full(4000, 1e-45, np.float32)
    huge[77] = 3e38
    tiny[2000:] = np.linspace(-1e-38, 1e-38, 2000)
    vectors = [huge, tiny, -tiny]
    reductions = start(codec, vectors)
    assert run(reductions) is None
    require_exact(reductions, 3, vectors)


def test_zeros_need_one_exchange(backend: str) -> None:
    codec, kept = make(backend, 2), [ErrorFeedback(3000), ErrorFeedback(3000)]
    ops: list[Op] = []
    reductions = start(codec, [np.zeros(3000, np.float32)] * 2, kept)

    def everybody(number: int, phase: CollectivePhase) -> None:
        ops.append(phase.op)

    assert run(reductions, present=everybody) is None
    assert ops == [Op.MAX32]
    for reduction in reductions:
        assert reduction.mean is not None
        assert reduction.mean.size == 3000
        assert not reduction.mean.any()
        assert reduction.contributors.tolist() == [3]


def test_elements_too_small_for_an_integer_are_not_sent(backend: str) -> None:
    codec, kept = make(backend, 1), [ErrorFeedback(2000)]
    x = np.full(2000, 1e-20, np.float32)
    x[5], x[1024:] = 1.0, 0.0
    reductions = start(codec, [x], kept)
    assert run(reductions) is None
    plan = reductions[0].plan
    assert plan is not None
    assert plan.lanes == 3, "the cells of one element"
    assert reductions[0].mean is not None
    assert reductions[0].mean[5] == 1
    assert not reductions[0].mean[6:1024].any()
    assert (kept[0].residual[6:1024] == x[6]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_an_error_on_all_ranks_or_a_skip(backend: str, bad: float) -> None:
    codec, good, wrong = make(backend, 2), sparse(3000, 0.1), sparse(3000, 0.1, 2)
    wrong[2500] = bad
    assert simulate_allreduce(codec, [good, wrong], seed=1, step=1) is None
    kept = [ErrorFeedback(3000), ErrorFeedback(3000)]
    reductions = [
        codec.start(x, ReductionContext(1, 1, rank), kept[rank], tensors=[("w", 2000), ("b", 1000)])
        for rank, x in enumerate([good, wrong])
    ]
    first = [reduction.phase for reduction in reductions]
    results = np.maximum.reduce([phase.payloads.view(">u4") for phase in first if phase is not None])
    with pytest.raises(NonFiniteError, match="another rank"):
        reductions[0].on_results(results.view(np.uint8), np.full(1, 3, np.uint64))
    with pytest.raises(NonFiniteError, match=r"b: 1 of 1000"):
        reductions[1].on_results(results.view(np.uint8), np.full(1, 3, np.uint64))
    assert not kept[0].residual.any()
    assert not kept[1].residual.any()


def test_wire_bytes_at_five_percent(backend: str) -> None:
    """Index, sketch and packed members together, against gamma * density + 1/32 of the dense vector."""
    elements, gamma = 1 << 20, 1.25
    x = sparse(elements, 0.05)
    reductions = start(make(backend, 1, index="bitmap", gamma=gamma), [x])
    sizes: list[int] = []

    def everybody(number: int, phase: CollectivePhase) -> None:
        sizes.append(phase.payloads.nbytes)

    assert run(reductions, present=everybody) is None
    ratio = sum(sizes[1:]) / x.nbytes
    assert ratio < 1.15 * (gamma * np.count_nonzero(x) / elements + 1 / 32)
    assert sum(sizes) / x.nbytes < ratio + 1.3 / 1024


def test_an_index_of_a_longer_vector_is_refused(backend: str) -> None:
    reduction = make(backend, 1, index="bitmap").start(sparse(3003, 0.1), ReductionContext(1, 1, 0))
    one = np.full(1, 1, np.uint64)
    assert reduction.phase is not None
    reduction.on_results(reduction.phase.payloads, one)
    assert reduction.phase is not None
    results = reduction.phase.payloads.copy()
    results[0, 3003 // 8] |= 1
    with pytest.raises(CodecError, match="bit 3007 is set of a vector of 3003"):
        reduction.on_results(results, one)
    assert reduction.state is ReductionState.INDEX
    reduction.on_results(reduction.phase.payloads, one)
    assert reduction.state is ReductionState.SUMS


def test_results_that_do_not_fit_are_refused(backend: str) -> None:
    reduction = make(backend, 2).start(sparse(3000, 0.1), ReductionContext(1, 1, 0))
    assert reduction.phase is not None
    payloads, everybody = reduction.phase.payloads, np.full(1, 3, np.uint64)
    with pytest.raises(CodecError, match="expected uint8"):
        reduction.on_results(np.concatenate([payloads, payloads]), everybody)
    with pytest.raises(CodecError, match="contributors"):
        reduction.on_results(payloads, np.full(2, 3, np.uint64))
    reduction.on_results(payloads, everybody)
    reduction.on_results(reduction.phase.payloads, everybody)
    chunks = len(reduction.phase.payloads)
    with pytest.raises(CodecError, match="of a job of 2"):
        reduction.on_results(reduction.phase.payloads, np.full(chunks, 4, np.uint64))
    reduction.on_results(reduction.phase.payloads, np.full(chunks, 1, np.uint64))
    assert reduction.mean is not None
    with pytest.raises(CodecError, match="state DONE"):
        reduction.on_results(payloads, everybody)
    with pytest.raises(CodecError, match="nothing to abort"):
        reduction.abort()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"index": "trie"}, "index 'trie'"), ({"gamma": -1.0}, "gamma -1"), ({"repeats": 0}, "0 repeats")],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        make("numpy", 2, **options)


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
def test_kernels_numba_equals_numpy(
    elements: int, density: float, key: int, third: int, block: int, bits: int, hashes: int, exponent: int
) -> None:
    x = (sparse(elements, density, key % 1000) * 10.0**exponent).astype(np.float32)
    scales = np.ldexp(1.0, np.random.default_rng(elements).integers(-60, 126, -(-elements // RANGE_BLOCK)))
    scales = np.where(np.abs(scales) * np.abs(x).max() < 1 << 30, scales, 0).astype(np.float32)
    layout, bloom = SketchLayout.with_blocks(third, block, key), Bloom(min(bits, 1 << 20), hashes, key ^ 1)
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
    layout = SketchLayout.with_blocks(900, 1024, 0x0123_4567_89AB_CDEF)
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
    layout = SketchLayout.with_blocks(220, 1024, 5)
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
    layout = SketchLayout.with_blocks(1000, 1, 77)
    cells, signs = cells_and_signs(members, layout)
    assert (cells // 1000 == np.arange(3)[:, None]).all()
    for row in cells % 1000:
        counts = np.bincount(row, minlength=1000)
        assert abs(((counts - 200) ** 2).sum() / 200 - 999) < 5 * np.sqrt(2 * 999)
    ones = (signs == 1).sum(axis=1)
    assert (abs(ones - 100_000) < 5 * np.sqrt(200_000) / 2).all()
    assert set(np.unique(signs)) == {1, 0xFFFF_FFFF}
