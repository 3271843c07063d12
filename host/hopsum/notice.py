# SPDX-License-Identifier: Apache-2.0
"""Log lines of long waits: every wait of more than a few seconds is one line.

Waits for other processes are WARNING, because a program without a logging set-up shows these on stderr. Long work of
the process itself is INFO.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

AFTER_S: Final = 5.0
"""A shorter wait is not logged."""
_log: Final = logging.getLogger(__name__)


class WaitNotice:
    """Logs the cause of a wait when it has lasted AFTER_S, and again when the cause changes.

    Args:
        who: the waiting rank or process, the beginning of the line.
        clock: monotonic seconds.
    """

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._who, self._clock = who, clock
        self._since_s = clock()
        self._said = ""

    def log(self, what: str, left_s: float, setting: str, *, at_once: bool = False) -> None:
        """Log a WARNING about the wait if it has lasted AFTER_S and its cause is not that of the last line.

        Args:
            what: the cause of the wait.
            left_s: the most seconds that the wait may still last.
            setting: the name of the setting that limits the wait.
            at_once: whether to log also before AFTER_S.
        """
        if what == self._said or not (at_once or self._clock() - self._since_s >= AFTER_S):
            return
        self._said = what
        _log.warning("%s: waiting for %s, for %.0f s more at most (%s)", self._who, what, max(left_s, 0.0), setting)


class WaitMonitor:
    """One wait after the other, each logged once if it is long. Not thread-safe.

    Args:
        log: gets a WARNING from `check` once the wait has lasted `AFTER_S`, and one from `end` when such a wait ends.
        who: begins both lines, for example "rank 3".
        clock: monotonic seconds.
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
    def log_in_s(self) -> float | None:
        """Return the seconds until `check` writes its line, None after it has."""
        return None if self._said else max(0.0, AFTER_S - self.lasted_s)

    def check(self, awaited: Callable[[], str], left_s: float | None = None, sooner: str = "") -> None:
        """Log the wait if it has lasted AFTER_S and was not logged yet.

        Args:
            awaited: returns the cause of the wait, and the rank or process.
            left_s: the most seconds that the wait may still last, None without a limit.
            sooner: an event that may end the wait earlier, empty for none.
        """
        lasted_s = self.lasted_s
        if self._said or lasted_s < AFTER_S:
            return
        self._said = True
        left = "without a limit" if left_s is None else f"{max(0.0, left_s):.0f} s more at most"
        left += f", {sooner}" if sooner else ""
        self._log.warning("%s has waited %.0f s for %s; it waits %s", self._who, lasted_s, awaited(), left)

    def end(self, outcome: str = "has ended its wait") -> None:
        """Log the end of the wait if the wait was logged. Another wait begins now.

        Args:
            outcome: the text between `who` and the seconds.
        """
        if self._said:
            self._log.warning("%s %s after %.1f s", self._who, outcome, self.lasted_s)
        self._since, self._said = self._clock(), False


@contextmanager
def log_if_slow(text: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Log a text at INFO, once, when the block has lasted `after_s`. For a `with` statement."""
    # A timer thread, because the block may keep this thread in machine code for half a minute.
    timer = threading.Timer(after_s, _log.info, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
