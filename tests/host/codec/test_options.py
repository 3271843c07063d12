# SPDX-License-Identifier: Apache-2.0
"""Laws of thc, uhc and fixed with all their options, and the search for the table of a job."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec import (
    CodecError,
    ErrorFeedback,
    ReductionContext,
    SharedRanges,
    best_table,
    lookup_table,
    make_codec,
)
from hopsum.codec.backends import load_kernels
from hopsum.codec.lookup_table import (
    LookupTable,
    expected_nmse,
    most_workers,
    optimal_table,
    pareto_front,
    require_switch_table,
)
from hopsum.codec.range_codec import RangeCodec, RangeReduction
from hopsum.codec.registry import CODECS
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.solved_tables import SOLVED
from hopsum.codec.thc import MIN_BOUND, LookupTableCodec, uniform_table
from hopsum.codec.vector_reduction import pack_ranges
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES, unpack_codes

from .vectors import Floats, layered, nmse, normal

pytestmark = pytest.mark.system
STOCHASTIC: dict[str, Any] = {"rounding": "stochastic"}
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("fixed", {}),
    ("thc", {"result_bits": 8}),
    ("thc", STOCHASTIC),
    ("thc", STOCHASTIC | {"lane_bits": 16}),
    *(("uhc", {"bits": bits}) for bits in range(1, 9)),
    ("uhc", {"bits": 4, "lane_bits": 16}),
    ("uhc", {"bits": 5, "lane_bits": 16}),
]
"""Codecs with whole sums, and all others."""
ALL = [*WHOLE, *(("thc", {"bits": bits}) for bits in (4, 3, 2))]


def make(kind: tuple[str, dict[str, Any]], workers: int, backend: str = "auto", **options: Any) -> RangeCodec:
    made = CODECS[kind[0]](workers, kernels=load_kernels(backend), **(kind[1] | options))
    assert isinstance(made, RangeCodec)
    return made


VECTORS = st.one_of(
    st.builds(lambda n, seed: normal(n, seed), st.integers(1, 3000), st.integers(0, 99)),
    st.builds(lambda n, seed: layered(n, seed), st.integers(1, 3000), st.integers(0, 99)),
    st.builds(lambda n: np.zeros(n, np.float32), st.integers(1, 1500)),
    st.builds(lambda *where: spike(*where), st.integers(1, 3000), st.integers(0, 2999), st.integers(-126, 119)),
    st.builds(lambda n, seed: normal(n, seed) * np.float32(1e-39), st.integers(1, 1500), st.integers(0, 99)),
    st.builds(lambda n, seed: normal(n, seed) * np.float32(1e33), st.integers(1, 1500), st.integers(0, 99)),
)
"""n = 1, odd n, zeros, one huge coordinate, denormals, large ones."""


def spike(elements: int, at: int, exponent: int) -> Floats:
    x = normal(elements) * np.float32(1e-3)
    x[at % elements] = 2.0**exponent
    return x


def summed(codec: RangeCodec, payloads: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """Add lanes as integers that cannot overflow."""
    shape = SHAPES[codec.op]
    if shape.has_codes:
        # Thresholds may follow the values.
        table = np.array(codec.lookup, np.int64)
        codes = [unpack_codes(payload, shape.lane_bits, bits=shape.code_bits) for payload in payloads]
        return np.asarray(np.sum([table[each] for each in codes], axis=0))
    kind = ">i4" if codec.op == Op.ADD32 else SHAPES[codec.op].lane_dtype
    return np.asarray(np.sum([payload.view(kind).astype(np.int64) for payload in payloads], axis=0))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(WHOLE),
    backend=st.sampled_from(["numpy", "numba"]),
    workers=st.integers(1, 17),
    x=VECTORS,
    step=st.integers(0, 1 << 40),
)
def test_what_was_sent_and_what_stays_is_the_vector(
    kind: tuple[str, dict[str, Any]], backend: str, workers: int, x: Floats, step: int
) -> None:
    """decode(encode(x)) + residual == x, over all ranks; lanes hold the sum of all of them."""
    codec = make(kind, workers, backend)
    kept = [ErrorFeedback(x.size) for _ in range(workers)]
    ranks = [RangeReduction(codec, x, ReductionContext(7, step, rank), kept[rank]) for rank in range(workers)]
    shared, everybody = simulate_switch(Op.MAX32, payloads_of(ranks))
    for rank in ranks:
        rank.on_results(shared, everybody)
    payloads = payloads_of(ranks)
    results, everybody = simulate_switch(codec.op, payloads, codec.lookup)
    kind_of_lane = ">i4" if codec.op == Op.ADD32 else SHAPES[codec.op].lane_dtype
    np.testing.assert_array_equal(results.view(kind_of_lane), summed(codec, payloads))
    for rank in ranks:
        rank.on_results(results, everybody)
    means = [rank.mean for rank in ranks]
    assert means[0] is not None
    assert len({mean.tobytes() for mean in means if mean is not None}) == 1
    sent = [x.astype(np.float64) - feedback.residual for feedback in kept]
    size = max(np.abs(x).max(), np.abs(means[0]).max())
    np.testing.assert_allclose(np.mean(sent, axis=0), means[0], rtol=0, atol=4e-6 * size)


def payloads_of(ranks: list[RangeReduction]) -> list[NDArray[np.uint8]]:
    return [rank.phase.payloads for rank in ranks if rank.phase is not None]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(ALL),
    backend=st.sampled_from(["numpy", "numba"]),
    workers=st.integers(1, 17),
    x=st.one_of(st.builds(normal, st.integers(1, 3000)), st.builds(layered, st.integers(1, 3000))),
    ratio=st.floats(1.01, 1e12),
)
def test_a_rank_whose_ranges_came_too_late_clips_to_the_others(
    kind: tuple[str, dict[str, Any]], backend: str, workers: int, x: Floats, ratio: float
) -> None:
    """Its lanes stay in their bounds, so that no sum can overflow, and what was cut off is in its residual."""
    codec, kept, context = make(kind, workers, backend), ErrorFeedback(x.size), ReductionContext(7, 1, 0)
    rank = RangeReduction(codec, x, context, kept)
    others = codec.ranges(x).view(np.float32) / np.float32(ratio)
    rank.on_results(pack_ranges(others.view(np.uint32)), np.zeros(1, np.uint64))
    (payloads,) = payloads_of([rank])
    most = np.abs(summed(codec, [payloads])).max()
    shape = SHAPES[codec.op]
    # Values are signed where sums are looked up again.
    assert workers * most <= (127 if shape.down_codes else {8: 255, 16: 65535, 32: (1 << 31) - 1}[shape.lane_bits])
    rank.on_results(*simulate_switch(codec.op, [payloads], codec.lookup))
    mine = codec.dequantize_own(payloads, SharedRanges(others), x.size, context)
    np.testing.assert_array_equal(kept.residual, x - mine)
    if codec.name != "uhc" or (isinstance(codec, LookupTableCodec) and codec.table.bits > 3):
        left, whole = (np.linalg.norm(v.astype(np.float64)) for v in (kept.residual, x))
        assert left <= whole * (1 + 1e-6)


PUBLISHED = LookupTable((0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30), 1 / 32)


def simulated(codec: RangeCodec, vectors: list[Floats], step: int = 1) -> Floats:
    means = simulate_allreduce(codec, vectors, seed=3, step=step)
    assert means is not None
    return means[0]


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("workers", [1, 8, 64])
def test_the_best_truncation_beats_others_and_the_published_one(bits: int, workers: int) -> None:
    best = expected_nmse(uniform_table(bits, workers), workers)
    values = tuple(range(1 << bits))
    assert best < expected_nmse(LookupTable(values, 1e-4), workers)
    for quarters in range(2, 161, 3):
        assert best <= expected_nmse(LookupTable(values, 2.0 ** (-quarters / 4)), workers)


@pytest.mark.parametrize(
    ("name", "workers", "options", "message"),
    [
        ("thc", 2, {"lane_bits": 32}, "lanes of 32 bits: 8 or 16"),
        ("uhc", 2, {"lane_bits": 4}, "lanes of 4 bits: 8 or 16"),
        ("thc", 2, {"code_group": 96}, "codes in groups of 96: one of 4, 8, 16, 32, 64, 128, 256, 512"),
        ("uhc", 2, {"bits": 0}, "codes of 0 bits: 1 to 8"),
        ("uhc", 2, {"bits": 9}, "codes of 9 bits: 1 to 8"),
        ("thc", 2, STOCHASTIC | {"table": LookupTable(tuple(range(16)), 0.9)}, f"at least {MIN_BOUND}"),
        ("uhc", 18, {"bits": 4, "lane_bits": 8}, r"18 workers \* granularity 15 = 270 overflows a lane"),
        ("thc", 1, STOCHASTIC | {"table": LookupTable((*range(15), 128), 0.01)}, "granularity 128 .* at most 127"),
        ("thc", 1, STOCHASTIC | {"table": LookupTable((*range(31), 40), 0.01)}, "at most 4 bits"),
        ("thc", 9, STOCHASTIC | {"table": PUBLISHED}, r"9 workers \* granularity 30 = 270 overflows a lane"),
        ("thc", 2, {"bits": 5}, "thc with codes of 5 bits: 2, 3, 4"),
        ("thc", 2, {"rounding": "up"}, "thc with rounding=up: dither or stochastic"),
        ("thc", 2, {"lane_bits": 16}, "lanes of 16 bits, are for stochastic rounding: give rounding=stochastic"),
        ("thc", 2, {"table": PUBLISHED}, "a table, .* for stochastic rounding: give rounding=stochastic"),
        ("thc", 2, {"error_feedback": "False"}, "error_feedback='False' is not true or false"),
        ("thc", 2, {"result_bits": 6}, "result_bits=6 with bits=4: .* as many bits as codes, or 8 with bits=4"),
        ("thc", 2, {"bits": 3, "result_bits": 8}, "result_bits=8 with bits=3: results have as many bits as codes"),
        ("thc", 2, {"bits": 2, "result_bits": 4}, "result_bits=4 with bits=2"),
        ("thc", 2, STOCHASTIC | {"bits": 2}, "rounding=stochastic with bits=2 .* codes of 4 bits and whole sums"),
        ("thc", 2, STOCHASTIC | {"result_bits": 4}, "and result_bits=4: .* whole sums, of 8 bits here; leave bits and"),
        ("thc", 2, STOCHASTIC | {"result_bits": 8, "lane_bits": 16}, "whole sums, of 16 bits here"),
        (
            "thc",
            18,
            {"result_bits": 4},
            "18 workers .* of 4 bits: .* at most 17 codes; take bits=2, bits=4,result_bits=8",
        ),
        ("thc", 18, {"bits": 3}, "18 workers .* of 3 bits: .* the signed sum of at most 17 codes; take bits=2"),
        ("thc", 43, {"bits": 2}, "43 workers with results of 2 bits: .* at most 42 codes; take bits=4,result_bits=8"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, workers: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        make_codec(name, workers=workers, backend="numpy", **options)


@pytest.mark.parametrize(
    ("workers", "bits", "op"),
    [
        (17, 4, Op.LOOKUP_ADD8),
        (18, 4, Op.LOOKUP_ADD16),
        (64, 2, Op.LOOKUP_ADD8),
        (8, 5, Op.ADD8),
        (9, 5, Op.ADD16),
        (1, 8, Op.ADD8),
        (64, 8, Op.ADD16),
    ],
)
def test_uhc_takes_the_narrower_lanes_that_fit(workers: int, bits: int, op: Op) -> None:
    codec = make_codec("uhc", workers=workers, bits=bits)
    assert isinstance(codec, LookupTableCodec)
    assert codec.op == op
    assert codec.lookup is None or codec.lookup == tuple(min(code, 2**bits - 1) for code in range(16))
    x = normal(2000)
    assert nmse(simulated(codec, [x] * workers), x) == pytest.approx(
        expected_nmse(uniform_table(bits, workers), workers), rel=0.3
    )


@pytest.mark.parametrize(("workers", "bits"), [(17, 4), (18, 3), (36, 3), (37, 2), (64, 2)])
def test_thc_takes_fewer_bits_for_more_workers_in_narrow_lanes(workers: int, bits: int, backend: str) -> None:
    codec, x = make(("thc", STOCHASTIC), workers, backend), normal(1 << 14)
    assert isinstance(codec, LookupTableCodec)
    assert codec.table.bits == bits
    assert codec.lookup is not None
    assert workers * max(codec.lookup) <= 255
    assert nmse(simulated(codec, [x] * workers), x) == pytest.approx(expected_nmse(codec.table, workers), rel=0.1)
    wide = make(("thc", STOCHASTIC | {"lane_bits": 16}), workers, backend)
    assert nmse(simulated(wide, [x] * workers), x) < 0.003


@pytest.mark.parametrize("workers", range(1, 18))
@pytest.mark.parametrize("error_feedback", [False, True])
def test_best_table_fits_and_beats_the_published_default(workers: int, error_feedback: bool) -> None:
    table = best_table(workers, error_feedback=error_feedback)
    counted = 1 if error_feedback else workers
    assert workers * table.granularity <= 255
    require_switch_table(table)
    assert expected_nmse(table, counted) < expected_nmse(PUBLISHED, counted)


@pytest.mark.parametrize("workers", [8, 12, 16])
def test_nothing_on_the_whole_grid_is_better(workers: int) -> None:
    best = expected_nmse(best_table(workers), workers)
    for granularity in range(15, 255 // workers + 1):
        for eighths in range(16, 110):
            truncated = 2.0 ** (-eighths / 8)
            other = LookupTable(optimal_table(granularity, truncated), truncated)
            assert best <= expected_nmse(other, workers) * (1 + 1e-9)


@pytest.mark.parametrize(("bits", "workers", "lane_bits"), [(4, 8, 8), (4, 3, 8), (3, 8, 8), (2, 20, 8), (4, 300, 16)])
def test_a_front_holds_what_nothing_else_beats(bits: int, workers: int, lane_bits: int) -> None:
    front = pareto_front(bits, workers, lane_bits)
    for point in front:
        assert point.table.bits == bits
        assert point.workers_per_lane == ((1 << lane_bits) - 1) // point.table.granularity >= workers
        assert point.expected_nmse == expected_nmse(point.table, workers)
    for coarse, fine in pairwise(front):
        assert coarse.workers_per_lane > fine.workers_per_lane
        assert coarse.expected_nmse > fine.expected_nmse
    assert front[-1].table == best_table(workers, lane_bits, bits)
    assert front[0].workers_per_lane == most_workers(bits, lane_bits)
    for granularity in range((1 << bits) - 1, min(((1 << lane_bits) - 1) // workers, 60) + 1):
        for truncated in (2.0**-4, 2.0**-6, 2.0**-8, 2.0**-10):
            other = LookupTable(optimal_table(granularity, truncated, bits), truncated)
            roomy = [point for point in front if point.workers_per_lane >= ((1 << lane_bits) - 1) // granularity]
            assert min(point.expected_nmse for point in roomy) <= expected_nmse(other, workers) * (1 + 1e-9)


def test_wide_codes_are_searched_too() -> None:
    front = pareto_front(6, 200, 16)
    assert front[-1].table.bits == 6
    assert 200 * front[-1].table.granularity <= 65535
    assert front[-1].expected_nmse < expected_nmse(best_table(200, 16), 200) / 4


def test_bits_are_chosen_where_they_are_left_open() -> None:
    assert best_table(8, bits=None) == best_table(8)
    assert best_table(18, bits=None) == best_table(18, bits=3)
    assert best_table(36, bits=None).values == tuple(range(8))
    assert best_table(64, bits=None) == best_table(64, bits=2)
    assert best_table(200, bits=None).values == (0, 1)
    assert best_table(64, 16, bits=None) == best_table(64, 16)


@pytest.mark.parametrize(
    ("workers", "lane_bits", "bits", "message"),
    [
        (
            18,
            8,
            4,
            r"18 workers: a lane of 8 bits holds the sum of at most 17 with codes of 4 bits \(values up to 15 at least"
            r"\); take bits=3 \(up to 36 workers\), bits=2 \(up to 85 workers\), bits=1 \(up to 255 workers\), "
            r"lane_bits=16 or codec fixed",
        ),
        (40, 8, 4, r"take bits=2 \(up to 85 workers\), bits=1"),
        (40, 8, 3, r"at most 36 with codes of 3 bits .* take bits=2"),
        (256, 8, None, "at most 255 with codes of 1 bits .* take lane_bits=16"),
        (70_000, 16, 4, "take lane_bits=32"),
        (0, 8, 4, "0 workers"),
        (4, 0, 4, "lanes of 0 bits: 1 to 32"),
        (4, 33, None, "lanes of 33 bits: 1 to 32"),
        (4, 8, 9, "9 bits: 1 to 8"),
        (4, 8, 0, "0 bits: 1 to 8"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    workers: int, lane_bits: int, bits: int | None, message: str
) -> None:
    with pytest.raises(CodecError, match=message):
        best_table(workers, lane_bits, bits)


def test_the_choice_does_not_depend_on_the_last_bits_of_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(4, 8, 8, False), (4, 16, 8, False), (3, 20, 8, False), (4, 8, 8, True), (4, 300, 16, False)]
    fronts = [[point.table for point in pareto_front(*job)] for job in jobs]
    rng, exact = np.random.default_rng(5), lookup_table._density

    def blurred(a: NDArray[np.float64]) -> NDArray[np.float64]:
        return exact(a) * (1 + rng.integers(-2, 3, a.shape) * 2.0**-52)

    monkeypatch.setattr(lookup_table, "_density", blurred)
    monkeypatch.setattr(lookup_table, "_table", cache(lookup_table._table.__wrapped__))
    lookup_table.grid_costs.cache_clear()
    again = [[point.table for point in pareto_front.__wrapped__(*job)] for job in jobs]
    lookup_table.grid_costs.cache_clear()
    assert again == fronts


@pytest.mark.parametrize(("lane_bits", "workers"), [(8, 16), (8, 17), (8, 18), (8, 36), (8, 64), (16, 64)])
def test_solved_tables_are_what_the_search_finds(lane_bits: int, workers: int) -> None:
    """`tools/generate_tables.py --check` compares all of them, which takes minutes."""
    assert best_table(workers, lane_bits, bits=None) == lookup_table.search_table(workers, lane_bits, None, False)


def test_solved_tables_hold_all_jobs_of_64_workers_and_fit_their_lanes() -> None:
    assert list(SOLVED) == [(lane_bits, workers) for lane_bits in (8, 16) for workers in range(1, 65)]
    for (lane_bits, workers), (values, eighths) in SOLVED.items():
        table = LookupTable(values, 2.0 ** (-eighths / 8))
        require_switch_table(table)
        assert workers * table.granularity < 1 << lane_bits
