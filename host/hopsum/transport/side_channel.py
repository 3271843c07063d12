# SPDX-License-Identifier: Apache-2.0
"""Messages between the workers of a job, over TCP, from members of the generation only (side_proof.py).

A worker has one channel for all shards of its job: a message names its shard. The channel's thread runs an asyncio
loop, and only that thread uses the fields, except `_news` and `_delivers`. It accepts connections from peers and reads
them (side_incoming.py). It opens one to each peer that gets a message, and writes it (side_outgoing.py). Only the
listener's REPLY goes in the other direction. So an answer goes to the address that the job has for a rank, and never to
another sender. `move` ends all connections: another generation begins.

A peer is dialled when a message is queued for it. A queue has at most `QUEUE_BYTES_MAX`. The protocol asks again for
lost messages (hopsum.protocol.repair).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import PeerMessage
from hopsum.transport.side_connection import Address, SideStatistics
from hopsum.transport.side_incoming import IncomingConnections
from hopsum.transport.side_outgoing import Outgoing
from hopsum.transport.side_proof import GenerationKey

__all__ = ["Address", "GenerationKey", "SideChannel", "SideStatistics"]

CLOSE_LINGER_S: Final = 0.5
"""The seconds for which `close` tries to send the rest."""
# News saves memory at the peers, which need it before they have kept megabytes: nobody waits for them. Each costs a
# message, its MAC and a turn of a thread at both ends. So a worker sends 100 a second and receives 100: a hundredth of
# a processor. They are more only if results would be kept for longer than the maximum.
TELL_EVERY_S: Final = 0.02
"""The least seconds between two messages of news about a shard."""
TELL_EVERY_EACH_S: Final = 0.01
"""Seconds for each message of an interval, one to each peer about each shard, where these are more."""
TELL_EVERY_MAX_S: Final = 0.25


class SideChannel:
    """One worker's connections to its peers. It listens from the constructor on, and reads from `start` on.

    Methods are for any thread unless they say otherwise.

    Args:
        rank: of this worker.
        key: of its generation. Messages of other generations are ignored.
        local: (IPv4 address, TCP port) to listen at. Port 0: any.
        listener: instead of that, a TCP socket that listens already; closed with the channel.

    Raises:
        OSError: the channel cannot listen at `local`.
    """

    def __init__(self, rank: int, key: GenerationKey, local: Address, listener: socket.socket | None = None) -> None:
        self._rank, self._key = rank, key
        self.statistics = SideStatistics()
        self.failure: BaseException | None = None
        """The error that ended the channel, for example one that `deliver` raised, or None."""
        self._listener = listener or socket.create_server(local)
        self._loop = asyncio.new_event_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the channel is to be closed, or a task has failed."""
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """All tasks: asyncio itself does not keep them alive."""
        self._outgoing: dict[int, Outgoing] = {}
        self._speakers: list[asyncio.Task[None]] = []
        """The tasks that write to peers in this generation."""
        self._news: dict[int, PeerMessage] = {}
        """The latest news of each shard that was not sent yet."""
        self._has_news = asyncio.Event()
        """Cleared after an interval without news: the next one has to wake the thread."""
        self._delivers: dict[int, Callable[[PeerMessage], None]] = {}
        """By shard, the function that gets the messages about it."""
        self._incoming = IncomingConnections(rank, self._delivers, self.statistics)

    @property
    def address(self) -> Address:
        """Return the address that peers connect to."""
        host, port = self._listener.getsockname()
        return host, port

    def start(self, peers: Mapping[int, Address], deliver: Callable[[PeerMessage], None], shard: int = 0) -> None:
        """Begin to deliver the messages about a shard. The first call starts the channel's thread.

        Args:
            peers: (IPv4 address, TCP port) by rank, the same for all shards. This worker's own may be among them.
            deliver: called in the channel's thread with every message about the shard, one after the other. An error
                that it raises ends the channel.
            shard: the number of the shard.
        """
        self._delivers[shard] = deliver
        if self._thread is None:
            # Before the first connection is accepted.
            self._do(self._enter, self._key, peers)
            self._thread = threading.Thread(target=self._run, name=f"hopsum-peers-{self._rank}", daemon=True)
            self._thread.start()

    def move(self, key: GenerationKey, peers: Mapping[int, Address]) -> None:
        """Continue in a generation, with its key and the peers' present addresses. The listening socket stays.

        Connections of the previous generation end, and its unsent messages are lost. All shards call this; only the
        first call of a generation counts. Returns at once.
        """
        self._do(self._enter, key, peers)

    def send_all(self, messages: Sequence[tuple[int, PeerMessage]]) -> None:
        """Queue messages to peers, (rank, message) each, and return at once. Any of them may be lost.

        A rank without an address gets nothing.
        """
        if messages:
            self._do(self._put, [(rank, message.pack()) for rank, message in messages])

    def broadcast(self, news: PeerMessage) -> None:
        """Send a message to all peers after an interval. Later news of the same shard in the interval replaces it.

        News of another generation is dropped. Returns at once. For one thread of each shard at a time.
        """
        self._news[news.shard] = news
        # Read after the news is there: the thread looks for news after it changes this. So it costs a wake-up only
        # after an interval without any.
        if not self._has_news.is_set():
            self._do(self._has_news.set)

    @property
    def shards(self) -> int:
        """Return the number of shards whose messages the channel delivers."""
        return len(self._delivers)

    def require_open(self) -> None:
        """Raise HopsumError if the channel has ended. Its cause is attached."""
        if self.failure is not None:
            raise HopsumError(f"the side channel of rank {self._rank} has ended: {self.failure}") from self.failure

    def close(self, shard: int = 0) -> None:
        """Deliver no more messages about a shard. After the last shard, send the queued messages and end the channel.

        Sending is limited to CLOSE_LINGER_S. Then the thread has ended and the sockets are closed. May be called again.
        """
        self._delivers.pop(shard, None)
        if self._delivers:
            return
        self._do(self._end)
        if self._thread is not None:
            self._thread.join()
        self._loop.close()
        self._listener.close()

    def _do(self, work: Callable[..., object], *args: object) -> None:
        """Have the channel's thread do some work, after all that it was given before."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work, *args)

    # ---- the channel's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            self.failure = failure

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._listener)
        self._start(self._tell())
        try:
            await self._ended
            self._put_news()
            # What is said last, such as LEAVE, may be the first in a generation that the peer begins later.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_LINGER_S):
                    await asyncio.gather(*(out.queue.join() for out in self._outgoing.values()))
        finally:
            server.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a task work. An error in it ends the channel."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(failure)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _enter(self, key: GenerationKey, peers: Mapping[int, Address]) -> None:
        """Begin a generation, unless that was done. Peers that are in it already dial again."""
        if key == self._key and self._outgoing:
            return
        others = {rank: address for rank, address in peers.items() if rank != self._rank}
        self._key = key
        self._incoming.enter(key, others)
        for speaker in self._speakers:
            speaker.cancel()
        self._outgoing = {
            rank: Outgoing(
                rank, address, own_rank=self._rank, own_ip=self.address[0], key=key, statistics=self.statistics
            )
            for rank, address in others.items()
        }
        self._speakers = [self._start(out.speak()) for out in self._outgoing.values()]

    def _put(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Queue messages, (rank, bytes) each."""
        for rank, data in messages:
            # A rank that is lost has no address where another shard has moved first: its message is lost with it.
            if (out := self._outgoing.get(rank)) is not None:
                out.put(data)

    async def _tell(self) -> None:
        """Queue the latest news at the end of each interval."""
        while True:
            await self._has_news.wait()
            each_s = TELL_EVERY_EACH_S * len(self._outgoing) * len(self._delivers)
            await asyncio.sleep(max(TELL_EVERY_S, min(each_s, TELL_EVERY_MAX_S)))
            if not self._put_news():
                # Cleared first, then the news is looked for: see `broadcast`.
                self._has_news.clear()
                self._put_news()

    def _put_news(self) -> bool:
        """Queue the latest news, if there is any. Say whether there was."""
        told = bool(self._news)
        while self._news:
            # One call takes the news out: another thread may put later ones there at any moment.
            _, news = self._news.popitem()
            # News of the generation before is of no use to anybody.
            if news.generation == self._key.generation:
                data = news.pack()
                self._put([(rank, data) for rank in self._outgoing])
        return told

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._incoming.admit(writer):
            # No `finally` in the task: one that is cancelled before its first step has none.
            self._start(self._incoming.read(reader, writer)).add_done_callback(lambda _: self._incoming.close(writer))
