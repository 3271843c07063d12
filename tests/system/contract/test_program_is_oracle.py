# SPDX-License-Identifier: Apache-2.0
"""The compiled program on both back ends of the engine against the oracle, and its loss simulator.

TEST_SCALE (make test SCALE=...) multiplies the number of schedules.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import xor

import numpy as np
import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_wire import Drop, Event

from ...switch.coverage import Coverage
from ..fuzz.corpus import Corpus
from ..fuzz.mutations import Mutator
from ..fuzz.rig import FAR_KEPT, FAR_ROUND, frame_of
from .bed import PROGRAM, TABLE, TABLE4, TABLE16, AnyEngine, Bed, broadcast, make_jobs, of_levels

SEEDS = range(8 * int(os.environ.get("TEST_SCALE", "1")))
FRAMES = 700
MUTATED = 0.45
FRAMES_PER_ROUND = 40
"""So few that the rounds of one seed have every op."""
RANDOM = {Drop.NONE, Drop.SIMULATED}
"""Reasons that the oracle never gives. The loss simulator has a test below."""


def frames_of(seed: int, bed: Bed, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield ports and frames of the bed's jobs: more than half valid, the others mutations of valid ones."""
    rng = np.random.default_rng(seed)
    corpus, mutator = Corpus(rng, FRAMES_PER_ROUND), Mutator(rng)
    rounds = corpus.rounds(count)
    frames = corpus.draw(count, bed.jobs)
    mutator.mutate(frames, np.flatnonzero(rng.random(count) < MUTATED))
    mutator.damp(frames, rounds, FAR_ROUND, FAR_KEPT)
    return (frame_of(frames, number) for number in range(count))


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_program_does_what_the_oracle_says(backend: type[AnyEngine]) -> None:
    """And meets every drop reason and every event; in the interpreter also every state, transition and condition."""
    met: set[tuple[str, Drop | Event]] = set()
    coverage = Coverage(PROGRAM)
    for seed in SEEDS:
        bed = Bed.make(random.Random(seed), partial(Engine, observer=coverage) if backend is Engine else backend)
        for number, (port, frame) in enumerate(frames_of(seed, bed, FRAMES)):
            expected = bed.oracle.receive_frame(port, frame)
            got = bed.process(port, frame)
            assert got == expected, f"seed {seed}, frame {number}, port {port}: {frame.hex()}"
        assert bed.counters() == bed.oracle_counters(), f"seed {seed}"
        assert bed.registers() == bed.oracle_registers(), f"seed {seed}"
        met |= {("drop", reason) for reason in bed.oracle.drops} | {("event", e) for _, e in bed.oracle.job_events}
    assert met == {("drop", reason) for reason in set(Drop) - RANDOM} | {("event", event) for event in Event}
    if backend is Engine:
        parts = ("state", "transition", "condition")
        missed = {part for part in coverage.missed() if part.startswith(parts)}
        assert {part for part in missed if "is_lost == 1: true" not in part} == set()


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_a_root_without_thresholds_is_silent_when_a_round_is_complete(backend: type[AnyEngine]) -> None:
    """The controller makes none. Slots and counters are the oracle's, and nothing leaves."""
    bed = Bed.make(random.Random(1), backend)
    *others, spine = make_jobs(random.Random(2), 20)
    bed.replace_jobs((*others, replace(spine, quorum=2, min_quorum=1, parent=None, table4=None)))
    silent = 0
    for port, frame in frames_of(3, bed, 4 * FRAMES):
        outcome, expected = bed.oracle.explain_frame(port, frame)
        assert bed.process(port, frame) == expected
        silent += outcome.drop is Drop.NO_TABLE and bool(outcome.events)
    assert silent > 0
    assert bed.counters() == bed.oracle_counters()
    assert bed.registers() == bed.oracle_registers()


@pytest.mark.parametrize(("table", "lane_bytes"), [(TABLE, 1), (TABLE16, 2), (TABLE4[:16], 1), (TABLE[:4], 1)])
def test_broadcast_is_what_the_program_wants(table: tuple[int, ...], lane_bytes: int) -> None:
    words, low = broadcast(table, lane_bytes), (1 << 8 * lane_bytes) - 1
    for code in range(len(table)):
        terms = [word & low for number, word in enumerate(words) if number & code == number]
        assert reduce(xor, terms) == table[code] & low


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_levels_are_what_the_program_wants(bits: int) -> None:
    """Bit by bit from the highest: the bits found so far choose the next threshold, until they are the code."""
    thresholds = sorted(np.random.default_rng(bits).integers(1, 128, (1 << bits) - 1).tolist())
    words = [word & 0xFF for word in of_levels(thresholds)]
    assert len(words) == len(thresholds)
    for half in range(128):
        found = 0
        for level in range(bits):
            of_level = words[(1 << level) - 1 :]
            chosen = reduce(xor, (of_level[i] for i in range(1 << level) if i & found == i))
            found = found << 1 | (half + chosen) >> 7
        assert found == sum(threshold <= half for threshold in thresholds)


HALF = 1 << 31

backends = pytest.mark.parametrize("backend", [Engine, NativeEngine])


@backends
def test_what_is_not_lost_is_treated_as_ever(backend: type[AnyEngine]) -> None:
    """The oracle is told of what came in; of what it sends, the lost copies are missing and nothing else."""
    bed = Bed.make(random.Random(7), backend, seed=7)
    for port in (*range(1, 4), *range(10, 18)):
        bed.lose("ingress_loss", port, HALF // 2)
        bed.lose("egress_loss", port, HALF // 2)
    lost_out = 0
    for port, frame in frames_of(7, bed, 1200):
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
