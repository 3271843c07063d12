# SPDX-License-Identifier: Apache-2.0
"""A way to a TCP server that can die in silence: what is connected stays so and carries nothing, new connections work.

So it is after a firewall has forgotten its connections, or a host has lost its power.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class BlackHoles:
    """Forwards connections at `address`, HOST:PORT, to a server, from construction until it is left."""

    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._open: list[socket.socket] = []
        self._swallowed: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Let nothing pass any more on the connections that there are, either way; they stay open."""
        self._swallowed.update(list(self._open))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self.connections += 1
                self._open += (near, far)
                for here, there in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(here, there), daemon=True).start()

    def _pump(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if here not in self._swallowed:
                    there.sendall(data)
            if here not in self._swallowed:
                there.shutdown(socket.SHUT_WR)
