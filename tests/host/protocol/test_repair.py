# SPDX-License-Identifier: Apache-2.0
"""Results from peers: all replicas end alike over a bad network, and not without the rules that see to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from hopsum.protocol.peer_messages import PeerMessage
from hopsum.protocol.repair import PeerRepair, RepairPolicy
from hopsum.protocol.result_requests import ResultRequests
from hopsum.protocol.result_store import ResultStore
from hopsum.protocol.worker import AllReduceDone, Timing, Worker
from hopsum.protocol.worker_state import AllReduce, PositionResult
from hopsum_wire import Header, down_bytes

from ...support.world import POLICY, SELDOM, TIMING, Plan, World, world_of

pytestmark = pytest.mark.system
LOSSES = (0.0, 0.01, 0.05, 0.2)
SEEDS = range(6)
SEEDS_MAX = 60
FLUSHING = replace(TIMING, flush_after_s=0.3)
Patch = pytest.MonkeyPatch


def plan_of(seed: int, loss: float, timing: Timing = TIMING) -> Plan:
    return Plan(
        loss, workers=3 + seed % 2, slots=1 + seed % 3, quorum_below=1, positions=20, stall_s=1.0, timing=timing
    )


def history(seed: int, plan: Plan) -> World:
    """Run two jobs; in the second, results that peers sent in the first come again at any time."""
    world = world_of(seed, plan)
    world.begin_anew()
    world.run()
    world.check()
    return world


@cache
def unpatched(seed: int, loss: float, policy: RepairPolicy) -> World:
    return history(seed, replace(plan_of(seed, loss), policy=policy))


@pytest.mark.parametrize("policy", [POLICY, SELDOM])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_replicas_end_alike(seed: int, loss: float, policy: RepairPolicy) -> None:
    unpatched(seed, loss, policy)


@pytest.mark.parametrize("policy", [POLICY, SELDOM])
@pytest.mark.parametrize("loss", LOSSES)
def test_flush_with_everybody_needed(loss: float, policy: RepairPolicy) -> None:
    """The quorum is n: only FLUSH lets the others continue, and peers catch the slow one up."""
    for seed in SEEDS[:3]:
        world = history(seed, replace(plan_of(seed, loss, FLUSHING), quorum_below=0, stall_s=3.0, policy=policy))
        assert sum(each.statistics.flushes for each in world.workers) > 0
        everybody = (1 << len(world.workers)) - 1
        ends = [end for seat in world.seats for end in seat.outcomes.values() if isinstance(end, AllReduceDone)]
        assert any((end.contributors != everybody).any() for end in ends)


def test_the_network_was_bad() -> None:
    """Else the tests above say nothing."""
    statistics = [
        each.statistics for seed in SEEDS for policy in (POLICY, SELDOM)
        for each in unpatched(seed, 0.2, policy).workers
    ]  # fmt: skip
    assert sum(each.repaired for each in statistics) > 50
    assert sum(each.fetches for each in statistics) > sum(each.repaired for each in statistics)
    assert sum(each.duplicates for each in statistics) > 50
    assert sum(each.peers_ignored["generation"] for each in statistics) > 20
    assert sum(each.retransmits for each in statistics) > 50
    assert {reason for each in statistics for reason in each.peers_ignored} == {"generation"}
    assert sum(each.given_up for each in statistics) == 0


def stale_settles(patch: Patch) -> None:
    """Take zeros for what the switch no longer has, as published systems do."""

    def zeros(self: Worker, header: Header, position: int, now: float) -> None:
        reduce = self.state.find(position)
        if position in self.queue.arrays.open and reduce is not None:
            nothing = PositionResult(reduce.op, 0, bytes(down_bytes(reduce.op)))
            self.state.accept(position, nothing, now, from_peer=True)

    patch.setattr(Worker, "_on_stale", zeros)


def fetch_generation(patch: Patch) -> None:
    """Take what peers say of any generation."""
    receive = Worker.receive_peer

    def any_generation(self: Worker, message: PeerMessage, now: float) -> None:
        receive(self, message._replace(generation=self.membership.generation), now)

    patch.setattr(Worker, "receive_peer", any_generation)


def retain(patch: Patch) -> None:
    """Drop an all-reduce when it is delivered."""
    keep = ResultStore.keep

    def drop(self: ResultStore, reduce: AllReduce, now: float) -> None:
        keep(self, reduce, now)
        self.give_up()

    patch.setattr(ResultStore, "keep", drop)


def stale_fetch(patch: Patch) -> None:
    """Ask nobody."""
    patch.setattr(ResultRequests, "_ask", lambda self, position, asked, now: True)


def held_back(patch: Patch) -> None:
    """Never hold an all-reduce back: the memory would grow without bound."""
    keep = ResultStore.keep

    def bounded(self: ResultStore, reduce: AllReduce, now: float) -> None:
        keep(self, reduce, now)
        assert len(self) <= POLICY.unproved_max, "more kept than may be"

    patch.setattr(ResultStore, "keep", bounded)
    patch.setattr(PeerRepair, "may_open", lambda self, active_before, bytes_before: True)


def failure_of(plan: Callable[[int], Plan]) -> str:
    """Return how the first scenario fails."""
    for seed in range(SEEDS_MAX):
        try:
            history(seed, plan(seed))
        except AssertionError as failure:
            return str(failure)
    return f"nothing was missed in {SEEDS_MAX} scenarios"


@pytest.mark.parametrize(
    ("take_away", "failure"),
    [
        (stale_settles, r"position \d+: contributors"),
        (fetch_generation, r"position \d+"),
        (retain, r"rank \d fell behind"),
        (stale_fetch, "not done after 5000 steps"),
        (held_back, "more kept than may be"),
    ],
)
def test_a_rule_less_is_found(take_away: Callable[[Patch], None], failure: str, monkeypatch: Patch) -> None:
    take_away(monkeypatch)
    assert re.search(failure, failure_of(lambda seed: replace(plan_of(seed, LOSSES[seed % len(LOSSES)]), steps=5_000)))


def test_no_more_is_kept_than_may_be(monkeypatch: Patch) -> None:
    may_open = PeerRepair.may_open
    held_back(monkeypatch)
    monkeypatch.setattr(PeerRepair, "may_open", may_open)
    for seed in SEEDS:
        world_of(seed, plan_of(seed, 0.05))


def test_without_peers_the_generation_ends() -> None:
    assert "no longer has it" in failure_of(lambda seed: replace(plan_of(seed, 0.0), policy=None))


def test_a_straggler_that_is_given_up_on_fell_behind() -> None:
    """Those that continued say so by name; it is told what to do."""
    hasty = replace(POLICY, straggler_s=0.5)
    failure = failure_of(lambda seed: replace(plan_of(seed, 0.0), policy=hasty, stall_s=5.0))
    assert re.search(r"rank \d fell behind in generation 7: .*load parameters and optimiser", failure)
