# SPDX-License-Identifier: Apache-2.0
"""The trial whether datagrams that are sent together are lost on the way.

Linux or a network card may mangle or drop datagrams that were sent together, without an error. They are then sent
again, together, for ever. The trial compares the losses of datagrams sent together, singly, and together once more:
one comparison would blame the host for a late worker, whose absence looks like loss and ends by itself.

    state     input                                             next      also
    TOGETHER  a quarter is lost for SUSPECT_S                   SINGLY
    SINGLY    many arrived, and less than an eighth is lost     CHECK     together again
    SINGLY    more is lost                                      TOGETHER  not tried again before many have arrived
    CHECK     a quarter is lost for SUSPECT_S                   OVER      logged by the link
    CHECK     many arrived                                      TOGETHER
    OVER      AGAIN_S, twice as long after each verdict         TOGETHER  tried again: it was chance, or is repaired
"""

from __future__ import annotations

from typing import Final

SUSPECT_LOSSES: Final = 16
"""Fewer retransmissions than this prove nothing."""
# A worker that comes late by less must not end the trains of the others: a long vector takes twice as long singly.
SUSPECT_S: Final = 1.0
"""Seconds for which a quarter is lost before sending together may be the reason."""
AGAIN_S: Final = 600.0
"""Seconds of a first verdict. It may be wrong: random losses, and a rank that is late at the right times, cause one."""
# Chance hardly makes a way that loses a quarter of so many look like one that loses an eighth.
MANY: Final = 256
# A loss shows a timeout later. By then its slot waits: with an eighth lost all do after some eight windows.
WINDOWS: Final = 8


class SegmentTrial:
    """Decides by a worker's counts whether datagrams are to be sent together, or one by one. Not thread-safe."""

    def __init__(self) -> None:
        self.together = True
        """Whether datagrams are to be sent together now."""
        self.has_ended = False
        """They are sent one by one for `rests_s`: sent together they were lost, twice."""
        self.rests_s = AGAIN_S / 2
        self._over_at_s = 0.0
        self._checks = self._rests = False
        self._results = self._again = self._owed = self._window = 0
        self._lossy_since_s: float | None = None

    def look(self, results: int, again: int, in_flight: int, now: float) -> None:
        """Take a worker's present counts and set `together` and `has_ended`. Called often, several times a second.

        Args:
            results: received from the switch since the worker began.
            again: retransmissions since the worker began.
            in_flight: sent positions without a result.
            now: monotonic seconds.
        """
        self._window = max(self._window, in_flight)
        many = max(MANY, WINDOWS * self._window)
        arrived, lost = results - self._results, again - self._again
        is_lossy = lost >= SUSPECT_LOSSES and 4 * lost >= arrived
        if self.has_ended:
            if now - self._over_at_s >= self.rests_s:
                self.has_ended = self._checks = self._rests = False
                self._begin(results, again, in_flight, together=True)
            return
        if not is_lossy or self._lossy_since_s is None:
            self._lossy_since_s = now
        if not self.together:
            # What was on the way at the beginning was sent together: all of it is sent again once, and arrives.
            arrived, lost = arrived - self._owed, max(lost - self._owed, 0)
            if lost >= SUSPECT_LOSSES + max(self._owed, arrived // 8):
                self._begin(results, again, in_flight, together=True)
                self._rests = True
            elif arrived >= many:
                self._begin(results, again, in_flight, together=True)
                self._checks = True
        elif is_lossy and not self._rests:
            if now - self._lossy_since_s < SUSPECT_S:
                return
            if self._checks:
                self.has_ended, self._over_at_s, self.rests_s = True, now, 2 * self.rests_s
            self._begin(results, again, in_flight, together=False)
        elif arrived >= many + self._owed:
            self._begin(results, again, 0, together=True)
            self._checks = self._rests = False

    def _begin(self, results: int, again: int, in_flight: int, *, together: bool) -> None:
        self._results, self._again, self._owed, self.together = results, again, in_flight, together
        self._lossy_since_s = None
