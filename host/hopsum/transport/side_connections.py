# SPDX-License-Identifier: Apache-2.0
"""What a side channel (side_channel.py) knows of its connections, and what it counts."""

from __future__ import annotations

import socket
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

DIAL_AGAIN_S: Final = 0.1
Address = tuple[str, int]


@dataclass(slots=True)
class SideStatistics:
    """What passed between peers."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    unreachable: int = 0
    """Times that a peer could not be connected to."""
    other_epochs: int = 0
    """Messages of an epoch that is over for this worker, or has not begun for it: ignored."""
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that were closed for cause: length, kind, sender, value, truncated, stranger, crowd, slow."""


@dataclass(slots=True)
class Incoming:
    """A connection that a peer writes."""

    connection: socket.socket
    ip: str
    buffer: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Outgoing:
    """A peer that is written to, and what is still to be said to it."""

    rank: int
    address: Address
    queue: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0
    connection: socket.socket | None = None
    connected: bool = False
    rest: memoryview = field(default_factory=lambda: memoryview(b""))
    """Of the message that is being sent."""
    dial_at: float = 0.0
    pause_s: float = DIAL_AGAIN_S
