# SPDX-License-Identifier: Apache-2.0
"""Paired codes, `thc` with `bits=2`, and packed results, `result_bits=6`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.host.codec.vectors import layered, normal, require_equal_backends, require_equal_runs

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.interface import job_tables
from hopsum.codec.lookup_table import LookupTable, best_table, expected_nmse, paired_table
from hopsum.codec.range_codec import RangeCodec, RangeReduction
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc, pair_payloads, pair_table, split_payloads, split_sums
from hopsum_controlplane.lanes import check_lane_overflow
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import CODE_GROUPS, Op, pack_codes, unpack_codes
from hopsum_wire.payload import pack_sums, unpack_sums

SIZES = (1, 1023, 1024, 1025, 2047, 2048, 2049, 3 * 1024, 5 * 1024 + 7)
"""Odd and even numbers of blocks, with a last block that is whole, nearly whole, or nearly empty."""


def made(spelled: str, workers: int, backend: str = "numpy", **options: Any) -> RangeCodec:
    codec = make_codec(spelled, workers=workers, backend=backend, **options)
    assert isinstance(codec, RangeCodec)
    return codec


def paired(workers: int, **options: Any) -> RangeCodec:
    return made("thc", workers, bits=2, **options)


def packed(workers: int, **options: Any) -> RangeCodec:
    return made("thc", workers, result_bits=6, **options)


def begin(codec: RangeCodec, vectors: list[NDArray[np.float32]], kept: list[ErrorFeedback]) -> list[RangeReduction]:
    return [
        codec.start(x, ReductionContext(1, 2, rank), feedback)
        for rank, (x, feedback) in enumerate(zip(vectors, kept, strict=True))
    ]


def summed(
    reductions: list[RangeReduction], present: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    phases = [each.phase for each in reductions if each.phase is not None]
    return simulate_switch(phases[0].op, [each.payloads for each in phases], reductions[0].codec.lookup, present)


@settings(deadline=None, max_examples=60)
@given(
    workers=st.integers(1, 7), chunks=st.integers(1, 3), group=st.sampled_from(CODE_GROUPS), seed=st.integers(0, 999)
)
def test_half_lanes_hold_the_sums_of_each_block(workers: int, chunks: int, group: int, seed: int) -> None:
    values = paired_table(workers).values
    codes = np.random.default_rng(seed).integers(0, len(values), (workers, 2 * chunks, 1024), dtype=np.uint8)
    payloads = [pair_payloads(pack_codes(own, group=group)) for own in codes]
    for own, payload in zip(codes, payloads, strict=True):
        assert payload.shape == (chunks, 512)
        np.testing.assert_array_equal(unpack_codes(split_payloads(payload), group=group), own)
        symbols = 4 * own[0::2] + own[1::2]
        np.testing.assert_array_equal(unpack_codes(payload, group=group), symbols)
    results, _ = simulate_switch(Op.LOOKUP_ADD8, payloads, pair_table(values), code_group=group)
    np.testing.assert_array_equal(split_sums(results), np.array(values)[codes].sum(axis=0))


@pytest.mark.parametrize("workers", range(1, 8))
def test_no_half_lane_overflows_and_the_controller_can_prove_it(workers: int) -> None:
    values = paired_table(workers).values
    assert len(values) == (4 if workers <= 5 else 3)
    assert workers * values[-1] <= 15
    check_lane_overflow(workers, max(pair_table(values)), lane_bits=8)


def test_seven_workers_are_the_most() -> None:
    with pytest.raises(CodecError, match="8 workers with bits=2: half a lane holds the sum of at most 7 with codes"):
        paired(8)
    refused = LookupTable((0, 1, 2, 3), 0.1)
    with pytest.raises(CodecError, match=r"6 workers \* granularity 3 = 18 overflows a lane, whose maximum is 15"):
        paired(6, table=refused)


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize(
    ("spelled", "chunk_elements", "down_bytes", "sum_max"),
    [("thc:bits=2", 2048, 1024, 255), ("thc:result_bits=6", 1024, 768, 60)],
)
def test_bytes_up_and_down(elements: int, spelled: str, chunk_elements: int, down_bytes: int, sum_max: int) -> None:
    """Two bits an element up and four down, or four up and six down; contributors are by block."""
    vectors = [normal(elements, seed=rank) for rank in range(4)]
    ranks = begin(made(spelled, 4), vectors, [ErrorFeedback(elements) for _ in range(4)])
    for _ in range(2):
        phase, (results, everybody) = ranks[0].phase, summed(ranks)
        for each in ranks:
            each.take(results, everybody)
    assert phase is not None
    chunks = -(-elements // chunk_elements)
    assert (phase.payloads.shape, results.shape) == ((chunks, 512), (chunks, down_bytes))
    assert phase.counts()[:-1].tolist() == [1024] * (chunks - 1)
    assert phase.counts()[-1] == min(1024, elements - chunk_elements * (chunks - 1))
    assert int((unpack_sums(results) if down_bytes == 768 else results).max()) <= sum_max
    assert ranks[0].contributors.tolist() == [15] * -(-elements // 1024)


@pytest.mark.parametrize("options", [{"bits": 4}, {"result_bits": 8}])
def test_thc_is_as_it_is_without(options: dict[str, Any]) -> None:
    plain, said = make_codec("thc", workers=4), make_codec("thc", workers=4, **options)
    assert (job_tables(plain), plain.op) == (job_tables(said), said.op)
    assert said.op is Op.LOOKUP_ADD8


@pytest.mark.parametrize("spelled", ["thc:bits=2", "thc:result_bits=6", "uhc:result_bits=6"])
@pytest.mark.parametrize("elements", SIZES)
def test_backends_and_threads_give_equal_bytes(elements: int, spelled: str) -> None:
    require_equal_backends(lambda backend, threads: made(spelled, 3, backend, threads=threads), elements)


@pytest.mark.parametrize("spelled", ["thc:bits=2", "thc:result_bits=6"])
def test_long_vectors_are_done_run_by_run(spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_equal_runs(lambda: made(spelled, 2), monkeypatch)


@pytest.mark.parametrize("workers", [6, 7])
def test_three_values_serve_error_feedback_or_the_mean(workers: int) -> None:
    """No truncation has a smaller error of one worker than the table for error feedback, or of the mean without."""
    for kept, counted in ((True, 1), (False, workers)):
        found = paired_table(workers, kept)
        assert found.values == (0, 1, 2)
        others = [LookupTable((0, 1, 2), 2.0 ** (-eighths / 8)) for eighths in range(1, 161)]
        least = min(expected_nmse(table, counted) for table in others)
        assert expected_nmse(found, counted) == pytest.approx(least, rel=1e-9)
    codec = paired(workers)
    assert isinstance(codec, Thc)
    assert codec.table == paired_table(workers, True)


def test_a_rank_that_is_missing_from_a_chunk_keeps_both_of_its_blocks() -> None:
    codec, x, kept = paired(3), layered(5000), [ErrorFeedback(5000) for _ in range(3)]
    reductions = begin(codec, [x] * 3, kept)
    ranges, everybody = summed(reductions)
    for each in reductions:
        each.take(ranges, everybody)
    present = np.ones((3, 3), np.bool_)
    present[2, 1] = False
    results, contributors = summed(reductions, present)
    for each in reductions:
        each.take(results, contributors)
    rows = slice(2048, 4096)
    assert kept[2].residual[rows].tobytes() == x[rows].tobytes()
    assert kept[1].residual[rows].tobytes() != x[rows].tobytes()
    assert reductions[0].contributors.tolist() == [7, 7, 3, 3, 7]


@pytest.mark.parametrize(("workers", "entries"), [(1, 16), (4, 16), (5, 8), (9, 8), (10, 4), (21, 4), (22, 2), (63, 2)])
def test_no_packed_sum_overflows_and_the_controller_can_prove_it(workers: int, entries: int) -> None:
    codec = packed(workers)
    ((name, table),) = job_tables(codec).items()
    assert (codec.op, name, len(set(table))) == (Op.LOOKUP_ADD6, "table6", entries)
    check_lane_overflow(workers, max(table), lane_bits=6)


def test_packing_alone_changes_no_byte_of_the_mean() -> None:
    """With the same table in results of 8 bits, every byte of mean and residuals is the same."""
    table = best_table(4, 6)
    vectors = [layered(5 * 1024 + 9, seed=rank) for rank in range(4)]
    found = []
    for options in ({"result_bits": 6}, {"result_bits": 8}):
        codec = make_codec("thc", workers=4, table=table, **options)
        kept = [ErrorFeedback(vectors[0].size) for _ in range(4)]
        means = simulate_allreduce(codec, vectors, seed=3, step=7, feedback=kept)
        assert means is not None
        found.append((means[0].tobytes(), *(each.residual.tobytes() for each in kept)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "chunk", "lane", "message"),
    [
        ({}, 2, 255, "chunk 2: a lane of 255 from 2 workers, but the table ends at"),
        # The lower half of a lane: the sum of 2 workers is at most 6.
        ({"bits": 2}, 1, 7, "chunk 1: a lane of 7 from 2 workers, but the table ends at 3"),
        ({"result_bits": 6, "table": LookupTable(tuple(range(16)), 2.0**-8)}, 3, 31,
         "chunk 3: a lane of 31 from 2 workers, but the table ends at 15"),
    ],
)  # fmt: skip
def test_sums_of_another_table_are_refused(
    options: dict[str, Any], chunk: int, lane: int, message: str, backend: str
) -> None:
    reductions = begin(made("thc", 2, backend, **options), [normal(4096)] * 2, [ErrorFeedback(4096) for _ in range(2)])
    ranges, everybody = summed(reductions)
    for each in reductions:
        each.take(ranges, everybody)
    results, contributors = summed(reductions)
    packs = "result_bits" in options
    sums = unpack_sums(results) if packs else results
    sums[chunk, 1000] = lane
    with pytest.raises(CodecError, match=message):
        reductions[0].take(pack_sums(sums) if packs else sums, contributors)
