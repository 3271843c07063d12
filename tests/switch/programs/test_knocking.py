# SPDX-License-Identifier: Apache-2.0
"""The port knocking program: registers, branches in an action, signed and saturating arithmetic, truncation."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine

FLOWS, OPEN, LIMIT = 256, 3, 4
KNOCKS = [7000, 8000, 9000]


def crc16(data: bytes) -> int:
    """CRC-16/ARC, bit by bit."""
    crc = 0
    for byte in data:
        for bit in range(8):
            mix = (crc ^ byte >> bit) & 1
            crc = crc >> 1 ^ 0xA001 * mix
    return crc


class Model:
    """What the program does, written from its description."""

    def __init__(self) -> None:
        self.flows: dict[int, tuple[int, int]] = {}

    def answer(self, source: int, port: int, balance: int, rest: bytes, now_us: int) -> bytes:
        flow = crc16(source.to_bytes(4, "big")) % FLOWS
        stage, passed = self.flows.get(flow, (0, 0))
        if stage == OPEN:
            stage, passed = (OPEN, passed + 1) if passed < LIMIT else (0, 0)
        else:
            stage = stage + 1 if port == KNOCKS[stage] else 0
        self.flows[flow] = stage, passed
        report = bytes([stage]) + passed.to_bytes(2, "big") + now_us.to_bytes(6, "big") + (rest[:1] or b"\xee")
        charged = max(balance - 100, -(2**15))
        knock = source.to_bytes(4, "big") + port.to_bytes(2, "big") + charged.to_bytes(2, "big", signed=True)
        return (report + knock + rest)[:20]


def knock(source: int, port: int, balance: int = 0, rest: bytes = b"") -> bytes:
    return source.to_bytes(4, "big") + port.to_bytes(2, "big") + balance.to_bytes(2, "big", signed=True) + rest


def test_random_sequences_equal_the_model(engine_of: Callable[[str], Engine]) -> None:
    engine, model, rng = engine_of("knocking"), Model(), random.Random(8)
    opened = 0
    for step in range(1500):
        source, port = rng.choice([1, 2, 0xDEADBEEF]), rng.choice([*KNOCKS, *KNOCKS, 1])
        balance = rng.choice([0, 32767, -32768, -32700, -1, 99])
        rest = rng.choice([b"", b"\x07", b"payload that is cut"])
        expected = model.answer(source, port, balance, rest, step)
        assert engine.process(step % 8, knock(source, port, balance, rest), step) == [(step % 8, expected)]
        opened += expected[0] == OPEN
    assert opened > 50


def test_the_flow_closes_after_its_limit(engine_of: Callable[[str], Engine]) -> None:
    engine = engine_of("knocking")
    stages = [engine.process(1, knock(9, port))[0].frame[:3] for port in [*KNOCKS, 1, 1, 1, 1, 1, 1]]
    assert [(s[0], s[2]) for s in stages] == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (0, 0), (0, 0)]


@pytest.mark.parametrize("size", range(8))
def test_short_frames_are_dropped_and_leave_no_trace(engine_of: Callable[[str], Engine], size: int) -> None:
    engine = engine_of("knocking")
    assert engine.process(1, knock(0, 7000)[:size]) == []
    assert set(engine.registers.read_all("Forward.stages")) == {0}
