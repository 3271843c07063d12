# SPDX-License-Identifier: Apache-2.0
"""Trees of oracles under loss, duplication, delay and reordering on every link: no loss on any hop is counted twice.

With quorum n, without peers: whatever is lost, retransmission brings it. With smaller quorums and FLUSH, and with
peers: every sum is that of whom it names, and there is one for each position.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.protocol.worker import AllReduceDone
from hopsum_oracle import aggregator
from hopsum_oracle.decision import Copy, Decision, Update, decide
from hopsum_oracle.leaf import decide_on_result
from hopsum_oracle.switch_config import TREE_OPS
from hopsum_wire import Drop, Event, Op, pack_codes
from hopsum_wire.payload import SHAPES

from ...support.contributions import Values
from ...support.jobs import TABLE, TABLE4, TABLE16
from ...support.simulated_network import SPINE, jobs_of
from ...support.world import CALM, TIMING, Plan, World, world_of

pytestmark = pytest.mark.system
SCALE = int(os.environ.get("TEST_SCALE", "1"))
SIZES = [(1, 1), (2, 1), (2, 2), (3, 3), (1, 3)]
OPS = tuple(sorted(TREE_OPS))
FLUSHING = replace(TIMING, flush_after_s=0.1)
QUORUMS: dict[str, dict[str, Any]] = {
    "spine-quorum-1": {"quorum_below": 1},
    "leaf-quorum-1": {"leaf_quorum": 1},
    "both": {"quorum_below": 1, "leaf_quorum": 1},
    "flush": {"timing": FLUSHING},
    "flush-min-quorum-2": {"timing": FLUSHING, "min_quorum": 2},
    "flush-leaf-quorum-2": {"timing": FLUSHING, "leaf_quorum": 2},
}
Patch = pytest.MonkeyPatch


def plan_of(sizes: tuple[int, ...], **settings: Any) -> Plan:
    plan = Plan(workers=sum(sizes), racks=sizes, ops=OPS, positions=12, policy=None)
    return replace(plan, **settings)


def quorum_plan(quorum: str, sizes: tuple[int, ...] = (2, 2), **settings: Any) -> Plan:
    return replace(plan_of(sizes), **{"policy": Plan.policy, **QUORUMS[quorum], **settings})


@cache
def unpatched(seed: int, plan: Plan) -> World:
    """Run two jobs on the same registers."""
    world = world_of(seed, plan)
    world.begin_anew()
    world.run()
    world.check()
    return world


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_everybody_gets_the_exact_sum(sizes: tuple[int, ...]) -> None:
    for seed in range(2 * SCALE):
        counted = unpatched(seed, plan_of(sizes, slots=1 + seed)).fabric.events()
        assert counted[True, Event.CLOSED] > 0
        assert counted[False, Event.COMPLETED] > 0
        assert not {(at_leaf, event) for at_leaf, event in counted if event is Event.FAULT}


@pytest.mark.parametrize("op", OPS, ids=lambda op: Op(op).name)
def test_every_op(op: Op) -> None:
    world_of(op, plan_of((2, 2), ops=(op,), positions=5))


def test_loss_happened_on_every_hop_and_every_answer_was_needed() -> None:
    counted: Counter[tuple[bool, Event]] = Counter()
    for seed in range(4):
        counted += world_of(seed, plan_of((2, 2), ops=(Op.ADD32,), loss=0.2)).fabric.events()
    leaf = {event for at_leaf, event in counted if at_leaf}
    spine = {event for at_leaf, event in counted if not at_leaf}
    assert leaf == {
        Event.ADDED, Event.CLOSED, Event.DUPLICATE, Event.ANSWERED, Event.STALE, Event.RESENT, Event.TAKEN,
        Event.KNOWN, Event.RELAYED,
    } - ({Event.RELAYED} if Event.STALE not in spine else set())  # fmt: skip
    assert {Event.ADDED, Event.COMPLETED, Event.DUPLICATE, Event.ANSWERED} <= spine


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 4)], ids=str)
def test_a_link_between_switches_carries_one_packet_per_chunk(sizes: tuple[int, ...]) -> None:
    """Without loss: one partial sum up and one result down per chunk and leaf, not one per worker below."""
    plan = plan_of(sizes, ops=(Op.ADD32,), **CALM)
    world = world_of(1, plan)
    per_link = {world.fabric.hops[pair] for node in range(1, 3) for pair in ((node, SPINE), (SPINE, node))}
    assert per_link == {world.workers[0].stream.end}, "a flat layout carries one per worker"


@pytest.mark.parametrize(
    ("op", "values", "most"),
    [(Op.LOOKUP_ADD8, TABLE, 255), (Op.LOOKUP_ADD16, TABLE16, 65535), (Op.LOOKUP_ADD_LOOKUP4, TABLE4[:16], 127)],
)
def test_lanes_have_room_for_all_workers_of_the_tree(op: Op, values: tuple[int, ...], most: int) -> None:
    """With the largest value everywhere and as many workers as the proof n g <= most allows (at most 8 here)."""
    workers = min(8, most // max(values))
    largest = np.full((1, SHAPES[op].elements), values.index(max(values)), np.uint8)

    class Largest(World):
        def given(self, op: Op, *who_and_where: int) -> tuple[Values, NDArray[np.uint8]]:
            return largest.astype(np.uint32), pack_codes(largest, SHAPES[op].lane_bits)

    world = Largest(3, plan_of((workers // 2, workers - workers // 2), ops=(op,), positions=1))
    world.run()
    world.check()


# ---- quorum, FLUSH -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", QUORUMS)
@pytest.mark.parametrize("sizes", [(2, 2), (1, 3)], ids=str)
def test_every_result_is_the_sum_of_whom_it_names(quorum: str, sizes: tuple[int, ...]) -> None:
    for seed in range(SCALE):
        unpatched(seed, quorum_plan(quorum, sizes))


def test_quorums_were_met_in_every_way() -> None:
    """Else the tests above say nothing."""
    sizes: dict[str, set[int]] = {}
    relayed = 0
    for quorum in QUORUMS:
        world = unpatched(0, quorum_plan(quorum))
        ends = [end for end in world.seats[0].outcomes.values() if isinstance(end, AllReduceDone)]
        sizes[quorum] = {bits.bit_count() for end in ends for bits in end.contributors.tolist()}
        relayed += world.fabric.events()[True, Event.RELAYED]
        assert set(world.fabric.switches[SPINE].drops) <= {Drop.BAD_KIND}, "late ones of the generation before"
    assert sizes["spine-quorum-1"] == {2}
    assert min(sizes["flush"]) < 4
    assert sizes["both"] == {1}
    assert relayed > 0


# ---- mutants -----------------------------------------------------------------------------------------------


def final_keeps_own_contributors(patch: Patch) -> None:
    """T1: a leaf that has part of the round reports its own bitmap."""

    def less(copy: Copy, result: Update) -> Decision:
        decided = decide_on_result(copy, result)
        same = copy[:2] == decided.copy[:2]
        return decided._replace(copy=decided.copy._replace(contributors=copy.contributors)) if same else decided

    patch.setattr(aggregator, "decide_on_result", less)


def result_by_slot_only(patch: Patch) -> None:
    """T2: a late result is taken for the round that the leaf holds."""

    def less(copy: Copy, result: Update) -> Decision:
        older = copy.generation == result.generation and result.round < copy.round
        return decide_on_result(copy, result._replace(round=copy.round) if older else result)

    patch.setattr(aggregator, "decide_on_result", less)


def every_partial_is_added(patch: Patch) -> None:
    """T4: the spine adds each partial sum that comes."""

    def less(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
        return decide(copy._replace(seen=0), update, quorum=quorum, min_quorum=min_quorum)

    patch.setattr(aggregator, "decide", less)


def partial_counts_as_its_leaf(patch: Patch) -> None:
    """T4: contributors are the leaf's number instead of the workers below."""

    def less(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
        return decide(copy, update._replace(inside=0), quorum=quorum, min_quorum=min_quorum)

    patch.setattr(aggregator, "decide", less)


MUTANTS = [
    final_keeps_own_contributors, result_by_slot_only, every_partial_is_added, partial_counts_as_its_leaf,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(6):
        for quorum in QUORUMS:
            try:
                world_of(seed, quorum_plan(quorum, ops=(Op.ADD32,)))
            except AssertionError:
                return
    pytest.fail(f"{mutant.__name__} was not missed")


# ---- admission ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "message"),
    [((0b11, 0), "members .* are none"), ((0b11, 0b110), "members .* overlap"), ((1, 1 << 64), "members .* above 63")],
)
def test_members_of_leaves_are_apart(members: tuple[int, int], message: str) -> None:
    job = jobs_of(7, ((0, 1), (2, 3)))[SPINE]
    leaves = tuple(replace(leaf, members=bits) for leaf, bits in zip(job.leaves, members, strict=True))
    with pytest.raises(ValueError, match=message):
        replace(job, leaves=leaves)
