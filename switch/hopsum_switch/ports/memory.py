# SPDX-License-Identifier: Apache-2.0
"""A port inside this process: frames are put in and taken out by function calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hopsum_switch.ports.base import RECEIVE_BATCH, PortCounters


class MemoryPort:
    """Two queues of frames. `inject` and `take` may be called from any thread."""

    def __init__(self) -> None:
        self.counters = PortCounters()
        self._incoming: deque[bytes] = deque()
        self._outgoing: deque[bytes] = deque()
        self._wake: Callable[[], None] | None = None

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """Call `wake` whenever a frame has been injected. The data plane sets this when the port is bound."""
        self._wake = wake

    def inject(self, frame: bytes) -> None:
        """Let `frame` arrive at the switch."""
        self._incoming.append(bytes(frame))
        if self._wake is not None:
            self._wake()

    def take(self) -> list[bytes]:
        """Remove and return the frames that the switch has sent, oldest first."""
        return [self._outgoing.popleft() for _ in range(len(self._outgoing))]

    def fileno(self) -> int | None:
        """Return None: there is nothing to select on."""
        return None

    def receive(self) -> list[bytes]:
        """Return injected frames, at most RECEIVE_BATCH."""
        frames = [self._incoming.popleft() for _ in range(min(len(self._incoming), RECEIVE_BATCH))]
        for frame in frames:
            self.counters.count_received(frame)
        return frames

    def send(self, frame: bytes) -> None:
        """Keep `frame` for `take`."""
        self.counters.count_sent(frame)
        self._outgoing.append(frame)

    def close(self) -> None:
        """Forget the frames that wait to enter."""
        self._incoming.clear()

    def describe(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "memory"}
