# SPDX-License-Identifier: Apache-2.0
"""Batches through UDP ports and their compiled loop against single frames: equal datagrams, counters, registers."""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopsum_base.records import record_dtype
from hopsum_switch.engine import Engine
from hopsum_switch.native import loop_code
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.ports.batches import BATCH_FRAMES, FrameBuffer, Frames
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.udp import UdpPort
from hopsum_switch.ports.udp_frames import checksum, headers
from hopsum_switch.ports.udp_layout import COMPILED_VARIABLE, DESTINATIONS, Egress
from hopsum_switch.ports.udp_loop import LoopRemainder, UdpLoop
from hopsum_switch.program.frame_budget import MAX_STEPS

from ..native.test_programs import looping
from .test_udp_port import LOOPBACK, open_peer
from .udp_loop_rig import MEMORY, UDP_PORTS, Peers, Plane, image_to, program, wish

UDP_SEGMENT, UDP_GRO = 103, 104
PEERS = [(bytes((127, 0, 0, host)), port) for host in (1, 2) for port in (1001, 1002)]
ADDRESSES = [(socket.inet_ntoa(ip), port) for ip, port in PEERS]


class FakeSocket:
    """Takes datagrams as a kernel would; `refuse` may raise instead for (payload bytes, segment bytes or None)."""

    def __init__(self, refuse: Callable[[int, int | None], None] = lambda size, segment: None) -> None:
        self.sent: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.calls = 0
        self._refuse = refuse

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) in {(17, UDP_SEGMENT), (17, UDP_GRO)}

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 9)

    def sendto(self, payload: Any, address: tuple[str, int]) -> None:
        self.calls += 1
        self._refuse(len(bytes(payload)), None)
        self.sent[address].append(bytes(payload))

    def sendmsg(
        self, parts: Sequence[Any], control: list[tuple[int, int, bytes]], flags: int, address: tuple[str, int]
    ) -> None:
        self.calls += 1
        ((level, kind, data),) = control
        (segment,) = struct.unpack("=H", data)
        payload = b"".join(bytes(part) for part in parts)
        assert (level, kind, flags) == (17, UDP_SEGMENT, 0)
        assert 0 < segment < len(payload) <= 65507
        assert len(payload) <= 64 * segment
        self._refuse(len(payload), segment)
        self.sent[address] += [payload[at : at + segment] for at in range(0, len(payload), segment)]


def port_over(sock: FakeSocket, **options: Any) -> UdpPort:
    return UdpPort(sock, 1, **options)  # type: ignore[arg-type]


def frame_to(peer: tuple[bytes, int], payload: bytes, *, checked: bool = False, options: bytes = b"") -> bytes:
    packet = bytearray(headers((b"\x0a\0\0\1", 24677), peer, len(payload)) + payload)
    if checked:
        pseudo = packet[12:20] + struct.pack("!HH", 17, 8 + len(payload))
        packet[26:28] = (checksum(bytes(pseudo + packet[20:])) or 0xFFFF).to_bytes(2, "big")
    if options:
        packet[20:20] = options
        packet[0] += len(options) // 4
        packet[2:4] = len(packet).to_bytes(2, "big")
        packet[10:12] = bytes(2)
        packet[10:12] = checksum(bytes(packet[: 20 + len(options)])).to_bytes(2, "big")
    return bytes(12) + b"\x08\x00" + bytes(packet)


def random_frames(rng: random.Random, count: int) -> list[bytes]:
    """Mostly good frames of few sizes to few peers; some with options, padding, or one thing wrong."""
    sizes = [rng.choice([0, 1, 2, 33, 1056, 3000]) for _ in range(3)]
    frames: list[bytes] = []
    for _ in range(count):
        options = rng.randbytes(4 * rng.randrange(1, 11)) if rng.random() < 0.03 else b""
        payload = rng.randbytes(rng.choice(sizes))
        frame = bytearray(frame_to(rng.choice(PEERS), payload, checked=rng.random() < 0.3, options=options))
        fault = rng.random()
        if fault < 0.05:
            frame += rng.randbytes(rng.randrange(1, 40))
        elif fault < 0.10:
            del frame[rng.choice([0, 13, 14, 20, 33, 34, 41, 42, len(frame) - 1]) :]
        elif fault < 0.30:
            at = rng.randrange(min(len(frame), 42))
            frame[at] = rng.choice([0, 0xFF, 0x45, 0x46, frame[at] ^ 1 << rng.randrange(8)])
            if rng.random() < 0.7:  # so that the checks after that of the header have their turn
                frame[24:26] = bytes(2)
                frame[24:26] = checksum(bytes(frame[14:34])).to_bytes(2, "big")
        elif fault < 0.32:
            frame = bytearray(rng.randbytes(rng.randrange(80)))
        frames.append(bytes(frame))
    return frames


def sent_one_by_one(frames: list[bytes]) -> tuple[dict[tuple[str, int], list[bytes]], dict[str, Any]]:
    sock = FakeSocket()
    port = port_over(sock)
    for frame in frames:
        port.send(frame)
    return sock.sent, port.counters.as_dict()


@pytest.mark.parametrize("joined", [True, False])
def test_a_batch_sends_and_counts_what_single_frames_do(joined: bool) -> None:
    met, sent = set[str](), 0
    for seed in range(60):
        frames = random_frames(random.Random(seed), count=random.Random(seed).randrange(1, 400))
        sock = FakeSocket()
        port = port_over(sock, joined=joined)
        port.send_batch(Frames.from_bytes(frames))
        expected, counters = sent_one_by_one(frames)
        assert sock.sent == expected, f"seed {seed}"
        assert port.counters.as_dict() == counters, f"seed {seed}"
        assert joined or sock.calls == counters["sent"]
        met |= counters["dropped"].keys()
        sent += counters["sent"]
    assert met == {"not_ipv4", "not_udp", "fragment", "truncated", "bad_checksum", "bad_destination"}
    assert sent > 1000


def test_single_faults_count_alike() -> None:
    """Every byte of the headers, every bit of it, with the header's checksum made right again or not."""
    good = frame_to(PEERS[0], b"payload!", checked=True)
    for right in (False, True):
        frames = []
        for bit in range(8 * 42):
            frame = bytearray(good)
            frame[bit // 8] ^= 1 << bit % 8
            if right:
                frame[24:26] = bytes(2)
                frame[24:26] = checksum(bytes(frame[14:34])).to_bytes(2, "big")
            frames.append(bytes(frame))
        port = port_over(FakeSocket())
        port.send_batch(Frames.from_bytes(frames))
        assert port.counters.as_dict() == sent_one_by_one(frames)[1]


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([1056] * 62, 1),
        ([1056] * 63, 2),  # 65507 bytes
        ([100] * 65, 2),  # 64 segments
        ([100] * 64 + [99], 2),
        ([100] * 63 + [99], 1),
        ([100, 100, 99, 100, 100], 2),
        ([100, 100, 99, 99], 2),
        ([99, 100, 100], 2),
        ([100, 0, 100], 3),
        ([0, 0], 2),
        ([65507, 65507], 2),
        ([32753, 32753], 1),
        ([32753, 32753, 1], 2),
        ([32753, 32752], 1),
    ],
)
def test_what_leaves_together(sizes: list[int], calls: int) -> None:
    payloads = [bytes([number & 0xFF]) * size for number, size in enumerate(sizes)]
    sock = FakeSocket()
    port_over(sock).send_batch(Frames.from_bytes([frame_to(PEERS[0], payload) for payload in payloads]))
    assert sock.sent == {ADDRESSES[0]: payloads}
    assert sock.calls == calls


def refusing(number: int, *, segments_only: bool) -> Callable[[int, int | None], None]:
    def refuse(size: int, segment: int | None) -> None:
        if segment is not None or not segments_only:
            raise OSError(number, "refused")

    return refuse


@pytest.mark.parametrize("number", [errno.EMSGSIZE, errno.EIO, errno.EINVAL])
def test_what_cannot_leave_together_leaves_alone(number: int, caplog: pytest.LogCaptureFixture) -> None:
    sock = FakeSocket(refusing(number, segments_only=True))
    port = port_over(sock)
    port.send_batch(Frames.from_bytes([frame_to(PEERS[0], bytes([n])) for n in range(70)]))
    assert [record.getMessage() for record in caplog.records] == [
        "switch port 1 at 127.0.0.1:9: the kernel refuses datagrams sent together, which leave one by one: "
        f"{os.strerror(number)}"
    ]
    assert sock.sent == {ADDRESSES[0]: [bytes([n]) for n in range(70)]}
    assert (port.counters.sent, port.counters.sent_bytes, port.counters.dropped) == (70, 70 * 43, {})


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EAGAIN, "queue_full"), (errno.ENOBUFS, "queue_full"), (errno.EPERM, "send_error")]
)
def test_all_frames_of_a_refused_call_are_counted(number: int, reason: str) -> None:
    port = port_over(FakeSocket(refusing(number, segments_only=True)))
    port.send_batch(Frames.from_bytes([frame_to(PEERS[n % 2], b"x") for n in range(21)] + [frame_to(PEERS[2], b"y")]))
    assert port.counters.as_dict()["dropped"] == {reason: 21}
    assert port.counters.sent == 1


def test_a_datagram_too_long_for_the_path_is_counted_once() -> None:
    port = port_over(FakeSocket(refusing(errno.EMSGSIZE, segments_only=False)))
    port.send_batch(Frames.from_bytes([frame_to(PEERS[0], b"xy")] * 3))
    assert port.counters.dropped == {"send_error": 3}


def open_port(stack: ExitStack, *, joined: bool) -> UdpPort:
    port = UdpPort.bind(3, LOOPBACK, joined=joined)
    stack.callback(port.close)
    assert joined or (port.describe()["joined"], port.describe()["cut"]) == (False, False)
    return port


def can_cut(sock: socket.socket) -> bool:
    try:
        sock.setsockopt(17, UDP_SEGMENT, 0)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("joined", [True, False])
def test_real_sockets_carry_batches_in_order(stack: ExitStack, joined: bool) -> None:
    port, peers = open_port(stack, joined=joined), [open_peer(stack), open_peer(stack)]
    rng = random.Random(5)
    payloads = [(n % 2, n.to_bytes(2, "big") + rng.randbytes(rng.choice([98, 98, 98, 50]))) for n in range(150)]
    ends = [(b"\x7f\0\0\1", peer.getsockname()[1]) for peer in peers]
    port.send_batch(Frames.from_bytes([frame_to(ends[who], payload) for who, payload in payloads]))
    for who, peer in enumerate(peers):
        assert [peer.recv(2000) for _ in range(75)] == [payload for to, payload in payloads if to == who]
    assert (port.counters.sent, port.counters.dropped) == (150, {})


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    "sizes", [[0], [1], [1472], [65507], [544] * 64, [1056] * 62, [1] * 64, [100] * 10 + [7], [33] * 2]
)
def test_joined_datagrams_are_the_frames_of_single_ones(stack: ExitStack, joined: bool, sizes: list[int]) -> None:
    port, peer = open_port(stack, joined=joined), open_peer(stack)
    payloads = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    if len(sizes) > 1 and can_cut(peer):
        peer.sendmsg(payloads, [(17, UDP_SEGMENT, struct.pack("=H", sizes[0]))], 0, port.address)
    else:
        for payload in payloads:
            peer.sendto(payload, port.address)
    ends = [(b"\x7f\0\0\1", number) for number in (peer.getsockname()[1], port.address.port)]
    expected = [bytes.fromhex("0200000000030200000001030800") + headers(*ends, len(p)) + p for p in payloads]
    frames = FrameBuffer()
    frames.port = 3
    port.receive_batch(frames)
    batch = frames.batch()
    assert [batch.frame(number) for number in range(frames.count)] == expected
    assert batch.ports.tolist() == [3] * len(sizes)
    assert port.counters.as_dict() | {"dropped": 0} == {
        "received": len(sizes),
        "received_bytes": sum(sizes) + 42 * len(sizes),
        "sent": 0,
        "sent_bytes": 0,
        "dropped": 0,
    }


def test_a_batch_is_bounded_and_the_rest_waits(stack: ExitStack) -> None:
    port, peer = open_port(stack, joined=True), open_peer(stack)
    sent = 0
    while sent <= BATCH_FRAMES + 64:
        if can_cut(peer):
            peer.sendmsg([bytes(64)], [(17, UDP_SEGMENT, struct.pack("=H", 1))], 0, port.address)
            sent += 64
        else:
            peer.sendto(b"x", port.address)
            sent += 1
    first, second = port.receive(), port.receive()
    assert len(first) + len(second) == sent
    assert BATCH_FRAMES <= len(first) < BATCH_FRAMES + 64


def test_a_port_says_what_the_kernel_grants(stack: ExitStack) -> None:
    port = open_port(stack, joined=True)
    shown = port.describe()
    assert 0 < shown["receive_buffer_bytes"] <= shown["receive_buffer_asked_bytes"]
    assert (shown["joined"], shown["cut"]) == (can_cut(open_peer(stack)),) * 2
    port.close()
    assert port.describe()["receive_buffer_bytes"] == 0


def both(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> list[Plane]:
    """Return a data plane with the compiled loop and one without."""
    if loop_code.LOOP_CODE.wait() is None:
        pytest.skip("the compiled loop needs Linux on 64 bits, numba and llvmlite")
    planes = [Plane(stack, monkeypatch, compiled=compiled) for compiled in (True, False)]
    assert [plane.dataplane._udp_loop is not None for plane in planes] == [True, False]
    return planes


def traffic(rng: random.Random, peers: Peers) -> list[bytes]:
    """Return datagrams of one train: wishes of one kind mostly, some of all kinds, some that are too short or long."""
    rests, train = [rng.choice([0, 1, 100, 1000, 1472, 9000]) for _ in range(2)], []
    careful = rng.random() < 0.5
    for _ in range(rng.choice([1, 2, 5, 40, 64])):
        rest = rng.choice(rests) if rng.random() < 0.1 else rests[0]
        if rng.random() < 0.02:
            train.append(rng.randbytes(rng.choice([0, 1, 3, 89, 1400, 65507])))
            continue
        image = image_to(rng.choice(peers.addresses), rest, None if careful or rng.random() < 0.8 else rng)
        group = rng.choice([0, 0, 1, 1, 1, 2, 3, 4, 5])
        if careful:
            group = min(group, 1)
        out = rng.choice(UDP_PORTS) if careful or rng.random() < 0.9 else rng.choice([MEMORY, 77, 511])
        train.append(wish(image, group=group, out=out, rest=rng.randbytes(rest)))
    return train


def test_random_traffic_leaves_and_counts_alike(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    planes, rng, rests = both(stack, monkeypatch), random.Random(1), 0
    whole = 0
    serve = Dataplane._run_udp_loop

    def watched(self: Dataplane, loop: UdpLoop, number: int) -> LoopRemainder | None:
        nonlocal rests, whole
        before, rest = self.packets, serve(self, loop, number)
        rests += rest is not None
        whole += 0 if rest is not None else self.packets - before
        return rest

    monkeypatch.setattr(Dataplane, "_run_udp_loop", watched)
    peers = Peers(stack, 5)
    for step in range(70):
        plan = [(rng.randrange(5), rng.choice(UDP_PORTS), traffic(rng, peers)) for _ in range(rng.choice([1, 3]))]
        found = []
        for plane in planes:
            for who, number, train in plan:
                peers.send(who, plane, number, train)
            for number in UDP_PORTS:
                plane.serve(number)
            found.append((peers.take(plane), plane.state()))
        assert found[0] == found[1], f"step {step}"
    state = planes[0].state()
    reasons = {reason for port in UDP_PORTS for reason in state["ports"][port]["dropped"]}
    assert reasons >= {"not_ipv4", "not_udp", "fragment", "truncated", "bad_checksum", "bad_destination"}
    assert state["dropped"][0].keys() == {"no_such_port"}
    assert state["packets"] > 1500
    assert rests > 10, "what is not plain goes back to the ports"
    assert whole > 500, "and most is plain"


def test_frames_of_many_destinations_leave_in_order(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than wait for each other, and a group of more copies than one train has room for."""
    planes, peers = both(stack, monkeypatch), Peers(stack, DESTINATIONS + 6)
    rng = random.Random(2)
    for group in (0, 4):
        targets = [rng.choice(peers.addresses) for _ in range(300)]
        wishes = [
            wish(image_to(to, 1400), group=group, rest=n.to_bytes(2, "big") * 700) for n, to in enumerate(targets)
        ]
        found = []
        for plane in planes:
            for first in range(0, 300, 40):
                peers.send(0, plane, 1, wishes[first : first + 40])
                plane.serve(1)
                found.append((plane.dataplane._udp_loop is not None, peers.take(plane)))
        compiled = [taken for is_compiled, taken in found if is_compiled]
        assert compiled == [taken for is_compiled, taken in found if not is_compiled]
        assert sum(len(data) for taken in compiled for data in taken.values()) == 300 * (70 if group else 1)
    assert planes[0].state() == planes[1].state()


def test_what_the_kernel_refuses_counts_alike(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket of the loopback cannot send to other hosts: EINVAL, together and one by one."""
    planes, peers = both(stack, monkeypatch), Peers(stack, 1)
    abroad = (b"\x0a\xff\xff\1", 9)
    found, said = [], []
    for plane in planes:
        caplog.clear()
        for rest in (4, 3, 4):
            wishes = [wish(image_to(to, rest), rest=bytes(rest)) for to in [abroad, peers.addresses[0]] * 20]
            peers.send(0, plane, 0, wishes)
        plane.serve(0)
        found.append((peers.take(plane), plane.state()))
        said.append(sorted(record.getMessage().partition(": ")[2] for record in caplog.records))
    assert found[0] == found[1]
    assert said[0] == said[1]
    assert "the kernel refuses datagrams, which are lost: Invalid argument" in said[0], "once, with its cause"
    assert found[0][1]["ports"][0]["dropped"] == {"send_error": 60}
    assert found[0][1]["ports"][0]["sent"] == 60


@pytest.mark.parametrize(
    ("wrong", "counted"),
    [
        (0, {"sent": 3, "sent_bytes": 99}),
        (errno.EAGAIN, {"queue_full": 3}),
        (errno.ENOBUFS, {"queue_full": 3}),
        (errno.EPERM, {"send_error": 3, "alone_errno": errno.EPERM}),
    ],
)
def test_errors_count_by_reason(wrong: int, counted: dict[str, int]) -> None:
    """As Python, which is what numba compiles: no loopback refuses frames for a full queue."""
    udp_kernel = pytest.importorskip("hopsum_switch.ports.udp_kernel")
    egress = Egress()
    udp_kernel._count.py_func(egress, wrong, 3, 99)
    found = {name: getattr(egress, name) for name in record_dtype(Egress).names or ()}
    assert {name: count for name, count in found.items() if count} == counted


def test_a_call_is_bounded_and_the_rest_waits(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    plane, peers = both(stack, monkeypatch)[0], Peers(stack, 1)
    for _ in range(3 * BATCH_FRAMES // 64):
        peers.send(0, plane, 0, [b"x"] * 64)
    port = plane.udp[0]
    plane.dataplane._serve([(0, port)])
    assert BATCH_FRAMES <= port.counters.received < BATCH_FRAMES + 64
    plane.serve(0)
    assert port.counters.received == plane.dataplane.packets == 3 * BATCH_FRAMES // 64 * 64


def test_frames_that_go_round_loops_let_others_in_between(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such frame ends a call; those that need more steps than a frame has are dropped, and counted once."""
    plane, peers = both(stack, monkeypatch)[0], Peers(stack, 1)
    engine = NativeEngine(looping().load())
    monkeypatch.setenv(COMPILED_VARIABLE, "1")
    with plane.dataplane.gate.control():
        plane.dataplane.engine = engine
    assert plane.dataplane._udp_loop is not None
    steps = []
    entered = plane.dataplane.gate.packets
    monkeypatch.setattr(plane.dataplane.gate, "packets", lambda: (steps.append(plane.dataplane.packets), entered())[1])
    # The program reads the first four bytes of the frame, its destination: 02:00:00:00 is far more turns than steps.
    peers.send(0, plane, 0, [b"x"] * 5)
    plane.serve(0)
    assert engine.dropped == {"steps": 5}
    assert engine.registers.read("r", 1) == 5 == plane.dataplane.packets
    assert max(later - earlier for earlier, later in pairwise(steps)) <= 2
    assert MAX_STEPS < 0x02000000


def test_a_missing_port_is_counted_and_the_environment_decides(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, peers = both(stack, monkeypatch)[0], Peers(stack, 1)
    wishes = [wish(image_to(peers.addresses[0], 8), out=7, rest=bytes(8))] * 3
    peers.send(0, plane, 0, wishes)
    plane.serve(0)
    assert plane.dataplane.dropped == {"no_such_port": 3}
    monkeypatch.setenv(COMPILED_VARIABLE, "0")
    with plane.dataplane.gate.control():
        plane.dataplane.engine = plane.engine
    assert plane.dataplane._udp_loop is None
    monkeypatch.setenv(COMPILED_VARIABLE, "1")
    with plane.dataplane.gate.control():
        plane.dataplane.engine = Engine(program())
    assert plane.dataplane._udp_loop is None, "an interpreter has no machine code to call"


def test_the_loop_is_compiled_once_while_traffic_continues(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both(stack, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun, compiled = threading.Event(), loop_code.compile_loop

    def elsewhere() -> bytes:
        begun.wait()
        return compiled()

    monkeypatch.setattr(loop_code, "_compiled_elsewhere", elsewhere)
    monkeypatch.setattr(loop_code, "LOOP_CODE", loop_code.LoopCode())
    peers, plane = Peers(stack, 1), Plane(stack, monkeypatch, compiled=True)
    answers = []
    for is_compiled in (False, True):
        assert (plane.dataplane._udp_loop is not None) == is_compiled
        peers.send(0, plane, 0, [wish(image_to(peers.addresses[0], 8), rest=bytes(8))])
        plane.serve(0)
        answers.append(len(peers.take(plane)))
        begun.set()
        assert loop_code.LOOP_CODE.wait() is not None
    assert answers == [1, 1]
    assert len(list((tmp_path / "hopsum-switch").glob("*.o"))) == 2, "the program and the loop"
    monkeypatch.setattr(loop_code, "_compiled_elsewhere", lambda: pytest.fail("compiled twice"))
    assert loop_code.LoopCode().get() is not None


def test_another_process_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That process is Python, and what it says last is the reason when it fails."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(loop_code, "sys", SimpleNamespace(executable="/bin/false"))
    with pytest.raises(RuntimeError, match=r"no message \(exit status 1\)"):
        loop_code._compiled_elsewhere()


def test_a_machine_where_it_cannot_be_compiled_goes_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bytes:
        raise ImportError("no numba")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loop_code, "_compiled_elsewhere", fail)
    with caplog.at_level(logging.WARNING):
        assert loop_code.LoopCode().wait() is None
    assert "ImportError: no numba" in caplog.text
