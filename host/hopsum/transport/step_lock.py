# SPDX-License-Identifier: Apache-2.0
"""A lock whose holder may wait for the network: whoever wants the lock wakes the holder, who then lets go of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final


class StepLock:
    """A reentrant lock for `threading.Condition`.

    Args:
        wake: called by a thread that finds the lock taken. Ends the holder's wait. Any thread may call it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self._lock: Final[Any] = threading.RLock()
        self._guard: Final = threading.Lock()
        self._waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Say whether a thread waits for the lock: its holder must not wait for the network again."""
        return self._waiting > 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.RLock.acquire`."""
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self._want(1)
        try:
            return bool(self._lock.acquire(timeout=timeout))
        finally:
            self._want(-1)

    def release(self) -> None:
        """Let go of the lock."""
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _want(self, change: int) -> None:
        with self._guard:
            self._waiting += change
        if change > 0:
            self._wake()

    # What threading.Condition asks of a reentrant lock.

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> Any:
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._want(1)
        try:
            self._lock._acquire_restore(state)
        finally:
            self._want(-1)
