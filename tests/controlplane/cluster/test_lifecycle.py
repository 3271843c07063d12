# SPDX-License-Identifier: Apache-2.0
"""The states of a job: transitions by example, joins with reports, and what holds after any history or chain."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_controlplane import ControlPlaneError, JobSpec, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.cluster import JobState, MemberPhase, lifecycle
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.records import JobRecord, Member
from hopsum_controlplane.errors import InvalidRequestError, ResourceExhaustedError, UnauthenticatedError
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire.generations import Resume

SWITCH = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")


def record(workers: int = 2, quorum: int | None = None) -> JobRecord:
    request = JobSpec("job", ranks=workers, slots=16, quorum=quorum)
    return JobRecord(request, b"digest", "s1", 3, SlotRange(32, 16))


def member(rank: int, life: int = 0, udp_port: int | None = None) -> Member:
    endpoint = WorkerEndpoint(rank, 1, "02:00:00:00:01:01", "10.0.0.1", udp_port or 4000 + 10 * rank + life)
    return Member(endpoint, None, f"{rank:8}{life:8}".encode(), f"secret {rank} {life}".encode())


def job_of(now: JobRecord, generation: int) -> Job:
    return Job.build(now.next_spec(), SWITCH, generation, now.job_index, now.region)


def forming(workers: int = 2, quorum: int | None = None) -> JobRecord:
    now = record(workers, quorum)
    for rank in range(workers):
        now = lifecycle.join(now, member(rank))
    return now


def installing() -> JobRecord:
    now = forming()
    return lifecycle.start_generation(now, job_of(now, 7))


def running(now: JobRecord | None = None) -> JobRecord:
    now = installing() if now is None else now
    assert now.job is not None
    return all_told(lifecycle.on_installed(now, now.job))


def all_told(now: JobRecord) -> JobRecord:
    for each in now.members:
        if each.phase is MemberPhase.IN:
            now = lifecycle.mark_notified(now, each.rank)
    return now


def begun(now: JobRecord, generation: int) -> JobRecord:
    """Let the generation run that everybody waits for."""
    return running(lifecycle.start_generation(now, job_of(now, generation)))


def report(generation: int = 7, end: int = 0, *held: tuple[int, int], allreduces: int = 0) -> Report:
    return Report(generation, 0, end, held, allreduces)


def back(now: JobRecord, rank: int, what: Report | None, life: int = 0) -> JobRecord:
    """Let a rank join again, with a report."""
    return lifecycle.join(now, replace(member(rank, life), report=what))


def over(now: JobRecord, reason: str = "because") -> JobRecord:
    """End a generation, and take it off the switch."""
    after = lifecycle.on_removed(lifecycle.end_generation(now, reason))
    assert after is not None
    return after


def phases(now: JobRecord) -> dict[int, MemberPhase]:
    return {each.rank: each.phase for each in now.members}


def test_the_first_generation() -> None:
    now = lifecycle.join(record(), member(1))
    assert (now.state, now.missing_ranks, now.ready, now.generation) == (JobState.FORMING, (0,), False, 0)
    now = lifecycle.join(now, member(0))
    assert now.ready
    assert [worker.rank for worker in now.next_spec().workers] == [0, 1]
    now = lifecycle.start_generation(now, job_of(now, 7))
    assert (now.state, now.generation, phases(now)) == (JobState.INSTALLING, 7, {0: MemberPhase.IN, 1: MemberPhase.IN})
    assert running(now).state is JobState.RUNNING


def test_a_generation_begins_only_as_it_was_planned() -> None:
    now = lifecycle.join(record(), member(0))
    with pytest.raises(ControlPlaneError, match="cannot begin generation 7"):
        lifecycle.start_generation(now, job_of(now, 7))
    now = forming()
    for wrong in (replace(job_of(now, 7), job_index=4), replace(job_of(now, 7), region=SlotRange(0, 16))):
        with pytest.raises(ControlPlaneError, match="cannot begin generation 7"):
            lifecycle.start_generation(now, wrong)
    with pytest.raises(ControlPlaneError, match="cannot run generation 8"):
        lifecycle.on_installed(installing(), replace(job_of(now, 8)))
    with pytest.raises(ControlPlaneError, match="cannot form again"):
        lifecycle.on_removed(running())


def test_a_member_that_is_lost_ends_the_generation_and_all_join_again() -> None:
    now = lifecycle.lose(running(), 1, "silence")
    assert (now.state, now.reason, now.generation) == (JobState.CHANGING, "silence", 7)
    assert phases(now) == {0: MemberPhase.OVER, 1: MemberPhase.LOST}
    now = lifecycle.on_removed(now)
    assert now is not None
    assert (now.state, now.generation, now.missing_ranks) == (JobState.FORMING, 0, (0, 1))
    now = back(now, 0, report())
    for what in (None, report()):  # whatever it still holds, and though it was only silent
        with pytest.raises(UnauthenticatedError, match=r"evicted: it was silent for its lease; close, connect again"):
            back(now, 1, what)
    assert lifecycle.join(now, member(1, life=1)).ready


def test_a_rank_that_was_started_again_ends_the_generation() -> None:
    now = lifecycle.join(running(), member(1, life=1))
    assert (now.state, phases(now)) == (JobState.CHANGING, {0: MemberPhase.OVER, 1: MemberPhase.WAITING})
    assert "rank 1 was started again, at 10.0.0.1:4011" in now.reason
    with pytest.raises(UnauthenticatedError, match="taken its rank over"):
        lifecycle.choose_rank(now, 1, member(1).incarnation)


@pytest.mark.parametrize("state", [forming, installing, running])
def test_the_same_incarnation_joins_without_effect(state: object) -> None:
    now = state()  # type: ignore[operator]
    assert lifecycle.choose_rank(now, None, member(1).incarnation) == 1
    assert lifecycle.join(now, member(1)) is now
    with pytest.raises(UnauthenticatedError, match=r"joined from 10\.0\.0\.1:4010, and now comes from 10\.0\.0\.1:9"):
        lifecycle.join(now, member(1, udp_port=9))
    with pytest.raises(UnauthenticatedError, match="has rank 1, it asks for rank 0"):
        lifecycle.choose_rank(now, 0, member(1).incarnation)


def test_the_generation_lasts_until_the_last_worker_has_left() -> None:
    now = lifecycle.leave(running(), 0)
    assert (now.state, phases(now)) == (JobState.RUNNING, {0: MemberPhase.LEFT, 1: MemberPhase.IN})
    assert lifecycle.leave(now, 0) is now
    with pytest.raises(UnauthenticatedError, match="left job"):
        lifecycle.choose_rank(now, None, member(0).incarnation)
    waiting = lifecycle.join(now, member(0, life=1))  # for the next generation
    assert (waiting.state, waiting.missing_ranks) == (JobState.RUNNING, (1,))
    for before, after in ((now, {}), (waiting, {0: MemberPhase.WAITING})):
        gone = lifecycle.leave(before, 1)
        assert (gone.state, gone.reason, phases(gone)) == (JobState.CHANGING, "all its workers have left", after)
        with pytest.raises(UnauthenticatedError, match="left job"):
            lifecycle.choose_rank(gone, None, member(1).incarnation)


def test_who_leaves_early() -> None:
    assert phases(lifecycle.leave(forming(), 0)) == {1: MemberPhase.WAITING}
    now = lifecycle.leave(installing(), 0)
    assert (now.state, phases(now)) == (JobState.CHANGING, {1: MemberPhase.WAITING})


def test_who_leaves_unfinished_is_lost() -> None:
    now = lifecycle.leave(running(), 1, "RuntimeError: CUDA out of memory")
    assert (now.state, now.reason) == (JobState.CHANGING, "rank 1 left unfinished: RuntimeError: CUDA out of memory")
    assert phases(now) == {0: MemberPhase.OVER, 1: MemberPhase.LOST}
    with pytest.raises(UnauthenticatedError, match=r"rank 1 .* was evicted: it left unfinished: RuntimeError: CUDA"):
        back(now, 1, report())
    assert lifecycle.leave(now, 1, "again") == lifecycle.leave(now, 1), "it is forgotten"
    assert phases(lifecycle.join(now, member(1, life=1))) == {0: MemberPhase.OVER, 1: MemberPhase.WAITING}
    assert lifecycle.leave(installing(), 0, "why").state is JobState.CHANGING
    assert phases(lifecycle.leave(forming(), 0, "why")) == {1: MemberPhase.WAITING}, "of no generation: forgotten"
    enough = lifecycle.leave(
        running(lifecycle.start_generation(forming(3, quorum=2), job_of(forming(3, quorum=2), 7))), 2, "why"
    )
    assert (enough.state, phases(enough)[2]) == (JobState.RUNNING, MemberPhase.LOST)


def test_restarted_ranks() -> None:
    now = lifecycle.leave(running(), 0)
    assert lifecycle.restarted_ranks(now) == ()
    assert lifecycle.restarted_ranks(lifecycle.join(now, member(0, life=1))) == (0,)
    assert lifecycle.restarted_ranks(forming()) == ()


def test_deletion() -> None:
    assert lifecycle.delete_job(forming()) is None
    for state in (installing(), running(), lifecycle.lose(running(), 0, "silence")):
        ending = lifecycle.delete_job(state)
        assert ending is not None
        assert (ending.state, ending.generation) == (JobState.ENDING, 7)
        with pytest.raises(UnauthenticatedError, match="being deleted"):
            lifecycle.join(ending, member(0, life=1))
        assert lifecycle.end_generation(ending, "no matter") is ending
        assert lifecycle.on_removed(ending) is None


def test_ranks() -> None:
    now = record(workers=2)
    assert lifecycle.choose_rank(now, None, b"a") == 0
    now = lifecycle.join(now, member(0))
    assert lifecycle.choose_rank(now, None, b"a") == 1
    assert lifecycle.choose_rank(now, 0, b"a") == 0
    with pytest.raises(InvalidRequestError, match=r"no rank 2; its workers are 0 \.\. 1"):
        lifecycle.choose_rank(now, 2, b"a")
    with pytest.raises(ResourceExhaustedError, match="all 2 ranks"):
        lifecycle.choose_rank(lifecycle.join(now, member(1)), None, b"a")
    assert lifecycle.choose_rank(lifecycle.lose(running(), 1, "silence"), None, b"a") == 1
    with pytest.raises(InvalidRequestError, match=r"rank 0 is at 10\.0\.0\.1:4000 already"):
        lifecycle.join(now, member(1, udp_port=4000))


EVENTS = ("join", "report", "again", "told", "leave", "fail", "lose", "begin", "installed", "change", "end", "removed")
STEPS = st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from([0, 1, 2])), max_size=60)


def step(now: JobRecord, what: str, rank: int, lives: dict[int, int], generation: int) -> JobRecord | None:
    if what in ("join", "again"):
        lives[rank] += what == "again"
        who = member(rank, lives[rank])
        lifecycle.choose_rank(now, rank, who.incarnation)
        return lifecycle.join(now, who)
    if what == "report":
        known = now.member(rank)
        who = replace(
            member(rank, lives[rank]), report=report(known.notified_generation) if known is not None else None
        )
        lifecycle.choose_rank(now, rank, who.incarnation)
        return lifecycle.join(now, who)
    if what == "told" and now.state is JobState.RUNNING:
        known = now.member(rank)
        return now if known is None or known.phase is not MemberPhase.IN else lifecycle.mark_notified(now, rank)
    if what == "begin" and now.ready:
        return lifecycle.start_generation(now, job_of(now, generation))
    if what == "installed" and now.state is JobState.INSTALLING and now.job is not None:
        return lifecycle.on_installed(now, now.job)
    if what == "removed" and now.state in (JobState.CHANGING, JobState.ENDING):
        return lifecycle.on_removed(now)
    others = {"leave": lambda: lifecycle.leave(now, rank), "lose": lambda: lifecycle.lose(now, rank, "silence")}
    others |= {"fail": lambda: lifecycle.leave(now, rank, "RuntimeError")}
    others |= {"change": lambda: lifecycle.end_generation(now, "because"), "end": lambda: lifecycle.delete_job(now)}
    return others[what]() if what in others else now


def check(now: JobRecord) -> None:
    assert (now.job is None) is (now.state is JobState.FORMING)
    ranks = [each.rank for each in now.members]
    assert ranks == sorted(set(ranks))
    incarnations = [each.incarnation for each in now.members]
    assert not set(incarnations) & set(now.retired)
    assert len(set(now.retired)) == len(now.retired)
    inside = [each for each in now.members if each.phase is MemberPhase.IN]
    if inside:
        assert now.job is not None
        assert now.state in (JobState.INSTALLING, JobState.RUNNING, JobState.ENDING)
        assert {each.endpoint for each in inside} <= set(now.job.spec.workers)
    assert now.resume is None or now.job is not None
    for each in now.members:
        assert each.report is None or (
            each.report.generation == each.notified_generation and each.phase in (MemberPhase.WAITING, MemberPhase.IN)
        )
        assert each.notified_generation <= max(each.joined_generation, now.generation)
    if now.state is JobState.INSTALLING:
        assert {each.rank for each in inside} >= set(range(now.spec.ranks))
    if now.state is JobState.RUNNING:
        assert inside
    assert not any(each.phase is MemberPhase.LEFT for each in now.members) or now.state in (
        JobState.INSTALLING,
        JobState.RUNNING,
        JobState.ENDING,
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(STEPS)
def test_any_history(steps: list[tuple[str, int]]) -> None:
    now, lives, generation = record(3), dict.fromkeys([0, 1, 2], 0), 0
    for what, rank in steps:
        try:
            after = step(now, what, rank, lives, generation + 1)
        except (UnauthenticatedError, InvalidRequestError):
            continue
        if after is None:
            assert now.state in (JobState.FORMING, JobState.ENDING)
            break
        check(after)
        if after.generation not in (0, generation):
            assert now.state is JobState.FORMING
            generation = after.generation
        if after.job is not None and now.job is not None:
            assert after.job == now.job  # what is constant in a generation is
        now = after


def test_incarnations_are_forgotten_in_the_end() -> None:
    now = record(workers=1)
    for life in range(lifecycle.KEPT_INCARNATIONS + 5):
        now = lifecycle.join(now, member(0, life, udp_port=9))
    assert len(now.retired) == lifecycle.KEPT_INCARNATIONS
    assert now.retired[-1] == member(0, lifecycle.KEPT_INCARNATIONS + 3).incarnation


def test_all_new_begins_at_nothing() -> None:
    now = lifecycle.join(running(), member(1, life=1))
    now = begun(back(over(now), 0, report()), 9)
    now = over(lifecycle.join(lifecycle.join(now, member(0, life=1)), member(1, life=2)))
    now = begun(now, 11)
    assert (now.resume, now.newcomers) == (None, None)


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


def test_who_seals_a_generation_that_runs_ends_it() -> None:
    now = back(running(), 0, report(7, 5))
    assert (now.state, phases(now)) == (JobState.CHANGING, {0: MemberPhase.WAITING, 1: MemberPhase.OVER})
    assert now.reason == "rank 0 is out of generation 7, and joins again"


def quorate(workers: int = 3, quorum: int = 2) -> JobRecord:
    now = forming(workers, quorum=quorum)
    return running(lifecycle.start_generation(now, job_of(now, 7)))


def test_a_quorum_continues_without_a_lost_worker() -> None:
    now = lifecycle.lose(quorate(), 1, "silence")
    assert (now.state, phases(now), now.live_workers) == (
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
    assert (now.state, now.live_workers) == (JobState.RUNNING, 2)


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
    """The generation with newcomers that its program continues from."""
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


def test_any_chain_of_generations() -> None:
    chains = [Chain(random.Random(seed)) for seed in range(40)]
    for chain in chains:
        for _ in range(25):
            chain.play()
        assert chain.sums > 0
    assert sum(chain.expelled for chain in chains) > 5, "some come too late"
