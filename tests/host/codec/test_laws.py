# SPDX-License-Identifier: Apache-2.0
"""Laws of every codec with ranges, and no gradient mass that disappears or counts twice."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import (
    CodecError,
    ErrorFeedback,
    LookupTable,
    NonFiniteError,
    ReductionContext,
    SharedRanges,
)
from hopsum.codec.interface import ReductionState
from hopsum.codec.lookup_table import optimal_table
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.vector_reduction import INFINITE, pack_ranges, read_ranges
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import Op

from .conftest import MOST_NMSE, MakeCodec
from .vectors import encode_alone, layered, nmse, normal, only, require_given_back

pytestmark = pytest.mark.system
SIZES = [1, 255, 256, 257, 1023, 1024, 1025, 5000]
CONTEXT = ReductionContext(seed=5, step=2, rank=1)


@pytest.mark.parametrize("elements", SIZES)
def test_one_contributor_decodes_to_its_contribution(make_whole: MakeCodec, elements: int) -> None:
    codec, x = make_whole(4), layered(elements)
    payloads, shared = encode_alone(codec, x, CONTEXT)
    mine = codec.dequantize_own(payloads, shared, elements, CONTEXT)
    results, _ = simulate_switch(codec.op, [payloads], codec.lookup)
    mean = codec.decode(results, only(1, len(payloads)), shared, elements, CONTEXT)
    assert mean.tobytes() == mine.tobytes()
    assert mine.shape == x.shape
    assert nmse(mine, x) < 0.1


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 15, 17])
def test_all_ranks_decode_the_same_bytes_near_the_mean(make: MakeCodec, codec_name: str, workers: int) -> None:
    vectors = [normal(3000, seed=1) + np.float32(0.3) * normal(3000, seed=9 + rank) for rank in range(workers)]
    means = simulate_allreduce(make(workers), vectors, seed=1, step=1)
    assert means is not None
    assert len({mean.tobytes() for mean in means}) == 1
    assert nmse(means[0], np.mean(vectors, axis=0)) < MOST_NMSE.get(codec_name, 0.04 / workers + 0.005)


def test_equal_arguments_give_equal_bytes_and_the_vector_is_not_touched(make: MakeCodec) -> None:
    x = layered(5000)
    x.flags.writeable = False
    first, _ = encode_alone(make(4), x, CONTEXT)
    again, _ = encode_alone(make(4), x, CONTEXT)
    assert first.tobytes() == again.tobytes()


def test_mean_is_unbiased_without_truncation(
    make_whole: MakeCodec, whole_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of single elements average out over steps as independent errors do, and none points along x."""
    truncated, steps, x = 1e-9, 300, layered(2000)
    table = LookupTable(optimal_table(61, truncated), truncated)
    even = {g: LookupTable(tuple(range(g + 1)), truncated) for g in (15, 255)}
    monkeypatch.setattr("hopsum.codec.thc.uniform_table", lambda bits, workers: even[(1 << bits) - 1])
    monkeypatch.setattr("hopsum.codec.thc.even_levels", even.__getitem__)
    codec = make_whole(4, **({"table": table} if whole_name.startswith("stochastic") else {}))
    errors = np.empty((steps, x.size))
    for step in range(steps):
        means = simulate_allreduce(codec, [x] * 4, seed=7, step=step)
        assert means is not None
        errors[step] = means[0].astype(np.float64) - x
    if whole_name == "fixed":
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
def test_any_scale_is_summed_or_dropped_but_never_wrong(make: MakeCodec, codec_name: str, scale: float) -> None:
    codec, x = make(2), normal(3000) * np.float32(scale)
    means = simulate_allreduce(codec, [x, x], seed=1, step=1)
    assert means is not None
    assert np.isfinite(means[0]).all()
    if scale >= 1e-29:
        assert nmse(means[0], x) < MOST_NMSE.get(codec_name, 0.02)
    elif codec.name == "fixed":
        assert np.abs(means[0] - x).max() <= 2.0**-126
    else:
        assert not means[0].any(), "below the smallest range everything stays in the error feedback"


def test_a_zero_block_among_others(make: MakeCodec, codec_name: str) -> None:
    codec, x = make(2), normal(4096)
    x[1024:2048] = 0
    means = simulate_allreduce(codec, [x, x], seed=1, step=1)
    assert means is not None
    assert not means[0][1024:2048].any()
    assert nmse(means[0], x) < MOST_NMSE.get(codec_name, 0.02)


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
    for bad in (0, 0x10):
        some = everybody.copy()
        some[1] = bad
        with pytest.raises(CodecError, match=f"chunk 1: contributors {bad:#x} of a job of 4 workers"):
            codec.decode(results, some, shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="expected uint8"):
        codec.dequantize_own(payloads[:-1], shared, x.size, CONTEXT)
    with pytest.raises(CodecError, match="pass a contiguous array"):
        codec.dequantize_own(np.asfortranarray(payloads), shared, x.size, CONTEXT)


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
    reduction = codec.start(normal(2000), ReductionContext(5, 2, 0))
    assert reduction.phase is not None
    with pytest.raises(CodecError, match="ranges of"):
        reduction.on_results(np.zeros((200, 1024), np.uint8), only(0, 200))
    reduction.on_results(reduction.phase.payloads, only(0, 1))
    with pytest.raises(CodecError, match="results of 2000 elements"):
        reduction.on_results(np.zeros((200, 1024), np.uint8), only(0, 200))
    reduction.abort()
    with pytest.raises(CodecError, match="nothing to abort"):
        reduction.abort()
    with pytest.raises(CodecError, match="state GONE: it takes no results"):
        reduction.on_results(np.zeros((2, 1024), np.uint8), only(0, 2))


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 1024, 5000, 300_000])
def test_an_exchange_counts_the_lanes_in_use(make: MakeCodec, elements: int) -> None:
    codec = make(1)
    reduction = codec.start(normal(elements), ReductionContext(1, 1, 0))
    ranges = reduction.phase
    assert ranges is not None
    assert int(ranges.counts().sum()) == -(-elements // codec.block_elements)
    reduction.on_results(ranges.payloads, only(0, len(ranges.payloads)))
    assert reduction.phase is not None
    assert int(reduction.phase.counts().sum()) == elements
    assert (reduction.phase.counts() > 0).all()


WORKERS = 4


NOBODY = np.zeros(1, np.uint64)


def payloads_of(reductions: list[RangeReduction]) -> list[NDArray[np.uint8]]:
    return [reduction.phase.payloads for reduction in reductions if reduction.phase is not None]


def feedbacks(elements: int) -> list[ErrorFeedback]:
    return [ErrorFeedback(elements) for _ in range(WORKERS)]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_what_went_in_came_out_or_is_in_the_residuals(make_whole: MakeCodec, loss: float) -> None:
    """sum over steps of contributors * mean + sum of residuals = sum of all vectors, with contributions lost."""
    codec, elements, steps = make_whole(WORKERS), 5000, 12
    each = codec.block_elements
    chunks = -(-elements // each)
    rng, kept = np.random.default_rng(4), feedbacks(elements)
    put_in, came_out = np.zeros(elements), np.zeros(elements)
    for step in range(steps):
        vectors = [layered(elements, seed=100 * step + rank) for rank in range(WORKERS)]
        present = rng.random((WORKERS, chunks)) >= loss
        present[step % WORKERS] = True
        means = simulate_allreduce(codec, vectors, seed=1, step=step, feedback=kept, present=present)
        assert means is not None
        put_in += np.sum(vectors, axis=0, dtype=np.float64)
        came_out += means[0].astype(np.float64) * present.sum(axis=0).repeat(each)[:elements]
    left = np.sum([feedback.residual for feedback in kept], axis=0, dtype=np.float64)
    scale = np.maximum.accumulate(np.abs(put_in)) + np.abs(left).max() * 1e-3
    assert np.all(np.abs(put_in - came_out - left) < 1e-5 * scale)


def test_quantisation_error_is_all_that_stays(make: MakeCodec) -> None:
    codec, kept, x = make(WORKERS), feedbacks(5000), layered(5000)
    reductions = [RangeReduction(codec, x, ReductionContext(1, 1, rank), kept[rank]) for rank in range(WORKERS)]
    shared, everybody = simulate_switch(Op.MAX32, payloads_of(reductions))
    for reduction in reductions:
        reduction.on_results(shared, everybody)
    present = np.ones((WORKERS, -(-5000 // codec.block_elements)), np.bool_)
    present[2, 1] = False
    results, contributors = simulate_switch(codec.op, payloads_of(reductions), codec.lookup, present)
    rows = slice(codec.block_elements, 2 * codec.block_elements)
    for reduction, feedback in zip(reductions, kept, strict=True):
        reduction.on_results(results, contributors)
        assert reduction.state is ReductionState.DONE
        inside = reduction.context.rank != 2
        if inside:
            assert nmse(feedback.residual[rows], x[rows]) > 0.1
        else:
            require_given_back(feedback.residual[rows], x[rows])
        assert np.linalg.norm(feedback.residual) < (0.9 if inside else 1.1) * np.linalg.norm(x)


def test_an_error_names_tensors_and_counts_on_the_rank_that_has_them(make: MakeCodec) -> None:
    codec, kept, x = make(2), [ErrorFeedback(3000), ErrorFeedback(3000)], normal(3000)
    for feedback in kept:
        feedback.residual[:] = normal(3000, seed=2)
    old, bad = kept[0].residual.tobytes(), x.copy()
    bad[[5, 2200, 2999]] = np.nan, np.inf, -np.inf
    tensors = [("first.weight", 1000), ("first.bias", 1000), ("second.weight", 1000)]
    reductions = [
        codec.start(v, ReductionContext(1, 1, rank), kept[rank], tensors=tensors) for rank, v in enumerate((bad, x))
    ]
    shared, everybody = simulate_switch(Op.MAX32, payloads_of(reductions))
    named = r"rank 0: 3 of 3000 .* element 5 \(first.weight: 1 of 1000; second.weight: 2"
    with pytest.raises(NonFiniteError, match=named) as own:
        reductions[0].on_results(shared, everybody)
    with pytest.raises(NonFiniteError, match="another rank's vector") as other:
        reductions[1].on_results(shared, everybody)
    assert (own.value.count, other.value.count) == (3, 0)
    for reduction, feedback in zip(reductions, kept, strict=True):
        assert (reduction.state, reduction.phase, reduction.mean) == (ReductionState.SKIPPED, None, None)
        assert feedback.residual.tobytes() == old
        feedback.compensate(x)
    with pytest.raises(CodecError, match="on_nonfinite='ignore': one of raise, skip"):
        codec.start(x, ReductionContext(1, 1, 0), on_nonfinite="ignore")  # type: ignore[arg-type]


def test_a_bad_block_whose_range_came_too_late_delivers_nothing_of_it(make: MakeCodec) -> None:
    """The others' ranges are finite, so nobody skips: the block counts as zero, its residual stays."""
    codec, feedback, x = make(WORKERS), ErrorFeedback(3000), normal(3000)
    feedback.residual[:] = normal(3000, seed=2)
    old = feedback.residual.copy()
    x[5] = np.inf
    reduction = RangeReduction(codec, x, ReductionContext(1, 1, 0), feedback)
    others = pack_ranges(codec.ranges(normal(3000, seed=3)))
    reduction.on_results(others, NOBODY)
    (payloads,) = payloads_of([reduction])
    results, _ = simulate_switch(codec.op, [payloads], codec.lookup)
    reduction.on_results(results, np.full(len(payloads), 0b1110, np.uint64))
    rows = codec.block_elements
    require_given_back(feedback.residual[:rows], old[:rows])
    require_given_back(feedback.residual[rows:], x[rows:] + old[rows:])
    alone = RangeReduction(codec, x, ReductionContext(1, 1, 0))
    alone.on_results(others, NOBODY)
    assert alone.phase is not None
    assert np.isinf(x[5]), "without feedback the caller's vector is not written to"


def test_giving_up_returns_everything(make: MakeCodec) -> None:
    codec, feedback = make(WORKERS), ErrorFeedback(3000)
    for step, phases in enumerate((1, 2)):
        x = normal(3000, seed=step)
        expected = x + feedback.residual
        reduction = RangeReduction(codec, x, ReductionContext(1, step, 0), feedback)
        if phases == 2:
            reduction.on_results(payloads_of([reduction])[0], NOBODY)
        reduction.abort()
        assert reduction.state is ReductionState.GONE
        # Nothing is encoded before the ranges are summed.
        assert phases == 2 or feedback.residual.tobytes() == expected.tobytes()
        require_given_back(feedback.residual, expected)
    bad, kept = np.full(3000, np.nan, np.float32), feedback.residual.tobytes()
    RangeReduction(codec, bad, ReductionContext(1, 9, 0), feedback).abort()
    assert feedback.residual.tobytes() == kept


def test_feedback_removes_the_bias_of_truncation(make_whole: MakeCodec) -> None:
    """With the same vector every step the average of the means goes to it as 1/steps, truncated or not."""
    codec, x, steps = make_whole(WORKERS), normal(4096), 60
    kept = feedbacks(x.size)
    total, plain = np.zeros(x.size), np.zeros(x.size)
    for step in range(steps):
        means = simulate_allreduce(codec, [x] * WORKERS, seed=1, step=step, feedback=kept)
        alone = simulate_allreduce(codec, [x] * WORKERS, seed=1, step=step)
        assert means is not None
        assert alone is not None
        total += means[0]
        plain += alone[0]
    with_feedback, without = (np.linalg.norm(t / steps - x) / np.linalg.norm(x) for t in (total, plain))
    assert with_feedback < 0.01
    assert with_feedback < 0.2 * without or without < 1e-6


def test_one_all_reduce_at_a_time() -> None:
    feedback = ErrorFeedback(10)
    with pytest.raises(CodecError, match="nothing to commit"):
        feedback.commit(None)
    feedback.compensate(normal(10))
    with pytest.raises(CodecError, match="neither committed nor given back"):
        feedback.compensate(normal(10))
    feedback.rollback()
    assert not feedback.residual.any()
    with pytest.raises(CodecError, match="11 elements for an error feedback of 10"):
        feedback.compensate(normal(11))


def test_a_reduction_that_could_not_be_made_leaves_its_feedback_free(
    make: MakeCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, feedback = make(WORKERS), ErrorFeedback(2000)
    x, context = normal(2000, seed=1), ReductionContext(1, 0, 0)

    def broken(*_: object) -> object:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(codec, "ranges_of_sum", broken)
        with pytest.raises(MemoryError):
            RangeReduction(codec, x, context, feedback)
    assert RangeReduction(codec, x, context, feedback).state is ReductionState.RANGES
