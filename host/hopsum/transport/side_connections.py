# SPDX-License-Identifier: Apache-2.0
"""The connections of a side channel (side_channel.py), and its counters."""

from __future__ import annotations

import socket
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from hopsum.transport.side_proof import Dialler, GenerationKey, Listener, Seal

DIAL_AGAIN_S: Final = 0.1
Address = tuple[str, int]
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 11_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A peer that vanished without a word is noticed after 11 s, by who reads and by who writes."""


@dataclass(slots=True)
class SideStatistics:
    """Counts of the traffic between peers."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    unreachable: int = 0
    """Times that a peer could not be connected to."""
    refused: int = 0
    """Times that a peer, or whoever listens there, did not go through with the handshake: it is in another generation.
    """
    other_generations: int = 0
    """Connections and messages of a generation that is over for this worker, or has not begun for it: ignored."""
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that were closed for cause: hello, forged, silent, crowd (before the proof), stranger; and length,
    kind, sender, value, truncated, slow."""


@dataclass(slots=True)
class Incoming:
    """A connection that a peer writes, once it has proved itself."""

    connection: socket.socket
    ip: str
    until: float
    """The time at which it is closed, unless it has proved itself by then."""
    buffer: bytearray = field(default_factory=bytearray)
    listener: Listener | None = None
    """The listener's side of the proof, from HELLO on."""
    seal: Seal | None = None
    """The seal of messages, from the proof on."""

    @property
    def rank(self) -> int:
        """The rank that the other side says to have."""
        return -1 if self.listener is None else self.listener.peer

    @property
    def generation(self) -> int | None:
        """Return the generation of its key, None before HELLO."""
        return None if self.listener is None else self.listener.key.generation


@dataclass(slots=True)
class Outgoing:
    """A peer that is written to in one generation, and what is still to be said to it."""

    rank: int
    address: Address
    key: GenerationKey
    queue: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0
    connection: socket.socket | None = None
    dialler: Dialler | None = None
    """The dialler's side of the proof, from the connection on."""
    reply: bytearray = field(default_factory=bytearray)
    seal: Seal | None = None
    """The seal of messages, from the proof on: messages can be sent."""
    rest: memoryview = field(default_factory=lambda: memoryview(b""))
    """The rest of what is being sent."""
    until: float = 0.0
    """The time at which the connection is given up, unless the peer has proved itself by then."""
    dial_at: float = 0.0
    pause_s: float = DIAL_AGAIN_S

    def forget(self) -> None:
        """Have no connection any more."""
        self.connection, self.dialler, self.seal, self.rest = None, None, None, memoryview(b"")
        self.reply.clear()


def configure(connection: socket.socket) -> None:
    """Let calls not block, small messages not wait, and a silent end be noticed."""
    connection.setblocking(False)
    for option in _KEEPALIVE:
        connection.setsockopt(*option)


def left_s(moments: list[float]) -> float | None:
    """Return the seconds until the first of some moments, None without any."""
    return max(0.0, min(moments) - time.monotonic()) if moments else None
