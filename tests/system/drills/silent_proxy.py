# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy whose connections can die in silence: nothing is forwarded and nothing is closed, while new ones work.

So does a firewall that was restarted, a NAT entry that timed out, or a host that lost power.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

_CHUNK_BYTES: Final = 1 << 16
_START_S: Final = 20.0


class SilentProxy:
    """Forwards connections from an address of its own to another one, until `close`. Thread-safe.

    Sockets are made in the network namespace of the calling thread.
    """

    def __init__(self, host: str, target: str) -> None:
        self._host, self._target = host, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="silent-proxy", daemon=True)
        self._thread.start()
        self.address: str = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_S)
        """HOST:PORT to connect to."""

    def kill_connections(self) -> int:
        """Let all present connections die in silence. Return how many forwarded something until now."""
        found: Future[int] = Future()
        self._call(lambda: found.set_result(self._kill()))
        return found.result(_START_S)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_START_S)
        self._call(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _kill(self) -> int:
        fresh = self._writers - self._dead
        self._dead |= fresh
        return len(fresh) // 2

    async def _listen(self) -> str:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        with suppress(asyncio.CancelledError):  # the proxy ends; asyncio would print it
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one way until its end, which is forwarded too. What comes to a dead connection is read and lost."""
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if writer not in self._dead:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        if writer not in self._dead:
            writer.close()
