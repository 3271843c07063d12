# SPDX-License-Identifier: Apache-2.0
"""A lock whose holder may wait for the network: a thread that wants the lock wakes the holder, which releases it."""

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
        self.waiting = 0
        """The number of threads that wait for the lock. Unless it is 0, the holder must not wait for the network."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, as `threading.RLock.acquire`."""
        # The common case of a free lock needs no wake-up.
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        # Counted before the wake-up, because the woken holder reads `waiting`.
        self._want(1)
        try:
            return bool(self._lock.acquire(timeout=timeout))
        finally:
            self._want(-1)

    def release(self) -> None:
        """Release the lock, as `threading.RLock.release`."""
        self._lock.release()

    __enter__ = acquire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _want(self, change: int) -> None:
        with self._guard:
            # A plain int is not atomic for += between threads.
            self.waiting += change
        if change > 0:
            self._wake()

    # threading.Condition calls these three by name on other locks than threading.Lock (CPython, threading.py).
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
