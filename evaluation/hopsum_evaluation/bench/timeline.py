# SPDX-License-Identifier: Apache-2.0
"""Spans of time, drawn as lines of text: what codec and network did, one above the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopsum.communicator.allreduce_results import Span

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def draw(spans: Iterable[Span], width: int = 72) -> list[str]:
    """Return one line per stage, `width` columns of time. Each all-reduce is marked by its number (base 36).

    Where several are in one stage at a time the latest to begin is seen. Times are milliseconds from the first start.
    """
    drawn = sorted(spans, key=lambda span: span.start_s)
    if not drawn:
        return []
    start_s, stop_s = drawn[0].start_s, max(span.stop_s for span in drawn)
    column_s = max((stop_s - start_s) / width, 1e-9)
    stages = _in_order(drawn)
    label = max(len(stage) for stage in stages)
    lines = [f"{'':{label}}  0{f'{(stop_s - start_s) * 1e3:.1f} ms':>{width - 1}}"]
    for stage in stages:
        cells = ["."] * width
        for span in drawn:
            if span.stage == stage:
                first = min(int((span.start_s - start_s) / column_s), width - 1)
                last = min(max(int((span.stop_s - start_s) / column_s), first + 1), width)
                cells[first:last] = _DIGITS[span.number % len(_DIGITS)] * (last - first)
        lines.append(f"{stage:{label}}  {''.join(cells)}")
    return lines


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


def _in_order(spans: Sequence[Span]) -> list[str]:
    """Return the stages in the order in which they first began, those of the network last."""
    stages = list(dict.fromkeys(span.stage for span in spans))
    return sorted(stages, key=lambda stage: stage.startswith("network"))
