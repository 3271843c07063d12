# SPDX-License-Identifier: Apache-2.0
"""The states of a job: every transition by example, and what holds after any history."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_controlplane import ControlPlaneError, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.cluster import (
    InvalidRequestError,
    JobRequest,
    JobState,
    MemberPhase,
    ResourceExhaustedError,
    UnauthenticatedError,
    lifecycle,
)
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.records import JobRecord, Member
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.resource_allocator import SlotRange

SWITCH = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")


def record(workers: int = 2, observers: int = 0, quorum: int | None = None) -> JobRecord:
    request = JobRequest("job", workers, 16, observers=observers, quorum=quorum)
    return JobRecord(request, b"digest", "s1", 3, SlotRange(32, 16))


def member(rank: int, life: int = 0, udp_port: int | None = None) -> Member:
    endpoint = WorkerEndpoint(rank, 1, "02:00:00:00:01:01", "10.0.0.1", udp_port or 4000 + 10 * rank + life)
    return Member(endpoint, None, f"{rank:8}{life:8}".encode(), f"secret {rank} {life}".encode())


def job_of(now: JobRecord, generation: int) -> Job:
    return Job.at(now.spec(), SWITCH, generation, now.job_index, now.region)


def forming(workers: int = 2, observers: int = 0, quorum: int | None = None) -> JobRecord:
    now = record(workers, observers, quorum)
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
    assert [worker.rank for worker in now.spec().workers] == [0, 1]
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


def test_what_was_not_told_need_not_join_again() -> None:
    now = lifecycle.end_generation(installing(), "the switch refused")
    assert phases(now) == {0: MemberPhase.WAITING, 1: MemberPhase.WAITING}
    again = lifecycle.on_removed(now)
    assert again is not None
    assert again.ready


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


def test_successors() -> None:
    now = lifecycle.leave(running(), 0)
    assert lifecycle.successors(now) == ()
    assert lifecycle.successors(lifecycle.join(now, member(0, life=1))) == (0,)
    assert lifecycle.successors(forming()) == ()


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
    now = record(workers=2, observers=1)
    assert lifecycle.choose_rank(now, None, b"a") == 0
    now = lifecycle.join(now, member(0))
    assert lifecycle.choose_rank(now, None, b"a") == 1
    assert lifecycle.choose_rank(now, 0, b"a") == 0
    with pytest.raises(InvalidRequestError, match=r"no rank 2; its workers are 0 \.\. 1, observers 64 \.\. 64"):
        lifecycle.choose_rank(now, 2, b"a")
    with pytest.raises(ResourceExhaustedError, match="all 2 ranks"):
        lifecycle.choose_rank(lifecycle.join(now, member(1)), None, b"a")
    assert lifecycle.choose_rank(lifecycle.lose(running(), 1, "silence"), None, b"a") == 1
    with pytest.raises(InvalidRequestError, match=r"rank 0 is at 10\.0\.0\.1:4000 already"):
        lifecycle.join(now, member(1, udp_port=4000))


def test_observers_come_and_go() -> None:
    now = forming(observers=2)
    assert now.ready
    now = lifecycle.join(now, member(65))
    now = lifecycle.start_generation(now, job_of(now, 7))
    assert now.job is not None
    assert [observer.rank for observer in now.job.spec.observers] == [65]
    now = running(now)
    assert lifecycle.lose(now, 65, "silence").state is JobState.RUNNING
    assert lifecycle.leave(now, 65).state is JobState.RUNNING
    assert lifecycle.join(now, member(65, life=1)).state is JobState.RUNNING
    gone = lifecycle.leave(lifecycle.leave(now, 0), 1)
    assert (gone.state, phases(gone)) == (JobState.CHANGING, {65: MemberPhase.OVER})


EVENTS = ("join", "report", "again", "told", "leave", "fail", "lose", "begin", "installed", "change", "end", "removed")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(EVENTS),
        st.sampled_from([0, 1, 2, 64]),
    ),
    max_size=60,
)


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
        assert {each.endpoint for each in inside} <= set(now.job.spec.members)
    assert now.resume is None or now.job is not None
    for each in now.members:
        assert each.report is None or (
            each.report.generation == each.notified_generation and each.phase in (MemberPhase.WAITING, MemberPhase.IN)
        )
        assert each.notified_generation <= max(each.joined_generation, now.generation)
    if now.state is JobState.INSTALLING:
        assert {each.rank for each in inside} >= set(now.request.worker_ranks)
    if now.state is JobState.RUNNING:
        assert any(each.is_worker for each in inside)
    assert not any(each.phase is MemberPhase.LEFT for each in now.members) or now.state in (
        JobState.INSTALLING,
        JobState.RUNNING,
        JobState.ENDING,
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(STEPS)
def test_any_history(steps: list[tuple[str, int]]) -> None:
    now, lives, generation = record(3, observers=1), dict.fromkeys([0, 1, 2, 64], 0), 0
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
