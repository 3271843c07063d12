# SPDX-License-Identifier: Apache-2.0
"""The base of all ports: their interface and their counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

# v1model's ports have 9 bits.
MAX_PORT = 511
# The port that means "drop" in v1model.
DROP_PORT = 511
# Frames taken from one port before the others and the control plane get their turn.
RECEIVE_BATCH = 32


class PortError(Exception):
    """A port cannot be opened as asked. The message says what to change."""


@dataclass
class PortCounters:
    """Frames and bytes through one port, and drops by reason. Sizes are whole frames, Ethernet included."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def count_received(self, frame: bytes) -> None:
        """Add one frame from the wire, with its length, to `received` and `received_bytes`."""
        self.received += 1
        self.received_bytes += len(frame)

    def count_sent(self, frame: bytes) -> None:
        """Add one frame put on the wire, with its length, to `sent` and `sent_bytes`."""
        self.sent += 1
        self.sent_bytes += len(frame)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON values."""
        return {
            "received": self.received,
            "received_bytes": self.received_bytes,
            "sent": self.sent,
            "sent_bytes": self.sent_bytes,
            "dropped": dict(sorted(self.dropped.items())),
        }


class Port(Protocol):
    """A place where frames enter and leave. Not thread-safe: the data plane's gate serialises the calls."""

    counters: PortCounters

    def fileno(self) -> int | None:
        """Return the descriptor to select on, or None where frames come from this process."""
        ...

    def receive(self) -> list[bytes]:
        """Return and count the frames that wait, at most RECEIVE_BATCH of them, without blocking."""
        ...

    def send(self, frame: bytes) -> None:
        """Send and count one frame without blocking. A frame that cannot leave is dropped and counted by reason."""
        ...

    def close(self) -> None:
        """Release what the port holds. Further calls do nothing."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return kind and addresses as plain JSON values."""
        ...


def check_port_number(number: int) -> int:
    """Return `number` if a v1model program can name it. Raises PortError: choose another number."""
    if not 0 <= number < DROP_PORT:
        raise PortError(
            f"switch port {number} does not exist: v1model ports are 0..{DROP_PORT - 1} ({DROP_PORT} means drop)"
        )
    return number


# A port inside this process: frames are put in and taken out by function calls.


class MemoryPort(Port):
    """A port without a wire: two queues of frames. `inject` and `pop_sent` may be called from any thread."""

    def __init__(self) -> None:
        self.counters = PortCounters()
        self._incoming: deque[bytes] = deque()
        self._outgoing: deque[bytes] = deque()
        self._wake: Callable[[], None] | None = None

    def set_wake(self, wake: Callable[[], None] | None) -> None:
        """Have `wake` called after each `inject`, or nothing for None. The data plane sets it at its `bind`."""
        self._wake = wake

    def inject(self, frame: bytes) -> None:
        """Queue a copy of `frame` for the switch, which receives it at the data plane's next turn."""
        self._incoming.append(bytes(frame))
        if self._wake is not None:
            self._wake()

    def pop_sent(self) -> list[bytes]:
        """Remove and return the frames that the switch has sent, oldest first."""
        return [self._outgoing.popleft() for _ in range(len(self._outgoing))]

    def fileno(self) -> int | None:
        """Return None: there is nothing to select on."""
        return None

    def receive(self) -> list[bytes]:
        frames = [self._incoming.popleft() for _ in range(min(len(self._incoming), RECEIVE_BATCH))]
        for frame in frames:
            self.counters.count_received(frame)
        return frames

    def send(self, frame: bytes) -> None:
        self.counters.count_sent(frame)
        self._outgoing.append(frame)

    def close(self) -> None:
        """Drop the frames that wait to enter. Frames that were sent stay."""
        self._incoming.clear()

    def describe(self) -> dict[str, Any]:
        return {"kind": "memory"}
