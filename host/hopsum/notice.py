# SPDX-License-Identifier: Apache-2.0
"""Nothing waits in silence: one line on the log of whoever waits longer than a few seconds.

Waits for others are warnings: a program that has not set logging up sees them on stderr. Work of its own is INFO.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

AFTER_S: Final = 5.0
"""A wait that is over sooner is not told."""
_log: Final = logging.getLogger(__name__)


class WaitNotice:
    """Says what is awaited when that takes longer than AFTER_S, and again when it is something else.

    Args:
        who: waits, the beginning of the line.
        clock: seconds that never go back.
    """

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._who, self._clock = who, clock
        self._since_s = clock()
        self._said = ""

    def say(self, what: str, left_s: float, setting: str, *, at_once: bool = False) -> None:
        """Tell what is awaited, for how many more seconds at most, and the setting that says so, or keep it for later.

        Args:
            at_once: though it has not taken long yet.
        """
        if what == self._said or not (at_once or self._clock() - self._since_s >= AFTER_S):
            return
        self._said = what
        _log.warning("%s: waiting for %s, for %.0f s more at most (%s)", self._who, what, max(left_s, 0.0), setting)


class WaitMonitor:
    """One wait. Not thread-safe.

    Args:
        log: gets a WARNING once the wait has lasted `AFTER_S`, and another one when such a wait is over.
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
        """Return the seconds until `check` has something to say, None when it has said it."""
        return None if self._said else max(0.0, AFTER_S - self.lasted_s)

    def check(self, awaited: Callable[[], str], left_s: float | None = None, sooner: str = "") -> None:
        """Write the line if it is time and it was not written yet.

        Args:
            awaited: returns what is awaited, and from whom.
            left_s: how much longer the wait may last, None without a limit.
            sooner: what may end it before, empty for nothing.
        """
        lasted_s = self.lasted_s
        if self._said or lasted_s < AFTER_S:
            return
        self._said = True
        left = "without a limit" if left_s is None else f"{max(0.0, left_s):.0f} s more at most"
        left += f", {sooner}" if sooner else ""
        self._log.warning("%s has waited %.0f s for %s; it waits %s", self._who, lasted_s, awaited(), left)

    def over(self, outcome: str = "has ended its wait") -> None:
        """Note that the wait is over. Another one begins now."""
        if self._said:
            self._log.warning("%s %s after %.1f s", self._who, outcome, self.lasted_s)
        self._since, self._said = self._clock(), False


@contextmanager
def telling(text: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Say this on the log, at INFO, if the block takes longer than that."""
    # A timer thread, since the block that it watches may hold this thread in machine code for half a minute.
    timer = threading.Timer(after_s, _log.info, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
