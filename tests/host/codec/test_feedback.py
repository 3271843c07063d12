# SPDX-License-Identifier: Apache-2.0
"""No gradient mass disappears or counts twice."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import CodecError, ErrorFeedback, NonFiniteError, ReductionContext
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.simulate import simulate_allreduce, simulate_switch
from hopsum.codec.vector_reduction import ReductionState, pack_ranges
from hopsum_wire import Op

from .conftest import MakeCodec
from .vectors import layered, normal

pytestmark = pytest.mark.system
WORKERS = 4


NOBODY = np.zeros(1, np.uint64)


def payloads_of(reductions: list[RangeReduction]) -> list[NDArray[np.uint8]]:
    return [reduction.phase.payloads for reduction in reductions if reduction.phase is not None]


def feedbacks(elements: int) -> list[ErrorFeedback]:
    return [ErrorFeedback(elements) for _ in range(WORKERS)]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_what_went_in_came_out_or_is_in_the_residuals(make: MakeCodec, loss: float) -> None:
    """sum over steps of contributors * mean + sum of residuals = sum of all vectors, with contributions lost."""
    codec, elements, steps = make(WORKERS), 5000, 12
    chunks = -(-elements // codec.block_elements)
    rng, kept = np.random.default_rng(4), feedbacks(elements)
    put_in, came_out = np.zeros(elements), np.zeros(elements)
    for step in range(steps):
        vectors = [layered(elements, seed=100 * step + rank) for rank in range(WORKERS)]
        present = rng.random((WORKERS, chunks)) >= loss
        present[step % WORKERS] = True
        means = simulate_allreduce(codec, vectors, seed=1, step=step, feedback=kept, present=present)
        assert means is not None
        put_in += np.sum(vectors, axis=0, dtype=np.float64)
        came_out += means[0].astype(np.float64) * present.sum(axis=0).repeat(codec.block_elements)[:elements]
    left = np.sum([feedback.residual for feedback in kept], axis=0, dtype=np.float64)
    scale = np.maximum.accumulate(np.abs(put_in)) + np.abs(left).max() * 1e-3
    assert np.all(np.abs(put_in - came_out - left) < 1e-5 * scale)


def test_quantisation_error_is_all_that_stays(make: MakeCodec) -> None:
    codec, kept, x = make(WORKERS), feedbacks(5000), layered(5000)
    reductions = [RangeReduction(codec, x, ReductionContext(1, 1, rank), kept[rank]) for rank in range(WORKERS)]
    shared, everybody = simulate_switch(Op.MAX32, payloads_of(reductions))
    for reduction in reductions:
        reduction.take(shared, everybody)
    present = np.ones((WORKERS, -(-5000 // codec.block_elements)), np.bool_)
    present[2, 1] = False
    results, contributors = simulate_switch(codec.op, payloads_of(reductions), codec.lookup, present)
    rows = slice(codec.block_elements, 2 * codec.block_elements)
    for reduction, feedback in zip(reductions, kept, strict=True):
        reduction.take(results, contributors)
        assert reduction.state is ReductionState.DONE
        inside = reduction.context.rank != 2
        assert (feedback.residual[rows].tobytes() == x[rows].tobytes()) is not inside
        assert np.linalg.norm(feedback.residual) < (0.9 if inside else 1.1) * np.linalg.norm(x)


def test_skipping_leaves_every_residual_untouched(make: MakeCodec) -> None:
    codec, kept = make(WORKERS), feedbacks(3000)
    vectors = [normal(3000, seed=rank) for rank in range(WORKERS)]
    assert simulate_allreduce(codec, vectors, seed=1, step=0, feedback=kept) is not None
    before = [feedback.residual.tobytes() for feedback in kept]
    bad = [x.copy() for x in vectors]
    bad[3][17] = np.nan
    assert simulate_allreduce(codec, bad, seed=1, step=1, feedback=kept) is None
    assert [feedback.residual.tobytes() for feedback in kept] == before
    assert simulate_allreduce(codec, vectors, seed=1, step=2, feedback=kept) is not None


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
        reductions[0].take(shared, everybody)
    with pytest.raises(NonFiniteError, match="another rank's vector") as other:
        reductions[1].take(shared, everybody)
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
    reduction.take(others, NOBODY)
    (payloads,) = payloads_of([reduction])
    results, _ = simulate_switch(codec.op, [payloads], codec.lookup)
    reduction.take(results, np.full(len(payloads), 0b1110, np.uint64))
    rows = codec.block_elements
    assert feedback.residual[:rows].tobytes() == old[:rows].tobytes()
    np.testing.assert_array_equal(feedback.residual[rows:], x[rows:] + old[rows:])
    alone = RangeReduction(codec, x, ReductionContext(1, 1, 0))
    alone.take(others, NOBODY)
    assert alone.phase is not None
    assert np.isinf(x[5]), "without feedback the caller's vector is not written to"


def test_giving_up_returns_everything(make: MakeCodec) -> None:
    codec, feedback = make(WORKERS), ErrorFeedback(3000)
    for step, phases in enumerate((1, 2)):
        x = normal(3000, seed=step)
        expected = x + feedback.residual
        reduction = RangeReduction(codec, x, ReductionContext(1, step, 0), feedback)
        if phases == 2:
            reduction.take(payloads_of([reduction])[0], NOBODY)
        reduction.abort()
        assert reduction.state is ReductionState.GONE
        assert feedback.residual.tobytes() == expected.tobytes()
    bad = np.full(3000, np.nan, np.float32)
    RangeReduction(codec, bad, ReductionContext(1, 9, 0), feedback).abort()
    assert feedback.residual.tobytes() == expected.tobytes()


def test_feedback_removes_the_bias_of_truncation(make: MakeCodec) -> None:
    """With the same vector every step the average of the means goes to it as 1/steps, truncated or not."""
    codec, x, steps = make(WORKERS), normal(4096), 60
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
    feedback.give_back()
    assert not feedback.residual.any()
    with pytest.raises(CodecError, match="11 elements for an error feedback of 10"):
        feedback.compensate(normal(11))


def test_a_reduction_that_could_not_be_made_leaves_its_feedback_free(
    make: MakeCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, feedback = make(WORKERS), ErrorFeedback(2000)
    x, context = normal(2000, seed=1), ReductionContext(1, 0, 0)

    def broken(_: object) -> object:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(codec, "ranges", broken)
        with pytest.raises(MemoryError):
            RangeReduction(codec, x, context, feedback)
    assert RangeReduction(codec, x, context, feedback).state is ReductionState.RANGES
