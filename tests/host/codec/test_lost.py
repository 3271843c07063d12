# SPDX-License-Identifier: Apache-2.0
"""Results that are lost to one rank: zeros stand for them, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.base import contributor_counts
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.simulate import simulate_switch
from hopsum_wire import Op

from .conftest import MakeCodec
from .vectors import layered, normal

WORKERS, ELEMENTS = 3, 5000
EVERYBODY = np.uint64(0b111)


def begin(make: MakeCodec, **options: str) -> tuple[list[RangeReduction], list[ErrorFeedback]]:
    """Start an all-reduce of three ranks; the last one's vector is the largest everywhere."""
    codec, kept = make(WORKERS, **options), [ErrorFeedback(ELEMENTS) for _ in range(WORKERS)]
    vectors = [layered(ELEMENTS, seed=rank) * np.float32(1 + 9 * (rank == 2)) for rank in range(WORKERS)]
    return [codec.start(x, ReductionContext(1, 1, rank), kept[rank]) for rank, x in enumerate(vectors)], kept


def summed(reductions: list[RangeReduction]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    phases = [each.phase for each in reductions if each.phase is not None]
    return simulate_switch(phases[0].op, [each.payloads for each in phases], reductions[0].codec.lookup)


def test_lost_sums_are_zero_and_count_as_delivered(make: MakeCodec) -> None:
    reductions, kept = begin(make)
    shared, everybody = summed(reductions)
    for each in reductions:
        each.take(shared, everybody)
    results, contributors = summed(reductions)
    lost = np.arange(len(results)) % 2 == 1
    twin, own = begin(make)[0][2], kept[2]
    twin.take(shared, everybody)
    reductions[0].take(results, contributors)
    mine = results.copy()
    mine[lost] = 0
    with pytest.raises(CodecError, match="contributors 0x0"):
        twin.take(mine, np.where(lost, np.uint64(0), contributors))
    with pytest.raises(CodecError, match="lost chunks"):
        twin.take(mine, contributors, lost[1:])
    reductions[2].take(mine, np.where(lost, np.uint64(0), contributors), lost)
    twin.take(results, contributors)
    mean, right = reductions[2].mean, reductions[0].mean
    assert mean is not None
    assert right is not None
    elements = lost.repeat(reductions[0].codec.block_elements)[:ELEMENTS]
    assert not mean[elements].any()
    assert mean[~elements].tobytes() == right[~elements].tobytes()
    assert twin.mean is not None
    assert twin.mean.tobytes() == right.tobytes()
    np.testing.assert_array_equal(own.residual, twin._x, "as if all had been delivered")
    assert (reductions[2].contributors == np.where(lost, np.uint64(0), EVERYBODY)).all()


@pytest.mark.parametrize("options", [{}, {"rotation": "full"}, {"scale": "tensor"}], ids=["block", "full", "tensor"])
def test_whose_ranges_are_lost_sends_nothing_and_keeps_all(
    make: MakeCodec, codec_name: str, options: dict[str, str]
) -> None:
    reductions, kept = begin(make, **(options if codec_name != "fixed" else {}))
    before = reductions[2]._x.copy()
    shared, everybody = summed(reductions[:2])
    for each in reductions[:2]:
        each.take(shared, everybody)
    reductions[2].take(np.zeros_like(shared), np.zeros_like(everybody), np.ones(len(shared), np.bool_))
    results, contributors = summed(reductions)
    for each in reductions:
        each.take(results, contributors)
    mean, other = reductions[2].mean, reductions[0].mean
    assert mean is not None
    assert other is not None
    assert not mean.any()
    assert not reductions[2].contributors.any()
    np.testing.assert_allclose(kept[2].residual, before, rtol=1e-6)
    others = kept[0].residual + kept[1].residual
    delivered = layered(ELEMENTS, seed=0) + layered(ELEMENTS, seed=1) - others
    if codec_name == "fixed":  # codes of zeros are not exact zeros in the others
        np.testing.assert_allclose(3 * other, delivered, rtol=1e-4, atol=1e-5 * np.abs(delivered).max())


def test_some_ranges_lost_leave_the_other_blocks_as_they_are(backend: str) -> None:
    """Of codec fixed: 256 blocks have their ranges in one chunk, and only the first chunk is lost."""
    codec = make_codec("fixed", workers=2, backend=backend)
    elements = 256 * 256 + 700
    vectors = [normal(elements, seed=rank) for rank in range(2)]
    reductions = [codec.start(x, ReductionContext(1, 1, rank)) for rank, x in enumerate(vectors)]
    shared, everybody = simulate_switch(Op.MAX32, [each.phase.payloads for each in reductions if each.phase])
    reductions[0].take(shared, everybody)
    mine = shared.copy()
    mine[0] = 0
    reductions[1].take(mine, everybody, np.array([True, False]))
    payloads = [each.phase.payloads for each in reductions if each.phase]
    assert not payloads[1][:256].any()
    results, contributors = simulate_switch(codec.op, payloads)
    for each in reductions:
        each.take(results, contributors)
    means = [each.mean for each in reductions]
    assert means[0] is not None
    assert means[1] is not None
    assert not means[1][: 256 * 256].any()
    assert means[1][256 * 256 :].tobytes() == means[0][256 * 256 :].tobytes()
    np.testing.assert_allclose(means[0][: 256 * 256], vectors[0][: 256 * 256] / 2, atol=1e-6)


def test_nobody_is_in_a_sum_only_where_it_is_lost() -> None:
    contributors = np.array([0, 3, 0], np.uint64)
    assert contributor_counts(contributors, 2, np.array([True, False, True])).tolist() == [0, 2, 0]
    with pytest.raises(CodecError, match="chunk 2: contributors 0x0"):
        contributor_counts(contributors, 2, np.array([True, False, False]))
    with pytest.raises(CodecError, match="chunk 0: contributors 0x4"):
        contributor_counts(np.array([4], np.uint64), 2, np.array([True]))


def test_lossless_needs_all(backend: str) -> None:
    codec, kept = make_codec("lossless", workers=1, backend=backend), ErrorFeedback(2000)
    reduction = codec.start(normal(2000), ReductionContext(1, 1, 0), kept)
    assert reduction.phase is not None
    payloads = reduction.phase.payloads
    with pytest.raises(CodecError, match="1 of 1 results of ranges are lost: codec lossless needs them all"):
        reduction.take(payloads, np.ones(1, np.uint64), np.ones(1, np.bool_))
    reduction.take(payloads, np.ones(1, np.uint64), np.zeros(1, np.bool_))
