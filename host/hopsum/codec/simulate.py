# SPDX-License-Identifier: Apache-2.0
"""What a switch makes of payloads, in numpy: for checks of codecs and for measurements without a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import Codec, CodecError, Context
from hopsum.codec.feedback import ErrorFeedback, Reduction
from hopsum.wire import Op
from hopsum.wire.payload import lanes, unpack_codes


def simulate_switch(
    op: int,
    payloads: Sequence[NDArray[np.uint8]],
    table: Sequence[int] | None = None,
    present: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return RESULT payloads and contributors of one all-reduce.

    Args:
        op: LOOKUP_ADD8, ADD32 or MAX32.
        payloads: one uint8[chunks, up_bytes(op)] per rank.
        table: for LOOKUP_ADD8.
        present: bool[ranks, chunks], which contributions arrive; all if left out. Somebody is in every chunk.
    """
    stacked = np.stack(payloads)
    if present is None:
        present = np.ones(stacked.shape[:2], np.bool_)
    if op == Op.LOOKUP_ADD8:
        if table is None:
            raise CodecError("LOOKUP_ADD8 needs a table")
        values = np.asarray(table, np.uint8)[unpack_codes(stacked)]
    else:
        values = lanes(op, stacked)
    masked = np.where(present[:, :, None], values, values.dtype.type(0))
    total = masked.max(axis=0) if op == Op.MAX32 else masked.sum(axis=0, dtype=values.dtype.newbyteorder("="))
    bits = np.uint64(1) << np.arange(len(stacked), dtype=np.uint64)
    contributors = np.where(present, bits[:, None], np.uint64(0)).sum(axis=0, dtype=np.uint64)
    return np.ascontiguousarray(total.astype(values.dtype)).view(np.uint8), contributors


def simulate_allreduce(
    codec: Codec,
    vectors: Sequence[NDArray[np.float32]],
    *,
    seed: int,
    step: int,
    feedback: Sequence[ErrorFeedback] | None = None,
    present: NDArray[np.bool_] | None = None,
) -> list[NDArray[np.float32]] | None:
    """Return the mean as each rank decodes it, or None if the ranks skip; `present` as in `simulate_switch`."""
    reductions = [
        Reduction(codec, vector, Context(seed, step, rank), None if feedback is None else feedback[rank])
        for rank, vector in enumerate(vectors)
    ]
    shared, _ = simulate_switch(Op.MAX32, [reduction.range_payloads() for reduction in reductions])
    payloads = [payload for r in reductions if (payload := r.take_ranges(shared)) is not None]
    if not payloads:
        return None
    results, contributors = simulate_switch(codec.op, payloads, codec.lookup, present)
    return [reduction.take_sums(results, contributors) for reduction in reductions]
