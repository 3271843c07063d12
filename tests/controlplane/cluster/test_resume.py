# SPDX-License-Identifier: Apache-2.0
"""Joins with reports: who may, what a new generation makes of them, and that any chain of generations keeps results and
workers
apart: no position has two results, and none is void for one worker and summed for another."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from hopsum_controlplane.cluster import InvalidRequestError, JobState, MemberPhase, UnauthenticatedError, lifecycle
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_wire.generations import Decided, Resume

from .test_lifecycle import all_told, back, begun, forming, job_of, member, over, phases, record, report, running

SLOTS = 16


def test_all_new_begins_at_nothing() -> None:
    now = lifecycle.join(running(), member(1, life=1))
    now = begun(back(over(now), 0, report()), 9)
    now = over(lifecycle.join(lifecycle.join(now, member(0, life=1)), member(1, life=2)))
    now = begun(now, 11)
    assert (now.resume, now.newcomers) == (None, None)


def test_who_was_not_told_waits_with_what_it_has_reported() -> None:
    now = over(running())
    now = back(back(now, 0, report(7, 9, (0, 5))), 1, report(7, 9, (3, 9)))
    now = lifecycle.start_generation(now, job_of(now, 9))
    assert now.job is not None
    now = lifecycle.mark_notified(lifecycle.on_installed(now, now.job), 0)
    now = over(now)
    assert phases(now) == {0: MemberPhase.OVER, 1: MemberPhase.WAITING}
    now = begun(back(now, 0, report(9, 9, (0, 9))), 11)
    assert now.resume == Resume(0, None, 0, None, (), (Decided(0, 3, (0,)), Decided(3, 9, (0, 1))))


def test_who_missed_the_newcomers_hears_of_them_later() -> None:
    now = over(lifecycle.join(running(forming_three()), member(2, life=1)))
    now = back(back(now, 0, report(7, 30, allreduces=2)), 1, report(7, 33, allreduces=3))
    now = lifecycle.start_generation(now, job_of(now, 9))
    assert now.job is not None
    now = lifecycle.on_installed(now, now.job)
    now = over(lifecycle.mark_notified(lifecycle.mark_notified(now, 0), 2))
    now = begun(back(back(now, 0, report(9, 40, allreduces=4)), 2, report(9, 40, allreduces=4), life=1), 11)
    assert now.resume == Resume(0, 33, 9, 3, (2,), ())
    now = back(back(back(over(now), 0, report(11, 50)), 1, report(11, 50)), 2, report(11, 50), life=1)
    assert begun(now, 13).resume == Resume(0, None, 0, None, (), ())  # nobody is left who missed it


def test_newcomers_that_never_ran_are_forgotten() -> None:
    now = over(lifecycle.join(running(), member(1, life=1)))
    now = back(now, 0, report(7, 30))
    now = over(lifecycle.start_generation(now, job_of(now, 9)), "the switch refused")
    assert now.newcomers is None
    assert phases(now) == {0: MemberPhase.WAITING, 1: MemberPhase.WAITING}
    assert begun(now, 11).resume == Resume(0, 30, 11, 0, (1,), ())


def forming_three() -> JobRecord:
    now = forming(workers=3)
    return lifecycle.start_generation(now, job_of(now, 7))


def test_a_join_that_is_repeated() -> None:
    now = back(over(running()), 0, report(7, 9))
    assert back(now, 0, report(7, 9)) is now
    assert back(now, 0, None) is now  # the first join of its life, late
    now = back(now, 1, report(7, 9))
    now = lifecycle.start_generation(now, job_of(now, 9))
    assert back(now, 0, report(7, 9)) is now
    assert now.job is not None
    untold = lifecycle.on_installed(now, now.job)
    assert back(untold, 0, report(7, 9)) is untold
    ran = running(now)
    assert back(ran, 0, report(7, 9)) is ran
    assert back(ran, 0, None) is ran


@pytest.mark.parametrize(
    ("report_of", "message"),
    [
        (None, "was in generation 9, of which it reports nothing; close, connect again, and take the others' state"),
        (7, "reports generation 7, the last one that it was told of is 9; close, connect again"),
        (10, "reports generation 10, the last one that it was told of is 9"),
    ],
)
def test_reports_of_other_generations(report_of: int | None, message: str) -> None:
    now = over(running())
    now = over(begun(back(back(now, 0, report(7)), 1, report(7)), 9))
    with pytest.raises(UnauthenticatedError, match=f"rank 0 of job 'job' {message}"):
        back(now, 0, None if report_of is None else report(report_of))
    waits = back(now, 0, report(9, 5))
    with pytest.raises(UnauthenticatedError, match="has reported generation 9 otherwise before"):
        back(waits, 0, report(9, 6))


def test_reports_of_nobody() -> None:
    with pytest.raises(UnauthenticatedError, match="reports generation 7, and is in the database with none"):
        back(over(running()), 0, report(), life=1)
    with pytest.raises(UnauthenticatedError, match="the last one that it was told of is none"):
        back(forming(), 0, report())
    watched = lifecycle.join(forming(observers=1), member(64))
    watched = over(running(lifecycle.start_generation(watched, job_of(watched, 7))))
    with pytest.raises(InvalidRequestError, match="a report of observer 64"):
        back(watched, 64, report())
    assert phases(back(watched, 64, None))[64] is MemberPhase.WAITING


def test_who_seals_a_generation_that_runs_ends_it() -> None:
    now = back(running(), 0, report(7, 5))
    assert (now.state, phases(now)) == (JobState.CHANGING, {0: MemberPhase.WAITING, 1: MemberPhase.OVER})
    assert now.reason == "rank 0 is out of generation 7, and joins again"


def quorate(workers: int = 3, quorum: int = 2) -> JobRecord:
    now = forming(workers, quorum=quorum)
    return running(lifecycle.start_generation(now, job_of(now, 7)))


def test_a_quorum_goes_on_without_a_lost_worker() -> None:
    now = lifecycle.lose(quorate(), 1, "silence")
    assert (now.state, phases(now), now.live) == (
        JobState.RUNNING,
        {0: MemberPhase.IN, 1: MemberPhase.LOST, 2: MemberPhase.IN},
        2,
    )
    assert lifecycle.leave(now, 1) is now  # it closes, and is lost all the same
    for what in (None, report()):
        with pytest.raises(UnauthenticatedError, match="evicted"):
            back(now, 1, what)
    for rank in (1, lifecycle.choose_rank(now, None, b"another")):
        newcomer = lifecycle.join(now, member(rank, life=1))
        assert (newcomer.state, phases(newcomer)) == (
            JobState.CHANGING,
            {0: MemberPhase.OVER, 1: MemberPhase.WAITING, 2: MemberPhase.OVER},
        )
        assert "rank 1 was started again" in newcomer.reason
    less = lifecycle.lose(now, 2, "silence of 2")
    assert (less.state, less.reason) == (JobState.CHANGING, "silence of 2; 1 of 3 workers are left, a quorum is 2")
    assert phases(less) == {0: MemberPhase.OVER, 1: MemberPhase.LOST, 2: MemberPhase.LOST}


def test_lost_before_it_was_told() -> None:
    now = forming(3, quorum=2)
    now = lifecycle.start_generation(now, job_of(now, 7))
    assert lifecycle.lose(now, 1, "silence").state is JobState.CHANGING  # nobody waits for a job that does not run
    assert now.job is not None
    now = lifecycle.lose(lifecycle.on_installed(now, now.job), 1, "silence")
    assert now.state is JobState.RUNNING
    again = lifecycle.join(now, member(1))  # it has never been in any generation
    assert (again.state, phases(again)[1]) == (JobState.CHANGING, MemberPhase.WAITING)


@pytest.mark.parametrize("order", [("leave", "leave", "lose"), ("lose", "leave", "leave"), ("leave", "lose", "leave")])
def test_a_generation_ends_when_nobody_is_in_it(order: tuple[str, ...]) -> None:
    now = quorate(quorum=1)
    for rank, what in enumerate(order):
        assert now.state is JobState.RUNNING
        now = lifecycle.leave(now, rank) if what == "leave" else lifecycle.lose(now, rank, "silence")
    assert (now.state, now.reason) == (JobState.CHANGING, "all its workers have left or are lost")
    assert phases(now) == {order.index("lose"): MemberPhase.LOST}


def test_who_has_left_counts_for_the_quorum() -> None:
    now = lifecycle.lose(lifecycle.leave(quorate(), 0), 1, "silence")
    assert (now.state, now.live) == (JobState.RUNNING, 2)


def test_a_report_is_kept_until_its_worker_is_told_or_lost() -> None:
    now = back(over(running()), 0, report(7, 9))
    assert now.members[0].report == report(7, 9)
    assert lifecycle.lose(now, 0, "silence").members[0].report is None
    now = back(now, 1, report(7, 9))
    now = lifecycle.start_generation(now, job_of(now, 9))
    assert now.members[0].report == report(7, 9)
    assert now.job is not None
    assert all_told(lifecycle.on_installed(now, now.job)).members[0].report is None


def test_who_lacks_what_nobody_has_any_more_is_out() -> None:
    now = over(running(forming_three()))
    now = back(now, 0, Report(7, 40, 60, ((40, 50),), 3))
    now = back(now, 1, Report(7, 40, 60, ((40, 60),), 3))
    near = back(now, 2, Report(7, 35, 60, ((30, 36), (36, 40)), 3))  # all that it lacks is to be summed or had
    assert lifecycle.evict_laggards(near) is near
    now = back(now, 2, Report(7, 35, 60, ((30, 36), (37, 40)), 3))  # 36 was delivered by the others
    out = lifecycle.evict_laggards(now)
    assert (out.ready, out.missing_ranks, phases(out)[2]) == (False, (2,), MemberPhase.LOST)
    with pytest.raises(
        UnauthenticatedError, match="evicted: it lacks results that the others have delivered and dropped"
    ):
        back(out, 2, Report(7, 35, 60, (), 3))
    went_on = begun(lifecycle.join(out, member(2, life=1)), 9)
    assert went_on.resume is not None
    assert (went_on.resume.base, went_on.resume.replaced) == (32, (2,))


def test_what_is_void_is_not_lacking() -> None:
    now = over(lifecycle.join(running(), member(1, life=1)))
    now = begun(back(now, 0, Report(7, 20, 60, ((22, 30),), 3)), 9)  # 20, 21 and 30 .. 59 are void
    now = back(over(now), 1, Report(9, 64, 80, ((60, 64),), 3), life=1)
    for held in ((22, 30), (20, 30)):
        assert lifecycle.evict_laggards(behind := back(now, 0, Report(9, 22, 80, (held, (60, 62)), 3))) is behind
    for held in ((23, 30), (22, 29)):  # of these nobody has the first, or the last
        assert phases(lifecycle.evict_laggards(back(now, 0, Report(9, 22, 80, (held,), 3))))[0] is MemberPhase.LOST


def test_a_report_that_is_more_than_can_be_told() -> None:
    now = over(running(forming_three()))
    runs = [tuple((first, first + 1) for first in range(rank * 2, 24000, 6)) for rank in range(3)]
    for rank in range(2):
        now = back(now, rank, Report(7, 0, 24000, runs[rank], 0))
    with pytest.raises(InvalidRequestError, match="at most 8192 can be told: join without a report"):
        back(now, 2, Report(7, 0, 24000, runs[2], 0))


@dataclass
class Stream:
    """What a worker makes of the decisions: results by position, what is void, and what it knows last."""

    rank: int
    life: int = 0
    generation: int = 0
    begins: int = 0
    end: int = 0
    results: dict[int, int] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    """Results that it delivered and keeps for nobody any more."""
    decided: set[int] = field(default_factory=set)
    known: int = 0
    """The generation with newcomers that its program goes on from."""
    meant: dict[int, int] = field(default_factory=dict)
    """What was known where it submitted a position: who knows of other newcomers submits something else."""

    def report(self) -> Report:
        runs = [(position, position + 1) for position in sorted(self.results.keys() - self.dropped)]
        return Report(self.generation, self.delivered_to(), self.end, tuple(runs), 0)

    def delivered_to(self) -> int:
        position = self.begins
        while position in self.results or position in self.void:
            position += 1
        return position

    def resume(self, generation: int, how: Resume | None) -> None:
        if how is None:
            assert self.generation == 0
        else:
            self.decided = {position for run in how.decided for position in range(run.first, run.end)}
            if self.generation == 0:
                assert self.rank in how.replaced
                assert how.start is not None
                self.begins = self.end = how.start
                self.known = how.start_generation
            else:
                assert self.delivered_to() >= how.base
                later = {position for position in self.results.keys() - self.dropped if position >= how.base}
                assert later <= self.decided, "what a worker holds is decided"
                if how.start is not None and self.generation < how.start_generation:
                    behind = set(range(max(how.base, self.begins), how.start))
                    self.void |= behind - self.decided - self.results.keys()
                    self.end = max(self.end, how.start)
                    self.known = how.start_generation
        self.generation = generation

    def submit(self, end: int) -> None:
        self.meant |= dict.fromkeys(range(self.end, end), self.known)
        self.end = max(self.end, end)

    def start_again(self) -> None:
        self.__init__(self.rank, self.life + 1)  # type: ignore[misc]


class Chain:
    """A job whose generations end at any time, with workers that are told of them or not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = record(3)
        self.crew = [Stream(rank) for rank in range(3)]
        self.generation = 0
        self.sums = 0
        self.expelled = 0

    def play(self) -> None:
        for worker in self.crew:
            phase = phases(self.now).get(worker.rank)
            if phase is MemberPhase.WAITING and self.chance.random() < 0.1:
                worker.start_again()
                self.join(worker)
            elif phase is not MemberPhase.WAITING:
                if self.chance.random() < 0.25:
                    worker.start_again()
                self.join(worker)
        while not (out := lifecycle.evict_laggards(self.now)).ready:
            self.now = out
            for worker in self.crew:
                if phases(self.now)[worker.rank] is MemberPhase.LOST:
                    self.expelled += 1
                    worker.start_again()
                    self.join(worker)
        self.generation += 1
        self.now = lifecycle.start_generation(self.now, job_of(self.now, self.generation))
        assert self.now.job is not None
        if self.chance.random() < 0.8:
            self.now = lifecycle.on_installed(self.now, self.now.job)
            told = [worker for worker in self.crew if self.chance.random() < 0.8]
            for worker in told:
                self.now = lifecycle.mark_notified(self.now, worker.rank)
                worker.resume(self.generation, self.now.resume)
            self.fetch(told)
            if len(told) == len(self.crew):
                self.check_agreement()
                self.sum()
        self.now = over(self.now)
        self.check()

    def join(self, worker: Stream) -> None:
        what = worker.report() if worker.generation else None
        self.now = lifecycle.join(self.now, replace(member(worker.rank, worker.life), report=what))

    def fetch(self, told: list[Stream]) -> None:
        """Let peers answer, or not."""
        runs = self.now.resume.decided if self.now.resume is not None else ()
        for worker in told:
            for run in runs:
                for position in range(max(run.first, worker.begins), run.end):
                    source = self.crew[self.chance.choice(run.ranks)]
                    if position not in worker.results and source in told and self.chance.random() < 0.7:
                        worker.results[position] = source.results[position]

    def sum(self) -> None:
        """Let every worker submit more, and the switch sum what all have, and what is neither decided nor void."""
        end = max(worker.end for worker in self.crew) + 6
        for worker in self.crew:
            worker.submit(end - self.chance.choice((0, 0, 3)))
        for position in range(min(worker.end for worker in self.crew)):
            if all(self.open(worker, position) for worker in self.crew):
                assert len({worker.meant[position] for worker in self.crew}) == 1, "a sum of different things"
                self.sums += 1
                for worker in self.crew:
                    if self.chance.random() < 0.6:
                        worker.results[position] = self.sums
        for worker in self.crew:  # somebody gives up on those who do not come
            if self.chance.random() < 0.1:
                worker.dropped = {position for position in worker.results if position < worker.delivered_to()}

    def open(self, worker: Stream, position: int) -> bool:
        base = self.now.resume.base if self.now.resume is not None else 0
        known = position in worker.results or position in worker.void or position in worker.decided
        return position >= max(base, worker.begins) and not known

    def check_agreement(self) -> None:
        """Check that all agree what is void, where they all have submitted: else one would wait for the others."""
        first = max(worker.begins for worker in self.crew)
        common = set(range(first, min(worker.end for worker in self.crew)))
        assert len({frozenset(worker.void & common) for worker in self.crew}) == 1
        for position in common:
            assert len({self.open(worker, position) for worker in self.crew}) == 1

    def check(self) -> None:
        for position in range(max(worker.end for worker in self.crew)):
            held = [worker for worker in self.crew if position in worker.results]
            assert len({worker.results[position] for worker in held}) <= 1, "two results"
            voided = [worker for worker in self.crew if position in worker.void]
            assert not (held and voided), f"position {position} is void for some and summed for others"


@pytest.mark.parametrize("seed", range(40))
def test_any_chain_of_generations(seed: int) -> None:
    chain = Chain(random.Random(seed))
    for _ in range(25):
        chain.play()
    assert chain.sums > 0


def test_chains_have_some_that_come_too_late() -> None:
    chains = [Chain(random.Random(seed)) for seed in range(20)]
    for chain in chains:
        for _ in range(25):
            chain.play()
    assert sum(chain.expelled for chain in chains) > 5
