# SPDX-License-Identifier: Apache-2.0
"""Detection of an unreachable switch by one worker: no datagram arrives, and failures repeat.

Rules
    A1  An answer 'port unreachable' is a lost datagram. A series of such answers is an absence, if successive ones are
        at most `gap_s` apart and no datagram of the switch came since the first.
    A2  An absence of `unreachable_s`, from its first answer to its latest, ends the generation for this worker. So a
        single answer never ends it.
    A3  A series of STATEs of the oldest position, without this worker's UPDATE or with the complete sum, is an absence
        too, if successive ones are at most `STATE_GAP_S` apart: PROBEs and STATEs are short and arrive, UPDATEs and
        RESULTs are long and get lost.
    A4  A switch answers each PROBE of a worker that it admits. If no datagram has come for `unreachable_s` since the
        worker's start, and after several PROBEs, the generation ends for this worker.
    A5  The generation also ends if the worker's address has not been one of this host's for `unreachable_s`.
"""

from __future__ import annotations

from math import inf
from typing import Final

from hopsum.protocol.worker_state import Timing

GAP_LEAST_S: Final = 5.0
# A waiting worker sends a PROBE every five seconds, of which two may be lost.
STATE_GAP_S: Final = 16.0
PROBES_UNKNOWN: Final = 4


class Absence:
    """A series of failures of one kind: its start and its count.

    Args:
        limit_s: the duration after which the absence has lasted too long.
        gap_s: the longest time between two failures of one series.
    """

    def __init__(self, limit_s: float, gap_s: float) -> None:
        self._limit_s, self._gap_s = limit_s, gap_s
        self._first = self._last = 0.0
        self._about = 0
        self.answers = 0
        """The number of failures since the absence began, 0 without an absence."""

    @property
    def lasted_s(self) -> float:
        """Return the seconds from the first failure to the latest."""
        return self._last - self._first

    def note(self, now: float, about: int = 0) -> bool:
        """Count one more failure. Return whether the absence has reached its limit (A2).

        A longer gap than `gap_s`, or another value of `about`, begins another series.
        """
        if not self.answers or about != self._about or now - self._last > self._gap_s:
            self.answers, self._first, self._about = 0, now, about
        self.answers, self._last = self.answers + 1, now
        return self.lasted_s >= self._limit_s

    def end(self) -> None:
        """End the absence, if there is one."""
        self.answers, self._first = 0, self._last


class Absences:
    """The causes for which one worker's switch may be unreachable."""

    def __init__(self, timing: Timing) -> None:
        self._limit_s = inf if timing.unreachable_s is None else timing.unreachable_s
        # A1: each retransmission provokes an answer, so only more than three silent timeouts are a gap.
        self.refused = Absence(self._limit_s, max(GAP_LEAST_S, 3 * timing.retransmit_max_s))
        """'port unreachable' of the switch's host (A1)."""
        self.long_ones = Absence(self._limit_s, STATE_GAP_S)
        """STATEs about one position, without its UPDATE or RESULT (A3)."""
        self.address = Absence(self._limit_s, STATE_GAP_S)
        """Checks that did not find the worker's own address (A5)."""
        self._heard = False
        """Whether a datagram of the switch has come, in any generation."""

    def on_datagram(self) -> None:
        """Note a datagram of the switch: it ends a series of 'port unreachable' (A1), and the switch is known (A4)."""
        self._heard = True
        self.refused.end()

    def begin(self) -> None:
        """Begin a generation: end all absences."""
        for absence in (self.refused, self.long_ones, self.address):
            absence.end()

    def is_unknown(self, waited_s: float, probes: int) -> bool:
        """Say whether the switch has never answered this worker, which has waited and sent PROBEs (A4)."""
        return not self._heard and probes >= PROBES_UNKNOWN and waited_s >= self._limit_s
