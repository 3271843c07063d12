# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of a switch with one UDP port waits for frames, and lets everybody in who wants the gate.

The program is that of `udp_loop_rig` with the time at which a frame came in place of its count.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise

import pytest

from hopsum_switch.native import loop_code
from hopsum_switch.native.compiler import default_cache
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.ports.udp_frames import HEADERS_BYTES
from hopsum_switch.ports.udp_layout import COMPILED_VARIABLE
from hopsum_switch.state.copies import PortCopy

from ...support.processes import await_that
from ..core.builder import assign, build, field, hexstr, primitive
from .test_dataplane import DEADLINE_S, running
from .udp_loop_rig import SHOWN_AS, image_to, wish

LOOPBACK = UdpAddress("127.0.0.1", 0)
TIME_BYTES = 6
_REGISTER = {"type": "register_array", "value": "r"}
_TIME_AT = 2 + 2 + HEADERS_BYTES


class OnePort:
    """A running data plane with one UDP port, and a peer that is answered."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        if loop_code.LOOP_CODE.wait() is None:
            pytest.skip("the compiled loop needs Linux on 64 bits, numba and llvmlite")
        monkeypatch.setenv(COMPILED_VARIABLE, "1")
        frame = 8 * HEADERS_BYTES
        builder = build(("old", frame), ("group", 16), ("out", 16), ("image", frame), ("time", 8 * TIME_BYTES))
        builder.primitives += [
            assign(field("standard_metadata", "mcast_grp"), field("h", "group")),
            assign(field("standard_metadata", "egress_spec"), field("h", "out")),
            assign(field("h", "old"), field("h", "image")),
            assign(field("h", "time"), field("standard_metadata", "ingress_global_timestamp")),
            primitive("register_read", field("h", "out"), _REGISTER, hexstr(0)),
        ]
        self.engine = NativeEngine(builder.load(), cache=default_cache())
        self.engine.multicast.insert(1, [PortCopy(0, 0)])
        self.port = UdpPort.bind(0, LOOPBACK, SHOWN_AS)
        self.plane = stack.enter_context(running(Dataplane()))
        self.plane.bind(0, self.port)
        with self.plane.gate.control():
            self.plane.engine = self.engine
        self.peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.peer.bind(LOOPBACK)
        self.peer.settimeout(DEADLINE_S)
        address = b"\x7f\0\0\1", self.peer.getsockname()[1]
        self.wish = wish(image_to(address, TIME_BYTES - 2), group=1, rest=bytes(TIME_BYTES - 2))

    def ask(self) -> tuple[int, int]:
        """Have one frame carried. Return what the program read from its register, and the frame's time in us."""
        self.peer.sendto(self.wish, self.port.address)
        answer = self.peer.recv(2000)
        (read,) = struct.unpack_from("!H", answer, 2)
        return read, int.from_bytes(answer[_TIME_AT : _TIME_AT + TIME_BYTES], "big")

    def await_wait(self) -> int:
        """Wait until the loop waits in its call. Return the loop's turns in Python."""
        self.ask()
        # Answered, and nothing else has come: it is in the call, or will be at once.
        await_that(self.plane.gate._inside.locked)
        return self.plane._turns


@pytest.fixture
def one(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> OnePort:
    return OnePort(stack, monkeypatch)


def test_frames_that_come_one_by_one_are_carried_in_one_call(one: OnePort) -> None:
    turns = one.await_wait()
    times = [one.ask()[1]]
    for _ in range(20):
        time.sleep(0.01)
        times.append(one.ask()[1])
    assert one.plane._turns == turns
    assert min(later - before for before, later in pairwise(times)) >= 10_000, "of one call"
    assert times[-1] <= one.plane._now_us()


WANTS: dict[str, Callable[[OnePort], object]] = {
    "ports": lambda one: one.plane.ports(),
    "counts": lambda one: one.plane.stats(),
    "watchdog": lambda one: one.plane.responds_within(DEADLINE_S) or pytest.fail("no answer"),
    "frame": lambda one: one.plane.inject(5, bytes(100)),
}


@pytest.mark.parametrize("wants", WANTS)
def test_in_silence_everybody_is_let_in(one: OnePort, wants: str) -> None:
    """No frame comes that could end the loop's wait."""
    turns = one.await_wait()
    for _ in range(50):
        WANTS[wants](one)
    await_that(lambda: one.plane._turns > turns)
    one.await_wait()


def test_counts_are_those_of_now(one: OnePort) -> None:
    for count in range(1, 20):
        one.ask()
        assert one.plane.stats()["packets"] == one.plane.ports()[0]["sent"] == count


def test_a_write_in_silence_is_there_for_the_next_frame(one: OnePort) -> None:
    one.await_wait()
    for value in range(50):
        with one.plane.gate.control():
            one.engine.registers.write("r", 0, value)
        assert one.ask()[0] == value


def test_a_write_during_heavy_traffic_is_let_in_and_stops_nothing(one: OnePort, stack: ExitStack) -> None:
    over = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            while not over.is_set():
                peer.sendmsg([one.wish * 50], [(17, 103, struct.pack("=H", len(one.wish)))], 0, one.port.address)

    def drain() -> None:
        while not over.is_set():
            one.peer.recv(2000)

    threads = [threading.Thread(target=each) for each in (flood, flood, drain)]
    for thread in threads:
        thread.start()
    try:
        before = 0
        for value in range(50):
            await_that(lambda before=before: one.plane.packets > before)  # type: ignore[misc]
            with one.plane.gate.control():
                before = one.plane.packets
                one.engine.registers.write("r", 0, value)
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    one.peer.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.peer.recv(2000)
    one.peer.settimeout(DEADLINE_S)
    assert one.ask()[0] == 49, "all that was sent before the last write has been read"


def test_a_second_port_is_not_kept_waiting(one: OnePort) -> None:
    one.await_wait()
    memory = MemoryPort()
    one.plane.bind(3, memory)
    for count in range(1, 20):
        memory.inject(bytes(100))
        await_that(lambda count=count: one.plane.ports()[3]["received"] == count)  # type: ignore[misc]
        one.ask()
