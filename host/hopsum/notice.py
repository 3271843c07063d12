# SPDX-License-Identifier: Apache-2.0
"""Nothing waits in silence: one line on the log of whoever waits longer than a few seconds.

The lines are warnings: a program that has not set logging up sees them on stderr.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

AFTER_S: Final = 5.0
"""What is over sooner is not told."""
_log: Final = logging.getLogger(__name__)


class Notice:
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
        """Tell what is awaited, for how many more seconds at most, and the setting that says so; or keep it for later.

        Args:
            at_once: though it has not taken long yet.
        """
        if what == self._said or not (at_once or self._clock() - self._since_s >= AFTER_S):
            return
        self._said = what
        _log.warning("%s: waiting for %s, for %.0f s more at most (%s)", self._who, what, max(left_s, 0.0), setting)


@contextmanager
def telling(text: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Say this on the log if the block takes longer than that."""
    timer = threading.Timer(after_s, _log.warning, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
