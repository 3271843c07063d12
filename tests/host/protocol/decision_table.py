# SPDX-License-Identifier: Apache-2.0
"""The specification's decision table once more, as plain text turned into code: for comparison only.

Values are multisets of contributions, so that "added twice" and "added to the wrong round" show. Written
from the specification's table alone; no code is shared with hopsum_oracle.decision.

    packet   copy  seen  state       registers                            out
    UPDATE   new                     all := this packet, count := 1       need <= 1: close
    UPDATE   same  no    collecting  seen, contributors, values, count +  count >= need: close
    UPDATE   same  yes   collecting                                       FLUSH, count >= min_quorum: close
    UPDATE   same  any   final       seen                                 RESULT to that child
    UPDATE   old                                                          STALE(asked, held, contributors)

new: another generation, or round > held.  need = quorum, with FLUSH min(quorum, min_quorum).
close: final, RESULT to all.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Cell:
    """One copy of a slot."""

    generation: int = 0
    round: int = 0
    seen: set[int] = field(default_factory=set)
    count: int = 0
    final: bool = False
    contributors: set[int] = field(default_factory=set)
    values: list[str] = field(default_factory=list)
    """A multiset, sorted."""


@dataclass(frozen=True)
class Sent:
    """What left: kind, to whom (None: everybody), round, held round, contributors, values."""

    kind: str
    to: int | None
    round: int
    held: int
    contributors: frozenset[int]
    values: tuple[str, ...]


def step(
    cell: Cell, worker: int, generation: int, round_: int, flush: bool, value: str, quorum: int, min_quorum: int
) -> list[Sent]:
    """Apply one UPDATE to `cell`, in place."""
    need = min(quorum, min_quorum) if flush else quorum

    if cell.generation == generation and round_ < cell.round:
        return [Sent("STALE", worker, round_, cell.round, frozenset(cell.contributors), ())]

    if cell.generation != generation or round_ > cell.round:
        cell.generation, cell.round, cell.final = generation, round_, False
        cell.seen, cell.contributors, cell.values, cell.count = {worker}, {worker}, [value], 1
        return _close(cell) if need <= 1 else []

    if cell.final:
        cell.seen.add(worker)
        return [_result(cell, worker)]

    if worker in cell.seen:
        return _close(cell) if flush and cell.count >= min_quorum else []

    cell.seen.add(worker)
    cell.contributors.add(worker)
    cell.values = sorted([*cell.values, value])
    cell.count += 1
    return _close(cell) if cell.count >= need else []


def _close(cell: Cell) -> list[Sent]:
    cell.final = True
    return [_result(cell, None)]


def _result(cell: Cell, to: int | None) -> Sent:
    return Sent("RESULT", to, cell.round, 0, frozenset(cell.contributors), tuple(cell.values))
