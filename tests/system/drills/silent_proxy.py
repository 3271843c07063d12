# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy whose connections can die in silence: nothing is forwarded and nothing is closed, while new ones work.

A restarted firewall, a NAT entry that timed out, or a host that lost power leave connections in this state.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


@dataclass
class _Connection:
    """A client's socket and the one to the target. Two threads forward, and read on without forwarding once dead."""

    near: socket.socket
    far: socket.socket
    dead: bool = False

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if not self.dead:
                    target.sendall(data)
            if not self.dead:
                target.shutdown(socket.SHUT_WR)


class SilentProxy:
    """Forwards connections from an address of its own, `address`, to another one, until `close`.

    Sockets are made in the network namespace of the thread that constructs the proxy.
    """

    def __init__(self, host: str, target: str) -> None:
        self._target = target
        self._server = socket.create_server((host, 0))
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self._connections: list[_Connection] = []
        threading.Thread(target=self._accept, name="silent-proxy", daemon=True).start()

    @property
    def accepted(self) -> int:
        """Number of connections that clients have opened so far, dead ones included."""
        return len(self._connections)

    def kill_connections(self) -> int:
        """Let all present connections die in silence. Return the number of those that were alive until now."""
        fresh = [each for each in self._connections if not each.dead]
        for each in fresh:
            each.dead = True
        return len(fresh)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._connections:
            for end in (each.near, each.far):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        host, _, port = self._target.rpartition(":")
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    near.close()
                    continue
                made = _Connection(near, far)
                self._connections.append(made)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=made.pump, args=ends, daemon=True).start()
