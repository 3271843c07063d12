# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of UDP ports against the ports in Python: equal frames in equal order, counters and registers."""

from __future__ import annotations

import errno
import logging
import random
import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native import loop_code
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.ports import udp_layout as at
from hopsum_switch.ports.batches import BATCH_FRAMES
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.udp_layout import COMPILED_VARIABLE, DESTINATIONS
from hopsum_switch.ports.udp_loop import Rest, UdpLoop
from hopsum_switch.program.frame_budget import MAX_STEPS

from ..native.test_programs import looping
from .udp_loop_rig import MEMORY, UDP_PORTS, Peers, Plane, image_to, program, wish


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

    def watched(self: Dataplane, loop: UdpLoop, number: int) -> Rest | None:
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


def test_what_the_kernel_refuses_counts_alike(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket of the loopback cannot send to other hosts: EINVAL, together and one by one."""
    planes, peers = both(stack, monkeypatch), Peers(stack, 1)
    abroad = (b"\x0a\xff\xff\1", 9)
    found = []
    for plane in planes:
        for rest in (4, 3, 4):
            wishes = [wish(image_to(to, rest), rest=bytes(rest)) for to in [abroad, peers.addresses[0]] * 20]
            peers.send(0, plane, 0, wishes)
        plane.serve(0)
        found.append((peers.take(plane), plane.state()))
    assert found[0] == found[1]
    assert found[0][1]["ports"][0]["dropped"] == {"send_error": 60}
    assert found[0][1]["ports"][0]["sent"] == 60


@pytest.mark.parametrize(
    ("wrong", "place"), [(0, at.SENT), (errno.EAGAIN, at.QUEUE_FULL), (errno.ENOBUFS, at.QUEUE_FULL), (errno.EPERM, 5)]
)
def test_errors_count_by_reason(wrong: int, place: int) -> None:
    """As Python, which is what numba compiles: no loopback refuses frames for a full queue."""
    udp_kernel = pytest.importorskip("hopsum_switch.ports.udp_kernel")
    egress, row = [0] * (2 * at.EGRESS_WORDS), at.EGRESS_WORDS
    udp_kernel._count.py_func(SimpleNamespace(egress=egress), row, wrong, 3, 99)
    expected = {at.SENT: 3, at.SENT_BYTES: 99} if wrong == 0 else {place: 3}
    assert {place - row: count for place, count in enumerate(egress) if count} == expected


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


def test_ports_come_and_go_and_the_environment_decides(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    plane, peers = both(stack, monkeypatch)[0], Peers(stack, 1)
    wishes = [wish(image_to(peers.addresses[0], 8), out=1, rest=bytes(8))] * 3
    peers.send(0, plane, 0, wishes)
    plane.dataplane.unbind(1)
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


def test_the_loop_is_compiled_once_while_packets_go_on(
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
