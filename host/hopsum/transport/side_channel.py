# SPDX-License-Identifier: Apache-2.0
"""Messages between the workers of a job, over TCP, from members of the generation only (side_proof.py).

One thread per channel accepts connections from peers, which it reads, and opens one to each peer that something is said
to, which it writes. The listener's REPLY alone goes the other way. So an answer goes to the address that the job has
for a rank, never to whoever asked.

    incoming    input                                              next
    UNPROVED    HELLO of this generation, from a peer's address    UNPROVED REPLY
    UNPROVED    PROOF, right                                       OPEN     an older one of the same rank is closed
    UNPROVED    HELLO of another generation                        CLOSED   counted in `other_generations`
    UNPROVED    anything else; `PROVE_S` over; one too many        CLOSED   counted in `closed`, by reason
    OPEN        a whole message with its MAC                       OPEN     delivered
    OPEN        anything else, an end in the middle of a message   CLOSED   counted in `closed`, by reason
    any         `move`: another generation                         CLOSED

    outgoing    input                                              next
    NONE        something to say                                   DIALS
    DIALS       connected                                          PROVES   HELLO
    DIALS       refused or no answer                               WAITS    counted as unreachable
    PROVES      REPLY, right                                       OPEN     PROOF
    PROVES      anything else, an end, `PROVE_S` over              WAITS    counted in `refused`
    WAITS       a while is over, something to say                  DIALS
    OPEN        broken                                             WAITS    what was half sent is lost
    any         more than `QUEUE_BYTES_MAX` to say                 NONE     all of it is lost: "slow"
    any         `move`: another generation                         NONE     all of it is lost

No more than `UNPROVED_MAX` connections are UNPROVED: the oldest makes room. What is lost is asked for again: that is
the protocol's business (hopsum.protocol.repair).

News are told seldom (`tell_all`): all peers hear the latest of them at the end of an interval.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerMessage, PeerMessageError
from hopsum.transport.side_connections import (
    DIAL_AGAIN_S,
    Address,
    Incoming,
    Outgoing,
    SideStatistics,
    configure,
    left_s,
)
from hopsum.transport.side_proof import (
    HELLO_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    Dialler,
    GenerationKey,
    Listener,
)

__all__ = ["Address", "GenerationKey", "SideChannel", "SideStatistics"]

LENGTH_BYTES: Final = 4
# A window of results of 1 KiB for a peer that was away for a moment. What is lost is asked for again.
QUEUE_BYTES_MAX: Final = 8 << 20
READ_BYTES: Final = 1 << 16
DIAL_AGAIN_MAX_S: Final = 2.0
CLOSE_LINGER_S: Final = 0.5
"""The seconds for which `close` tries to send the rest, per peer."""
PROVE_S: Final = 5.0
"""Seconds that either side has to prove itself, from the first packet of a connection."""
PROVE_AGAIN_MAX_S: Final = 0.5
# News save memory at the peers, which need them before they have kept megabytes: nobody waits for them. Each costs a
# message, its MAC and a turn of a thread at both ends. So a worker has 100 a second to say and to hear at most, however
# many peers it has: a hundredth of a processor.
TELL_EVERY_S: Final = 0.02
"""The least seconds between two news."""
TELL_EVERY_PER_PEER_S: Final = 0.01
"""Seconds for each peer, where these are more."""
# As many as a job has workers. Strangers at a worker's address cannot take more descriptors than that.
UNPROVED_MAX: Final = 64


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
        self._listener.setblocking(False)
        # The channel's thread waits in select: `send` from another thread ends the wait through this pair.
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._outgoing: dict[int, Outgoing] = {}
        self._retired: deque[Outgoing] = deque()
        """The connections of the generation before, which are still to be closed."""
        self._members: tuple[GenerationKey, dict[int, str]] = key, {}
        """The generation's key, and the address of each peer that may prove itself."""
        self._unproved: dict[int, Incoming] = {}
        """The connections without a proof by descriptor, in the order in which they came."""
        self._proved: dict[int, Incoming] = {}
        """The connections with a proof, by rank."""
        self._moved = False
        self._news: deque[PeerMessage] = deque(maxlen=1)
        """The latest news that no peer has been told."""
        self._tell_at: float | None = None
        """The end of the interval that the thread waits for, None after an interval without news."""
        self._quiet = True
        """True while the thread does not look for news by itself: the next ones have to wake it."""
        self._thread: threading.Thread | None = None
        self._deliver: Callable[[PeerMessage], None] = lambda message: None

    @property
    def address(self) -> Address:
        """Return the address that peers connect to."""
        host, port = self._listener.getsockname()
        return host, port

    def start(self, peers: Mapping[int, Address], deliver: Callable[[PeerMessage], None]) -> None:
        """Begin to listen.

        Args:
            peers: (IPv4 address, TCP port) by rank. This worker's own may be among them.
            deliver: is called in the channel's thread with every message, one after the other.
        """
        self._deliver = deliver
        self.move(self._members[0], peers)
        self._thread = threading.Thread(target=self._serve, name=f"hopsum-peers-{self._rank}", daemon=True)
        self._thread.start()

    def move(self, key: GenerationKey, peers: Mapping[int, Address]) -> None:
        """Go on in a generation, with peers where they live now. The listening socket stays. Any thread may call it.

        Connections of the generation before end, and what was still to be said in it is lost: nobody would take it.
        """
        others = {rank: address for rank, address in peers.items() if rank != self._rank}
        # Dicts are replaced as a whole: the channel's thread sees the old or the new peers, never half of them.
        before = self._outgoing
        self._members = key, {rank: address[0] for rank, address in others.items()}
        self._outgoing = {rank: Outgoing(rank, address, key) for rank, address in others.items()}
        # The thread closes sockets itself: another thread must not close what select waits on.
        self._retired.extend(before.values())  # after they are out of reach
        self._moved = True
        self._look_up()

    def send(self, rank: int, message: PeerMessage) -> None:
        """Say something to a peer, sooner or later or never. Raises KeyError for a rank without an address."""
        self._put(self._outgoing[rank], message.pack())
        self._look_up()

    def send_all(self, messages: Sequence[tuple[int, PeerMessage]]) -> None:
        """Say something to several peers: (rank, message) each, as `send`."""
        for rank, message in messages:
            self._put(self._outgoing[rank], message.pack())
        if messages:
            self._look_up()

    def tell_all(self, news: PeerMessage) -> None:
        """Say something to all peers within some `TELL_EVERY_S`, or not at all where later news take its place.

        For one thread at a time.
        """
        self._news.append(news)
        # Read after the news are there: the thread looks for news after it changes this. So they cost a wake-up only
        # after an interval without any.
        if self._quiet:
            self._quiet = False
            self._look_up()

    def require_open(self) -> None:
        """Raise HopsumError if the channel has ended. Its cause is attached."""
        if self.failure is not None:
            raise HopsumError(f"the side channel of rank {self._rank} has ended: {self.failure}") from self.failure

    def close(self) -> None:
        """End the thread, after what is still to be said to peers that are connected. Harmless when it is closed."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._look_up()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        self._woken.close()
        self._wake.close()
        self._selector.close()

    # ---- the channel's thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        try:
            while not self._closing.is_set():
                self._retire()
                self._expire()
                self._tell()
                self._write_all()
                for key, events in self._selector.select(self._patience_s()):
                    self._happened(key, events)
            self._put_news()
            self._drain_before_close()
        except BaseException as failure:
            self.failure = failure
        finally:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.data, Incoming | Outgoing):
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]  # registered as sockets only

    def _retire(self) -> None:
        """Close connections of the generation before, and those from where nobody lives any more."""
        if not self._moved:
            return
        self._moved = False
        while self._retired:
            out = self._retired.popleft()
            if out.connection is not None:
                self._hang_up(out)
        key, peers = self._members
        ips = set(peers.values())
        for incoming in [*self._unproved.values(), *self._proved.values()]:
            if incoming.ip not in ips or incoming.generation not in (None, key.generation):
                self._close_incoming(incoming)

    def _expire(self) -> None:
        """Close connections whose other side has not proved itself in time."""
        now = time.monotonic()
        for incoming in [each for each in self._unproved.values() if each.until <= now]:
            self.statistics.closed["silent"] += 1
            self._close_incoming(incoming)
        for out in self._outgoing.values():
            if out.connection is not None and out.seal is None and out.until <= now:
                self._hang_up(out)

    def _happened(self, key: selectors.SelectorKey, events: int) -> None:
        if isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() < 0:
            return  # closed by what happened before
        if isinstance(key.data, Incoming):
            self._read(key.data)
        elif isinstance(key.data, Outgoing):
            self._ready(key.data, events)
        elif key.fileobj is self._listener:
            self._accept()
        else:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(READ_BYTES)

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

    def _tell(self) -> None:
        """Queue news for all peers when it is time."""
        now = time.monotonic()
        if self._tell_at is None:
            if not self._quiet:
                self._tell_at = now + self._tell_every_s
        elif now >= self._tell_at:
            if self._put_news():
                self._tell_at = now + self._tell_every_s
                return
            # An interval without news. `_quiet` is set first, then the news are looked for: see `tell_all`.
            self._tell_at, self._quiet = None, True
            if self._news:
                self._tell_at, self._quiet = now + self._tell_every_s, False

    def _put_news(self) -> bool:
        """Queue the latest news, if there are any. Say whether there were."""
        if not self._news:
            return False
        news = self._news.popleft()
        # News of the generation before are of no use to anybody.
        if news.generation == self._members[0].generation:
            data = news.pack()
            for out in self._outgoing.values():
                self._put(out, data)
        return True

    @property
    def _tell_every_s(self) -> float:
        return max(TELL_EVERY_S, TELL_EVERY_PER_PEER_S * len(self._outgoing))

    def _look_up(self) -> None:
        """Make the thread look at what is to be sent. It looks by itself at what it has queued."""
        if threading.current_thread() is self._thread:
            return
        with contextlib.suppress(OSError):  # full: it will look anyway; closed: nobody does
            self._wake.send(b"\0")

    def _patience_s(self) -> float | None:
        """Return the seconds until the next dial, proof or news are due, None without any."""
        outgoing = self._outgoing.values()
        dials = [out.dial_at for out in outgoing if out.connection is None and out.queue]
        proves = [out.until for out in outgoing if out.connection is not None and out.seal is None]
        tells = [] if self._tell_at is None else [self._tell_at]
        return left_s([*dials, *proves, *tells, *(each.until for each in self._unproved.values())])

    # ---- incoming -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, (ip, _) = self._listener.accept()
        except OSError:  # gone again
            return
        # Before any byte is read: strangers cost one accept.
        if ip not in self._members[1].values():
            self.statistics.closed["stranger"] += 1
            connection.close()
            return
        if len(self._unproved) >= UNPROVED_MAX:
            self.statistics.closed["crowd"] += 1
            # The oldest has had the most time to prove itself.
            self._close_incoming(next(iter(self._unproved.values())))
        configure(connection)
        incoming = Incoming(connection, ip, time.monotonic() + PROVE_S)
        self._unproved[connection.fileno()] = incoming
        self._selector.register(connection, selectors.EVENT_READ, incoming)

    def _read(self, incoming: Incoming) -> None:
        try:
            data = incoming.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        incoming.buffer += data
        self.statistics.bytes_received += len(data)
        try:
            if incoming.seal is None:
                self._prove(incoming)
            if incoming.seal is not None:
                self._take_messages(incoming)
            if data:
                return
            if incoming.buffer:
                raise PeerMessageError("truncated", f"{len(incoming.buffer)} bytes are no message")
        except PeerMessageError as refused:
            # At a change of generation some workers are earlier than others: no sign of an attack.
            if refused.reason == "generation":
                self.statistics.other_generations += 1
            else:
                self.statistics.closed[refused.reason] += 1
        self._close_incoming(incoming)

    def _close_incoming(self, incoming: Incoming) -> None:
        self._unproved.pop(incoming.connection.fileno(), None)
        if self._proved.get(incoming.rank) is incoming:
            del self._proved[incoming.rank]
        self._selector.unregister(incoming.connection)
        incoming.connection.close()

    def _prove(self, incoming: Incoming) -> None:
        """Go on with the handshake as far as the buffer does. Raises PeerMessageError."""
        buffer = incoming.buffer
        if incoming.listener is None and len(buffer) >= HELLO_BYTES:
            key, peers = self._members
            listener = Listener(self._rank, key, secrets.token_bytes(NONCE_BYTES))
            reply = listener.take(bytes(buffer[:HELLO_BYTES]))
            if peers.get(listener.peer) != incoming.ip:
                raise PeerMessageError("sender", f"rank {listener.peer} does not live at {incoming.ip}")
            incoming.listener = listener
            with contextlib.suppress(OSError):  # a connection that broke is read to its end
                incoming.connection.send(reply)
            del buffer[:HELLO_BYTES]
        if incoming.listener is None or len(buffer) < PROOF_BYTES:
            return
        seal = incoming.listener.check(bytes(buffer[:PROOF_BYTES]))
        del buffer[:PROOF_BYTES]
        # The peer has connected anew, so its older connection is dead even if TCP does not know yet.
        older = self._proved.get(incoming.rank)
        if older is not None:
            self._close_incoming(older)
        del self._unproved[incoming.connection.fileno()]
        self._proved[incoming.rank], incoming.seal = incoming, seal

    def _take_messages(self, incoming: Incoming) -> None:
        """Deliver the whole messages of a buffer. Raises PeerMessageError."""
        assert incoming.seal is not None
        buffer = memoryview(bytes(incoming.buffer))
        at = 0
        while len(buffer) - at >= LENGTH_BYTES:
            size = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
            if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
                raise PeerMessageError("length", f"a message of {size} bytes")
            first = at + LENGTH_BYTES
            last = first + size
            if last + MAC_BYTES > len(buffer):
                break
            incoming.seal.check(buffer[first:last], buffer[last : last + MAC_BYTES])
            self._take(PeerMessage.unpack(buffer[first:last]), incoming)
            at = last + MAC_BYTES
        del incoming.buffer[:at]

    def _take(self, message: PeerMessage, incoming: Incoming) -> None:
        if message.sender != incoming.rank:
            raise PeerMessageError("sender", f"rank {message.sender} on the connection of rank {incoming.rank}")
        if not message.generation == incoming.generation == self._members[0].generation:
            self.statistics.other_generations += 1
            return
        self.statistics.messages_received += 1
        self._deliver(message)

    # ---- outgoing -------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        """Dial and send what there is to say."""
        now = time.monotonic()
        for out in self._outgoing.values():
            if out.connection is None and out.queue and out.dial_at <= now:
                self._dial(out)
            elif out.seal is not None and (out.rest or out.queue):
                self._write(out)

    def _dial(self, out: Outgoing) -> None:
        out.connection, out.until = socket.socket(socket.AF_INET, socket.SOCK_STREAM), time.monotonic() + PROVE_S
        configure(out.connection)
        self._selector.register(out.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, out)
        try:
            out.connection.connect(out.address)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(out)

    def _ready(self, out: Outgoing, events: int) -> None:
        """Go on with a connection, on which a peer says nothing after its REPLY."""
        assert out.connection is not None
        if out.dialler is None:
            self._greet(out)
        elif not events & selectors.EVENT_READ:
            self._write(out)
        elif out.seal is None:
            self._take_reply(out)
        elif self._is_over(out.connection):
            self._hang_up(out)
        else:
            self._write(out)

    def _greet(self, out: Outgoing) -> None:
        """Say HELLO on a connection that has just been made, or was refused."""
        assert out.connection is not None
        if out.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._hang_up(out)
            return
        out.dialler = Dialler(self._rank, out.rank, out.key, secrets.token_bytes(NONCE_BYTES))
        out.rest = memoryview(out.dialler.hello)
        self._write(out)

    def _take_reply(self, out: Outgoing) -> None:
        assert out.connection is not None
        assert out.dialler is not None
        try:
            data = out.connection.recv(REPLY_BYTES - len(out.reply))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        out.reply += data
        if not data:
            self._hang_up(out)
        elif len(out.reply) == REPLY_BYTES:
            try:
                proof, out.seal = out.dialler.take(bytes(out.reply))
            except PeerMessageError as refused:
                self.statistics.closed[refused.reason] += 1
                self._hang_up(out)
                return
            out.rest, out.pause_s = memoryview(proof), DIAL_AGAIN_S
            self._write(out)

    @staticmethod
    def _is_over(connection: socket.socket) -> bool:
        """Say whether a connection on which nothing is to be read has ended."""
        try:
            return not connection.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _write(self, out: Outgoing) -> None:
        assert out.connection is not None
        try:
            while out.rest or self._next(out):
                sent = out.connection.send(out.rest)
                out.rest = out.rest[sent:]
                self.statistics.bytes_sent += sent
        except BlockingIOError:
            self._watch(out, selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError:
            self._hang_up(out)
        else:
            self._watch(out, selectors.EVENT_READ)

    def _watch(self, out: Outgoing, events: int) -> None:
        """Let `select` return when one of these events happens on a connection."""
        assert out.connection is not None
        # A system call, and nearly always for what is watched already.
        if self._selector.get_key(out.connection).events != events:
            self._selector.modify(out.connection, events, out)

    def _next(self, out: Outgoing) -> bool:
        """Take the next message to send. Say whether there is one."""
        with self._lock:
            if out.seal is None or not out.queue:
                return False
            message = out.queue.popleft()
            out.queued_bytes -= len(message)
        out.rest = memoryview(len(message).to_bytes(LENGTH_BYTES, "big") + message + out.seal.mac(message))
        self.statistics.messages_sent += 1
        return True

    def _hang_up(self, out: Outgoing) -> None:
        """Close a connection that is broken or was never made, and pause."""
        assert out.connection is not None
        self.statistics.unreachable += out.dialler is None
        self.statistics.refused += out.dialler is not None and out.seal is None
        longest_s = DIAL_AGAIN_MAX_S if out.dialler is None else PROVE_AGAIN_MAX_S
        self._selector.unregister(out.connection)
        out.connection.close()
        out.forget()
        out.dial_at = time.monotonic() + out.pause_s
        out.pause_s = min(2 * out.pause_s, longest_s)

    def _drain_before_close(self) -> None:
        for out in self._outgoing.values():
            if out.connection is None or out.seal is None:
                continue
            out.connection.settimeout(CLOSE_LINGER_S)
            with contextlib.suppress(OSError):
                while out.rest or self._next(out):
                    out.connection.sendall(out.rest)
                    out.rest = memoryview(b"")
