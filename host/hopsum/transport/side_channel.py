# SPDX-License-Identifier: Apache-2.0
"""Messages between the workers of a job, over TCP: each with its length, 4 bytes big-endian, in front.

One thread per channel accepts connections from peers, which it only reads, and opens one to each peer that something
is said to, which it only writes. So an answer goes to the address that the job has for a rank, never to whoever asked.

    incoming    input                                              next
    OPEN        a whole message of this epoch, of a peer there     OPEN    delivered
    OPEN        the same of another epoch                          OPEN    counted in `other_epochs`
    OPEN        anything else, an end in the middle of a message   CLOSED  counted in `closed`, by reason
    OPEN        `move`: nobody lives there any more                CLOSED

    outgoing    input                                              next
    NONE        something to say                                   DIALS
    DIALS       connected                                          OPEN
    DIALS       refused or no answer                               WAITS   counted as unreachable
    WAITS       a while is over, something to say                  DIALS
    OPEN        broken                                             WAITS   what was half sent is lost
    any         more than `QUEUE_BYTES_MAX` to say                 NONE    all of it is lost: "slow"
    any         `move`: the peer lives elsewhere                   NONE    all of it is lost

What is lost is asked for again: that is the protocol's business (hopsum.protocol.repair).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerMessage, PeerMessageError
from hopsum.transport.side_connections import DIAL_AGAIN_S, Address, Incoming, Outgoing, SideStatistics

__all__ = ["Address", "SideChannel", "SideStatistics"]

LENGTH_BYTES: Final = 4
QUEUE_BYTES_MAX: Final = 8 << 20
READ_BYTES: Final = 1 << 16
DIAL_AGAIN_MAX_S: Final = 2.0
FAREWELL_S: Final = 0.5
"""How long `close` tries to get rid of what is still to be said, per peer."""
_CONNECTIONS_PER_PEER: Final = 4


class SideChannel:
    """One worker's connections to its peers. `send` may be called from any thread.

    Args:
        rank, epoch: whose channel it is. Messages of other epochs are ignored: at a change of epoch some are earlier.
        local: (IPv4 address, TCP port) to listen at. Port 0: any.
        listener: instead of that, a TCP socket that listens already; closed with the channel.

    Raises:
        OSError: nobody can listen at `local`.
    """

    def __init__(self, rank: int, epoch: int, local: Address, listener: socket.socket | None = None) -> None:
        self._rank, self._epoch = rank, epoch
        self.statistics = SideStatistics()
        self.failure: BaseException | None = None
        """What `deliver` raised, if it did: the channel has ended then."""
        self._listener = listener or socket.create_server(local)
        self._listener.setblocking(False)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._outgoing: dict[int, Outgoing] = {}
        self._retired: deque[Outgoing] = deque()
        """Peers that moved away; their connections are still to be closed."""
        self._ips: dict[int, str] = {}
        self._incoming: set[int] = set()
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
            peers: (IPv4 address, TCP port) by rank; this worker's own may be among them.
            deliver: is called in the channel's thread with every message, one after the other.
        """
        self._deliver = deliver
        self.move(self._epoch, peers)
        self._thread = threading.Thread(target=self._serve, name=f"hopsum-peers-{self._rank}", daemon=True)
        self._thread.start()

    def move(self, epoch: int, peers: Mapping[int, Address]) -> None:
        """Go on in an epoch, with peers where they live now; the listening socket stays. Any thread may call it.

        What was still to be said to a peer is lost where that lives elsewhere now.
        """
        others = {rank: address for rank, address in peers.items() if rank != self._rank}
        before = self._outgoing
        kept = {rank: out for rank, out in before.items() if others.get(rank) == out.address}
        self._outgoing = {rank: kept.get(rank) or Outgoing(rank, others[rank]) for rank in others}
        self._ips = {rank: address[0] for rank, address in others.items()}
        self._epoch = epoch
        self._retired.extend(out for rank, out in before.items() if rank not in kept)  # after they are out of reach
        self._look_up()

    def send(self, rank: int, message: PeerMessage) -> None:
        """Say something to a peer, sooner or later or never. Raises KeyError for a rank without an address."""
        data = message.pack()
        out = self._outgoing[rank]
        with self._lock:
            if out.queued_bytes + len(data) > QUEUE_BYTES_MAX:
                self.statistics.closed["slow"] += 1
                out.queue.clear()
                out.queued_bytes = 0
            out.queue.append(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            out.queued_bytes += len(data)
        self._look_up()

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
                self._write_all()
                for key, events in self._selector.select(self._patience_s()):
                    self._happened(key, events)
            self._say_farewell()
        except BaseException as failure:
            self.failure = failure
        finally:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.data, Incoming | Outgoing):
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]  # registered as sockets only

    def _retire(self) -> None:
        """Close connections to peers that moved away, and from where nobody lives any more."""
        if not self._retired:
            return
        while self._retired:
            out = self._retired.popleft()
            if out.connection is not None:
                self._hang_up(out)
        ips = set(self._ips.values())
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Incoming) and key.data.ip not in ips:
                self._close_incoming(key.data)

    def _happened(self, key: selectors.SelectorKey, events: int) -> None:
        if isinstance(key.data, Incoming):
            self._read(key.data)
        elif isinstance(key.data, Outgoing):
            self._writable(key.data, events)
        elif key.fileobj is self._listener:
            self._accept()
        else:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(READ_BYTES)

    def _look_up(self) -> None:
        """Make the thread look at what is to be sent."""
        with contextlib.suppress(OSError):  # full: it will look anyway; closed: nobody does
            self._wake.send(b"\0")

    def _patience_s(self) -> float | None:
        """Return how long nothing is to be done."""
        waiting = [out.dial_at for out in self._outgoing.values() if out.connection is None and out.queue]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else None

    # ---- incoming -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, (ip, _) = self._listener.accept()
        except OSError:  # gone again
            return
        crowd = len(self._incoming) >= _CONNECTIONS_PER_PEER * max(1, len(self._ips))
        if crowd or ip not in self._ips.values():
            self.statistics.closed["crowd" if crowd else "stranger"] += 1
            connection.close()
            return
        connection.setblocking(False)
        self._incoming.add(connection.fileno())
        self._selector.register(connection, selectors.EVENT_READ, Incoming(connection, ip))

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
            self._take_messages(incoming)
            if data:
                return
            if incoming.buffer:
                raise PeerMessageError("truncated", f"{len(incoming.buffer)} bytes are no message")
        except PeerMessageError as refused:
            self.statistics.closed[refused.reason] += 1
        self._close_incoming(incoming)

    def _close_incoming(self, incoming: Incoming) -> None:
        self._incoming.discard(incoming.connection.fileno())
        self._selector.unregister(incoming.connection)
        incoming.connection.close()

    def _take_messages(self, incoming: Incoming) -> None:
        """Deliver the whole messages of a buffer. Raises PeerMessageError."""
        buffer = bytes(incoming.buffer)
        at = 0
        while len(buffer) - at >= LENGTH_BYTES:
            size = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
            if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
                raise PeerMessageError("length", f"a message of {size} bytes")
            end = at + LENGTH_BYTES + size
            if end > len(buffer):
                break
            self._take(PeerMessage.unpack(buffer[at + LENGTH_BYTES : end]), incoming.ip)
            at = end
        del incoming.buffer[:at]

    def _take(self, message: PeerMessage, ip: str) -> None:
        if self._ips.get(message.sender) != ip:
            raise PeerMessageError("sender", f"rank {message.sender} does not live at {ip}")
        if message.epoch != self._epoch:
            self.statistics.other_epochs += 1
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
            elif out.connected:
                self._write(out)

    def _dial(self, out: Outgoing) -> None:
        out.connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        out.connection.setblocking(False)
        out.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(out.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, out)
        try:
            out.connection.connect(out.address)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(out)

    def _writable(self, out: Outgoing, events: int) -> None:
        assert out.connection is not None
        if not out.connected:
            if out.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._hang_up(out)
                return
            out.connected, out.pause_s = True, DIAL_AGAIN_S
        if events & selectors.EVENT_READ and self._is_over(out.connection):
            self._hang_up(out)
        else:
            self._write(out)

    @staticmethod
    def _is_over(connection: socket.socket) -> bool:
        """A peer says nothing on this connection: what can be read is its end."""
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
                self.statistics.messages_sent += not out.rest
        except BlockingIOError:
            self._selector.modify(out.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, out)
        except OSError:
            self._hang_up(out)
        else:
            self._selector.modify(out.connection, selectors.EVENT_READ, out)

    def _next(self, out: Outgoing) -> bool:
        """Take the next message to send; say whether there is one."""
        with self._lock:
            if not out.queue:
                return False
            out.rest = memoryview(out.queue.popleft())
            out.queued_bytes -= len(out.rest) - LENGTH_BYTES
            return True

    def _hang_up(self, out: Outgoing) -> None:
        """Close a connection that is broken or was never made, and pause."""
        assert out.connection is not None
        self.statistics.unreachable += not out.connected
        self._selector.unregister(out.connection)
        out.connection.close()
        out.connection, out.connected, out.rest = None, False, memoryview(b"")
        out.dial_at = time.monotonic() + out.pause_s
        out.pause_s = min(2 * out.pause_s, DIAL_AGAIN_MAX_S)

    def _say_farewell(self) -> None:
        for out in self._outgoing.values():
            if out.connection is None or not out.connected:
                continue
            out.connection.settimeout(FAREWELL_S)
            with contextlib.suppress(OSError):
                while out.rest or self._next(out):
                    out.connection.sendall(out.rest)
                    out.rest = memoryview(b"")
