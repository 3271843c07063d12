# SPDX-License-Identifier: Apache-2.0
"""Laws of every codec with ranges."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.codec import CodecError, LookupTable, ReductionContext, SharedRanges
from hopsum.codec.lookup_table import optimal_table
from hopsum.codec.simulate import simulate_allreduce, simulate_switch
from hopsum.codec.vector_reduction import INFINITE, pack_ranges, read_ranges
from hopsum_wire import Op

from .conftest import MakeCodec
from .vectors import encode_alone, layered, nmse, normal, only

pytestmark = pytest.mark.system
SIZES = [1, 255, 256, 257, 1023, 1024, 1025, 5000]
CONTEXT = ReductionContext(seed=5, step=2, rank=1)


@pytest.mark.parametrize("elements", SIZES)
def test_one_contributor_decodes_to_its_contribution(make: MakeCodec, elements: int) -> None:
    codec, x = make(4), layered(elements)
    payloads, shared = encode_alone(codec, x, CONTEXT)
    mine = codec.contribution(payloads, shared, elements, CONTEXT)
    results, _ = simulate_switch(codec.op, [payloads], codec.lookup)
    mean = codec.decode(results, only(1, len(payloads)), shared, elements, CONTEXT)
    assert mean.tobytes() == mine.tobytes()
    assert mine.shape == x.shape
    assert nmse(mine, x) < 0.1


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 15, 17])
def test_all_ranks_decode_the_same_bytes_near_the_mean(make: MakeCodec, workers: int) -> None:
    vectors = [normal(3000, seed=1) + np.float32(0.3) * normal(3000, seed=9 + rank) for rank in range(workers)]
    means = simulate_allreduce(make(workers), vectors, seed=1, step=1)
    assert means is not None
    assert len({mean.tobytes() for mean in means}) == 1
    assert nmse(means[0], np.mean(vectors, axis=0)) < 0.04 / workers + 0.005


def test_equal_arguments_give_equal_bytes_and_the_vector_is_not_touched(make: MakeCodec) -> None:
    x = layered(5000)
    x.flags.writeable = False
    first, _ = encode_alone(make(4), x, CONTEXT)
    again, _ = encode_alone(make(4), x, CONTEXT)
    assert first.tobytes() == again.tobytes()


def test_only_contributors_count(make: MakeCodec) -> None:
    """Equal vectors: the mean stays what it is when contributions are missing."""
    codec, x = make(8), normal(20_000)
    chunks = -(-x.size // codec.block_elements)
    present = np.random.default_rng(3).random((8, chunks)) < 0.5
    present[0] = True
    means = simulate_allreduce(codec, [x] * 8, seed=1, step=1, present=present)
    assert means is not None
    assert nmse(means[0], x) < 0.02


def test_mean_is_unbiased_without_truncation(make: MakeCodec, codec_name: str) -> None:
    """Errors of single elements average out over steps as independent errors do, and none points along x."""
    truncated, steps, x = 1e-9, 300, layered(2000)
    table = LookupTable(optimal_table(61, truncated), truncated)
    options = {"thc": {"table": table}, "uhc": {"truncated": truncated}, "fixed": {}}
    codec = make(4, **options[codec_name.rstrip("168")])
    errors = np.empty((steps, x.size))
    for step in range(steps):
        means = simulate_allreduce(codec, [x] * 4, seed=7, step=step)
        assert means is not None
        errors[step] = means[0].astype(np.float64) - x
    if codec_name == "fixed":
        assert np.abs(errors).max() <= np.abs(x).max() * 2.0**-22
        return
    deviation = errors.std(axis=0, ddof=1) / np.sqrt(steps)
    z = errors.mean(axis=0) / deviation
    assert abs(z.mean()) < 4 / np.sqrt(x.size)
    assert abs((z * z).mean() - 1) < 0.2
    along = errors @ x
    assert abs(along.mean()) < 4 * along.std(ddof=1) / np.sqrt(steps)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_makes_all_ranks_skip(make: MakeCodec, bad: float) -> None:
    codec = make(3)
    vectors = [normal(5000, seed=rank) for rank in range(3)]
    vectors[1][4321] = bad
    own = codec.ranges(vectors[1])
    assert (own == INFINITE).sum() == 1
    assert own.max() == INFINITE, "the switch refuses a set top bit, and nothing may exceed +inf"
    assert simulate_allreduce(codec, vectors, seed=1, step=1) is None


def test_skipped_ranges_cannot_be_encoded(make: MakeCodec) -> None:
    codec, x = make(3), normal(5000)
    own = codec.ranges(x)
    values = own.view(np.float32).copy()
    values[1] = np.inf
    with pytest.raises(CodecError, match="the first is block 1"):
        codec.encode(x, own, SharedRanges(values), CONTEXT)
    own[2] = INFINITE
    with pytest.raises(CodecError, match="the first is block 2"):
        codec.encode(x, own, SharedRanges(np.abs(values[:1]).repeat(len(own))), CONTEXT)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 1e-31, 1e-29, 1e-20, 1e20, 1e30, 3e35])
def test_any_scale_is_summed_or_dropped_but_never_wrong(make: MakeCodec, scale: float) -> None:
    codec, x = make(2), normal(3000) * np.float32(scale)
    means = simulate_allreduce(codec, [x, x], seed=1, step=1)
    assert means is not None
    assert np.isfinite(means[0]).all()
    if scale >= 1e-29:
        assert nmse(means[0], x) < 0.02
    elif codec.name == "fixed":
        assert np.abs(means[0] - x).max() <= 2.0**-126
    else:
        assert not means[0].any(), "below the smallest range everything stays in the error feedback"


def test_a_zero_block_among_others(make: MakeCodec) -> None:
    codec, x = make(2), normal(4096)
    x[1024:2048] = 0
    means = simulate_allreduce(codec, [x, x], seed=1, step=1)
    assert means is not None
    assert not means[0][1024:2048].any()
    assert nmse(means[0], x) < 0.02


def test_what_does_not_fit_is_refused(make: MakeCodec) -> None:
    codec, x = make(4), normal(5000)
    payloads, shared = encode_alone(codec, x, CONTEXT)
    own = codec.ranges(x)
    results, _ = simulate_switch(codec.op, [payloads], codec.lookup)
    everybody = only(1, len(payloads))
    odd = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32)
    for vector in (x.astype(np.float64), x[::2], x.reshape(50, 100), x[:0], odd):
        with pytest.raises(CodecError, match="contiguous float32"):
            codec.ranges(vector)
    with pytest.raises(CodecError, match="blocks"):
        codec.encode(x, own[:-1], shared, CONTEXT)
    with pytest.raises(CodecError, match="blocks"):
        codec.encode(x, own, SharedRanges(shared.values[:-1]), CONTEXT)
    with pytest.raises(CodecError, match="expected uint8"):
        codec.decode(results[:-1], everybody, shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="blocks"):
        codec.decode(results, everybody[:-1], shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="contributors 0x0"):
        codec.decode(results, everybody & np.uint64(0), shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="contributors 0x10 of a job of 4"):
        codec.decode(results, only(4, len(payloads)), shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="expected uint8"):
        codec.contribution(payloads[:-1], shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="pass a contiguous array"):
        codec.contribution(np.asfortranarray(payloads), shared, x.size, CONTEXT)


@pytest.mark.parametrize("workers", [0, 65])
def test_impossible_numbers_of_workers_are_refused(make: MakeCodec, workers: int) -> None:
    with pytest.raises(CodecError, match="1 to 64"):
        make(workers)


@pytest.mark.parametrize("blocks", [1, 255, 256, 257, 1000])
def test_ranges_travel_in_max32_lanes(blocks: int) -> None:
    own = np.abs(normal(blocks)).view(np.uint32)
    payloads = pack_ranges(own)
    assert payloads.shape == (-(-blocks // 256), 1024)
    results, _ = simulate_switch(Op.MAX32, [payloads, pack_ranges(own // 2)])
    assert read_ranges(results, blocks).values.view(np.uint32).tolist() == own.tolist()
    with pytest.raises(CodecError, match="expected uint8"):
        read_ranges(results, blocks + 256)


@pytest.mark.parametrize("lane", [0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF])
def test_any_range_from_infinity_on_is_skipped(lane: int) -> None:
    payloads = pack_ranges(np.array([0, lane, 1], np.uint32))
    assert read_ranges(payloads, 3).skipped
    assert not read_ranges(payloads, 1).skipped


def test_reduction_refuses_results_of_another_phase(make: MakeCodec) -> None:
    codec = make(1)
    reduction = codec.start(normal(2000), CONTEXT)
    assert reduction.phase is not None
    with pytest.raises(CodecError, match="ranges of"):
        reduction.take(np.zeros((200, 1024), np.uint8), only(0, 200))
    reduction.take(reduction.phase.payloads, only(0, 1))
    with pytest.raises(CodecError, match="results of 2000 elements"):
        reduction.take(np.zeros((200, 1024), np.uint8), only(0, 200))
    reduction.abort()
    with pytest.raises(CodecError, match="nothing to abort"):
        reduction.abort()
    with pytest.raises(CodecError, match="state GONE: it takes no results"):
        reduction.take(np.zeros((2, 1024), np.uint8), only(0, 2))


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 1024, 5000, 300_000])
def test_an_exchange_counts_the_lanes_in_use(make: MakeCodec, elements: int) -> None:
    codec = make(1)
    reduction = codec.start(normal(elements), ReductionContext(1, 1, 0))
    ranges = reduction.phase
    assert ranges is not None
    assert int(ranges.counts().sum()) == -(-elements // codec.block_elements)
    reduction.take(ranges.payloads, only(0, len(ranges.payloads)))
    assert reduction.phase is not None
    assert int(reduction.phase.counts().sum()) == elements
    assert (reduction.phase.counts() > 0).all()
