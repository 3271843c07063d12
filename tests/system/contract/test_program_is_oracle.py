# SPDX-License-Identifier: Apache-2.0
"""The compiled program on both back ends of the engine against the oracle, and its loss simulator.

TEST_SCALE (make test SCALE=...) multiplies the number of schedules.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial, reduce
from operator import xor

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_wire import Drop, Event

from ...switch.coverage import Coverage
from .bed import PROGRAM, TABLE, TABLE16, AnyEngine, Bed, broadcast
from .traffic import Traffic

SEEDS = range(8 * int(os.environ.get("TEST_SCALE", "1")))
FRAMES = 700
RANDOM = {Drop.NONE, Drop.SIMULATED}
"""Reasons that the oracle never gives. The loss simulator has a test below."""


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_program_does_what_the_oracle_says(backend: type[AnyEngine]) -> None:
    """And meets every drop reason and every event; in the interpreter also every state, transition and condition.

    Nine in ten faulty frames are mutations of valid ones.
    """
    met: set[tuple[str, Drop | Event]] = set()
    kinds: Counter[str] = Counter()
    coverage = Coverage(PROGRAM)
    for seed in SEEDS:
        rng = random.Random(seed)
        bed = Bed.make(rng, partial(Engine, observer=coverage) if backend is Engine else backend)
        traffic = Traffic(rng, bed.jobs)
        for number, (port, frame) in enumerate(traffic.frames(FRAMES)):
            expected = bed.oracle.receive_frame(port, frame)
            got = bed.process(port, frame)
            assert got == expected, f"seed {seed}, frame {number}, port {port}: {frame.hex()}"
        assert bed.counters() == bed.oracle_counters(), f"seed {seed}"
        assert bed.registers() == bed.oracle_registers(), f"seed {seed}"
        met |= {("drop", reason) for reason in bed.oracle.drops} | {("event", e) for _, e in bed.oracle.job_events}
        kinds += traffic.kinds
    assert met == {("drop", reason) for reason in set(Drop) - RANDOM} | {("event", event) for event in Event}
    assert kinds["mutation"] >= 9 * kinds["bytes"] > 0
    if backend is Engine:
        print(coverage.report())
        parts = ("state", "transition", "condition")
        missed = {part for part in coverage.missed() if part.startswith(parts)}
        assert {part for part in missed if "is_lost == 1: true" not in part} == set()


@pytest.mark.parametrize(("table", "lane_bytes"), [(TABLE, 1), (TABLE16, 2)])
def test_broadcast_is_what_the_program_wants(table: tuple[int, ...], lane_bytes: int) -> None:
    words, low = broadcast(table, lane_bytes), (1 << 8 * lane_bytes) - 1
    for code in range(16):
        terms = [word & low for number, word in enumerate(words) if number & code == number]
        assert reduce(xor, terms) == table[code]


HALF = 1 << 31

backends = pytest.mark.parametrize("backend", [Engine, NativeEngine])


@backends
def test_what_is_not_lost_is_treated_as_ever(backend: type[AnyEngine]) -> None:
    """The oracle is told of what came in; of what it sends, the lost copies are missing and nothing else."""
    rng = random.Random(7)
    bed = Bed.make(rng, backend, seed=7)
    for port in (*range(1, 4), *range(10, 18)):
        bed.lose("ingress_loss", port, HALF // 2)
        bed.lose("egress_loss", port, HALF // 2)
    lost_out = 0
    for port, frame in Traffic(rng, bed.jobs).frames(1200):
        lost_in = sum(bed.lost("ingress_loss").values())
        got = bed.process(port, frame)
        if sum(bed.lost("ingress_loss").values()) > lost_in:
            assert got == []
            continue
        expected = bed.oracle.receive_frame(port, frame)
        rest = iter(expected)
        assert all(output in rest for output in got), "a part of what the oracle sends, in its order"
        lost_out += len(expected) - len(got)
    lost_in = sum(bed.lost("ingress_loss").values())
    assert lost_out == sum(bed.lost("egress_loss").values()) > 100
    assert lost_in > 100
    drops = bed.counters()["drops"]
    assert drops.pop(Drop.SIMULATED) == lost_in
    assert (drops, bed.counters()["job_events"]) == tuple(bed.oracle_counters().values())
    assert bed.registers() == bed.oracle_registers()
