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

from hopsum_base.kernel_structs import IoVector, SocketAddress
from hopsum_base.records import offset_of, record_address, record_bytes, records
from hopsum_switch.frame_batch import Batch, Outputs, address
from hopsum_switch.ports.batches import BATCH_FRAMES
from hopsum_switch.ports.udp import SOL_UDP, UDP_SEGMENT, UdpPort, page_aligned
from hopsum_switch.ports.udp_frames import HEADERS_BYTES
from hopsum_switch.ports.udp_layout import (
    DESTINATIONS,
    MAX_DATAGRAM_BYTES,
    MAX_SEGMENTS,
    PORTS,
    Egress,
    Group,
    PortsLoopState,
    Serve,
)

LONGEST_FRAME_BYTES: Final = MAX_DATAGRAM_BYTES + HEADERS_BYTES
_HELD_BYTES: Final = 256 << 10
"""The size of the outputs that leave together. A larger size needs fewer system calls. Outputs of this size are still
in the cache when the kernel copies them."""


@runtime_checkable
class CompiledEngine(Protocol):
    """The part of an engine in machine code that the loop needs."""

    def enter(self, batch: Batch, outputs: Outputs, *, first: int, now_us: int, longest_bytes: int) -> None:
        """Prepare calls of the machine code for frames of `batch` from `first` on, of at most `longest_bytes` bytes."""
        ...

    def leave(self, outputs: Outputs) -> int:
        """Move the counts of the calls to the stores, and to `outputs`. Return the number of the next frame to run."""
        ...

    def entry(self) -> tuple[int, int, int]:
        """Return the addresses of the function and of its two arguments, of which the second is the control block."""
        ...


class LoopRemainder(NamedTuple):
    """The work that a call leaves to its caller: outputs from `output` on, and frames of a train from `frame` on."""

    output: int
    output_at: int
    """Offset of the first byte of the output."""
    train: Batch
    frame: int


class LoopResult(NamedTuple):
    """The result of a call: the number of frames that it ran, and the seconds in the engine and in sending."""

    frames: int
    busy_s: float
    rest: LoopRemainder | None


class UdpLoop:
    """The memory of the loop. Not thread-safe: the data plane's gate serialises the calls."""

    def __init__(self, serve: Serve) -> None:
        """Make a loop without ports that calls `serve`, the compiled function of `native.loop_code`."""
        self._serve = serve
        self._state, self._egresses = PortsLoopState(), records(Egress, PORTS)
        for egress in self._egresses:
            # No UDP port is bound yet. The loop tests this field before all others of a port.
            egress.fd = -1
        self._groups, self._parts = records(Group, DESTINATIONS), records(IoVector, DESTINATIONS * MAX_SEGMENTS)
        self._sizes, self._train = np.zeros(DESTINATIONS * MAX_SEGMENTS, np.int64), page_aligned(MAX_DATAGRAM_BYTES)
        most = MAX_DATAGRAM_BYTES  # joined datagrams of one byte; no more pages are used than datagrams need
        # The loop never grows its arrays, so they hold the worst train: as many datagrams of one byte as one call may
        # join.
        numbers = [np.zeros(most, np.uint64) for _ in range(3)]
        self._frames = Batch(np.zeros(most * (HEADERS_BYTES + 1), np.uint8), *numbers)
        self._ports: dict[int, UdpPort] = {}
        self._heads: dict[int, NDArray[np.uint8]] = {}
        self._point()

    def add(self, number: int, port: UdpPort) -> None:
        """Add UDP port `port`, number `number` of the switch, to the ports that the loop receives from and sends to."""
        self._ports[number] = port
        # The headers of a port are the same but for sender, lengths and checksum, which the loop writes for each train.
        self._heads[number] = np.frombuffer(bytearray(port.headers_of_nobody), np.uint8)
        egress = self._egresses[number]
        egress.fd, egress.most = port.descriptor, MAX_SEGMENTS if port.cuts else 1

    def serve(
        self, number: int, engine: CompiledEngine, outputs: Outputs, now_us: int, *, waker: int = -1
    ) -> LoopResult:
        """Carry and count the frames that wait at a port: BATCH_FRAMES, and the further frames of one datagram.

        Args:
            outputs: buffers with room for the outputs of one frame of LONGEST_FRAME_BYTES.
            waker: a descriptor. The call waits for more frames until something can be read there. -1: it does not wait.
        """
        # Everything that the loop reads is set under the gate, before the call that gives the interpreter lock away.
        engine.enter(self._frames, outputs, first=0, now_us=now_us, longest_bytes=LONGEST_FRAME_BYTES)
        port, state = self._ports[number], self._state
        state.fd, state.ingress, state.has_joined, state.waker = port.descriptor, number, port.joins, waker
        state.head = address(self._heads[number])
        state.run, state.state, state.control = engine.entry()
        self._serve(record_address(state))
        # `leave` first: it moves hits and drops into the stores before anybody can read them.
        done = engine.leave(outputs)
        self._count(number)
        rest = (
            LoopRemainder(state.next, state.next_at, self._train_of(state.train_count), done)
            if state.has_rest
            else None
        )
        return LoopResult(state.processed, state.busy_ns / 1e9, rest)

    def _point(self) -> None:
        """Set the pointers of the kernel's structures."""
        state, base = self._state, record_address(self._state)
        # The arrays live as long as this object, so addresses are taken once.
        state.limit, state.held_bytes, state.train = BATCH_FRAMES, _HELD_BYTES, address(self._train)
        state.egresses, state.groups = record_address(self._egresses), record_address(self._groups)
        state.parts, state.sizes = record_address(self._parts), address(self._sizes)
        state.receive_address, state.send_address = (
            base + offset_of(PortsLoopState, "receive"),
            base + offset_of(PortsLoopState, "send"),
        )
        state.clock_address, state.polls_address = (
            base + offset_of(PortsLoopState, "clock"),
            base + offset_of(PortsLoopState, "socket_poll"),
        )
        state.receive_vector.address, state.receive_vector.bytes = state.train, MAX_DATAGRAM_BYTES
        state.receive.name, state.receive.vector_count = base + offset_of(PortsLoopState, "sender"), 1
        state.receive.vectors = base + offset_of(PortsLoopState, "receive_vector")
        state.receive.control = base + offset_of(PortsLoopState, "receive_control")
        state.send.name, state.send.name_bytes = (
            base + offset_of(PortsLoopState, "receiver"),
            record_bytes(SocketAddress),
        )
        state.send.control = base + offset_of(PortsLoopState, "send_control")
        state.receiver.family = socket.AF_INET
        state.send_control.bytes = socket.CMSG_LEN(2)
        state.send_control.level, state.send_control.kind = SOL_UDP, UDP_SEGMENT

    def _train_of(self, count: int) -> Batch:
        frames = self._frames
        return Batch(frames.data, frames.ports[:count], frames.offsets[:count], frames.lengths[:count])

    def _count(self, number: int) -> None:
        """Move the counts to the counters of the ports."""
        counters = self._ports[number].counters
        counters.received += self._state.received
        counters.received_bytes += self._state.received_bytes
        for place, port in self._ports.items():
            egress = self._egresses[place]
            if not egress.sent + egress.queue_full + egress.send_error:
                continue
            counters = port.counters
            counters.sent += egress.sent
            counters.sent_bytes += egress.sent_bytes
            for reason, count in (("queue_full", egress.queue_full), ("send_error", egress.send_error)):
                if count:
                    counters.dropped[reason] += count
            for wrong, lost in ((egress.together_errno, False), (egress.alone_errno, True)):
                if wrong:
                    port.log_failure_once(wrong, lost=lost)
            egress.sent = egress.sent_bytes = egress.queue_full = egress.send_error = 0
            egress.together_errno = egress.alone_errno = 0
