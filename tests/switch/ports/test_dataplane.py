# SPDX-License-Identifier: Apache-2.0
"""The loop between ports and engine, with engines of a few lines."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from hopsum_switch.ports.dataplane import Dataplane, DataplaneGate
from hopsum_switch.ports.port import MemoryPort, PortError
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.ports.unix import UnixPort

from ...support.processes import await_that

DEADLINE_S = 60.0


class Cross:
    """Sends every frame out of the other of two ports, twice."""

    def process(self, port: int, frame: bytes, now_us: int) -> list[tuple[int, bytes]]:
        return [(port ^ 1, frame), (port ^ 1, frame[::-1])]


@contextmanager
def running(dataplane: Dataplane) -> Iterator[Dataplane]:
    thread = threading.Thread(target=dataplane.run)
    thread.start()
    try:
        yield dataplane
    finally:
        dataplane.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        dataplane.close()


def pair(stack: ExitStack) -> tuple[UnixPort, socket.socket]:
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    stack.enter_context(outside)
    outside.settimeout(DEADLINE_S)
    return UnixPort(inside), outside


def test_frames_go_through_memory_and_unix_ports() -> None:
    with ExitStack() as stack:
        port, outside = pair(stack)
        memory = MemoryPort()
        dataplane = stack.enter_context(running(Dataplane()))
        dataplane.engine = Cross()
        dataplane.bind(0, memory)
        dataplane.bind(1, port)
        for _ in range(100):
            memory.inject(b"ab")
            assert [outside.recv(10), outside.recv(10)] == [b"ab", b"ba"]
        outside.send(b"cd")
        await_that(lambda: dataplane.ports()[0]["sent"] == 2)
        assert memory.pop_sent() == [b"cd", b"dc"]
        assert memory.pop_sent() == []
        assert dataplane.stats()["packets"] == 101


def test_frames_without_engine_or_port_are_counted() -> None:
    with running(Dataplane()) as dataplane:
        memory = MemoryPort()
        dataplane.bind(4, memory)
        memory.inject(b"x")
        await_that(lambda: dataplane.stats()["dropped"] == {"no_pipeline": 1})
        dataplane.engine = Cross()
        memory.inject(b"x")
        await_that(lambda: dataplane.stats()["dropped"] == {"no_pipeline": 1, "no_such_port": 2})


def test_ports_come_while_it_runs() -> None:
    with ExitStack() as stack:
        dataplane = stack.enter_context(running(Dataplane()))
        dataplane.engine = Cross()
        udp = UdpPort.bind(0, UdpAddress("127.0.0.1", 0))
        dataplane.bind(0, udp)
        with pytest.raises(PortError, match="already bound"):
            dataplane.bind(0, MemoryPort())
        assert sorted(dataplane.ports()) == [0]
        port, outside = pair(stack)
        dataplane.bind(1, port)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.sendto(b"x", udp.address)
            assert outside.recv(2000).endswith(b"x")


def test_a_port_that_cannot_be_bound_is_closed() -> None:
    with running(Dataplane()) as dataplane:
        udp = UdpPort.bind(5, UdpAddress("127.0.0.1", 0))
        with pytest.raises(PortError, match="511 does not exist"):
            dataplane.bind(511, udp)
        assert udp.fileno() == -1


def test_a_port_that_the_system_cannot_wait_for_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(Dataplane()) as dataplane:
        udp = UdpPort.bind(5, UdpAddress("127.0.0.1", 0))
        with monkeypatch.context() as patch:
            patch.setattr(dataplane._selector, "register", full)
            with pytest.raises(OSError, match="No space left"):
                dataplane.bind(5, udp)
        assert udp.fileno() == -1
        assert dataplane.ports() == {}
        dataplane.bind(5, UdpPort.bind(5, UdpAddress("127.0.0.1", 0)))
        assert sorted(dataplane.ports()) == [5]


def test_a_waiting_control_operation_goes_before_the_next_packets() -> None:
    gate, order = DataplaneGate(), list[str]()

    def control() -> None:
        with gate.control():
            order.append("control")

    for _ in range(100):
        order.clear()
        with gate.packets():
            waiter = threading.Thread(target=control)
            waiter.start()
            await_that(gate._turnstile.locked)
        with gate.packets():  # at once, as the loop does under load
            order.append("packets")
        waiter.join(DEADLINE_S)
        assert order == ["control", "packets"]
