# SPDX-License-Identifier: Apache-2.0
"""The fetcher of decided results: after a generation change a worker asks peers for the decided results that it lacks.

Rules
    E3  A decided position is never sent: those that hold it would not send it again, so it would get a second result.
        Of `AHEAD` positions at a time, in the order of the stream, one of the workers named is asked; every `AGAIN_S`
        another one of them. If none of them has it any more, the other peers are asked (repair.py). If they
        died, it stays lacking: the next generation change decides again.

    position    input                              next
    -           decided, submitted here, lacking   WANTED
    WANTED      it is among the first `AHEAD`      ASKED    FETCH to a worker that holds it
    ASKED       `AGAIN_S` over                     ASKED    FETCH to another one
    ASKED       its result                         -        the next one that is WANTED is ASKED

A peer that has not begun this generation yet does not answer (R1), hence the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from hopsum.protocol.repair import AHEAD, PeerRepair
from hopsum.protocol.stream import DecidedRanges

AGAIN_S: Final = 0.1


class ResultFetcher:
    """The decided results that one worker fetches in one generation."""

    def __init__(self, decided: DecidedRanges, repair: PeerRepair) -> None:
        self._decided, self._repair = decided, repair
        self._wanted: deque[int] = deque()
        self._asked: dict[int, int] = {}
        """The bitmap of the workers that hold a result, by position."""
        self._due = 0.0

    @property
    def lacking(self) -> list[int]:
        """Return the positions that are still to come, in the order of the stream."""
        return [*self._asked, *self._wanted]

    def want(self, positions: Iterable[int], now: float) -> None:
        """Take decided positions that are lacking, behind all that were taken before."""
        self._wanted.extend(positions)
        self._ask_next(now)

    def note(self, position: int, now: float) -> None:
        """Take the arrival of a result."""
        if self._asked.pop(position, None) is not None:
            self._ask_next(now)

    def timer(self) -> float | None:
        """Return the time at which `handle_timer` is due, or None."""
        return self._due if self._asked else None

    def handle_timer(self, now: float) -> None:
        """Ask again for what did not come."""
        if not self._asked or now < self._due:
            return
        self._due = now + AGAIN_S
        for position, named in self._asked.items():
            self._repair.ask_named((position,), named, now, AGAIN_S)

    def _ask_next(self, now: float) -> None:
        if not self._asked:
            self._due = now + AGAIN_S
        while self._wanted and len(self._asked) < AHEAD:
            position = self._wanted.popleft()
            self._asked[position] = named = self._decided.holders(position)
            self._repair.ask_named((position,), named, now, AGAIN_S)
