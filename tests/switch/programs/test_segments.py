# SPDX-License-Identifier: Apache-2.0
"""The source routing program: stacks that are parsed, popped and pushed, and a union that changes its member."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine

SEGMENTS, RECORDS = 4, 3
SHORT, LONG = 1, 2


def frame(segments: list[int], records: list[tuple[int, int]], body: bytes) -> bytes:
    """A frame with a list of ports, a trace and a body."""
    last = len(segments) - 1
    listed = bytes((number == last) << 7 | port for number, port in enumerate(segments))
    return bytes([len(records)]) + listed + b"".join(bytes(record) for record in records) + body


def answer(segments: list[int], records: list[tuple[int, int]], body: bytes) -> list[tuple[int, bytes]]:
    """What the program does, written from its description."""
    if len(segments) > SEGMENTS or len(records) > RECORDS:
        return []
    port, rest = segments[0], segments[1:]
    trace = [(port, len(rest)), *records][:RECORDS]
    if body[0] == LONG:
        body = bytes([SHORT, body[3]]) + body[4:]
    return [(port, frame(rest, trace, body))]


def random_case(rng: random.Random) -> tuple[list[int], list[tuple[int, int]], bytes]:
    segments = [rng.randrange(128) for _ in range(rng.choice([1, 2, 3, 4, 4, 5]))]
    records = [(rng.randrange(256), rng.randrange(256)) for _ in range(rng.choice([0, 1, 2, 3, 3, 4]))]
    body = rng.choice([bytes([SHORT, 7]), bytes([LONG, 1, 2, 3]), b"\x09other"]) + rng.randbytes(rng.randrange(5))
    return segments, records, body


def test_random_frames_equal_the_model(engine_of: Callable[[str], Engine]) -> None:
    engine, rng, sent = engine_of("segments"), random.Random(4), 0
    for _ in range(500):
        case = random_case(rng)
        expected = answer(*case)
        assert engine.process(0, frame(*case)) == expected, case
        sent += len(expected)
    assert 200 < sent < 500


@pytest.mark.parametrize("cut", [1, 2, 3, 6])
def test_frames_that_end_too_early_are_dropped(engine_of: Callable[[str], Engine], cut: int) -> None:
    assert engine_of("segments").process(0, frame([1, 2, 3], [(4, 5)], b"\x01\x02")[:cut]) == []
