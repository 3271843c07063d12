# SPDX-License-Identifier: Apache-2.0
"""Threads that keep a manager going: one for leases, one for each switch, so that none waits for another's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Final, Self

from hopsum_controlplane.cluster import Manager

PERIOD_S: Final = 0.25
_log: Final = logging.getLogger(__name__)


class Pulse:
    """Calls `expire`, and `attend` of each switch, every `period_s` seconds; a context manager.

    Leaving it waits for what is in progress, which the deadlines of a switch's calls bound.
    """

    def __init__(self, manager: Manager, switches: Iterable[str], period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._over = threading.Event()
        duties: dict[str, Callable[[], None]] = {name: partial(manager.attend, name) for name in switches}
        self._threads = [
            threading.Thread(target=self._beat, args=(duty,), name=f"hopsum-pulse-{name}", daemon=True)
            for name, duty in [("leases", manager.expire), *duties.items()]
        ]

    def __enter__(self) -> Self:
        """Start."""
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
