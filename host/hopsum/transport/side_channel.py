# SPDX-License-Identifier: Apache-2.0
"""Messages between the workers of a job, over TCP, from members of the generation only (side_proof.py).

A worker has one channel, whatever number of shards its job has: a message names its shard. The channel's thread runs an
asyncio loop. It accepts connections from peers, which it reads (`_hear`), and opens one
to each peer that something is said to, which it writes (`_speak`). The listener's REPLY alone goes the other way. So an
answer goes to the address that the job has for a rank, never to whoever asked.

    a connection ends                                       counted in
    incoming    no proof within `PROVE_S`, or a wrong one   `closed`, by reason
                the oldest of `UNPROVED_MAX` without proof  `closed`: one more has come
                HELLO of another generation                 `other_generations`
                anything but whole messages with their MAC  `closed`, by reason
                its rank has connected anew                 -
    outgoing    it cannot be made                           `unreachable`; made again after a while
                no REPLY within `PROVE_S`, or a wrong one   `refused`; the same
                broken                                      -; the same
    any         `move`: another generation                  -

A peer is connected to where something is queued for it, of `QUEUE_BYTES_MAX` at most. What is lost is asked for again:
that is the protocol's business (hopsum.protocol.repair).

News are told seldom (`tell_all`): all peers hear the latest of each shard at the end of an interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerMessage, PeerMessageError
from hopsum.transport.side_proof import (
    HELLO_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    Dialler,
    GenerationKey,
    Listener,
    Seal,
)

__all__ = ["Address", "GenerationKey", "SideChannel", "SideStatistics"]

Address = tuple[str, int]
LENGTH_BYTES: Final = 4
# A window of results of 1 KiB for a peer that was away for a moment. What is lost is asked for again.
QUEUE_BYTES_MAX: Final = 8 << 20
DIAL_AGAIN_S: Final = 0.1
DIAL_AGAIN_MAX_S: Final = 2.0
CLOSE_LINGER_S: Final = 0.5
"""The seconds for which `close` tries to send the rest."""
_CONNECTED_POLL_S: Final = 0.005
PROVE_S: Final = 5.0
"""Seconds that either side has to prove itself, from the first packet of a connection."""
PROVE_AGAIN_MAX_S: Final = 0.5
# News save memory at the peers, which need them before they have kept megabytes: nobody waits for them. Each costs a
# message, its MAC and a turn of a thread at both ends. So a worker says 100 a second and hears 100: a hundredth of a
# processor. They are more only where results would be kept for longer than the maximum.
TELL_EVERY_S: Final = 0.02
"""The least seconds between two news of a shard."""
TELL_EVERY_EACH_S: Final = 0.01
"""Seconds for each message of an interval, one to each peer about each shard, where these are more."""
TELL_EVERY_MAX_S: Final = 0.25
# As many as a job has workers. Strangers at a worker's address cannot take more descriptors than that.
UNPROVED_MAX: Final = 64
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 11_000),
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


@dataclass(slots=True, eq=False)
class Incoming:
    """A connection that a peer writes, once it has proved itself."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ip: str
    task: asyncio.Task[None] | None = None
    """Reads the connection. Its end closes the connection."""
    rank: int = -1
    """The rank that the other side says to have, from HELLO on."""
    generation: int | None = None
    """The generation that HELLO named, None before."""
    seal: Seal | None = None
    """The seal of messages, from the proof on."""

    def end(self) -> None:
        """Close the connection, from outside of its task."""
        if self.task is not None:
            self.task.cancel()


@dataclass(slots=True, eq=False)
class Outgoing:
    """A peer that is written to in one generation, and what is still to be said to it."""

    rank: int
    address: Address
    key: GenerationKey
    queue: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where something was queued, and where the connection has ended."""
    writer: asyncio.StreamWriter | None = None
    seal: Seal | None = None
    """The seal of messages, from the proof on: messages can be sent."""


class SideChannel:
    """One worker's connections to its peers. `send` may be called from any thread.

    Args:
        rank: whose channel it is.
        key: of its generation. Nothing of other generations is heard: at a change of generation some are earlier.
        local: (IPv4 address, TCP port) to listen at. Port 0: any.
        listener: instead of that, a TCP socket that listens already; closed with the channel.

    Raises:
        OSError: nobody can listen at `local`.
    """

    def __init__(self, rank: int, key: GenerationKey, local: Address, listener: socket.socket | None = None) -> None:
        self._rank = rank
        self.statistics = SideStatistics()
        self.failure: BaseException | None = None
        """The error that `deliver` raised, if it did: the channel has ended then."""
        self._listener = listener or socket.create_server(local)
        self._lock = threading.Lock()
        self._closing = False
        self._outgoing: dict[int, Outgoing] = {}
        self._members: tuple[GenerationKey, dict[int, str]] = key, {}
        """The generation's key, and the address of each peer that may prove itself."""
        self._unproved: list[Incoming] = []
        """The connections without a proof, in the order in which they came."""
        self._proved: dict[int, Incoming] = {}
        """The connections with a proof, by rank."""
        self._moved = True
        self._news: dict[int, PeerMessage] = {}
        """The latest news of each shard that no peer has been told."""
        self._interval: asyncio.TimerHandle | None = None
        """The end of the interval at which news are told, None after an interval without news."""
        self._quiet = True
        """True while the thread does not look for news by itself: the next ones have to wake it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None]
        """Done when the channel is to be closed, or a task has failed."""
        self._speakers: list[asyncio.Task[None]] = []
        self._thread: threading.Thread | None = None
        self._delivers: dict[int, Callable[[PeerMessage], None]] = {}
        """By shard, the function that gets the messages about it."""

    @property
    def address(self) -> Address:
        """Return the address that peers connect to."""
        host, port = self._listener.getsockname()
        return host, port

    def start(self, peers: Mapping[int, Address], deliver: Callable[[PeerMessage], None], shard: int = 0) -> None:
        """Begin to listen, or to hear of one more shard.

        Args:
            peers: (IPv4 address, TCP port) by rank, the same for all shards. This worker's own may be among them.
            deliver: is called in the channel's thread with every message about the shard, one after the other.
        """
        self._delivers[shard] = deliver
        if self._thread is not None:
            return
        self.move(self._members[0], peers)
        self._thread = threading.Thread(target=self._run, name=f"hopsum-peers-{self._rank}", daemon=True)
        self._thread.start()

    def move(self, key: GenerationKey, peers: Mapping[int, Address]) -> None:
        """Go on in a generation, with peers where they live now. The listening socket stays. Any thread may call it.

        Connections of the generation before end, and what was still to be said in it is lost: nobody would take it.
        All shards call it, and the first call counts.
        """
        if self._thread is not None and key == self._members[0]:
            return
        others = {rank: address for rank, address in peers.items() if rank != self._rank}
        # Dicts are replaced as a whole: the channel's thread sees the old or the new peers, never half of them.
        self._members = key, {rank: address[0] for rank, address in others.items()}
        self._outgoing = {rank: Outgoing(rank, address, key) for rank, address in others.items()}
        # The thread closes the connections itself: asyncio's objects are for one thread.
        self._moved = True
        self._look_up()

    def send(self, rank: int, message: PeerMessage) -> None:
        """Say something to a peer, sooner or later or never."""
        self.send_all([(rank, message)])

    def send_all(self, messages: Sequence[tuple[int, PeerMessage]]) -> None:
        """Say something to several peers: (rank, message) each, as `send`."""
        for rank, message in messages:
            # A rank that is lost has no address where another shard has moved first: its message is lost with it.
            if (out := self._outgoing.get(rank)) is not None:
                self._put(out, message.pack())
        if messages:
            self._look_up()

    def tell_all(self, news: PeerMessage) -> None:
        """Say something to all peers after an interval, or not at all where later news of the shard take its place.

        For one thread of each shard at a time.
        """
        self._news[news.shard] = news
        # Read after the news are there: the thread looks for news after it changes this. So they cost a wake-up only
        # after an interval without any.
        if self._quiet:
            self._quiet = False
            self._look_up()

    def require_open(self) -> None:
        """Raise HopsumError if the channel has ended. Its cause is attached."""
        if self.failure is not None:
            raise HopsumError(f"the side channel of rank {self._rank} has ended: {self.failure}") from self.failure

    def close(self, shard: int = 0) -> None:
        """Hear no more of a shard. After the last one, end the thread when peers that are connected have been told all.

        Harmless when it is closed.
        """
        with self._lock:
            self._delivers.pop(shard, None)
            if self._delivers:
                return
        self._closing = True
        self._look_up()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()

    def _put(self, out: Outgoing, data: bytes) -> None:
        """Queue a message for a peer."""
        with self._lock:
            if out.queued_bytes + len(data) > QUEUE_BYTES_MAX:
                # Dropping all of the queue keeps memory bounded, and the peer asks again for what it still lacks.
                self.statistics.closed["slow"] += 1
                out.queue.clear()
                out.queued_bytes = 0
            out.queue.append(data)
            out.queued_bytes += len(data)

    def _put_news(self) -> bool:
        """Queue the latest news, if there are any. Say whether there were."""
        told = bool(self._news)
        while self._news:
            # One call takes the news out: another thread may put later ones there at any moment.
            _, news = self._news.popitem()
            # News of the generation before are of no use to anybody.
            if news.generation == self._members[0].generation:
                data = news.pack()
                for out in self._outgoing.values():
                    self._put(out, data)
        return told

    def _look_up(self) -> None:
        """Make the thread look at what other threads have changed."""
        if threading.current_thread() is self._thread:
            self._see()
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._see)

    # ---- the channel's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self.failure = failure

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        server = await asyncio.start_server(self._accept, sock=self._listener)
        # After the loop is known: what other threads change from now on wakes it.
        self._see()
        try:
            await self._ended
            self._put_news()
            await asyncio.gather(*map(self._finish, self._outgoing.values()))
        finally:
            server.close()

    def _see(self) -> None:
        """Do what other threads have asked for since the last time."""
        if self._closing and not self._ended.done():
            self._ended.set_result(None)
        if self._moved:
            self._moved = False
            self._renew()
        if self._loop is not None and self._interval is None and not self._quiet:
            each_s = TELL_EVERY_EACH_S * len(self._outgoing) * len(self._delivers)
            every_s = max(TELL_EVERY_S, min(each_s, TELL_EVERY_MAX_S))
            self._interval = self._loop.call_later(every_s, self._end_interval)
        for out in self._outgoing.values():
            if out.queue:
                out.awake.set()

    def _renew(self) -> None:
        """Close connections of the generation before, and those from where nobody lives any more."""
        for speaker in self._speakers:
            speaker.cancel()
        self._speakers = [self._start(self._speak(out)) for out in self._outgoing.values()]
        key, peers = self._members
        for incoming in [*self._unproved, *self._proved.values()]:
            if incoming.ip not in peers.values() or incoming.generation not in (None, key.generation):
                incoming.end()

    def _end_interval(self) -> None:
        """Tell the news. After an interval without any the next ones wake the thread."""
        # `_quiet` is set first, then the news are looked for: see `tell_all`.
        self._interval, self._quiet = None, True
        if self._put_news():
            self._quiet = False
        self._see()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let a task work. An error in it ends the channel."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(failure)

    # ---- incoming -------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming = Incoming(reader, writer, writer.get_extra_info("peername")[0])
        # Before any byte is read: strangers cost one accept.
        if incoming.ip not in self._members[1].values():
            self.statistics.closed["stranger"] += 1
            writer.transport.abort()
            return
        if len(self._unproved) >= UNPROVED_MAX:
            self.statistics.closed["crowd"] += 1
            # The oldest has had the most time to prove itself.
            self._unproved.pop(0).end()
        self._unproved.append(incoming)
        incoming.task = self._start(self._hear(incoming))
        # No `finally` in the task: one that is cancelled before its first step has none.
        incoming.task.add_done_callback(lambda _: self._close(incoming))

    def _close(self, incoming: Incoming) -> None:
        if incoming in self._unproved:
            self._unproved.remove(incoming)
        if self._proved.get(incoming.rank) is incoming:
            del self._proved[incoming.rank]
        incoming.writer.transport.abort()

    async def _hear(self, incoming: Incoming) -> None:
        while (message := await self._next_heard(incoming)) is not None:
            # A shard that has not begun here is deaf. So is one that has ended, and one that the job has not.
            if (deliver := self._delivers.get(message.shard)) is not None:
                deliver(message)

    async def _next_heard(self, incoming: Incoming) -> PeerMessage | None:
        """Return the next message of a connection, None at its end."""
        try:
            if incoming.seal is None:
                incoming.seal = await self._prove(incoming)
            while True:
                message = await self._read_message(incoming, incoming.seal)
                if message.sender != incoming.rank:
                    raise PeerMessageError("sender", f"rank {message.sender} on the connection of rank {incoming.rank}")
                if message.generation == incoming.generation == self._members[0].generation:
                    self.statistics.messages_received += 1
                    return message
                self.statistics.other_generations += 1
        except PeerMessageError as refused:
            # At a change of generation some workers are earlier than others: no sign of an attack.
            if refused.reason == "generation":
                self.statistics.other_generations += 1
            else:
                self.statistics.closed[refused.reason] += 1
        except asyncio.IncompleteReadError as end:
            if end.partial:
                self.statistics.closed["truncated"] += 1
        except OSError:
            pass
        return None

    async def _prove(self, incoming: Incoming) -> Seal:
        """Go through with the handshake. Raises PeerMessageError, asyncio.IncompleteReadError, OSError."""
        try:
            async with asyncio.timeout(PROVE_S):
                configure(incoming.writer)
                hello = await self._read(incoming, HELLO_BYTES)
                key, peers = self._members
                listener = Listener(self._rank, key, secrets.token_bytes(NONCE_BYTES))
                reply = listener.take(hello)
                if peers.get(listener.peer) != incoming.ip:
                    raise PeerMessageError("sender", f"rank {listener.peer} does not live at {incoming.ip}")
                incoming.rank, incoming.generation = listener.peer, key.generation
                incoming.writer.write(reply)
                seal = listener.check(await self._read(incoming, PROOF_BYTES))
        except TimeoutError:
            raise PeerMessageError("silent", f"no proof within {PROVE_S} s") from None
        # The peer has connected anew, so its older connection is dead even if TCP does not know yet.
        older = self._proved.get(incoming.rank)
        if older is not None:
            older.end()
        self._unproved.remove(incoming)
        self._proved[incoming.rank] = incoming
        return seal

    async def _read_message(self, incoming: Incoming, seal: Seal) -> PeerMessage:
        """Return the next message. Raises as `_prove`: IncompleteReadError has bytes where a message was cut off."""
        length = await self._read(incoming, LENGTH_BYTES)
        size = int.from_bytes(length, "big")
        if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
            raise PeerMessageError("length", f"a message of {size} bytes")
        try:
            data = memoryview(await self._read(incoming, size + MAC_BYTES))
        except (asyncio.IncompleteReadError, OSError):
            raise asyncio.IncompleteReadError(length, size) from None
        seal.check(data[:size], data[size:])
        return PeerMessage.unpack(data[:size])

    async def _read(self, incoming: Incoming, size: int) -> bytes:
        data = await incoming.reader.readexactly(size)
        self.statistics.bytes_received += size
        return data

    # ---- outgoing -------------------------------------------------------------------------------------

    async def _speak(self, out: Outgoing) -> None:
        """Say what is queued for a peer, over one connection after the other."""
        pause_s = DIAL_AGAIN_S
        while True:
            while not out.queue:
                out.awake.clear()
                await out.awake.wait()
            until = asyncio.get_running_loop().time() + PROVE_S
            try:
                async with asyncio.timeout_at(until):
                    reader, out.writer = await asyncio.open_connection(*out.address)
            except OSError:  # or TimeoutError, which is one
                self.statistics.unreachable += 1
                longest_s = DIAL_AGAIN_MAX_S
            else:
                longest_s = PROVE_AGAIN_MAX_S
                try:
                    out.seal = await self._greet(out, reader, out.writer, until)
                    if out.seal is not None:
                        pause_s = DIAL_AGAIN_S
                        await self._say(out, reader)
                finally:
                    # Not `close`, which waits for a peer that does not read.
                    out.writer.transport.abort()
                    out.writer, out.seal = None, None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _greet(
        self, out: Outgoing, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: float
    ) -> Seal | None:
        """Go through with the handshake. Return the seal of messages, None where the other side is no peer."""
        dialler = Dialler(self._rank, out.rank, out.key, secrets.token_bytes(NONCE_BYTES))
        try:
            async with asyncio.timeout_at(until):
                configure(writer)
                self._write(writer, dialler.hello)
                proof, seal = dialler.take(await reader.readexactly(REPLY_BYTES))
        except PeerMessageError as refused:
            self.statistics.closed[refused.reason] += 1
        except (OSError, asyncio.IncompleteReadError):
            pass
        else:
            self._write(writer, proof)
            return seal
        self.statistics.refused += 1
        return None

    async def _say(self, out: Outgoing, reader: asyncio.StreamReader) -> None:
        """Say what is queued, until the connection ends."""
        end = asyncio.get_running_loop().create_task(_await_end(reader))
        end.add_done_callback(lambda _: out.awake.set())
        try:
            while not end.done():
                out.awake.clear()
                await self._send_queue(out)
                await out.awake.wait()
        except OSError:
            return
        finally:
            end.cancel()

    async def _send_queue(self, out: Outgoing) -> None:
        """Send what is queued, as fast as the peer reads. Raises OSError."""
        assert out.writer is not None
        while out.seal is not None and out.queue:
            with self._lock:
                message = out.queue.popleft()
                out.queued_bytes -= len(message)
            self._write(out.writer, len(message).to_bytes(LENGTH_BYTES, "big") + message + out.seal.mac(message))
            self.statistics.messages_sent += 1
            await out.writer.drain()

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        self.statistics.bytes_sent += len(data)

    async def _finish(self, out: Outgoing) -> None:
        """Send the rest, and close the connection."""
        writer = None
        try:
            async with asyncio.timeout(CLOSE_LINGER_S):
                # What is said last, such as LEAVE, may be the first in a generation that the peer begins later.
                while out.queue and out.seal is None:
                    await asyncio.sleep(_CONNECTED_POLL_S)
                # Kept, since the speaker forgets its connection when that ends.
                writer = out.writer
                if out.seal is None or writer is None:
                    return
                await self._send_queue(out)
                writer.close()
                await writer.wait_closed()
        except OSError:  # or TimeoutError, which is one
            if writer is not None:
                writer.transport.abort()


async def _await_end(reader: asyncio.StreamReader) -> None:
    """Wait for the end of a connection to a peer, which says nothing after its REPLY."""
    with contextlib.suppress(OSError):
        await reader.read(1)


def configure(writer: asyncio.StreamWriter) -> None:
    """Let a silent end of a connection be noticed by the kernel. Raises OSError: it has ended."""
    connection = writer.get_extra_info("socket")
    for option in _KEEPALIVE:
        connection.setsockopt(*option)
