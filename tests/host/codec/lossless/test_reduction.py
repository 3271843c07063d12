# SPDX-License-Identifier: Apache-2.0
"""The mean is the exact integer sum, divided once; nothing else ever comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec import CodecError, CollectivePhase, ErrorFeedback, NonFiniteError, ReductionContext, make_codec
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.lossless_codec import LosslessReduction
from hopsum.codec.simulate import simulate_allreduce
from hopsum.codec.vector_reduction import ReductionState
from hopsum_wire import Op

from .jobs import exact, run, start
from .supports import Floats, dense_blocks, one_column, sparse


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
    block=st.sampled_from([1, 64, 256, 1024]),
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
    block: int,
    index: str,
    gamma: float,
    exponent: int,
    backend: str,
) -> None:
    if backend == "numba":
        pytest.importorskip("numba")
    workers = len(densities) + spare
    codec = make(backend, workers, block_elements=block, index=index, gamma=gamma)
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
        reductions[0].take(results.view(np.uint8), np.full(1, 3, np.uint64))
    with pytest.raises(NonFiniteError, match=r"b: 1 of 1000"):
        reductions[1].take(results.view(np.uint8), np.full(1, 3, np.uint64))
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
    reduction.take(reduction.phase.payloads, one)
    assert reduction.phase is not None
    results = reduction.phase.payloads.copy()
    results[0, 3003 // 8] |= 1
    with pytest.raises(CodecError, match="bit 3007 is set of a vector of 3003"):
        reduction.take(results, one)
    assert reduction.state is ReductionState.INDEX
    reduction.take(reduction.phase.payloads, one)
    assert reduction.state is ReductionState.SUMS


def test_results_that_do_not_fit_are_refused(backend: str) -> None:
    reduction = make(backend, 2).start(sparse(3000, 0.1), ReductionContext(1, 1, 0))
    assert reduction.phase is not None
    payloads, everybody = reduction.phase.payloads, np.full(1, 3, np.uint64)
    with pytest.raises(CodecError, match="expected uint8"):
        reduction.take(np.concatenate([payloads, payloads]), everybody)
    with pytest.raises(CodecError, match="contributors"):
        reduction.take(payloads, np.full(2, 3, np.uint64))
    reduction.take(payloads, everybody)
    reduction.take(reduction.phase.payloads, everybody)
    chunks = len(reduction.phase.payloads)
    with pytest.raises(CodecError, match="of a job of 2"):
        reduction.take(reduction.phase.payloads, np.full(chunks, 4, np.uint64))
    reduction.take(reduction.phase.payloads, np.full(chunks, 1, np.uint64))
    assert reduction.mean is not None
    with pytest.raises(CodecError, match="state DONE"):
        reduction.take(payloads, everybody)
    with pytest.raises(CodecError, match="nothing to abort"):
        reduction.abort()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"index": "trie"}, "index 'trie'"), ({"gamma": -1.0}, "gamma -1"), ({"repeats": 0}, "0 repeats")],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        make("numpy", 2, **options)
