# SPDX-License-Identifier: Apache-2.0
"""Threads that keep a ClusterController going: one for leases, one for each switch, so that none waits for another's.

A process may stand still: stopped, moved to another machine, swapped out, or the machine slept. The thread for leases
notices it by the time since it was last at work, and excuses all members for that time before it judges anybody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from hopsum_controlplane.cluster import ClusterController

PERIOD_S: Final = 0.25
ABSENT_PERIODS: Final = 4
"""The number of periods without a beat that are an absence."""
_log: Final = logging.getLogger(__name__)


def awake_or_not_s() -> float:
    """Return seconds that never go back, and go on while the machine sleeps where the system counts that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Pulse:
    """Calls `expire`, and `reconcile` of each switch, every `period_s` seconds. It is a context manager.

    Switches that come or go meanwhile are followed.

    Leaving it waits for what is in progress, which the deadlines of a switch's calls bound. `clock` gives seconds that
    go on while this process stands still.
    """

    def __init__(
        self,
        controller: ClusterController,
        period_s: float = PERIOD_S,
        *,
        clock: Callable[[], float] = awake_or_not_s,
    ) -> None:
        self._controller, self._clock = controller, clock
        self._period_s = period_s
        self._leases_at_s = clock()
        self.beat_at_s = time.monotonic()
        """The time at which leases were last looked at, seconds of `time.monotonic`."""
        self._over = threading.Event()
        self._leases = threading.Thread(target=self._beat, name="hopsum-pulse-leases", daemon=True)
        self._switches: dict[str, threading.Thread] = {}

    def mind_leases(self) -> None:
        """Excuse everybody for an absence of this process, if there was one. Then evict silent members."""
        now_s = self._clock()
        away_s, self._leases_at_s = now_s - self._leases_at_s, now_s
        if away_s > ABSENT_PERIODS * self._period_s:
            self._controller.excuse(away_s)
        self._controller.expire()
        self.beat_at_s = time.monotonic()

    def __enter__(self) -> Self:
        """Start."""
        self._leases_at_s = self._clock()
        self._follow()
        self._leases.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for it."""
        self._over.set()
        self._leases.join()
        for thread in self._switches.values():
            thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._period_s):
            self._try(self.mind_leases)
            self._try(self._follow)

    def _follow(self) -> None:
        """Start a thread for each switch that has none. Threads of switches that have gone end by themselves."""
        for name in self._controller.switch_names:
            thread = self._switches.get(name)
            if thread is None or not thread.is_alive():
                self._switches[name] = threading.Thread(
                    target=self._attend, args=(name,), name=f"hopsum-pulse-{name}", daemon=True
                )
                self._switches[name].start()
        gone = [name for name, thread in self._switches.items() if not thread.is_alive()]
        for name in gone:
            del self._switches[name]

    def _attend(self, switch: str) -> None:
        while not self._over.wait(self._period_s) and switch in self._controller.switch_names:
            self._try(lambda: self._controller.reconcile(switch))

    @staticmethod
    def _try(duty: Callable[[], None]) -> None:
        try:
            duty()
        except Exception:  # whatever it was, leases and the other jobs need the next one
            _log.exception("%s failed, and goes on", threading.current_thread().name)
