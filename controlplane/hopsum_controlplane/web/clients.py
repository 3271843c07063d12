# SPDX-License-Identifier: Apache-2.0
"""The connections of a server that may have a bounded number of them, each for a bounded time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

CLIENTS_MAX: Final = 32
REQUEST_S: Final = 10.0
"""The time from the connection to the last byte of its answer."""


@dataclass
class _Client:
    began_s: float
    asks: bool = True
    """True while its request, or a part of it, is still to come."""


class Clients:
    """The connected clients. Thread-safe.

    Where there are `most`, a new one takes the place of the oldest whose request has not come yet. Where all have
    asked, there is no place. `clock` has seconds that never go back.
    """

    def __init__(
        self, most: int = CLIENTS_MAX, request_s: float = REQUEST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._request_s = request_s
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, _Client] = {}  # in the order in which they came

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._clients)

    def admit(self, connection: socket.socket) -> bool:
        """Return whether there is a place for a new one, which it has then."""
        with self._lock:
            if len(self._clients) >= self._most:
                oldest = next((each for each, client in self._clients.items() if client.asks), None)
                if oldest is None:
                    return False
                self._cut(oldest)
            self._clients[connection] = _Client(self._clock())
            return True

    def answer(self, connection: socket.socket) -> None:
        """Note that a request has come."""
        with self._lock:
            if connection in self._clients:
                self._clients[connection].asks = False

    def forget(self, connection: socket.socket) -> None:
        """Give the place of a connection back. Harmless when it has none."""
        with self._lock:
            self._clients.pop(connection, None)

    def cut_late(self) -> None:
        """Cut those off whose time is over."""
        with self._lock:
            now_s = self._clock()
            for each in [each for each, client in self._clients.items() if now_s - client.began_s > self._request_s]:
                self._cut(each)

    def _cut(self, connection: socket.socket) -> None:
        """End a connection under its thread, which closes it."""
        del self._clients[connection]
        with suppress(OSError):  # it has ended by itself
            connection.shutdown(socket.SHUT_RDWR)
