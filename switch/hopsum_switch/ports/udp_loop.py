# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of UDP ports: from socket to engine to sockets in one call, without the interpreter lock.

It carries plain trains and returns all other trains. A train is not plain if an output of one of its frames is not IPv4
in UDP, has IPv4 options or a UDP checksum, or leaves at a port of another kind. The loop sends and counts the same
frames as `UdpPort`. It keeps the order for every destination.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hopsum_switch.frame_batch import Batch, Outputs, address
from hopsum_switch.ports import udp_layout as at
from hopsum_switch.ports.batches import BATCH_FRAMES
from hopsum_switch.ports.udp import SOL_UDP, UDP_SEGMENT, UdpPort, page_aligned
from hopsum_switch.ports.udp_frames import HEADERS_BYTES

LONGEST_FRAME_BYTES: Final = at.MAX_DATAGRAM_BYTES + HEADERS_BYTES
_NAME_BYTES: Final = 16
_HELD_BYTES: Final = 256 << 10
"""The size of the outputs that leave together. A larger size needs fewer system calls. Outputs of this size are still
in the cache when the kernel copies them."""
Integers = NDArray[np.int64]


@runtime_checkable
class CompiledEngine(Protocol):
    """The part of an engine in machine code that the loop needs."""

    def enter(self, batch: Batch, outputs: Outputs, *, first: int, now_us: int, longest_bytes: int) -> None:
        """Prepare calls of the machine code for frames of at most so many bytes."""
        ...

    def leave(self, outputs: Outputs) -> int:
        """Take over the counts and writes of the calls. Return the number of the next frame to run."""
        ...

    def entry(self) -> tuple[int, int, int]:
        """Return the addresses of the function and of its two arguments, of which the second is the control block."""
        ...


class Rest(NamedTuple):
    """The rest that a call leaves to its caller: outputs from `output` on, and frames of a train from `frame` on."""

    output: int
    output_at: int
    """Offset of the first byte of the output."""
    train: Batch
    frame: int


class Trip(NamedTuple):
    """The frames that a call has carried. `busy_s` is the time in the engine and in sending."""

    frames: int
    busy_s: float
    rest: Rest | None


class UdpLoop:
    """The memory of the loop. Not thread-safe: the data plane's gate serialises the calls."""

    def __init__(self, serve: at.Serve) -> None:
        """Use the compiled function of `native.loop_code`."""
        self._serve = serve
        self._loop, self._socket = _words(at.LOOP_WORDS), _words(at.SOCKET_WORDS)
        self._egress = _words(at.PORTS * at.EGRESS_WORDS).reshape(at.PORTS, at.EGRESS_WORDS)
        # No UDP port is bound yet. The loop tests this word before anything else of a port.
        self._egress[:, at.EGRESS_FD] = -1
        self._groups, self._sizes = _words(at.DESTINATIONS * at.GROUP_WORDS), _words(at.DESTINATIONS * at.MAX_SEGMENTS)
        self._parts, self._train = _words(2 * len(self._sizes)), page_aligned(at.MAX_DATAGRAM_BYTES)
        most = at.MAX_DATAGRAM_BYTES  # joined datagrams of one byte; no more pages are used than datagrams need
        # The loop never grows its arrays, so they hold the worst train: as many datagrams of one byte as one call may
        # join.
        numbers = [np.zeros(most, np.uint64) for _ in range(3)]
        self._frames = Batch(np.zeros(most * (HEADERS_BYTES + 1), np.uint8), *numbers)
        self._ports: dict[int, UdpPort] = {}
        self._heads: dict[int, Integers] = {}
        # The order is that of the arguments of `udp_kernel.serve`. The arrays live as long as this object, so addresses
        # are taken once.
        own = (
            self._socket, self._socket, self._egress, self._groups, self._parts, self._sizes, self._frames.offsets,
            self._frames.lengths, self._frames.ports,
        )  # fmt: skip
        self._addresses = [address(array) for array in own]
        self._point()

    def add(self, number: int, port: UdpPort) -> None:
        """Let frames come in and leave at a port."""
        self._ports[number] = port
        head = np.zeros(8 * at.HEAD_WORDS, np.uint8)
        # The headers of a port are the same but for sender, lengths and checksum, which the loop writes for each train.
        head[:HEADERS_BYTES] = np.frombuffer(port.headers_of_nobody, np.uint8)
        self._heads[number] = head.view(np.int64)
        self._egress[number, at.EGRESS_FD] = port.descriptor
        self._egress[number, at.MOST] = at.MAX_SEGMENTS if port.cuts else 1

    def serve(self, number: int, engine: CompiledEngine, outputs: Outputs, now_us: int, *, waker: int = -1) -> Trip:
        """Carry the frames that wait at a port: BATCH_FRAMES of them, and the further frames of one datagram.

        Args:
            outputs: buffers with room for the outputs of one frame of LONGEST_FRAME_BYTES.
            waker: a descriptor. The call waits for more frames until something can be read there. -1: it does not wait.
        """
        # Everything that the loop reads is set under the gate, before the call that gives the interpreter lock away.
        engine.enter(self._frames, outputs, first=0, now_us=now_us, longest_bytes=LONGEST_FRAME_BYTES)
        self._set(number, engine, outputs, waker)
        leaving = address(outputs.ports), address(outputs.lengths), address(outputs.data)
        self._serve(address(self._loop), int(self._loop[at.CONTROL]), *self._addresses, *leaving)
        # `leave` first: it moves hits and drops into the stores before anybody can read them.
        done, found = engine.leave(outputs), self._loop.tolist()
        self._count(number)
        rest = None
        if found[at.REST]:
            rest = Rest(found[at.NEXT], found[at.NEXT_AT], self._train_of(found[at.TRAIN]), done)
        return Trip(found[at.PROCESSED], found[at.BUSY_NS] / 1e9, rest)

    def _point(self) -> None:
        """Set the pointers of the kernel's structures."""
        loop, sock, at_socket = self._loop, self._socket, self._socket.ctypes.data
        loop[at.LIMIT], loop[at.HELD_BYTES] = BATCH_FRAMES, _HELD_BYTES
        loop[at.TRAIN_AT], loop[at.FRAMES_AT] = self._train.ctypes.data, self._frames.data.ctypes.data
        loop[at.SOCKET_AT], loop[at.PARTS_AT] = at_socket, self._parts.ctypes.data
        # A msghdr is name, namelen, iov, iovlen, control, controllen and flags, a word each with its padding.
        vector, name, control = (at_socket + 8 * place for place in (at.RX_VECTOR, at.RX_NAME, at.RX_CONTROL))
        sock[at.RX : at.RX + 5] = [name, 0, vector, 1, control]
        sock[at.RX_VECTOR : at.RX_VECTOR + 2] = [self._train.ctypes.data, at.MAX_DATAGRAM_BYTES]
        name, control = (at_socket + 8 * place for place in (at.TX_NAME, at.TX_CONTROL))
        sock[at.TX : at.TX + 5] = [name, _NAME_BYTES, 0, 0, control]
        sock[at.TX_NAME] = socket.AF_INET
        # A cmsghdr: length, then level in the low and type in the high half of one word.
        sock[at.TX_CONTROL : at.TX_CONTROL + 2] = [socket.CMSG_LEN(2), SOL_UDP | UDP_SEGMENT << 32]

    def _set(self, number: int, engine: CompiledEngine, outputs: Outputs, waker: int) -> None:
        port = self._ports[number]
        self._socket[at.HEAD : at.HEAD + at.HEAD_WORDS] = self._heads[number]
        self._loop[at.WAKER] = waker
        # Three neighbouring words: FD, INGRESS and JOINED.
        self._loop[at.FD : at.JOINED + 1] = port.descriptor, number, port.joins
        self._loop[at.RUN : at.CONTROL + 1] = engine.entry()
        self._loop[at.OUT_AT] = address(outputs.data)

    def _train_of(self, count: int) -> Batch:
        frames = self._frames
        return Batch(frames.data, frames.ports[:count], frames.offsets[:count], frames.lengths[:count])

    def _count(self, number: int) -> None:
        """Move the counts to the counters of the ports."""
        counters = self._ports[number].counters
        counters.received += int(self._loop[at.RECEIVED])
        counters.received_bytes += int(self._loop[at.RECEIVED_BYTES])
        for egress, port in self._ports.items():
            # A view: counts are taken and set to 0 in the memory of the loop.
            counted = self._egress[egress, at.SENT :]
            sent, sent_bytes, queue_full, send_error, together, alone = counted.tolist()
            if not sent + queue_full + send_error:
                continue
            counted[:] = 0
            counters = port.counters
            counters.sent += sent
            counters.sent_bytes += sent_bytes
            for reason, count in (("queue_full", queue_full), ("send_error", send_error)):
                if count:
                    counters.dropped[reason] += count
            for number, lost in ((together, False), (alone, True)):
                if number:
                    port.note_failure(number, lost=lost)


def _words(count: int) -> Integers:
    return np.zeros(count, np.int64)
