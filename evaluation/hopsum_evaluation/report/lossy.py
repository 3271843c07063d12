# SPDX-License-Identifier: Apache-2.0
"""One all-reduce where packets are lost or workers late: as hopsum settles it, and as the published system does.

                          ours                                            published
an UPDATE is missing      the sum is divided by who is in it; its         zero in its place, divided by all workers; the
                          sender's error feedback takes it back           sender believes that it was delivered
a RESULT is missing       sent again, until it is there                   its mean is zero at that worker, whose
                                                                          parameters are different ones from then on

The published behaviour is that of the authors' prototype, as far as its code says: it sends nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import LookupTableCodec
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

Mask = NDArray[np.bool_]


class Fate(NamedTuple):
    """What became of packets: bool[workers, chunks] each."""

    present: Mask
    """Contributions that were in time. Somebody is in every chunk."""
    lost: Mask
    """Results that did not reach a worker."""


def draw_fate(rng: np.random.Generator, workers: int, chunks: int, loss: float, stragglers: int) -> Fate:
    """Lose that share of packets each way. So many workers, drawn anew, are late with all they send."""
    present = rng.random((workers, chunks)) >= loss
    lost = rng.random((workers, chunks)) < loss
    late = rng.permutation(workers)[:stragglers]
    present[late] = False
    empty = np.flatnonzero(~present.any(axis=0))
    in_time = np.setdiff1d(np.arange(workers), late)
    present[rng.choice(in_time, empty.size), empty] = True
    return Fate(present, lost)


def allreduce(
    codec: LookupTableCodec,
    vectors: Sequence[NDArray[np.float32]],
    context: tuple[int, int],
    feedback: Sequence[ErrorFeedback],
    fate: Fate | None,
    *,
    published: bool,
) -> list[NDArray[np.float32]]:
    """Return the mean that each worker ends with.

    Args:
        codec: whose granularity is even if `published`, so that half of it stands for zero.
        vectors: one per worker.
        context: seed and step.
        feedback: one per worker, settled.
        fate: None: nothing is missing.
        published: which of the two.
    """
    reductions = [codec.start(x, ReductionContext(*context, rank), feedback[rank]) for rank, x in enumerate(vectors)]
    while (phase := reductions[0].phase) is not None:
        payloads = [each.phase.payloads for each in reductions if each.phase is not None]
        sums = phase.op != Op.MAX32
        present = fate.present if fate is not None and sums else None
        results, contributors = simulate_switch(phase.op, payloads, codec.lookup, present)
        if published and present is not None:
            results, contributors = zero_filled(codec, results, present)
        for reduction in reductions:
            reduction.take(results, contributors)
    means = [each.mean for each in reductions if each.mean is not None]
    if published and fate is not None:
        # A chunk is a block, and blocks are rotated by themselves: without its result the mean is 0 there, and nowhere
        # else. The error feedback took all chunks as delivered.
        for mean, gone in zip(means, fate.lost, strict=True):
            mean[gone.repeat(codec.block_elements)[: mean.size]] = 0
    return means


def zero_filled(
    codec: LookupTableCodec, results: NDArray[np.uint8], present: Mask
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return results as if who is missing had sent zeros, which are half the granularity, and all as contributors."""
    lanes = results.view(_lane_type(codec)) + (~present).sum(axis=0)[:, None] * (codec.granularity // 2)
    everybody = np.full(len(results), (1 << len(present)) - 1, np.uint64)
    return np.ascontiguousarray(lanes.astype(_lane_type(codec))).view(np.uint8), everybody


def _lane_type(codec: LookupTableCodec) -> np.dtype[Any]:
    return np.dtype(SHAPES[codec.op].lane_dtype)
