# SPDX-License-Identifier: Apache-2.0
"""Messages between the workers of a job, over TCP, from members of the generation only (side_proof.py).

A worker has one channel for all shards of its job: a message names its shard. The channel's thread runs an asyncio
loop, and only that thread uses the fields, except `_news` and `_delivers`. It accepts connections from peers and reads
them (`_read_messages`). It opens one to each peer that gets a message, and writes it (`_speak`). Only the listener's
REPLY goes in the other direction. So an answer goes to the address that the job has for a rank, and never to another
sender.

    a connection ends                                       counted in
    incoming    no proof within `PROVE_S`, or a wrong one   `closed`, by reason
                the oldest of `UNPROVED_MAX` without proof  `closed`: one more has come
                HELLO of another generation                 `other_generations`
                anything but whole messages with their MAC  `closed`, by reason
                its rank has connected anew                 -
    outgoing    it cannot be made                           `unreachable`; made again after a while
                no REPLY within `PROVE_S`, or a wrong one   `refused`; the same
                broken                                      -; made again for the next message
    any         `move`: another generation                  -

A peer is dialled when a message is queued for it. A queue has at most `QUEUE_BYTES_MAX`. The protocol asks again for
lost messages (hopsum.protocol.repair).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerMessage, PeerMessageError
from hopsum.transport.side_proof import (
    HELLO_BYTES,
    MAC_BYTES,
    REPLY_BYTES,
    GenerationKey,
    Seal,
    check_hello,
    check_reply,
    make_hello,
    make_reply,
)

__all__ = ["Address", "GenerationKey", "SideChannel", "SideStatistics"]

Address = tuple[str, int]
_log: Final = logging.getLogger(__name__)
LENGTH_BYTES: Final = 4
# A window of results of 1 KiB for a peer that was away for a moment. What is lost is asked for again.
QUEUE_BYTES_MAX: Final = 8 << 20
DIAL_AGAIN_S: Final = 0.1
DIAL_AGAIN_MAX_S: Final = 2.0
CLOSE_LINGER_S: Final = 0.5
"""The seconds for which `close` tries to send the rest."""
PROVE_S: Final = 5.0
"""Seconds in which either side must prove itself, from the first packet of a connection."""
PROVE_AGAIN_MAX_S: Final = 0.5
# News saves memory at the peers, which need it before they have kept megabytes: nobody waits for them. Each costs a
# message, its MAC and a turn of a thread at both ends. So a worker sends 100 a second and receives 100: a hundredth of
# a processor. They are more only if results would be kept for longer than the maximum.
TELL_EVERY_S: Final = 0.02
"""The least seconds between two messages of news about a shard."""
TELL_EVERY_EACH_S: Final = 0.01
"""Seconds for each message of an interval, one to each peer about each shard, where these are more."""
TELL_EVERY_MAX_S: Final = 0.25
# As many as a job has workers. Strangers at a worker's address cannot take more descriptors than that.
UNPROVED_MAX: Final = 64
# A peer that has moved may be some connections ahead of the membership here. One that nobody can hear dials on.
STRANGERS_TOLD: Final = 10
"""Refused connections of a generation, from addresses that no peer has, after which one WARNING is logged."""
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


@dataclass(slots=True, eq=False)
class Outgoing:
    """A peer to which this worker writes in one generation: its connection, and the queue of messages for it."""

    rank: int
    address: Address
    queue: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    queued_bytes: int = 0
    speaker: asyncio.Task[None] | None = None
    reader: asyncio.StreamReader = field(init=False)
    writer: asyncio.StreamWriter | None = None
    """The connection, None without one."""

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection, of which no end is known."""
        return self.writer is not None and not (self.reader.at_eof() or self.writer.is_closing())

    def hang_up(self) -> None:
        """End the connection at once, if there is one. Unsent bytes are lost. The queue stays."""
        if self.writer is not None:
            # Not `close`, which waits for a peer that does not read.
            self.writer.transport.abort()
            self.writer = None

    def put(self, data: bytes) -> bool:
        """Queue a message. Return whether the queue was full: then all earlier messages in it were dropped."""
        is_full = self.queued_bytes + len(data) > QUEUE_BYTES_MAX
        # Dropping all of the queue keeps memory bounded, and the peer asks again for what it still lacks.
        while is_full and not self.queue.empty():
            self.queued_bytes -= len(self.queue.get_nowait())
            self.queue.task_done()
        self.queue.put_nowait(data)
        self.queued_bytes += len(data)
        return is_full


class IncomingConnections:
    """The open connections from peers to one worker. For the channel's thread only."""

    def __init__(self) -> None:
        self._unproved: dict[asyncio.StreamWriter, None] = {}
        """The connections without a proof, in the order in which they came."""
        self._proved: dict[int, asyncio.StreamWriter] = {}
        """The connections with a proof, by rank."""

    def add(self, writer: asyncio.StreamWriter) -> bool:
        """Add a connection without a proof. Return whether the oldest of UNPROVED_MAX others was closed for it."""
        is_crowded = len(self._unproved) >= UNPROVED_MAX
        if is_crowded:
            # The oldest has had the most time to prove itself.
            self.close(next(iter(self._unproved)))
        self._unproved[writer] = None
        return is_crowded

    def prove(self, writer: asyncio.StreamWriter, rank: int) -> None:
        """Note that a connection is one of a rank. Close the rank's older connection."""
        # The peer has connected anew, so its older connection is dead even if TCP does not know yet.
        if (older := self._proved.get(rank)) is not None:
            older.transport.abort()
        del self._unproved[writer]
        self._proved[rank] = writer

    def close(self, writer: asyncio.StreamWriter) -> None:
        """Close and forget a connection. Harmless for one that is forgotten."""
        self._unproved.pop(writer, None)
        self._proved = {rank: each for rank, each in self._proved.items() if each is not writer}
        writer.transport.abort()

    def close_all(self) -> None:
        """Close all connections."""
        for writer in (*self._unproved, *self._proved.values()):
            writer.transport.abort()


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
        self._incoming = IncomingConnections()
        self._strangers = 0
        """Connections of this generation from addresses that no peer has."""
        self._news: dict[int, PeerMessage] = {}
        """The latest news of each shard that was not sent yet."""
        self._has_news = asyncio.Event()
        """Cleared after an interval without news: the next one has to wake the thread."""
        self._delivers: dict[int, Callable[[PeerMessage], None]] = {}
        """By shard, the function that gets the messages about it."""

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
        self._incoming.close_all()
        for out in self._outgoing.values():
            assert out.speaker is not None
            out.speaker.cancel()
        self._key, self._strangers = key, 0
        self._outgoing = {rank: Outgoing(rank, peers[rank]) for rank in peers if rank != self._rank}
        for out in self._outgoing.values():
            out.speaker = self._start(self._speak(out))

    def _put(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Queue messages, (rank, bytes) each."""
        for rank, data in messages:
            # A rank that is lost has no address where another shard has moved first: its message is lost with it.
            if (out := self._outgoing.get(rank)) is not None and out.put(data):
                self.statistics.closed["slow"] += 1

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

    # ---- incoming -------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Before any byte is read: strangers cost one accept.
        if not self._lives_at(writer, *self._outgoing.values()):
            self._note_stranger(writer.get_extra_info("peername")[0])
            writer.transport.abort()
            return
        if self._incoming.add(writer):
            self.statistics.closed["crowd"] += 1
        # No `finally` in the task: one that is cancelled before its first step has none.
        self._start(self._read_messages(reader, writer)).add_done_callback(lambda _: self._incoming.close(writer))

    def _note_stranger(self, ip: str) -> None:
        self._strangers += 1
        if self._strangers == STRANGERS_TOLD:
            places = ", ".join(f"{out.address[0]} (rank {rank})" for rank, out in sorted(self._outgoing.items()))
            _log.warning(
                "rank %d has refused %d connections to its side channel, the last from %s: its peers live at %s. If %s "
                "is a host of one of them, it sends from another address than the one it joined with: look for address "
                "translation between the hosts, or set ip (HOPSUM_IP) there",
                self._rank,
                self._strangers,
                ip,
                places or "no address",
                ip,
            )
        self.statistics.closed["stranger"] += 1

    def _lives_at(self, writer: asyncio.StreamWriter, *peers: Outgoing | None) -> bool:
        """Say whether a connection comes from the address of one of the peers."""
        ip = writer.get_extra_info("peername")[0]
        return any(peer is not None and peer.address[0] == ip for peer in peers)

    async def _read_messages(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver the messages of a connection, and count its end."""
        try:
            await self._deliver_all(reader, writer)
        except PeerMessageError as refused:
            # At a change of generation some workers are earlier than others: no sign of an attack.
            if refused.reason == "generation":
                self.statistics.other_generations += 1
            else:
                self.statistics.closed[refused.reason] += 1
        except asyncio.IncompleteReadError as end:
            # The channel itself closes connections anywhere.
            if end.partial and not writer.is_closing():
                self.statistics.closed["truncated"] += 1
        except OSError:
            pass

    async def _deliver_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver the messages of a connection. Raises PeerMessageError, asyncio.IncompleteReadError, OSError."""
        key = self._key
        try:
            async with asyncio.timeout(PROVE_S):
                configure(writer)
                hello = await reader.readexactly(HELLO_BYTES)
                rank = check_hello(hello, self._rank, key)
                if not self._lives_at(writer, self._outgoing.get(rank)):
                    raise PeerMessageError("sender", f"rank {rank} does not live there")
                reply, seal = make_reply(hello, key)
                writer.write(reply)
                message = await self._read_message(reader, seal)
        except TimeoutError:
            raise PeerMessageError("silent", f"no proof within {PROVE_S} s") from None
        if writer.is_closing():
            return
        self._incoming.prove(writer, rank)
        while True:
            if message.sender != rank:
                raise PeerMessageError("sender", f"rank {message.sender} on the connection of rank {rank}")
            # What a connection of the generation before still has in its buffer proves nothing in this one.
            if not message.generation == key.generation == self._key.generation:
                self.statistics.other_generations += 1
            else:
                self.statistics.messages_received += 1
                # A shard that has not begun here is deaf. So is one that has ended, and one that the job has not.
                if (deliver := self._delivers.get(message.shard)) is not None:
                    deliver(message)
            message = await self._read_message(reader, seal)

    async def _read_message(self, reader: asyncio.StreamReader, seal: Seal) -> PeerMessage:
        """Return the next message. Raises IncompleteReadError with bytes where a message was cut off."""
        length = await reader.readexactly(LENGTH_BYTES)
        size = int.from_bytes(length, "big")
        if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
            raise PeerMessageError("length", f"a message of {size} bytes")
        try:
            data = memoryview(await reader.readexactly(size + MAC_BYTES))
        except (asyncio.IncompleteReadError, OSError):
            raise asyncio.IncompleteReadError(length, size) from None
        seal.check(data[:size], data[size:])
        return PeerMessage.unpack(data[:size])

    # ---- outgoing -------------------------------------------------------------------------------------

    async def _speak(self, out: Outgoing) -> None:
        """Send the queued messages to a peer, over one connection after the other."""
        seal = None
        try:
            while True:
                message = await out.queue.get()
                out.queued_bytes -= len(message)
                if seal is None or not out.is_connected:
                    seal = await self._dial(out)
                assert out.writer is not None
                out.writer.write(len(message).to_bytes(LENGTH_BYTES, "big") + message + seal.mac(message))
                self.statistics.messages_sent += 1
                # As fast as the peer reads.
                with contextlib.suppress(OSError):
                    await out.writer.drain()
                out.queue.task_done()
        finally:
            out.hang_up()

    async def _dial(self, out: Outgoing) -> Seal:
        """Connect to a peer, however long that takes. Return the seal of messages, once the peer has proved itself."""
        pause_s = DIAL_AGAIN_S
        while True:
            out.hang_up()
            try:
                async with asyncio.timeout(PROVE_S):
                    # Peers hear a member from its own address alone. On a host with several the kernel's choice is
                    # another one, where this one is not the first of its interface.
                    own = (self.address[0], 0)
                    out.reader, out.writer = await asyncio.open_connection(*out.address, local_addr=own)
                    configure(out.writer)
                    # So `drain` returns when the kernel has everything, and `hang_up` loses nothing.
                    out.writer.transport.set_write_buffer_limits(0)
                    hello = make_hello(self._rank, out.rank, self._key)
                    out.writer.write(hello)
                    return check_reply(await out.reader.readexactly(REPLY_BYTES), hello, self._key)
            except PeerMessageError as refused:
                self.statistics.closed[refused.reason] += 1
            except (OSError, asyncio.IncompleteReadError):  # a TimeoutError is an OSError
                pass
            if out.writer is None:
                self.statistics.unreachable += 1
                longest_s = DIAL_AGAIN_MAX_S
            else:
                self.statistics.refused += 1
                longest_s = PROVE_AGAIN_MAX_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)


def configure(writer: asyncio.StreamWriter) -> None:
    """Set the keep-alive options of a connection, so that a silent end is noticed. Raises OSError if it has ended."""
    connection = writer.get_extra_info("socket")
    for option in _KEEPALIVE:
        connection.setsockopt(*option)
