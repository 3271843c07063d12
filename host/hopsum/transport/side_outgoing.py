# SPDX-License-Identifier: Apache-2.0
"""The connections that a worker opens to one peer, and the queue of messages for it.

a connection ends                                       counted in
it cannot be made                                       `unreachable`; made again after a while
no REPLY within `PROVE_S`, or a wrong one               `refused`; the same
broken                                                  -; made again for the next message
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from hopsum.protocol.peer_messages import PeerMessageError
from hopsum.transport.side_connection import LENGTH_BYTES, PROVE_S, Address, SideStatistics, configure
from hopsum.transport.side_proof import REPLY_BYTES, GenerationKey, Seal, check_reply, make_hello

# A window of results of 1 KiB for a peer that was away for a moment. What is lost is asked for again.
QUEUE_BYTES_MAX: Final = 8 << 20
DIAL_AGAIN_S: Final = 0.1
DIAL_AGAIN_MAX_S: Final = 2.0
PROVE_AGAIN_MAX_S: Final = 0.5


class Outgoing:
    """A peer to which this worker writes in one generation. For the channel's thread only.

    Args:
        rank: of the peer.
        address: of the peer.
        own_rank: of this worker.
        own_ip: the address at which peers know this worker.
        key: of the generation.
        statistics: counts messages and failed connections.
    """

    def __init__(
        self, rank: int, address: Address, *, own_rank: int, own_ip: str, key: GenerationKey, statistics: SideStatistics
    ) -> None:
        self.rank, self._address = rank, address
        self._own_rank, self._own_ip, self._key, self._statistics = own_rank, own_ip, key, statistics
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queued_bytes = 0
        self.writer: asyncio.StreamWriter | None = None
        """The connection, None without one."""
        self._reader: asyncio.StreamReader

    def put(self, data: bytes) -> None:
        """Queue a message. If the queue is full, all earlier messages in it are dropped and counted as `slow`."""
        # Dropping all of the queue keeps memory bounded, and the peer asks again for what it still lacks.
        if self.queued_bytes + len(data) > QUEUE_BYTES_MAX:
            self._statistics.closed["slow"] += 1
            while not self.queue.empty():
                self.queued_bytes -= len(self.queue.get_nowait())
                self.queue.task_done()
        self.queue.put_nowait(data)
        self.queued_bytes += len(data)

    async def speak(self) -> None:
        """Send the queued messages, over one connection after the other."""
        seal = None
        try:
            while True:
                message = await self.queue.get()
                self.queued_bytes -= len(message)
                if seal is None or not self._is_connected:
                    seal = await self._dial()
                assert self.writer is not None
                self.writer.write(len(message).to_bytes(LENGTH_BYTES, "big") + message + seal.mac(message))
                self._statistics.messages_sent += 1
                # As fast as the peer reads.
                with contextlib.suppress(OSError):
                    await self.writer.drain()
                self.queue.task_done()
        finally:
            self._hang_up()

    async def _dial(self) -> Seal:
        """Connect to a peer, however long that takes. Return the seal of messages, once the peer has proved itself."""
        pause_s = DIAL_AGAIN_S
        while True:
            self._hang_up()
            try:
                async with asyncio.timeout(PROVE_S):
                    # Peers hear a member from its own address alone. On a host with several the kernel's choice is
                    # another one, where this one is not the first of its interface.
                    own = (self._own_ip, 0)
                    self._reader, self.writer = await asyncio.open_connection(*self._address, local_addr=own)
                    configure(self.writer)
                    # So `drain` returns when the kernel has everything, and `_hang_up` loses nothing.
                    self.writer.transport.set_write_buffer_limits(0)
                    hello = make_hello(self._own_rank, self.rank, self._key)
                    self.writer.write(hello)
                    return check_reply(await self._reader.readexactly(REPLY_BYTES), hello, self._key)
            except PeerMessageError as refused:
                self._statistics.closed[refused.reason] += 1
            except (OSError, asyncio.IncompleteReadError):  # a TimeoutError is an OSError
                pass
            if self.writer is None:
                self._statistics.unreachable += 1
                longest_s = DIAL_AGAIN_MAX_S
            else:
                self._statistics.refused += 1
                longest_s = PROVE_AGAIN_MAX_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    @property
    def _is_connected(self) -> bool:
        """Whether there is a connection, of which no end is known."""
        return self.writer is not None and not (self._reader.at_eof() or self.writer.is_closing())

    def _hang_up(self) -> None:
        """End the connection at once, if there is one. Unsent bytes are lost. The queue stays."""
        if self.writer is not None:
            # Not `close`, which waits for a peer that does not read.
            self.writer.transport.abort()
            self.writer = None
