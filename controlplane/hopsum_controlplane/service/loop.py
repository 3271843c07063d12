# SPDX-License-Identifier: Apache-2.0
"""An event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class EventLoop:
    """Runs coroutines from construction until `close`. Both are for other threads than its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return what a coroutine returns on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def answers(self, within_s: float) -> bool:
        """Say whether the loop comes by within some seconds, False when it is closed."""
        came_by = threading.Event()
        try:
            self.loop.call_soon_threadsafe(came_by.set)
        except RuntimeError:
            return False
        return came_by.wait(within_s)

    def close(self) -> None:
        """Stop, and wait for it. Harmless when it is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
