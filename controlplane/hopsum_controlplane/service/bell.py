# SPDX-License-Identifier: Apache-2.0
"""News of jobs for coroutines that wait for them: rung by whoever changes the database, in whatever thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Bell:
    """Events of one event loop, by job. Only `ring` and `ring_all` are for other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: dict[str, set[asyncio.Event]] = {}

    def ring(self, job: str) -> None:
        """Set the events of those who listen for a job. Harmless when the loop is closed."""
        self._later(job)

    def ring_all(self) -> None:
        """Set all events. Harmless when the loop is closed."""
        self._later(None)

    @contextmanager
    def listening(self, job: str) -> Iterator[asyncio.Event]:
        """Return an event that is set whenever the job's bell rings, for the block. The waiting call clears it."""
        event = asyncio.Event()
        self._events.setdefault(job, set()).add(event)
        try:
            yield event
        finally:
            self._events[job].discard(event)
            if not self._events[job]:
                del self._events[job]

    def _later(self, job: str | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set, job)

    def _set(self, job: str | None) -> None:
        for name in list(self._events) if job is None else [job]:
            for event in self._events.get(name, ()):
                event.set()
