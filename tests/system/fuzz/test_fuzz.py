# SPDX-License-Identifier: Apache-2.0
"""Mutated frames by the batch through native code, and broken datagrams at a running switch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_switch.state.entry_lookup import Exact
from hopsum_topologies import Namespace, TopologyError
from hopsum_wire import Drop, Kind

from ...support.memory import growth_kib
from ..contract.bed import PROGRAM, SWITCH, Bed, one
from ..soak.rig import WORKERS, Bench, bench, make_soak, next_job
from . import rig as rig_module
from .cells import cells
from .corpus import Frames
from .live import Siege
from .rig import BATCH, Rig
from .twin import UNREACHABLE, Twin
from .verdicts import ANSWER, FLOOD, FORWARD, SLOT, verdicts

FRAMES = 60_000 * int(os.environ.get("TEST_SCALE", "1"))
EVERY = FRAMES // BATCH // 4
LOSSY_FRAMES = 1500
MEMORY_GROWTH_KIB = 16 << 10


def test_no_frame_does_what_it_should_not() -> None:
    twin = Twin(EVERY)
    rig = Rig(20240701, twin.watch)
    rig.run(FRAMES)
    twin.lossy(20240701, LOSSY_FRAMES)
    print(rig.tally, f"{len(twin.coverage.met())} of {len(twin.coverage.parts())} parts of the program met")
    assert rig.tally.kinds["mutation"] >= 0.9 * rig.tally.frames
    assert set(rig.tally.drops) == set(Drop) - {Drop.NONE, Drop.SIMULATED}
    assert all(rig.tally.verdicts[which] for which in (FORWARD, FLOOD, ANSWER, SLOT))
    assert twin.missed() == set()
    assert twin.unmet() == UNREACHABLE.keys()
    assert growth_kib(rig.memory_kib) < MEMORY_GROWTH_KIB


@pytest.fixture(scope="module")
def calm() -> Rig:
    """A rig after one batch. A test that spoils its state mends it."""
    rig = Rig(3)
    rig.batch()
    return rig


@pytest.mark.parametrize(("name", "copy"), [("values2", 1000), ("seen", 0), ("tag", 4095), ("op", 5)])
def test_one_wrong_bit_in_any_copy_is_seen(calm: Rig, name: str, copy: int) -> None:
    calm.compare_state("here")
    row = cells(calm.bed.engine, name).rows[copy]
    row[-1] ^= np.uint64(1)
    with pytest.raises(AssertionError, match=f"here: wrong copies .*'{name}', {copy}"):
        calm.compare_state("here")
    row[-1] ^= np.uint64(1)


def test_one_drop_too_many_is_seen(calm: Rig) -> None:
    packets = calm.bed.engine.counters.cells(one(PROGRAM.counters, "drops")).packets
    packets[3] += 1
    with pytest.raises(AssertionError, match="here"):
        calm.compare_state("here")
    packets[3] -= 1
    calm.compare_state("here")


def _other_quorum(bed: Bed) -> None:
    job = bed.jobs[2]
    table = bed.engine.tables[one(PROGRAM.tables, "jobs")]
    params = (job.job_index, job.slot_base, job.slots, job.quorum - 1, 1, 3)
    table.modify(table.find((Exact(job.generation),)), one(PROGRAM.actions, "job"), params)


def _other_port(bed: Bed) -> None:
    table = bed.engine.tables[one(PROGRAM.tables, "l2")]
    table.modify(table.find((Exact(0xAA),)), one(PROGRAM.actions, "forward"), (4,))


@pytest.mark.parametrize("spoil", [_other_quorum, _other_port])
def test_a_switch_that_sends_something_else_is_caught(spoil: Callable[[Bed], None]) -> None:
    rig = Rig(3)
    rig.batch()
    spoil(rig.bed)
    with pytest.raises(AssertionError, match=r"batch 1, frame \d+, port \d+: .*: sent .*, expected "):
        rig.batch()


def test_an_oracle_that_differs_from_the_verdicts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(3)

    def too_kind(frames: Frames, jobs: tuple[object, ...]) -> np.ndarray:
        found = verdicts(frames, rig.bed.jobs)
        return np.where(found == Drop.BAD_SLOT, SLOT, found)

    monkeypatch.setattr(rig_module, "verdicts", too_kind)
    with pytest.raises(AssertionError, match=r"admitted, but the oracle says .*BAD_SLOT"):
        rig.batch()


def test_verdicts_are_the_oracles(calm: Rig) -> None:
    """On dropped frames too, which the rig never shows to the oracle."""
    oracle = FrameAggregator(SWITCH, calm.bed.jobs)
    for _ in range(2):
        frames = calm.frames()
        found = verdicts(frames, calm.bed.jobs)
        for number in np.flatnonzero(found < FORWARD).tolist():
            outcome, sent = oracle.explain_frame(*rig_module.frame_of(frames, number))
            assert (outcome.drop, sent) == (found[number], []), calm.text(frames, number)


DATAGRAMS = 4000 * int(os.environ.get("TEST_SCALE", "1"))
SUMS = 4000
SMALL_MTU = 576
FROM_SOCKETS = {
    Drop.TRUNCATED, Drop.BAD_VERSION, Drop.BAD_KIND, Drop.BAD_FLAGS, Drop.BAD_OP, Drop.BAD_LENGTH,
    Drop.UNKNOWN_GENERATION,
    Drop.UNKNOWN_WORKER, Drop.WRONG_PORT, Drop.WRONG_SOURCE, Drop.BAD_SLOT, Drop.BAD_ROUND, Drop.BAD_VALUE,
    Drop.OP_MISMATCH,
}  # fmt: skip
"""The drop reasons that datagrams can have. A UDP port makes right IPv4 headers, the job has tables and no observer."""


@pytest.fixture(params=["whole", "fragments"])
def stage(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A switch on loopback; with `fragments` in a namespace where loopback cuts what is longer than 576 bytes."""
    with ExitStack() as stack:
        if request.param == "fragments":
            try:
                namespace = stack.enter_context(Namespace())
            except TopologyError as error:
                pytest.skip(f"network namespaces cannot be made here: {error}")
            namespace.ip("link", "set", "dev", "lo", "mtu", str(SMALL_MTU))
            stack.enter_context(namespace.inside())
        yield stack.enter_context(bench(0.0, seed=1))


def test_a_switch_under_fire(stage: Bench) -> None:
    siege = Siege(stage, random.Random(8))
    siege.run(DATAGRAMS)
    unaccounted, possible = siege.unaccounted()
    assert 0 <= unaccounted <= possible
    dropped = {name for name, count in stage.controller.drop_counters().items() if count}
    assert dropped == {reason.name.lower() for reason in FROM_SOCKETS}
    assert growth_kib(siege.memory_kib) < MEMORY_GROWTH_KIB
    assert [siege.probe(member).kind for member in stage.members] == [Kind.STATE] * WORKERS
    make_soak(next_job(stage), seed=8).run(SUMS)
    assert stage.switch.process.running()
    assert "Traceback" not in stage.switch.process.log_text()
