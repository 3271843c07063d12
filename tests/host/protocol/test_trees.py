# SPDX-License-Identifier: Apache-2.0
"""Trees of oracles under loss, duplication, delay and reordering on every link: no loss on any hop is counted twice.

Real workers with quorum n, without peers: whatever is lost, retransmission brings it. Plain workers with smaller
quorums and FLUSH: every RESULT is the sum of whom it names, and there is one for each round.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hopsum.protocol.worker import Membership, Worker
from hopsum_oracle import aggregator
from hopsum_oracle.decision import Copy, Decision, Update, decide
from hopsum_oracle.leaf import take_result
from hopsum_oracle.switch_config import TREE_OPS
from hopsum_wire import HOPSUM_BYTES, Drop, Event, Header, Kind, Op, pack_codes
from hopsum_wire.payload import SHAPES, lanes

from .generations import ASKS, BAD, TURNS_MAX, Rank, World
from .jobs import TABLE, TABLE4, TABLE16, TABLES
from .network import TIMING, Generation, Network, Task, Weather, make_task, task_of
from .trees import SPINE, Tree, jobs_of
from .witness import Witness

pytestmark = pytest.mark.system
SCALE = int(os.environ.get("TEST_SCALE", "1"))
SIZES = [(1, 1), (2, 1), (2, 2), (3, 3), (1, 3)]
Patch = pytest.MonkeyPatch


def ranks_below(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return consecutive ranks below each leaf."""
    ends = np.cumsum(sizes).tolist()
    return tuple(tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))


# ---- real workers ------------------------------------------------------------------------------------------


class TreeGeneration(Generation):
    """Real workers below a tree."""

    tree: Tree

    def _at_switch(self, rank: int, data: bytes) -> None:
        self.tree.from_worker(rank, data, lambda to, reply: self._at_host(to, reply))


def run_generation(
    tree: Tree, sizes: tuple[int, ...], generation: int, slots: int, tasks: list[Task]
) -> TreeGeneration:
    below = ranks_below(sizes)
    tree.admit(jobs_of(generation, below, slots=slots))
    members = [Worker(Membership(generation, rank, sum(sizes), slots), TIMING) for rank in range(sum(sizes))]
    tree.network.hosts = dict(enumerate(members))
    running = TreeGeneration(tree.network, tree.switches[SPINE], tasks, members, ahead=2)
    running.tree = tree
    running.run()
    running.check()
    return running


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_everybody_gets_the_exact_sum(sizes: tuple[int, ...]) -> None:
    """Two generations on the same registers, any ops."""
    for seed in range(3 * SCALE):
        rng = random.Random(seed)
        tree = Tree(Network(rng, Weather()), len(sizes))
        for generation in (7, 8):
            tasks = [make_task(rng, sum(sizes), TREE_OPS) for _ in range(3)]
            run_generation(tree, sizes, generation, rng.randint(1, 3), tasks)
        counted = tree.events()
        assert counted[True, Event.CLOSED] > 0
        assert counted[False, Event.COMPLETED] > 0
        assert not {(at_leaf, event) for at_leaf, event in counted if event is Event.FAULT}


@pytest.mark.parametrize("op", sorted(TREE_OPS), ids=lambda op: Op(op).name)
def test_every_op(op: int) -> None:
    rng = random.Random(op)
    task = task_of(Op(op), 5, np.random.default_rng(op), 4)
    run_generation(Tree(Network(rng, Weather()), 2), (2, 2), 7, 2, [task])


def test_loss_happened_on_every_hop_and_every_answer_was_needed() -> None:
    counted: Counter[tuple[bool, Event]] = Counter()
    for seed in range(4):
        rng = random.Random(seed)
        tree = Tree(Network(rng, Weather(drop=0.2)), 2)
        run_generation(tree, (2, 2), 7, 2, [make_task(rng, 4, TREE_OPS) for _ in range(4)])
        counted += tree.events()
    leaf = {event for at_leaf, event in counted if at_leaf}
    spine = {event for at_leaf, event in counted if not at_leaf}
    assert leaf == {
        Event.ADDED, Event.CLOSED, Event.DUPLICATE, Event.ANSWERED, Event.STALE, Event.RESENT, Event.TAKEN,
        Event.KNOWN, Event.RELAYED,
    } - ({Event.RELAYED} if Event.STALE not in spine else set())  # fmt: skip
    assert {Event.ADDED, Event.COMPLETED, Event.DUPLICATE, Event.ANSWERED} <= spine


@pytest.mark.parametrize(("sizes", "ratio"), [((2, 2), 2), ((3, 3), 3), ((4, 4), 4)], ids=str)
def test_a_link_between_switches_carries_one_packet_per_chunk(sizes: tuple[int, ...], ratio: int) -> None:
    """Without loss: one partial sum up and one result down per chunk and leaf, not one per worker below."""
    rng = random.Random(1)
    tree = Tree(Network(rng, Weather(drop=0, duplicate=0, delay_s=0.001, straggle=0)), len(sizes))
    task = make_task(rng, sum(sizes), TREE_OPS)
    run_generation(tree, sizes, 7, 4, [task])
    chunks = task.payloads.shape[1]
    per_link = {tree.hops[pair] for node in range(1, 3) for pair in ((node, SPINE), (SPINE, node))}
    assert per_link == {chunks}, "a flat layout carries one per worker"
    assert ratio * chunks == chunks * sizes[0]


@pytest.mark.parametrize(
    ("op", "values", "most"),
    [(Op.LOOKUP_ADD8, TABLE, 255), (Op.LOOKUP_ADD16, TABLE16, 65535), (Op.LOOKUP_ADD_LOOKUP4, TABLE4[:16], 127)],
)
def test_lanes_have_room_for_all_workers_of_the_tree(op: Op, values: tuple[int, ...], most: int) -> None:
    """With the largest value everywhere and as many workers as the proof n g <= most allows (at most 8 here)."""
    lane_bits = SHAPES[op].lane_bits
    workers = min(8, most // max(values))
    codes = np.full((workers, 1, SHAPES[op].elements), values.index(max(values)), np.uint8)
    largest = workers * max(values)
    if SHAPES[op].down_codes:
        largest = sum(threshold <= (largest + 128) // 2 for threshold in TABLE4[16:])
    expected = np.full((1, SHAPES[op].elements), largest, np.uint32)
    rng = random.Random(3)
    tree = Tree(Network(rng, Weather()), 2)
    run_generation(
        tree, (workers // 2, workers - workers // 2), 7, 1, [Task(op, pack_codes(codes, lane_bits), expected)]
    )


# ---- plain workers: quorum, FLUSH --------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Quorums as `jobs_of` has them; FLUSH with this probability."""

    quorum: int = 0
    leaf_quorum: int = 0
    min_quorum: int = 1
    flush: float = 0.0

    def fewest(self, leaves: int, below: int) -> int:
        """Return how many workers are in a result at least."""
        if self.flush:
            return 1 if self.min_quorum == 1 else min(self.min_quorum, below)
        return (self.quorum or leaves) * min(self.leaf_quorum or below, below)


PLANS = {
    "spine-quorum-1": Plan(quorum=1),
    "leaf-quorum-1": Plan(leaf_quorum=1),
    "both": Plan(quorum=1, leaf_quorum=1),
    "flush": Plan(flush=0.1),
    "flush-min-quorum-2": Plan(flush=0.1, min_quorum=2),
    "flush-leaf-quorum-2": Plan(flush=0.1, leaf_quorum=2),
}


class TreeWorld(World):
    """The workers of generations.py below a tree; every RESULT that reaches one is checked against what was sent."""

    ops = TREE_OPS

    def __init__(self, seed: int, op: int | None, plan: Plan, sizes: tuple[int, ...]) -> None:
        self.rng = random.Random(seed)
        self.seed, self.op, self.plan, self.sizes, self.flush = seed, op, plan, sizes, plan.flush
        self.network = Network(self.rng, BAD)
        self.tree = Tree(self.network, len(sizes))
        self.witness = Witness(TABLES)
        self.ranks: list[Rank] = []
        self.results: dict[tuple[int, int, int], tuple[int, bytes]] = {}
        self._updates: dict[tuple[int, int, int, int], tuple[Header, bytes]] = {}

    def _begin(self, generation: int) -> None:
        plan, slots = self.plan, self.rng.randint(1, 2)
        self.tree.admit(
            jobs_of(
                generation, ranks_below(self.sizes), slots=slots, quorum=plan.quorum, leaf_quorum=plan.leaf_quorum,
                min_quorum=plan.min_quorum,
            )
        )  # fmt: skip
        self.ranks = [Rank(rank, generation, slots) for rank in range(sum(self.sizes))]

    def _is_silent(self, sender: Rank, slot: int) -> bool:
        if self.rng.random() >= ASKS:
            return False
        sender.ask(slot, self.ranks)  # W6
        return True

    def _at_switch(self, header: Header, payload: bytes) -> None:
        self.tree.from_worker(header.worker, header.pack() + payload, self._reaches)

    def _reaches(self, rank: int, data: bytes) -> None:
        header = Header.unpack(data)
        assert header.worker == rank
        if header.kind == Kind.RESULT:
            self._check(header, data[HOPSUM_BYTES:])
        if rank < len(self.ranks):
            self.ranks[rank].receive(header, self.ranks)

    def _check(self, header: Header, payload: bytes) -> None:
        key = (header.generation, header.slot, header.round)
        assert self.results.setdefault(key, (header.contributors, payload)) == (header.contributors, payload), key
        inside = [rank for rank in range(64) if header.contributors >> rank & 1]
        assert len(inside) >= self.plan.fewest(len(self.sizes), min(self.sizes)), inside
        first = {(tuple(k), rank): sent for (k, rank), sent in self.witness.first.items()}
        expected = self.witness.result(header.op, [first[key, rank] for rank in inside])
        got = lanes(header.op, np.frombuffer(payload, np.uint8))
        assert np.array_equal(got.astype(np.uint64), expected), f"{key} is not the sum of {inside}"

    def run_tree(self, generations: int) -> None:
        """Run generations to their ends, one after the other, on the same registers."""
        for generation in range(1, generations + 1):
            self._begin(generation)
            self._go_on(TURNS_MAX)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("sizes", [(2, 2), (1, 3)], ids=str)
def test_every_result_is_the_sum_of_whom_it_names(plan: str, sizes: tuple[int, ...]) -> None:
    for seed in range(2 * SCALE):
        TreeWorld(seed, None, PLANS[plan], sizes).run_tree(2)


def test_quorums_were_met_in_every_way() -> None:
    """Else the tests above say nothing."""
    sizes: dict[str, set[int]] = {}
    relayed = 0
    for name, plan in PLANS.items():
        world = TreeWorld(1, Op.ADD32, plan, (2, 2))
        world.run_tree(2)
        sizes[name] = {contributors.bit_count() for contributors, _ in world.results.values()}
        relayed += world.tree.events()[True, Event.RELAYED]
        assert set(world.tree.switches[SPINE].drops) <= {Drop.BAD_KIND}, "late ones of the generation before"
    assert sizes["spine-quorum-1"] == {2}
    assert sizes["flush"] >= {1, 2}
    assert sizes["both"] == {1}
    assert relayed > 0


# ---- mutants -----------------------------------------------------------------------------------------------


def final_keeps_own_contributors(patch: Patch) -> None:
    """T1: a leaf that has part of the round reports its own bitmap."""

    def less(copy: Copy, result: Update) -> Decision:
        decided = take_result(copy, result)
        same = copy[:2] == decided.copy[:2]
        return decided._replace(copy=decided.copy._replace(contributors=copy.contributors)) if same else decided

    patch.setattr(aggregator, "take_result", less)


def result_by_slot_only(patch: Patch) -> None:
    """T2: a late result is taken for the round that the leaf holds."""

    def less(copy: Copy, result: Update) -> Decision:
        older = copy.generation == result.generation and result.round < copy.round
        return take_result(copy, result._replace(round=copy.round) if older else result)

    patch.setattr(aggregator, "take_result", less)


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
        for plan in PLANS.values():
            try:
                TreeWorld(seed, Op.ADD32, plan, (2, 2)).run_tree(1)
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
