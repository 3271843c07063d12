# SPDX-License-Identifier: Apache-2.0
"""An all-reduce of one codec in memory, all ranks in one thread, for measurements of codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hopsum.codec.interface import Codec, CollectivePhase, ErrorFeedback, Flags, Floats, ReductionContext
from hopsum.codec.simulate import simulate_phase
from hopsum_wire import Op


def simulate_allreduce(
    codec: Codec,
    vectors: Sequence[Floats],
    *,
    seed: int,
    step: int,
    feedback: Sequence[ErrorFeedback] | None = None,
    present: Flags | Callable[[int, CollectivePhase], Flags | None] | None = None,
) -> list[Floats] | None:
    """Return the mean as each rank decodes it, or None if a vector is not finite, which all ranks skip.

    Args:
        codec: of a job with at least as many workers as there are vectors.
        vectors: float32[elements], one per rank.
        seed, step: of the `ReductionContext`.
        feedback: one per rank, or None: the undelivered parts are lost.
        present: contributions of the last phase that arrive, bool[ranks, chunks], or a function from a phase and its
            number to those of that phase. The default is all.
    """
    reductions = [
        codec.start(
            x, ReductionContext(seed, step, rank), None if feedback is None else feedback[rank], on_nonfinite="skip"
        )
        for rank, x in enumerate(vectors)
    ]
    number = 0
    while (phase := reductions[0].phase) is not None:
        arrived = None
        if callable(present):
            arrived = present(number, phase)
        elif phase.op != Op.MAX32:
            arrived = present
        phases = [reduction.phase for reduction in reductions if reduction.phase is not None]
        results, contributors = simulate_phase(codec, phases, arrived)
        for reduction in reductions:
            reduction.on_results(results, contributors)
        number += 1
    means = [reduction.mean for reduction in reductions if reduction.mean is not None]
    return means or None
