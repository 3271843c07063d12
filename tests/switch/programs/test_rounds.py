# SPDX-License-Identifier: Apache-2.0
"""Packets that come round: how often, as what, with how much of their metadata and of their frame."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine

RESUBMITTED, RECIRCULATED = 6, 4
MARKS = 8


def frame(
    resubmits: int, recirculations: int, marks: list[tuple[int, int]], rest: bytes, seen: tuple[int, ...] = (0,) * 6
) -> bytes:
    """A frame; `seen` are port, kind, length (two bytes), rounds and what was lost."""
    return bytes([resubmits, recirculations, *seen]) + b"".join(bytes(mark) for mark in marks) + rest


def answer(
    port: int, resubmits: int, recirculations: int, marks: list[tuple[int, int]], rest: bytes
) -> list[tuple[int, bytes]]:
    """What the program does, written from its description."""
    if recirculations:
        port, kind = 0, RECIRCULATED
        marks = [(1, number) for number in range(recirculations, 0, -1)] + marks
    elif resubmits:
        port, kind = 0, RESUBMITTED
    else:
        kind = 0
    length = len(frame(0, 0, marks, rest)).to_bytes(2, "big")
    return [(2, frame(resubmits, recirculations, marks, rest, (port, kind, *length, resubmits, 0)))]


CASES = [
    (port, resubmits, recirculations, marks, rest)
    for port in (1, 7)
    for resubmits in (0, 1, 5)
    for recirculations in (0, 1, 4)
    for marks in ([(0, 99)], [(1, 98), (0, 97)])
    for rest in (b"", b"rest")
]


@pytest.mark.parametrize(("port", "resubmits", "recirculations", "marks", "rest"), CASES)
def test_rounds_equal_the_model(
    engine_of: Callable[[str], Engine],
    port: int,
    resubmits: int,
    recirculations: int,
    marks: list[tuple[int, int]],
    rest: bytes,
) -> None:
    engine = engine_of("rounds")
    got = engine.process(port, frame(resubmits, recirculations, marks, rest))
    assert got == answer(port, resubmits, recirculations, marks, rest)


def test_a_frame_that_asks_for_too_many_rounds_is_dropped_and_counted(engine_of: Callable[[str], Engine]) -> None:
    engine = engine_of("rounds")
    assert len(engine.process(1, frame(249, MARKS - 1, [(0, 9)], b""))) == 1
    assert not engine.dropped
    assert engine.process(1, frame(250, MARKS - 1, [(0, 9)], b"")) == []
    assert engine.dropped == {"turns": 1}
