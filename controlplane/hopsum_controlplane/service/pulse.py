# SPDX-License-Identifier: Apache-2.0
"""Threads that keep a ClusterController going: one for leases, one for each switch, so that none waits for another's.

A process may stand still: stopped, moved to another machine, swapped out, or the machine slept. The thread for leases
notices it by the time since it was last at work, and excuses all members for that time before it judges anybody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Final, Self

from hopsum_controlplane.cluster import ClusterController

PERIOD_S: Final = 0.25
ABSENT_PERIODS: Final = 4
"""So many periods without a beat are an absence."""
_log: Final = logging.getLogger(__name__)


def awake_or_not_s() -> float:
    """Return seconds that never go back, and go on while the machine sleeps where the system counts that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Pulse:
    """Calls `expire`, and `reconcile` of each switch, every `period_s` seconds; a context manager.

    Leaving it waits for what is in progress, which the deadlines of a switch's calls bound. `clock` gives seconds that
    go on while this process stands still.
    """

    def __init__(
        self,
        controller: ClusterController,
        switches: Iterable[str],
        period_s: float = PERIOD_S,
        *,
        clock: Callable[[], float] = awake_or_not_s,
    ) -> None:
        self._controller, self._clock = controller, clock
        self._period_s = period_s
        self._leases_at_s = clock()
        self._over = threading.Event()
        duties: dict[str, Callable[[], None]] = {name: partial(controller.reconcile, name) for name in switches}
        self._threads = [
            threading.Thread(target=self._beat, args=(duty,), name=f"hopsum-pulse-{name}", daemon=True)
            for name, duty in [("leases", self.mind_leases), *duties.items()]
        ]

    def mind_leases(self) -> None:
        """Excuse everybody for an absence of this process, if there was one; then give up who is silent."""
        now_s = self._clock()
        away_s, self._leases_at_s = now_s - self._leases_at_s, now_s
        if away_s > ABSENT_PERIODS * self._period_s:
            self._controller.excuse(away_s)
        self._controller.expire()

    def __enter__(self) -> Self:
        """Start."""
        self._leases_at_s = self._clock()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for it."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _beat(self, duty: Callable[[], None]) -> None:
        while not self._over.wait(self._period_s):
            try:
                duty()
            except Exception:  # whatever it was, leases and the other jobs need the next one
                _log.exception("%s failed, and goes on", threading.current_thread().name)
