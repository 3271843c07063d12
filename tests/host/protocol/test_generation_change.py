# SPDX-License-Identifier: Apache-2.0
"""Changes of generation: all workers that stay end alike whatever happens when, and not without the rules that see to
it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.protocol import generation_change
from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.generation_change import JoinPoint
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Worker
from hopsum.protocol.worker_state import AllReduce
from hopsum_wire import Header, Kind, Op
from hopsum_wire.generations import Decided, Sealed

from ...support.world import POLICY, SELDOM, TIMING, Plan, World, decide, world_of

pytestmark = pytest.mark.system
MODES: dict[str, dict[str, Any]] = {
    "n": {},
    "n - 1": {"quorum_below": 1},
    "FLUSH": {"timing": replace(TIMING, flush_after_s=0.3)},
}
LOSSES = (0.0, 0.01, 0.1)
SEEDS = range(8)
SEEDS_MAX = 40
Patch = pytest.MonkeyPatch


def plan_of(seed: int, mode: str = "n") -> Plan:
    plan = Plan(LOSSES[seed % 3], workers=3 + seed % 2, slots=1 + seed % 3, faults=3, steps=10_000)
    return replace(plan, **MODES[mode])


@cache
def changed(seed: int, mode: str) -> World:
    return world_of(seed, plan_of(seed, mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_stay_end_alike(seed: int, mode: str) -> None:
    changed(seed, mode)


@pytest.mark.parametrize("mode", MODES)
def test_all_that_stay_end_alike_where_done_is_told_seldom(mode: str) -> None:
    for seed in SEEDS[:4]:
        world_of(seed, replace(plan_of(seed, mode), policy=SELDOM))


@pytest.mark.parametrize("mode", MODES)
def test_members_that_stay_see_nothing_of_a_restart(mode: str) -> None:
    for seed in (0, 4, 8):
        world = world_of(seed, replace(plan_of(seed, mode), replaced=0.0))
        assert world.generation > 7
        assert not any(isinstance(end, AllReduceFailed) for seat in world.seats for end in seat.outcomes.values())


@cache
def elastic_world_of(seed: int, mode: str) -> World:
    plan = replace(plan_of(seed, mode), faults=6, replaced=0.7, goes_without=0.6)
    return world_of(seed, plan)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_stay_end_alike_where_workers_come_and_go(seed: int, mode: str) -> None:
    elastic_world_of(seed, mode)


def test_enough_workers_came_and_went() -> None:
    worlds = [elastic_world_of(seed, mode) for seed in SEEDS for mode in MODES]
    assert sum(len(world.members) for world in worlds) > 2 * len(worlds)
    assert any(world.absent for world in worlds)
    ends = [end for world in worlds for seat in world.present for end in seat.outcomes.values()]
    assert sum(isinstance(end, AllReduceFailed) for end in ends) > 30


def test_enough_happened() -> None:
    """Else the tests above say nothing."""
    met: Counter[str] = Counter()
    for seed in SEEDS:
        for mode in MODES:
            world = changed(seed, mode)
            met["changes in changes"] += world.interrupted
            met["replaced"] += sum(seat.incarnation for seat in world.seats)
            for seat in world.seats:
                assert seat.worker is not None
                met["read early"] += seat.book.checked
                met["repaired"] += seat.worker.statistics.repaired
                met["void"] += sum(isinstance(end, AllReduceFailed) for end in seat.outcomes.values())
                met["of other generations"] += seat.worker.statistics.peers_ignored["generation"]
    wanted = {"changes in changes": 3, "replaced": 10, "repaired": 30, "void": 30, "of other generations": 30}
    wanted["read early"] = 100
    assert all(met[name] >= least for name, least in wanted.items()), met


# ---- rules taken away -------------------------------------------------------------------------------


def no_seal(patch: Patch) -> None:
    """Report, but continue as before until the new generation."""
    seal, resume = Worker.seal, Worker.resume

    def leak(self: Worker) -> Sealed:
        sealed, self._ended = seal(self), None
        return sealed

    def resume_in_time(self: Worker, *given: Any, **named: Any) -> None:
        seal(self)
        resume(self, *given, **named)

    patch.setattr(Worker, "seal", leak)
    patch.setattr(Worker, "resume", resume_in_time)


def undecided_kept(patch: Patch) -> None:
    """Keep what came after the report, too."""
    no_seal(patch)
    patch.setattr(AllReduce, "discard", lambda self, chosen: None)


def void_on_some(patch: Patch) -> None:
    """One rank waits for what is void."""
    voids = JoinPoint.voids

    def some(self: JoinPoint, first: int, end: int, decided: DecidedRanges | None) -> bool:
        repair = self._state.repair
        return repair._own.rank != 0 and voids(self, first, end, decided)

    patch.setattr(JoinPoint, "voids", some)


def not_restamped(patch: Patch) -> None:
    patch.setattr(generation_change, "restamp_datagrams", lambda datagrams, generation, rounds: datagrams.copy())


def old_rounds(patch: Patch) -> None:
    """Stamp the new generation, but leave the rounds of the old one."""
    restamp = generation_change.restamp_datagrams

    def stamped(datagrams: NDArray[np.uint8], *, generation: int, rounds: NDArray[np.int64]) -> NDArray[np.uint8]:
        old = np.ascontiguousarray(datagrams[:, 12:16]).view(">u4")[:, 0]
        return restamp(datagrams, generation=generation, rounds=old)

    patch.setattr(generation_change, "restamp_datagrams", stamped)


def decided_sent(patch: Patch) -> None:
    """Send what others hold already, and do not ask them."""
    not_fetched(patch)
    patch.setattr(StreamState, "next_open", _deaf(StreamState.next_open))


def _deaf(original: Callable[..., object]) -> Callable[..., object]:
    def without(self: StreamState, *arguments: object) -> object:
        decided, self.decided = self.decided, None
        try:
            return original(self, *arguments)
        finally:
            self.decided = decided

    return without


def not_fetched(patch: Patch) -> None:
    patch.setattr("hopsum.protocol.result_requests.ResultRequests.want", lambda self, positions, now: None)
    patch.setattr("hopsum.protocol.result_requests.ResultRequests.ask_about", lambda self, late, now: None)


def failure_of(plan: Callable[[int], Plan]) -> str:
    """Return how the first scenario fails."""
    for seed in range(SEEDS_MAX):
        try:
            world_of(seed, plan(seed))
        except (AssertionError, ValueError) as failure:
            return str(failure)
    return f"nothing was missed in {SEEDS_MAX} scenarios"


@pytest.mark.parametrize(
    ("take_away", "mode", "failure", "seed"),
    [
        (void_on_some, "n", "fell behind|not done", 4),
        (not_restamped, "n", "not done", 2),
        (old_rounds, "n", "not done", 6),
        (decided_sent, "FLUSH", r"position \d+", 2),
        (not_fetched, "n", "not done", 2),
    ],
)
def test_a_rule_less_is_found(
    take_away: Callable[[Patch], None], mode: str, failure: str, seed: int, monkeypatch: Patch
) -> None:
    """`seed`: where to begin to look: there or soon after it is found."""
    take_away(monkeypatch)
    assert re.search(failure, failure_of(lambda number: replace(plan_of(seed + number, mode), steps=2_500)))


def late_result(chunks: int) -> None:
    """Rule E2's trace: a result is on its way when all report that they lack it; then it is redone with others."""
    workers = [Worker(Membership(7, rank, 3, 2), TIMING, repair=POLICY) for rank in range(3)]
    for each in workers:
        each.submit(Op.ADD32, np.zeros((chunks, 1024), np.uint8), now=0.0)
        each.datagrams_to_send(0.0)
    late = result(0, 7, contributors=0b011, fill=5)
    reports = {each.membership.rank: each.seal() for each in workers}
    workers[0].receive_datagram(late, 0.1)
    resume = decide(reports, [], 8, 2, None)
    for each in workers:
        each.resume(8, resume, 0.2, (0, 1, 2))
        assert (each.membership.generation, each.membership.rack) == (8, (0, 1, 2)), "who is where may change"
        each.receive_datagram(late, 0.3)
    for rank, each in enumerate(workers):
        for slot in range(chunks):
            each.receive_datagram(result(rank, 8, slot, contributors=0b110, fill=9), 0.4)
    events = [each.next_event() for each in workers]
    assert [isinstance(event, AllReduceDone) and int(event.contributors[0]) for event in events] == [0b110] * 3


def result(rank: int, generation: int, slot: int = 0, *, contributors: int, fill: int) -> bytes:
    header = Header(
        kind=Kind.RESULT, op=Op.ADD32, worker=rank, slot=slot, generation=generation, round=1,
        contributors=contributors,
        length=1024,
    )  # fmt: skip
    return header.pack() + bytes([fill]) * 1024


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_result_that_comes_after_the_report_is_too_late(chunks: int) -> None:
    late_result(chunks)


def test_what_is_undecided_is_discarded(monkeypatch: Patch) -> None:
    """As long as it is not delivered."""
    no_seal(monkeypatch)
    late_result(2)


@pytest.mark.parametrize(("take_away", "chunks"), [(no_seal, 1), (undecided_kept, 2)])
def test_a_result_that_is_taken_after_the_report_is_a_second_one(
    take_away: Callable[[Patch], None], chunks: int, monkeypatch: Patch
) -> None:
    take_away(monkeypatch)
    with pytest.raises(AssertionError, match="3, 6, 6"):
        late_result(chunks)


def test_the_world_itself_sees_a_second_result() -> None:
    """A check that cannot fail would find no rule missing."""
    world = World(1, plan_of(1))
    world.run()
    first, done = next((first, end) for first, end in world.seats[0].outcomes.items() if hasattr(end, "results"))
    other = done.results.copy()
    other[0, 0] ^= 1
    world.seats[0].outcomes[first] = replace(done, results=other)
    with pytest.raises(AssertionError, match=f"position {first}"):
        world.check()


def test_decided_runs() -> None:
    runs = DecidedRanges([Decided(3, 5, (1,)), Decided(5, 6, (0, 2)), Decided(9, 11, (2,))])
    covered = runs.covers(np.arange(13))
    assert np.flatnonzero(covered).tolist() == [3, 4, 5, 9, 10]
    assert [runs.holders(position) for position in (3, 4, 5, 10)] == [0b10, 0b10, 0b101, 0b100]
    assert (runs.end, DecidedRanges(()).end) == (11, 0)
    assert not DecidedRanges(()).covers(np.arange(3)).any()


@pytest.mark.parametrize(
    "runs",
    [
        [Decided(3, 3, (0,))],
        [Decided(5, 3, (0,))],
        [Decided(-1, 3, (0,))],
        [Decided(0, 3, ())],
        [Decided(0, 3, (0,)), Decided(2, 4, (0,))],
    ],
)
def test_runs_that_are_none(runs: list[Decided]) -> None:
    with pytest.raises(ValueError, match="sorted, disjoint, not empty"):
        DecidedRanges(runs)
