# SPDX-License-Identifier: Apache-2.0
"""The lines that a worker's log has where results do not come: whom they wait for, and a switch that is not there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from hopsum.notice import AFTER_S, WaitMonitor
from hopsum.transport.transport import Transport

ABSENT_S: Final = 2.0
"""The time in which everything comes back as 'port unreachable' before that is said."""
ASK_S: Final = AFTER_S - 1.0
"""The time without a result before the switch is asked whom it waits for. Its answer is here when the line is written.
"""
ASK_EVERY_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class Progress:
    """Looks at a transport between its steps, in the thread that has it.

    Args:
        clock: seconds that do not go back.
    """

    def __init__(self, transport: Transport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport, self._clock = transport, clock
        own = transport.worker.membership
        self._who, self._switch = f"rank {own.rank}", own.switch
        self._waiting = WaitMonitor(_log, self._who, clock=clock)
        self._results = 0
        self._ask_in_s = ASK_S
        self._absent = False

    def begin(self) -> None:
        """Count from now: the first phase is in progress, or another generation."""
        self._results, self._ask_in_s = self._transport.statistics.worker.results, ASK_S
        self._waiting.over()
        self._say_absence()

    def check(self) -> None:
        """Say what is to be said, and ask the switch if it is time."""
        self._say_absence()
        worker = self._transport.worker
        if self._transport.statistics.worker.results != self._results or worker.is_idle:
            self.begin()
            return
        if self._waiting.lasted_s >= self._ask_in_s:
            self._ask_in_s = self._waiting.lasted_s + ASK_EVERY_S
            self._transport.probe()
        self._waiting.check(worker.missing_text, worker.left_s(self._clock()))

    def _say_absence(self) -> None:
        absence = self._transport.worker.absence
        if self._absent and not absence.answers:
            self._absent = False
            _log.warning("%s: %s is there again", self._who, self._switch)
        elif not self._absent and absence.lasted_s >= ABSENT_S:
            self._absent = True
            limit_s = self._transport.worker.timing.unreachable_s
            until = "until its deadline" if limit_s is None else f"for {limit_s - absence.lasted_s:.0f} s more"
            _log.warning(
                "%s: %s is not there: all that was sent to it for %.1f s came back as 'port unreachable' (%d times), "
                "and nothing came from it; this rank waits %s",
                self._who, self._switch, absence.lasted_s, absence.answers, until,
            )  # fmt: skip
