# SPDX-License-Identifier: Apache-2.0
"""A switch that is not there: its host says so, again and again, and nothing else comes from it.

Rules
    A1  An answer 'port unreachable' is a loss, as any datagram may be lost. A series of them is an absence: no two lie
        further apart than `gap_s`, and no datagram of the switch came since the first.
    A2  An absence that has lasted `unreachable_s`, from its first answer to its latest, ends the generation for this
    worker.
        So a single answer ends nothing, however long ago it was.
"""

from __future__ import annotations

from hopsum.protocol.worker_state import Timing

GAP_LEAST_S = 5.0


class Absence:
    """The 'port unreachable' answers of the network about the switch of one worker: since when, and how many."""

    def __init__(self, timing: Timing) -> None:
        self._limit_s = timing.unreachable_s
        self._gap_s = max(GAP_LEAST_S, 3 * timing.retransmit_max_s)
        self._first = self._last = 0.0
        self.answers = 0
        """The answers 'port unreachable' since the absence began, 0 without an absence."""

    @property
    def lasted_s(self) -> float:
        """Return the seconds from the first answer to the latest."""
        return self._last - self._first if self.answers else 0.0

    @property
    def is_over_limit(self) -> bool:
        """Say whether it has lasted too long (A2)."""
        return self._limit_s is not None and self.answers > 1 and self.lasted_s >= self._limit_s

    def note(self, now: float) -> None:
        """Take an answer 'port unreachable'."""
        if not self.answers or now - self._last > self._gap_s:
            self.answers, self._first = 0, now
        self.answers, self._last = self.answers + 1, now

    def end(self) -> None:
        """Take a datagram of the switch, or another generation: it begins anew."""
        self.answers = 0
