# SPDX-License-Identifier: Apache-2.0
"""One line in the log for a wait that lasts, and one when it is over: nothing waits in silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

SAY_AFTER_S: Final = 5.0


class Waiting:
    """One wait. Not thread-safe.

    Args:
        log: gets a WARNING once the wait has lasted `SAY_AFTER_S`, and another one when such a wait is over.
        who: begins both lines, for example "rank 3".
        clock: seconds that do not go back.
    """

    def __init__(self, log: logging.Logger, who: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._who, self._clock = log, who, clock
        self._since = clock()
        self._said = False

    @property
    def lasted_s(self) -> float:
        """Return the seconds since the wait began."""
        return self._clock() - self._since

    @property
    def say_in_s(self) -> float | None:
        """Return the seconds until `look` has something to say, None when it has said it."""
        return None if self._said else max(0.0, SAY_AFTER_S - self.lasted_s)

    def look(self, awaited: Callable[[], str], left_s: float | None = None) -> None:
        """Write the line if it is time and it was not written yet.

        Args:
            awaited: returns what is awaited, and from whom.
            left_s: how much longer the wait may last; None: it has no limit.
        """
        lasted_s = self.lasted_s
        if self._said or lasted_s < SAY_AFTER_S:
            return
        self._said = True
        left = "without a limit" if left_s is None else f"{max(0.0, left_s):.0f} s more at most"
        self._log.warning("%s has waited %.0f s for %s; it waits %s", self._who, lasted_s, awaited(), left)

    def over(self, outcome: str = "goes on") -> None:
        """Note that the wait is over; another one begins now."""
        if self._said:
            self._log.warning("%s %s after %.1f s", self._who, outcome, self.lasted_s)
        self._since, self._said = self._clock(), False
