# SPDX-License-Identifier: Apache-2.0
"""The event loop of the service on a thread of its own, and news of jobs for the coroutines that wait on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class EventLoop:
    """An event loop on a thread of its own, from construction until `close`. The methods are for other threads."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop, wait for it without a time limit, and return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def responds_within(self, within_s: float) -> bool:
        """Wait at most `within_s` seconds. Return whether the loop ran a callback, False when the loop is closed."""
        # A threading event: the asking thread waits, and the loop only sets it.
        came_by = threading.Event()
        try:
            self.loop.call_soon_threadsafe(came_by.set)
        except RuntimeError:
            return False
        return came_by.wait(within_s)

    def close(self) -> None:
        """Stop the loop, and wait for its thread. Does nothing when the loop is closed."""
        if not self.loop.is_closed():
            # `stop` must run on the loop: from another thread the loop would not wake up.
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class JobNotifier:
    """Sets the events of the coroutines of one event loop that wait for steps of a job.

    Only `notify` and `notify_all` are for other threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: dict[str, set[asyncio.Event]] = {}

    def notify(self, job: str) -> None:
        """Set the events of all subscriptions to a job, soon, from any thread. Does nothing when the loop is closed."""
        self._later(job)

    def notify_all(self) -> None:
        """Set the events of all jobs, soon, from any thread. Does nothing when the loop is closed."""
        self._later(None)

    @contextmanager
    def subscription(self, job: str) -> Iterator[asyncio.Event]:
        """Yield an event that `notify` sets for this job, for the block. The waiting call clears it."""
        event = asyncio.Event()
        self._events.setdefault(job, set()).add(event)
        try:
            yield event
        finally:
            self._events[job].discard(event)
            if not self._events[job]:
                del self._events[job]

    def _later(self, job: str | None) -> None:
        # The loop is closed: nobody waits any more.
        with suppress(RuntimeError):
            # asyncio's events may be set in the loop's own thread only.
            self._loop.call_soon_threadsafe(self._set, job)

    def _set(self, job: str | None) -> None:
        for name in list(self._events) if job is None else [job]:
            for event in self._events.get(name, ()):
                event.set()
