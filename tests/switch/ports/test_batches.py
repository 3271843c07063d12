# SPDX-License-Identifier: Apache-2.0
"""Batches between ports and engines: buffers that grow, loops around what handles single frames, and their bounds."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from itertools import pairwise

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.frame_batch import Batch, Outputs
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.ports.batches import BATCH_FRAMES, BatchPort, FrameBuffer, Frames, OneByOne, batch_form
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.engines import FrameByFrame, batch_engine
from hopsum_switch.ports.port import RECEIVE_BATCH, MemoryPort
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.program.ir import ProgramIR
from hopsum_switch.state.copies import PortCopy

from ...support.processes import await_that
from ..core.builder import assign, build, expression, field, hexstr, primitive
from .test_dataplane import Cross, running

GROUP, PORT = field("standard_metadata", "mcast_grp"), field("standard_metadata", "egress_spec")
REGISTERS = {"type": "register_array", "value": "r"}


def test_a_buffer_grows_and_is_used_again() -> None:
    rng, buffer = random.Random(1), FrameBuffer()
    for _ in range(3):
        frames = [rng.randbytes(rng.choice([0, 1, 60, 9000])) for _ in range(3 * BATCH_FRAMES)]
        buffer.clear()
        buffer.port = 7
        for frame in frames[:-2]:
            buffer.add(frame)
        buffer.port = 8
        buffer.append_rows(2, 3)[:] = [[1, 2, 3], [4, 5, 6]]
        batch = buffer.batch()
        assert [batch.frame(n) for n in range(buffer.count)] == [*frames[:-2], b"\1\2\3", b"\4\5\6"]
        assert batch.ports.tolist() == [7] * (buffer.count - 2) + [8] * 2
        assert buffer.full


def test_outputs_are_filled_and_enlarged() -> None:
    outputs = Outputs(1, 2)
    outputs.fill([3, 4], [b"abc", b""], [0, 5])
    assert outputs.frames() == [(3, b"abc"), (4, b"")]
    assert outputs.sources[:2].tolist() == [0, 5]
    outputs.fill([], [], [])
    assert outputs.frames() == []
    outputs.make_room(100, 1000)
    assert (outputs.count, len(outputs.ports), len(outputs.data)) == (0, 100, 1000)
    data = outputs.data
    outputs.make_room(10, 10)
    assert outputs.data is data


def test_ports_and_engines_get_a_loop_unless_they_take_batches() -> None:
    memory, udp = MemoryPort(), UdpPort.bind(1, UdpAddress("127.0.0.1", 0))
    assert batch_form(udp) is udp
    assert isinstance(udp, BatchPort)
    udp.close()
    assert isinstance(batch_form(memory), OneByOne)
    native = NativeEngine(echo())
    assert batch_engine(native, lambda port, size: None) is native
    assert isinstance(batch_engine(Engine(echo()), lambda port, size: None), FrameByFrame)


def test_a_port_of_single_frames_takes_and_gives_batches() -> None:
    port, buffer = MemoryPort(), FrameBuffer()
    frames = [bytes([n]) * n for n in range(RECEIVE_BATCH + 3)]
    for frame in frames:
        port.inject(frame)
    form = batch_form(port)
    form.receive_batch(buffer)
    form.receive_batch(buffer)
    batch = buffer.batch()
    assert [batch.frame(n) for n in range(buffer.count)] == frames
    form.send_batch(Frames.from_bytes(frames).select(slice(1, 3)))
    assert port.pop_sent() == frames[1:3]


def test_single_frame_engines_run_few_frames_at_a_time_and_fail_alone() -> None:
    class Fragile(Cross):
        def process(self, port: int, frame: bytes, now_us: int) -> list[tuple[int, bytes]]:
            if frame == b"bad":
                raise ZeroDivisionError
            return super().process(port, frame, now_us)

    failures: list[tuple[int, int]] = []
    engine, outputs = FrameByFrame(Fragile(), lambda *failure: failures.append(failure)), Outputs(0, 0)
    batch = Batch.from_frames([4] * 40, [b"ab", b"bad", *[b"cd"] * 38])
    assert engine.process_batch(batch, outputs) == RECEIVE_BATCH
    assert failures == [(4, 3)]
    assert outputs.sources[:3].tolist() == [0, 0, 2]
    assert outputs.frames() == [(5, b"ab"), (5, b"ba"), *[(5, b"cd"), (5, b"dc")] * 30]
    assert engine.process_batch(batch, outputs, first=RECEIVE_BATCH) == 40
    assert outputs.count == 16


def echo() -> ProgramIR:
    """Return a program: byte `a` is a group (0: port 1), and `b` counts the frames so far."""
    builder = build(("a", 8), ("b", 8))
    builder.primitives += [
        primitive("register_read", field("h", "b"), REGISTERS, hexstr(0)),
        assign(field("h", "b"), expression("+", field("h", "b"), hexstr(1))),
        primitive("register_write", REGISTERS, hexstr(0), field("h", "b")),
        assign(GROUP, field("h", "a")),
        assign(PORT, hexstr(1)),
    ]
    return builder.load()


class Burst(MemoryPort):
    """Gives everything at once."""

    def receive(self) -> list[bytes]:
        return [frame for _ in range(40) for frame in super(Burst, self).receive()]


@pytest.mark.parametrize("engine", [Engine, NativeEngine])
def test_one_batch_through_a_data_plane_is_its_frames_one_by_one(engine: Callable[[ProgramIR], Engine]) -> None:
    rng = random.Random(3)
    frames = [bytes([rng.randrange(3), 0]) + rng.randbytes(rng.randrange(200)) for _ in range(1200)]
    results = []
    for bound in (MemoryPort, Burst):
        with running(Dataplane()) as dataplane:
            made = engine(echo())
            made.multicast.insert(1, [PortCopy(1, 0), PortCopy(2, 0), PortCopy(9, 0), PortCopy(1, 1)])
            made.multicast.insert(2, [PortCopy(2, 0)])
            dataplane.engine = made
            ports = {0: bound(), 1: MemoryPort(), 2: MemoryPort()}
            with dataplane.gate.control():  # so that a burst finds all of them
                for frame in frames:
                    ports[0].inject(frame)
            for number in (1, 2, 0):
                dataplane.bind(number, ports[number])
            await_that(lambda dataplane=dataplane: dataplane.stats()["packets"] == len(frames))
            results.append((ports[1].pop_sent(), ports[2].pop_sent(), dataplane.stats()["dropped"]))
    single, burst = results
    assert burst == single
    assert len(single[0]) > 1000
    assert single[2]["no_such_port"] == sum(frame[0] == 1 for frame in frames)


def test_a_batch_on_which_the_engine_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def room_for(self, frame_bytes: int) -> tuple[int, int]:
            return 0, 0

        def process_batch(self, batch: Batch, outputs: Outputs, *, first: int = 0, now_us: int = 0) -> int:
            if b"bad" in [batch.frame(number) for number in range(len(batch.ports))]:
                raise ZeroDivisionError("a bug")
            outputs.fill([1], [batch.frame(first)], [first])
            return first + 1

    with running(Dataplane()) as dataplane:
        dataplane.engine = Broken()
        out = MemoryPort()
        source = Burst()
        dataplane.bind(1, out)
        dataplane.bind(0, source)
        with dataplane.gate.control():
            for frame in (b"good", b"bad", b"good"):
                source.inject(frame)
        await_that(lambda: dataplane.stats()["packets"] == 3)
        assert dataplane.stats()["dropped"] == {"engine_error": 3}
        with dataplane.gate.control():
            source.inject(b"x")
            source.inject(b"y")
        await_that(lambda: dataplane.stats()["packets"] == 5)
        assert out.pop_sent() == [b"x", b"y"]
    assert "failed on 3 frames" in caplog.text
    assert "a bug" in caplog.text


def test_control_operations_get_in_while_one_batch_is_processed() -> None:
    """A single-frame engine may be slow: the gate opens every RECEIVE_BATCH frames, not once per batch."""
    waits: list[int] = []

    class Slow(Cross):
        def process(self, port: int, frame: bytes, now_us: int) -> list[tuple[int, bytes]]:
            return []

    with running(Dataplane()) as dataplane:
        dataplane.engine = Slow()
        entries = dataplane.gate.packets

        def counted() -> object:
            waits.append(dataplane.packets)
            return entries()

        dataplane.gate.packets = counted  # type: ignore[method-assign, assignment]
        port = Burst()
        with dataplane.gate.control():
            for _ in range(10 * RECEIVE_BATCH):
                port.inject(b"x")
        dataplane.bind(0, port)
        await_that(lambda: dataplane.stats()["packets"] == 10 * RECEIVE_BATCH)
    steps = [later - earlier for earlier, later in pairwise(waits)]
    assert max(steps) == RECEIVE_BATCH
    assert len(waits) > 10


class Noting(Cross):
    """Sends nothing, and notes the ports of every batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def room_for(self, frame_bytes: int) -> tuple[int, int]:
        return 0, 0

    def process_batch(self, batch: Batch, outputs: Outputs, *, first: int = 0, now_us: int = 0) -> int:
        self.batches.append(batch.ports.tolist())
        outputs.fill([], [], [])
        return len(batch.ports)


def test_ports_that_wait_together_share_a_batch() -> None:
    dataplane, engine = Dataplane(), Noting()
    dataplane.engine = engine
    ports = {number: MemoryPort() for number in (3, 4, 5)}
    for number, port in ports.items():
        dataplane.bind(number, port)
    for number in (3, 3, 5):
        ports[number].inject(b"x")
    with running(dataplane):
        await_that(lambda: dataplane.stats()["packets"] == 3)
    assert engine.batches == [[3, 3, 5]]


def test_a_port_that_fills_batches_does_not_keep_the_others_out() -> None:
    dataplane, engine = Dataplane(), Noting()
    dataplane.engine = engine
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        for number in (1, 2):
            port = UdpPort.bind(number, UdpAddress("127.0.0.1", 0))
            dataplane.bind(number, port)
            for _ in range(BATCH_FRAMES + 10):
                peer.sendto(b"x", port.address)
        with running(dataplane):
            await_that(lambda: {port for batch in engine.batches for port in batch} == {1, 2})
    assert set(engine.batches[0]) != set(engine.batches[1])
    assert len(engine.batches[0]) == BATCH_FRAMES
