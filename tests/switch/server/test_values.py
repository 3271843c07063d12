# SPDX-License-Identifier: Apache-2.0
"""Byte strings and controller headers (P4Runtime 1.4, section 8.4), and one capture through UDP, AF_UNIX and memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_switch.engine import Engine, Output
from hopsum_switch.p4runtime.p4info_index import P4InfoField
from hopsum_switch.p4runtime.pipeline_config import PacketHeader
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, decode, encode
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.ports.udp_frames import strip
from hopsum_switch.ports.unix import UnixPort
from hopsum_switch.server import SwitchServer
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact

from .controller import DEADLINE_S, wait_until

HEADER = PacketHeader(
    "packet_out", (P4InfoField(1, "port", 9, False), P4InfoField(7, "pad", 7, False), P4InfoField(2, "tag", 16, False))
)


@pytest.mark.parametrize(
    ("width", "data", "value"),
    [
        (8, b"\x63", 99),
        (16, b"\x00\x63", 99),
        (16, b"\x63", 99),
        (16, b"\x00\x30\x64", 12388),
        (12, b"\0\0\x63", 99),
        (1, b"\0\0\x01", 1),
        (32, b"\0", 0),
    ],
)
def test_padding_is_accepted_and_the_shortest_form_sent(width: int, data: bytes, value: int) -> None:
    assert decode(data, width, "x") == value
    assert encode(value) == (data.lstrip(b"\0") or b"\0")


@pytest.mark.parametrize(
    ("width", "data"), [(8, b"\x01\x63"), (8, b""), (16, b"\x01\0\x63"), (12, b"\x10\x63"), (12, b"\x00\x40\x63")]
)
def test_what_does_not_fit_is_out_of_range(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        decode(data, width, "x")
    assert caught.value.code is RpcCode.OUT_OF_RANGE


@given(st.integers(0, (1 << 2048) - 1), st.integers(0, 3))
def test_wide_values_survive(value: int, padding: int) -> None:
    assert decode(bytes(padding) + encode(value), 2048, "x") == value


@given(st.integers(0, 511), st.integers(0, 127), st.integers(0, 65535), st.binary(max_size=20))
def test_controller_headers_survive(port: int, pad: int, tag: int, payload: bytes) -> None:
    pairs = [(2, encode(tag)), (1, encode(port)), (7, encode(pad))]
    packed = HEADER.pack(pairs)
    assert int.from_bytes(packed, "big") == port << 23 | pad << 16 | tag
    got, rest = HEADER.unpack(packed + payload)
    assert dict(got) == dict(pairs)
    assert rest == payload


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, b"\1"), (7, b"\0")],
        [(1, b"\1"), (7, b"\0"), (2, b"\0"), (2, b"\0")],
        [(1, b"\1"), (7, b"\0"), (2, b"\0"), (3, b"\0")],
    ],
)
def test_missing_repeated_and_unknown_metadata_are_refused(pairs: list[tuple[int, bytes]]) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        HEADER.pack(pairs)
    assert caught.value.code is RpcCode.INVALID_ARGUMENT


def test_metadata_too_large_short_frames_and_odd_headers_are_refused() -> None:
    with pytest.raises(P4RuntimeError, match=r"packet_out\.port: 0x0200 does not fit 9 bits"):
        HEADER.pack([(1, b"\2\0"), (7, b"\0"), (2, b"\0")])
    with pytest.raises(P4RuntimeError, match="3 bytes"):
        HEADER.unpack(b"abc")
    with pytest.raises(P4RuntimeError, match="9 bits"):
        PacketHeader("packet_in", (P4InfoField(1, "port", 9, False),))


PROGRAM = Path(__file__).parent / "program" / "echo.json"
P4INFO = Path(__file__).parent / "program" / "echo.p4info.txtpb"
SHOWN_AS = UdpAddress("10.0.0.1", 24677)
PORTS = (0, 1, 300)
SIZES = (0, 1, 17, 18, 560, 1472, 9000, 33)


class Step(NamedTuple):
    """What one frame did."""

    port: int
    frame: bytes
    outputs: list[Output]


class Recorder(Engine):
    """The engine, remembering what it does."""

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        outputs = super().process(port, frame, now_us)
        self.__dict__.setdefault("steps", []).append(Step(port, frame, outputs))
        return outputs


def start(stack: ExitStack) -> tuple[SwitchServer, Recorder]:
    switch = stack.enter_context(SwitchServer(device_id=1, make_engine=Recorder))
    switch.load(P4INFO.read_text(), PROGRAM.read_bytes())
    engine = switch.dataplane.engine
    assert isinstance(engine, Recorder)
    engine.multicast.insert(7, [PortCopy(0, 0), PortCopy(300, 1), PortCopy(1, 2)])
    engine.tables["EchoIngress.ports"].insert([Exact(1)], "EchoIngress.answer_all", [7])
    return switch, engine


def feed(switch: SwitchServer, send: Callable[[], object]) -> None:
    """Let one frame in and wait until it has been processed."""
    before = switch.dataplane.stats()["packets"]
    send()
    wait_until(lambda: switch.dataplane.stats()["packets"] > before)


def record_over_udp(stack: ExitStack) -> tuple[list[Step], list[tuple[bytes, tuple[str, int]]]]:
    """Send datagrams of three peers to three ports; return what the engine saw and what the peers received."""
    switch, engine = start(stack)
    ports = {number: UdpPort.bind(number, UdpAddress("127.0.0.1", 0), SHOWN_AS) for number in PORTS}
    owners = {port.address: number for number, port in ports.items()}
    for number, port in ports.items():
        switch.dataplane.bind(number, port)
    peers = []
    for host in ("127.0.0.1", "127.0.0.2", "127.1.2.3"):
        peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        peer.bind((host, 0))
        peer.settimeout(DEADLINE_S)
        peers.append(peer)
    received = []
    for number, size in enumerate(SIZES * 2):
        peer, port = peers[number % 3], PORTS[number * 5 % 7 % 3]
        payload = bytes((number + i) & 0xFF for i in range(size))
        feed(switch, lambda peer=peer, payload=payload, port=port: peer.sendto(payload, ports[port].address))
        for _ in range(3 if port == 1 else 1):
            data, source = peer.recvfrom(65536)
            received.append((owners[UdpAddress(*source)], data, peer.getsockname()))
    return engine.__dict__["steps"], received


def test_udp_peers_receive_what_the_engine_sent(stack: ExitStack) -> None:
    steps, received = record_over_udp(stack)
    assert len(steps) == 2 * len(SIZES)
    assert {step.port for step in steps} == set(PORTS)
    sent = [(output.port, *strip(output.frame)) for step in steps for output in step.outputs]
    assert received == sent


def replay_in_memory(stack: ExitStack, capture: list[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    switch, _ = start(stack)
    ports = {number: MemoryPort() for number in PORTS}
    for number, port in ports.items():
        switch.dataplane.bind(number, port)
    results = []
    for number, frame in capture:
        feed(switch, lambda port=ports[number], frame=frame: port.inject(frame))
        results.append([(out, sent) for out, port in ports.items() for sent in port.take()])
    return results


def replay_over_unix(stack: ExitStack, capture: list[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    switch, _ = start(stack)
    ends = {}
    for number in PORTS:
        inside, ends[number] = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        stack.enter_context(ends[number]).setblocking(False)
        switch.dataplane.bind(number, UnixPort(inside))
    results = []
    for number, frame in capture:
        feed(switch, lambda end=ends[number], frame=frame: end.send(frame))
        results.append([(out, sent) for out, end in ends.items() for sent in drain(end)])
    return results


def drain(end: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield end.recv(65536)
        except BlockingIOError:
            return


@pytest.mark.parametrize("replay", [replay_in_memory, replay_over_unix])
def test_a_capture_gives_the_same_results_through_other_ports(
    stack: ExitStack, replay: Callable[[ExitStack, list[tuple[int, bytes]]], list[list[tuple[int, bytes]]]]
) -> None:
    steps, _ = record_over_udp(stack)
    got = replay(stack, [(step.port, step.frame) for step in steps])
    wanted = [sorted(map(tuple, step.outputs), key=lambda output: output[0]) for step in steps]
    assert got == wanted
    assert sum(len(outputs) for outputs in got) > len(got), "some were multicast"
