# SPDX-License-Identifier: Apache-2.0
"""The data plane: one engine, its ports, and the loop that carries frames between them.

One gate guards engine and ports. The loop holds it for one port's batch at most, never inside a packet,
and lets the control plane in first when both wait; so writes fall between packets and heavy traffic cannot
starve them.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hopsum_switch.ports.base import Port, PortError, check_port_number
from hopsum_switch.ports.memory import MemoryPort

_log = logging.getLogger("hopsum_switch.dataplane")


class PacketEngine(Protocol):
    """What the data plane needs of an engine."""

    def process(self, port: int, frame: bytes, now_us: int) -> Sequence[tuple[int, bytes]]:
        """Return the frames that leave, each with its port; `now_us` counts from the switch's start."""
        ...


class Gate:
    """A lock for packets and control operations in which a waiting control operation goes first.

    Whoever waits holds the turnstile, and the packet loop must pass it for every batch. Not reentrant.
    """

    def __init__(self) -> None:
        self._turnstile = threading.Lock()
        self._inside = threading.Lock()

    @contextlib.contextmanager
    def control(self) -> Iterator[None]:
        """Hold the gate for a control operation."""
        with self._turnstile, self._inside:
            yield

    @contextlib.contextmanager
    def packets(self) -> Iterator[None]:
        """Hold the gate for a batch of packets."""
        with self._turnstile:
            self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()


class Dataplane:
    """Ports by number around an engine. Public methods may be called from any thread."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.engine: PacketEngine | None = None  # read and replaced under the gate only
        self.dropped: Counter[str] = Counter()  # frames that no port can be charged with
        self.packets = 0
        self.busy_s = 0.0
        self._started = time.perf_counter()
        self._ports: dict[int, Port] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._stopping = False  # a plain flag: a signal handler may set it anywhere

    def bind(self, number: int, port: Port) -> None:
        """Make `port` the switch's port `number`; the data plane closes it from now on, also when this fails.

        Raises PortError: the number does not exist or is taken; unbind it first.
        """
        try:
            check_port_number(number)
            with self.gate.control():
                if number in self._ports:
                    raise PortError(f"switch port {number} is already bound: {self._ports[number].describe()}")
                self._open(number, port)
        except PortError:
            port.close()
            raise
        self.wake()

    def unbind(self, number: int) -> None:
        """Close a port. Raises PortError: there is none of that number."""
        with self.gate.control():
            port = self._ports.pop(number, None)
            if port is None:
                raise PortError(f"switch port {number} is not bound: bound are {sorted(self._ports)}")
            self._close(port)

    def ports(self) -> dict[int, dict[str, Any]]:
        """Return kind, addresses and counters of every port."""
        with self.gate.control():
            return {
                number: {**port.describe(), **port.counters.as_dict()} for number, port in sorted(self._ports.items())
            }

    def stats(self) -> dict[str, Any]:
        """Return the counts of the whole switch; `busy_s` is the time spent in the engine and in sending."""
        with self.gate.control():
            return {
                "packets": self.packets,
                "busy_s": self.busy_s,
                "dropped": dict(sorted(self.dropped.items())),
            }

    def inject(self, number: int, frame: bytes) -> None:
        """Let one frame enter at port `number` (bound or not) and send what comes out."""
        with self.gate.control():
            if number in self._ports:
                self._ports[number].counters.count_received(frame)
            self._process(number, frame)

    def wake(self) -> None:
        """Make the loop look at the ports that have no descriptor."""
        with contextlib.suppress(OSError):  # a full pipe wakes it too; a closed one has nobody to wake
            self._wake_sender.send(b"\0")

    def run(self) -> None:
        """Carry frames until `stop` is called. One thread at a time."""
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._drain_wake()
                else:
                    self._serve(*key.data)
            for number, port in list(self._ports.items()):
                if port.fileno() is None:
                    self._serve(number, port)

    def stop(self) -> None:
        """Make `run` return soon; safe in a signal handler."""
        self._stopping = True
        self.wake()

    def close(self) -> None:
        """Close all ports; `run` must have returned."""
        with self.gate.control():
            for port in self._ports.values():
                self._close(port)
            self._ports.clear()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _open(self, number: int, port: Port) -> None:
        self._ports[number] = port
        fileno = port.fileno()
        if fileno is not None:
            # Registering while another thread selects is safe: epoll allows it, and the
            # selector's map is a dict.
            self._selector.register(fileno, selectors.EVENT_READ, (number, port))
        elif isinstance(port, MemoryPort):
            port.wake_with(self.wake)

    def _close(self, port: Port) -> None:
        fileno = port.fileno()
        if fileno is not None:
            self._selector.unregister(fileno)
        port.close()

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_receiver.recv(4096):
                pass

    def _serve(self, number: int, port: Port) -> None:
        with self.gate.packets():
            if self._ports.get(number) is not port:  # unbound since the selector saw it
                return
            frames = port.receive()
            for frame in frames:
                self._process(number, frame)
        if frames and port.fileno() is None:
            self.wake()  # nothing tells whether more wait

    def _process(self, number: int, frame: bytes) -> None:
        """Run one frame through the engine. The caller holds the gate."""
        if self.engine is None:
            self.dropped["no_pipeline"] += 1
            return
        self.packets += 1
        started = time.perf_counter()
        outputs: Sequence[tuple[int, bytes]] = ()
        try:
            outputs = self.engine.process(number, frame, int((started - self._started) * 1e6))
        except Exception:
            # One frame must not stop the traffic of others; the count and the log say that
            # the engine has a bug.
            _log.exception("the engine failed on a frame of %d bytes at port %d", len(frame), number)
            self.dropped["engine_error"] += 1
        for egress, output in outputs:
            port = self._ports.get(egress)
            if port is None:
                self.dropped["no_such_port"] += 1
            else:
                port.send(output)
        self.busy_s += time.perf_counter() - started
