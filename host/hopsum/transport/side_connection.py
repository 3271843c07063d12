# SPDX-License-Identifier: Apache-2.0
"""Limits, options and counts that both ends of a connection of the side channel have in common."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]
LENGTH_BYTES: Final = 4
PROVE_S: Final = 5.0
"""Seconds in which either side must prove itself, from the first packet of a connection."""
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), 11_000),  # which Linux alone has
)
"""Reader and writer notice a peer that vanished silently after 11 s."""


@dataclass(slots=True)
class SideStatistics:
    """Counts of the traffic between peers."""

    messages_sent: int = 0
    messages_received: int = 0
    unreachable: int = 0
    """Failed attempts to connect to a peer."""
    refused: int = 0
    """Attempts in which the listener did not complete the handshake, usually because it is in another generation."""
    other_generations: int = 0
    """Ignored connections and messages of a generation that has ended for this worker, or has not begun for it."""
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that were closed for cause: hello, forged, silent, crowd (before the proof), stranger; and length,
    kind, sender, value, truncated, slow."""


def configure(writer: asyncio.StreamWriter) -> None:
    """Set the keep-alive options of a connection, so that a silent end is noticed. Raises OSError if it has ended."""
    connection = writer.get_extra_info("socket")
    for option in _KEEPALIVE:
        connection.setsockopt(*option)
