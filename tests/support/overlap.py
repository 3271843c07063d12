# SPDX-License-Identifier: Apache-2.0
"""The overlap of codec and network in the spans that a communicator traced."""

from __future__ import annotations

from collections.abc import Sequence

from hopsum.agent import Span


def overlap_s(spans: Sequence[Span]) -> float:
    """Return for how many seconds a codec worked on one all-reduce while the network had another."""
    network = [span for span in spans if span.stage.startswith("network")]
    total = 0.0
    for work in (span for span in spans if not span.stage.startswith("network")):
        others = sorted(
            (max(work.start_s, n.start_s), min(work.stop_s, n.stop_s))
            for n in network
            if n.number != work.number and n.start_s < work.stop_s and n.stop_s > work.start_s
        )
        reached = work.start_s
        for begin, end in others:
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
    return total
