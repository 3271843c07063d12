# SPDX-License-Identifier: Apache-2.0
"""The data plane: one engine, its ports, and the loop that carries frames between them.

Frames move in batches: from a port into one buffer, through the engine in one call where it can, and out by
port. One gate guards engine and ports. The loop holds it for one batch at most, never inside a packet, and lets
the control plane in first when both wait. So writes fall between packets, and heavy traffic cannot starve them.
In machine code it also holds the gate while it waits for frames, until somebody wants the gate or the loop.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hopsum_base.internal_error import internal_error
from hopsum_switch.engine import Engine
from hopsum_switch.frame_batch import Batch, Outputs
from hopsum_switch.ports.batches import BatchPort, FrameBuffer, Frames, batch_form
from hopsum_switch.ports.capture import CapturedPort, CaptureFolder
from hopsum_switch.ports.engines import BatchEngine, PacketEngine, batch_engine
from hopsum_switch.ports.port import MemoryPort, Port, PortError, check_port_number
from hopsum_switch.ports.udp import UdpPort
from hopsum_switch.ports.udp_layout import Serve, compiled_loops_enabled
from hopsum_switch.ports.udp_loop import LONGEST_FRAME_BYTES, CompiledEngine, LoopRemainder, UdpLoop
from hopsum_switch.state.digest_store import DigestList, DigestStore

_log = logging.getLogger("hopsum_switch.dataplane")
# First sizes of the output buffers. They grow with the largest multicast group.
_OUTPUT_FRAMES = 1024
_OUTPUT_BYTES = 2 << 20
# The interval at which `responds_within` looks whether the loop has come by.
_LOOK_S = 0.005

DeliverDigest = Callable[[DigestList], str | None]


class DataplaneGate:
    """A lock for packets and control operations in which a waiting control operation goes first.

    A waiting thread holds the turnstile, and the packet loop must pass it for every batch. Not reentrant.

    Args:
        wake: called by a thread that waits for a control operation, while the packet loop is inside.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._turnstile = threading.Lock()
        self._inside = threading.Lock()

    @contextlib.contextmanager
    def control(self) -> Iterator[None]:
        """Hold the gate during the `with` block, for a control operation. The next batch of packets waits."""
        # The turnstile stays taken while this thread waits for the inside, so the next batch of packets cannot overtake
        # it.
        with self._turnstile:
            if not self._inside.acquire(blocking=False):
                # The loop may wait for frames. It leaves at the wake-up, and queues at the turnstile.
                self._wake()
                self._inside.acquire()
            try:
                yield
            finally:
                self._inside.release()

    @contextlib.contextmanager
    def packets(self) -> Iterator[None]:
        """Hold the gate during the `with` block, for a batch of packets. Waiting control operations go first."""
        with self._turnstile:
            # Packets leave the turnstile before they run: a control operation may queue there during the batch.
            self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()


class Dataplane:
    """Ports by number around an engine. Public methods may be called from any thread."""

    def __init__(self, captures: CaptureFolder | None = None) -> None:
        """Make a data plane without ports. `captures` gets the frames of every port that is bound."""
        self.gate = DataplaneGate(self.wake)
        self._captures = captures
        self._engine: PacketEngine | BatchEngine | None = None
        self._batch_engine: BatchEngine | None = None
        self._digests: DigestStore | None = None  # of an engine whose program has any
        self._deliver: DeliverDigest | None = None
        self.dropped: Counter[str] = Counter()  # frames that no port can be charged with
        self.faults: Counter[str] = Counter()  # of the program, see `Engine`
        self.digests: Counter[str] = Counter()  # lists of digests: "sent", or why one was lost
        self.packets = 0
        self.busy_s = 0.0
        self._started = time.perf_counter()
        self._ports: dict[int, Port] = {}
        self._batch_ports: dict[int, BatchPort] = {}  # of the same ports
        self._received = FrameBuffer()  # of the loop alone
        self._outputs = Outputs(_OUTPUT_FRAMES, _OUTPUT_BYTES)  # of the thread that holds the gate
        self._compiled_engine: CompiledEngine | None = None  # the engine, if it is machine code
        self._udp_loop: UdpLoop | None = None  # with such an engine, for ports over UDP
        self._selector = selectors.DefaultSelector()
        # A socket pair: it wakes the selector, and `signal.set_wakeup_fd` takes its descriptor.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._turns = 0  # of the loop; that it grows is all that matters
        self._stopping = False  # a plain flag: a signal handler may set it anywhere

    @property
    def engine(self) -> PacketEngine | BatchEngine | None:
        """The engine of the frames. None: frames are dropped. Read and replace it under the gate only."""
        return self._engine

    @engine.setter
    def engine(self, engine: PacketEngine | BatchEngine | None) -> None:
        self._engine = engine
        self._batch_engine = None if engine is None else batch_engine(engine, self._count_failure)
        self._digests = engine.digests if isinstance(engine, Engine) and engine.program.digests else None
        self._udp_loop = None
        self._compiled_engine = engine if isinstance(engine, CompiledEngine) else None
        if self._compiled_engine is not None and compiled_loops_enabled():
            from hopsum_switch.native.loop_code import LOOP_CODE  # needs llvmlite, as such an engine does

            # None: another process compiles, and `_loop_is_compiled` is called by a thread of `LoopCode` when it has.
            serve = LOOP_CODE.get(self._loop_is_compiled)
            if serve is not None:
                self._set_udp_loop(serve)

    def set_digest_receiver(self, deliver: DeliverDigest) -> None:
        """Have `deliver` called with each list of digests, under the gate. It returns None, or why the list is lost."""
        self._deliver = deliver

    def bind(self, number: int, port: Port) -> None:
        """Make `port` the switch's port `number`. From now on the data plane closes it, also after an error.

        Raises PortError where the number does not exist or is taken, and OSError where the system cannot wait for the
        port. Then no port is bound.
        """
        try:
            check_port_number(number)
            with self.gate.control():
                if number in self._ports:
                    raise PortError(f"switch port {number} is already bound: {self._ports[number].describe()}")
                port = self._made_ready(number, port)
                self._open(number, port)
        except BaseException:
            port.close()
            raise
        self.wake()

    def ports(self) -> dict[int, dict[str, Any]]:
        """Return kind, addresses and counters of every port, by its number."""
        with self.gate.control():
            return {
                number: {**port.describe(), **port.counters.as_dict()} for number, port in sorted(self._ports.items())
            }

    def stats(self) -> dict[str, Any]:
        """Return the counts of the switch: packets, seconds in the engine and in sending, drops, faults, digests."""
        with self.gate.control():
            return {
                "packets": self.packets,
                "busy_s": self.busy_s,
                "dropped": dict(sorted(self.dropped.items())),
                "faults": dict(sorted(self.faults.items())),
                "digests": dict(sorted(self.digests.items())),
            }

    def inject(self, number: int, frame: bytes) -> None:
        """Run one frame as if port `number` (bound or not) had received it, and send the frames that come out."""
        with self.gate.control():
            port = self._ports.get(number)
            if port is not None:
                port.counters.count_received(frame)
            # A packet-out was not received by the port, so the port would not record it.
            if isinstance(port, CapturedPort):
                port.record_injected(frame)
            self._process(Batch.from_frames([number], [frame]), 0)
        if self._digests is not None:
            self.wake()  # the loop has to know when a list is due

    def wake(self) -> None:
        """End the loop's wait for frames: let it look at the gate, and at the ports that have no descriptor."""
        with contextlib.suppress(OSError):  # a full pipe wakes it too; a closed one has nobody to wake
            self._wake_sender.send(b"\0")

    def wake_fileno(self) -> int:
        """Return the descriptor that wakes the loop when it is written to, for `signal.set_wakeup_fd`."""
        return self._wake_sender.fileno()

    def responds_within(self, within_s: float) -> bool:
        """Wake the loop, and wait at most `within_s`. Return whether it began a turn. Not for the loop's thread."""
        # No lock: the count is written by the loop alone, and any change of it is an answer.
        turns, until = self._turns, time.monotonic() + within_s
        self.wake()
        while self._turns == turns and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self._turns != turns

    def run(self) -> None:
        """Carry frames in this thread until `stop` is called. One thread at a time. After `stop` it returns at once."""
        while not self._stopping:
            self._turns += 1
            ready: list[tuple[int, Port]] = []
            for key, _ in self._selector.select(self._until_digest_s()):
                if key.data is None:
                    self._drain_wake()
                else:
                    ready.append(key.data)
            # Ports without a descriptor are asked at each turn: nothing else says that a frame waits.
            ready += [(number, port) for number, port in list(self._ports.items()) if port.fileno() is None]
            self._serve(ready)
            if self._digests is not None:
                with self.gate.packets():
                    self._send_digests()

    def stop(self) -> None:
        """Make `run` return soon. Safe in a signal handler."""
        self._stopping = True
        self.wake()

    def close(self) -> None:
        """Close all ports and the descriptor of `wake_fileno`. `run` must have returned. No port can be bound again."""
        with self.gate.control():
            for port in self._ports.values():
                self._close(port)
            self._ports.clear()
            self._batch_ports.clear()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _made_ready(self, number: int, port: Port) -> Port:
        """Return the port in the form in which it is bound. Raises PortError: its capture cannot be written."""
        if isinstance(port, MemoryPort):
            port.set_wake(self.wake)
        return port if self._captures is None else self._captures.capture_port(number, port)

    def _open(self, number: int, port: Port) -> None:
        fileno = port.fileno()
        if fileno is not None:
            # First, since it may fail: a port without it would be bound, and could not be closed. Registering while
            # another thread selects is safe: epoll allows it, and the selector's map is a dict.
            self._selector.register(fileno, selectors.EVENT_READ, (number, port))
        self._ports[number] = port
        self._batch_ports[number] = batch_form(port)
        self._add_to_udp_loop(number, port)

    def _loop_is_compiled(self, serve: Serve) -> None:
        with self.gate.control():
            # The engine may have been replaced while the loop was compiled.
            if self._compiled_engine is not None and self._udp_loop is None:
                self._set_udp_loop(serve)

    def _set_udp_loop(self, serve: Serve) -> None:
        self._udp_loop = UdpLoop(serve)
        for number, port in self._ports.items():
            self._add_to_udp_loop(number, port)

    def _add_to_udp_loop(self, number: int, port: Port) -> None:
        # The type itself: a captured port is none, since its frames have to pass Python.
        if self._udp_loop is not None and type(port) is UdpPort:
            self._udp_loop.add(number, port)

    def _close(self, port: Port) -> None:
        fileno = port.fileno()
        if fileno is not None:
            self._selector.unregister(fileno)
        port.close()

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_receiver.recv(4096):
                pass

    def _serve(self, ready: list[tuple[int, Port]]) -> None:
        """Process the waiting frames of these ports, together as far as they fit into one batch."""
        more = False
        for number, port in ready:
            if self._serve_compiled(number, port):
                continue
            before = self._received.count
            with self.gate.packets():
                if self._ports.get(number) is not port:  # unbound since the selector saw it
                    continue
                self._received.port = number
                self._batch_ports[number].receive_batch(self._received)
            more |= port.fileno() is None and self._received.count > before
            # Frames of several ports share a batch, and a full one goes through the engine before the next port is
            # asked.
            if self._received.full:
                self._process_received()
        self._process_received()
        if more:
            self.wake()  # nothing tells whether more wait

    def _serve_compiled(self, number: int, port: Port) -> bool:
        """Carry frames from a UDP port in the compiled loop. Return False where port or engine has no such loop."""
        with self.gate.packets():
            if self._udp_loop is None or self._ports.get(number) is not port or type(port) is not UdpPort:
                return False
            rest = self._run_udp_loop(self._udp_loop, number)
        if rest is not None:
            self._process_batch(rest.train, rest.frame)
        return True

    def _run_udp_loop(self, loop: UdpLoop, number: int) -> LoopRemainder | None:
        """Carry a batch of frames from a UDP port. Return the frames that have not run. The caller holds the gate."""
        engine, outputs = self._compiled_engine, self._outputs
        assert engine is not None
        assert self._batch_engine is not None
        outputs.make_room(*self._batch_engine.room_for(LONGEST_FRAME_BYTES))
        # A wait in the call keeps other ports, and digests that are due, waiting. What is written to the waker ends the
        # call, and is read by `run` without the gate.
        waits = len(self._ports) == 1 and self._digests is None
        waker = self._wake_receiver.fileno() if waits else -1
        result = loop.serve(number, engine, outputs, self._now_us(), waker=waker)
        self.packets += result.frames
        self.busy_s += result.busy_s
        # These outputs are not plain for the loop. They leave first, since later outputs to the same destination follow
        # them.
        if result.rest is not None and result.rest.output < outputs.count:
            started = time.perf_counter()
            self._send(outputs, result.rest.output, result.rest.output_at)
            self.busy_s += time.perf_counter() - started
        return result.rest

    def _process_received(self) -> None:
        if not self._received.count:
            return
        batch = self._received.batch()
        self._received.clear()  # its memory is written again when this has returned
        self._process_batch(batch, 0)

    def _process_batch(self, batch: Batch, done: int) -> None:
        # The gate is given back between two calls, so that writes fall between packets.
        while done < len(batch.ports) and not self._stopping:
            with self.gate.packets():
                done = self._process(batch, done)

    def _process(self, batch: Batch, first: int) -> int:
        """Run frames through the engine from number `first` on. Return the next one. The caller holds the gate."""
        count, engine, outputs = len(batch.ports), self._batch_engine, self._outputs
        if engine is None:
            self.dropped["no_pipeline"] += count - first
            return count
        started = time.perf_counter()
        try:
            outputs.make_room(*engine.room_for(int(batch.lengths.max())))
            done = engine.process_batch(batch, outputs, first=first, now_us=self._now_us())
        except Exception as error:
            # Some frames must not stop the traffic of others; the count and the log say that the engine has a bug.
            _log.error("the engine failed on %d frames: %s", count - first, internal_error(error))
            self.dropped["engine_error"] += count - first
            outputs.count, done = 0, count
        self.packets += done - first
        if outputs.count:
            self._send(outputs)
        if self._digests is not None:
            self._send_digests()
        self.busy_s += time.perf_counter() - started
        return done

    def _now_us(self) -> int:
        return int((time.perf_counter() - self._started) * 1e6)

    def _until_digest_s(self) -> float | None:
        """Return the time that the loop may sleep, or None to sleep until a frame comes."""
        digests = self._digests
        if digests is None:
            return None
        with self.gate.packets():
            due_us = digests.next_due_us()
        return None if due_us is None else max(0.0, (due_us - self._now_us()) / 1e6)

    def _send_digests(self) -> None:
        """Hand over lists that are complete or due. A lost list counts as acknowledged. The gate is held."""
        digests = self._digests
        if digests is None:
            return
        digests.expire(self._now_us())
        while digests.ready:
            complete = digests.ready.popleft()
            reason = "no_client" if self._deliver is None else self._deliver(complete)
            self.digests[reason or "sent"] += 1
            if reason is not None:
                digests.acknowledge(complete.name, complete.number)

    def _send(self, outputs: Outputs, first: int = 0, start: int = 0) -> None:
        """Hand every port its frames, in order, from frame `first` at byte `start` on."""
        lengths = outputs.lengths[first : outputs.count].astype(np.int64)
        ports = outputs.ports[first : outputs.count]
        frames = Frames(outputs.data, start + np.cumsum(lengths) - lengths, lengths)
        # One egress port is the common case, and needs no copy of the lengths and offsets.
        alone = bool((ports == ports[0]).all())
        for egress in ports[:1].tolist() if alone else dict.fromkeys(ports.tolist()):
            leaving = frames if alone else frames.select(np.flatnonzero(ports == egress))
            port = self._batch_ports.get(egress)
            if port is None:
                self.dropped["no_such_port"] += len(leaving.lengths)
            else:
                port.send_batch(leaving)

    def _count_failure(self, port: int, frame_bytes: int) -> None:
        """Count and log a frame that is lost because the engine failed. Called while its exception is handled."""
        _log.exception("the engine failed on a frame of %d bytes at port %d", frame_bytes, port)
        self.dropped["engine_error"] += 1
