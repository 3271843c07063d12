# SPDX-License-Identifier: Apache-2.0
"""A switch that is not there, as far as one worker can tell: nothing comes from it, and bad answers come in a series.

Rules
    A1  An answer 'port unreachable' is a loss, as any datagram may be lost. A series of them is an absence: no two
        lie further apart than `gap_s`, and no datagram of the switch came since the first.
    A2  An absence that has lasted `unreachable_s`, from its first answer to its latest, ends the generation for this
        worker.
        So a single answer ends nothing, however long ago it was.
    A3  A series of STATEs about its oldest position that lack this worker's UPDATE, or have the sum, is one too, and
        ends the generation for it: no two lie further apart than `STATE_GAP_S`. PROBEs and STATEs are short and
        arrive. UPDATEs and RESULTs are long.
    A4  A switch answers each PROBE of a worker that it knows. No datagram at all from it for `unreachable_s`, since
        the worker was made and after several PROBEs, ends the generation for this worker.
    A5  An address that has not been one of this host's for `unreachable_s` ends it too.
"""

from __future__ import annotations

from math import inf
from typing import Final

from hopsum.protocol.worker_state import Timing

GAP_LEAST_S: Final = 5.0
# A worker that waits asks every five seconds: two PROBEs may be lost.
STATE_GAP_S: Final = 16.0
PROBES_UNKNOWN: Final = 4


class Absence:
    """A series of bad answers about one thing: since when, and how many."""

    def __init__(self, limit_s: float, gap_s: float) -> None:
        self._limit_s, self._gap_s = limit_s, gap_s
        self._first = self._last = 0.0
        self._about = 0
        self.answers = 0
        """The answers since the absence began, 0 without an absence."""

    @property
    def lasted_s(self) -> float:
        """Return the seconds from the first answer to the latest."""
        return self._last - self._first

    def note(self, now: float, about: int = 0) -> bool:
        """Count one more bad answer. Say whether the absence has lasted for the limit (A2).

        An answer about another thing begins a series of its own.
        """
        if not self.answers or about != self._about or now - self._last > self._gap_s:
            self.answers, self._first, self._about = 0, now, about
        self.answers, self._last = self.answers + 1, now
        return self.lasted_s >= self._limit_s

    def end(self) -> None:
        """End the absence, if there is one."""
        self.answers, self._first = 0, self._last


class Absences:
    """The ways in which one worker's switch may be out of reach."""

    def __init__(self, timing: Timing) -> None:
        self._limit_s = inf if timing.unreachable_s is None else timing.unreachable_s
        # A1: three timeouts without an answer are no gap yet, since each retransmission provokes one.
        self.refused = Absence(self._limit_s, max(GAP_LEAST_S, 3 * timing.retransmit_max_s))
        """'port unreachable' of the switch's host (A1)."""
        self.long_ones = Absence(self._limit_s, STATE_GAP_S)
        """STATEs about one position, without its UPDATE or RESULT (A3)."""
        self.address = Absence(self._limit_s, STATE_GAP_S)
        """Looks that did not find the worker's own address (A5)."""
        self._heard = False
        """A datagram of the switch has come, in whatever generation."""

    def on_answer(self) -> None:
        """Note a datagram of the switch: it is there."""
        self._heard = True
        self.refused.end()

    def begin(self) -> None:
        """Begin a generation."""
        for absence in (self.refused, self.long_ones, self.address):
            absence.end()

    def is_unknown(self, waited_s: float, probes: int) -> bool:
        """Say whether the switch has never answered this worker, which has waited and sent PROBEs (A4)."""
        return not self._heard and probes >= PROBES_UNKNOWN and waited_s >= self._limit_s
