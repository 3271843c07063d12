# SPDX-License-Identifier: Apache-2.0
"""Jobs of MIN:MAX workers: who is waited for, and how a job continues without a worker and with one that comes late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hopsum_controlplane import JobSpec
from hopsum_controlplane.cluster import JobState, MemberPhase, lifecycle
from hopsum_controlplane.cluster.requests import ShardEndpoint
from hopsum_controlplane.errors import InvalidRequestError, UnauthenticatedError
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import JobMembership, format_membership, parse_membership

from ..conftest import TABLE2
from .conftest import MakeCluster
from .world import EVERYBODY, LEASE_S, TABLE, Cluster, Worker, device_of, pending_of, state_of, switch_config

WAIT_S = 3.0
"""`replace_s` of the jobs here."""


def crew_of(cluster: Cluster, least: int = 2, most: int = 4, **options: Any) -> list[Worker]:
    return cluster.make(workers=most, min_workers=least, **{"replace_s": WAIT_S, **options})


def pass_time(cluster: Cluster, seconds: float, beating: list[Worker]) -> None:
    """Let time pass, in which these workers are heard. The controller has seen before who is there."""
    cluster.controller.tick()
    while seconds > 0:
        cluster.clock.sleep(min(1.0, seconds))
        seconds -= 1.0
        for worker in beating:
            worker.beat()
        cluster.controller.tick()


def entered(worker: Worker) -> JobMembership:
    """Return the membership of a worker that waits no more."""
    job, rank = worker.job, worker.rank
    known = worker.generation
    found = worker.cluster.controller.member_requests.await_membership(job, rank, worker.secret, known_generation=known)
    assert isinstance(found, JobMembership), found
    worker.generation = found.generation
    return found


def rejoin(*workers: Worker) -> list[JobMembership]:
    for worker in workers:
        worker.join()
    return [entered(worker) for worker in workers]


def started(cluster: Cluster, crew: list[Worker], count: int) -> list[JobMembership]:
    """Let the first workers of a crew begin without the others."""
    for worker in crew[:count]:
        worker.join()
    if count < len(crew):
        pass_time(cluster, WAIT_S, crew[:count])
    return [entered(worker) for worker in crew[:count]]


def seats(membership: JobMembership) -> tuple[list[int], int, int, frozenset[int]]:
    """Return ranks, quorum, size and absent ranks."""
    return [each.rank for each in membership.workers], membership.quorum, membership.size, membership.absent


def admitted(cluster: Cluster) -> list[tuple[int, int]]:
    """Return the quorum and the number of ranks of every generation on the switch."""
    entries = device_of(cluster).entities.values()
    jobs = [entry for entry in entries if getattr(entry, "table", "") == "jobs"]
    workers = [entry for entry in entries if getattr(entry, "table", "") == "workers"]
    return [(entry.params["quorum"], len(workers)) for entry in jobs]


def test_the_first_generation_waits_for_all_and_then_begins_with_those_who_are_there(cluster: Cluster) -> None:
    crew = crew_of(cluster, table=TABLE)
    crew[1].join()
    pass_time(cluster, 2 * WAIT_S, crew[1:2])
    assert crew[1].membership() == pending_of((0, 2, 3), JobState.FORMING, gone_ranks=(0, 2, 3)), "below MIN"
    crew[3].join()
    pass_time(cluster, WAIT_S - 1, [crew[1], crew[3]])
    assert crew[3].membership() == pending_of((0, 2), JobState.FORMING), "nobody has to take their places"
    pass_time(cluster, 1, [crew[1], crew[3]])
    one, three = entered(crew[1]), entered(crew[3])
    assert one == three
    assert seats(one) == ([1, 3], 2, 4, frozenset({0, 2}))
    assert admitted(cluster) == [(2, 2)]
    cluster.check()
    view = cluster.controller.job("job")
    assert (view.workers, view.min_workers, view.quorum, [*view.absent_ranks]) == (4, 2, 2, [0, 2])
    assert (view.health, view.health_reason) == (pb.JOB_HEALTH_HEALTHY, "its generation began without ranks 0, 2")
    cluster.clock.sleep(0.8 * LEASE_S)
    view = cluster.controller.job("job")
    assert view.health == pb.JOB_HEALTH_DEGRADED
    assert view.health_reason.endswith("it is evicted in 2.0 s; its generation began without ranks 0, 2")


def test_a_lost_worker_is_waited_for_and_then_the_job_continues_without(cluster: Cluster) -> None:
    crew = crew_of(cluster)
    assert seats(started(cluster, crew, 4)[0]) == ([0, 1, 2, 3], 4, 4, frozenset()), "all begin at once"
    crew[2].leave("killed")
    for worker in (crew[0], crew[1], crew[3]):
        worker.join()
    pass_time(cluster, WAIT_S - 1, crew[:2] + crew[3:])
    assert state_of(cluster.controller.job("job")) is JobState.FORMING
    pass_time(cluster, 2, crew[:2] + crew[3:])
    found = entered(crew[0])
    assert seats(found) == ([0, 1, 3], 3, 4, frozenset({2}))
    assert found.resume is not None
    assert found.resume.start is None, "nobody is new: what was in progress is summed by those who are left"
    assert [*crew[0].beat().lost_ranks] == [], "nobody was lost in this generation"
    assert parse_membership(format_membership(found)) == found
    # The next change waits for nobody who was not there before.
    cluster.controller._cache.apply("job", lambda now: lifecycle.end_generation(now, "because"))
    cluster.controller.tick()
    assert seats(rejoin(crew[0], crew[1], crew[3])[0])[0] == [0, 1, 3]
    cluster.check()


def test_nobody_is_to_take_a_place_from_the_loss_on(cluster: Cluster) -> None:
    """A worker that asks while the old generation is being removed may have a `replacement_wait_s` of 0."""
    crew = crew_of(cluster)
    started(cluster, crew, 4)
    running = cluster.controller._cache.get("job")
    two_left = lifecycle.lose(lifecycle.lose(running, 2, "silence"), 3, "silence")
    assert (two_left.state, two_left.spared_ranks) == (JobState.CHANGING, (2, 3))
    one_left = lifecycle.lose(two_left, 1, "silence")
    assert (one_left.spared_ranks, one_left.gone_ranks) == ((), (1, 2, 3)), "below MIN"
    assert running.spared_ranks == ()


def test_another_worker_in_time_takes_the_place(cluster: Cluster) -> None:
    crew = crew_of(cluster)
    started(cluster, crew, 4)
    crew[2].leave("killed")
    for worker in (crew[0], crew[1], crew[3]):
        worker.join()
    pass_time(cluster, WAIT_S - 1, crew[:2] + crew[3:])
    crew[2].start_again()
    found = entered(crew[0])
    assert seats(found)[0] == [0, 1, 2, 3]
    assert found.resume is not None
    assert found.resume.replaced == (2,)


@pytest.mark.parametrize("rank", [2, 3])
def test_a_worker_that_comes_late_is_in_the_next_generation(cluster: Cluster, rank: int) -> None:
    """Rank 2 was never there, rank 3 was lost."""
    crew = crew_of(cluster, least=1)
    present = [crew[0], crew[1], crew[3]]
    for worker in present:
        worker.join()
    pass_time(cluster, WAIT_S, present)
    for worker in present:
        entered(worker)
    crew[3].leave("killed")
    for worker in crew[:2]:
        worker.join()
    pass_time(cluster, WAIT_S + 1, crew[:2])
    for worker in crew[:2]:
        entered(worker)
    before = crew[0].generation
    late = crew[rank]
    late.start_again()
    assert crew[0].beat().reason == f"rank {rank} has come, at 10.0.1.{rank + 1}:{4000 + rank}"
    found = rejoin(*crew[:2])[0]
    assert entered(late) == found
    assert found.generation > before
    assert seats(found) == ([0, 1, rank], 3, 4, frozenset({2, 3} - {rank}))
    assert found.resume is not None
    assert (found.resume.start, found.resume.replaced) == (0, (rank,))
    cluster.check()


def test_below_min_the_job_waits_for_somebody(cluster: Cluster) -> None:
    crew = crew_of(cluster, most=3)
    started(cluster, crew, 2)
    crew[1].leave("killed")
    crew[0].join()
    pass_time(cluster, 4 * WAIT_S, crew[:1])
    assert crew[0].membership() == pending_of(
        (1,), JobState.FORMING, gone_ranks=(1,), reason="rank 1 left unfinished: killed"
    )
    crew[2].start_again()
    pass_time(cluster, WAIT_S + 1, [crew[0], crew[2]])
    assert seats(entered(crew[0])) == ([0, 2], 2, 3, frozenset({1}))


def test_silence_counts_from_the_end_of_the_lease(cluster: Cluster) -> None:
    crew = crew_of(cluster, replace_s=None)
    started_at_once = started(cluster, crew, 4)
    assert started_at_once
    rest = crew[:3]
    pass_time(cluster, LEASE_S, rest)
    assert "lease of rank 3 ran out" in crew[0].beat().reason
    for worker in rest:
        worker.join()
    pass_time(cluster, LEASE_S - 1, rest)
    assert state_of(cluster.controller.job("job")) is JobState.FORMING, "replace_s is a lease"
    pass_time(cluster, 2, rest)
    assert seats(entered(crew[0]))[0] == [0, 1, 2]
    with pytest.raises(UnauthenticatedError, match="was evicted"):
        crew[3].join()
    crew[3].start_again()
    assert seats(rejoin(*rest)[0])[0] == [0, 1, 2, 3]


def test_a_quorum_that_is_given_is_that_of_all_generations(cluster: Cluster) -> None:
    crew = crew_of(cluster, quorum=2)
    assert started(cluster, crew, 4)[0].quorum == 2
    crew[3].leave("killed")
    crew[2].leave("killed")
    assert state_of(cluster.controller.job("job")) is JobState.RUNNING, "a quorum is left"
    crew[1].leave("killed")
    crew[0].join()
    crew[1].start_again()
    pass_time(cluster, WAIT_S + 1, crew[:2])
    assert seats(entered(crew[0])) == ([0, 1], 2, 4, frozenset({2, 3}))


def test_when_all_have_gone_the_job_begins_anew_with_all(cluster: Cluster) -> None:
    crew = crew_of(cluster)
    started(cluster, crew, 2)
    for worker in crew[:2]:
        worker.leave()
    assert cluster.controller.job("job").absent_ranks == []
    for worker in crew[:2]:
        worker.start_again()
    assert crew[0].membership() == pending_of((2, 3), JobState.FORMING, reason="all its workers have left")


def test_the_controller_starts_again_in_between(cluster: Cluster) -> None:
    crew = crew_of(cluster)
    started(cluster, crew, 3)
    cluster.start()
    assert [*cluster.controller.job("job").absent_ranks] == [3]
    for worker in crew[:3]:
        assert worker.beat().generation == worker.generation
    crew[2].leave("killed")
    for worker in crew[:2]:
        worker.join()
    pass_time(cluster, 1, crew[:2])
    cluster.start()
    pass_time(cluster, 2 * WAIT_S, [])
    assert state_of(cluster.controller.job("job")) is JobState.FORMING, "it has heard nobody yet"
    pass_time(cluster, WAIT_S + 2, crew[:2])
    assert seats(entered(crew[0]))[0] == [0, 1]
    cluster.check()


def test_over_shards(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(*(switch_config(number, {1: EVERYBODY}) for number in (1, 2)))
    crew = cluster.make(workers=3, min_workers=2, replace_s=WAIT_S, shards=2)
    for worker in crew[:2]:
        seat = ShardEndpoint(f"10.0.1.{worker.rank + 1}", 4100 + worker.rank, None, 5100 + worker.rank)
        worker.join(further=(seat,))
    pass_time(cluster, WAIT_S + 1, crew[:2])
    found = entered(crew[0])
    for shard in found.shards:
        assert seats(shard) == ([0, 1], 2, 3, frozenset({2}))
    cluster.check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_workers": 5}, "job 'job' of 5:4 workers; MIN is 1 .. MAX, and MAX at most 64"),
        ({"min_workers": 0}, "job 'job' of 0:4 workers; MIN is 1 .. MAX"),
        ({"min_workers": 2, "ranks": 65}, "job 'job': 65 workers; a job has 1 .. 64"),
        ({"min_workers": 2, "quorum": 3}, "job 'job' of 2:4 workers: quorum 3; it is at most 2"),
        ({"min_workers": 2, "min_quorum": 3}, "job 'job' of 2:4 workers: min_quorum 3; it is at most 2"),
        ({"min_workers": 2, "replace_s": -1.0}, "job 'job' of 2:4 workers: replace_s -1; it is 0 .."),
        ({"replace_s": 5.0}, "job 'job': replace_s 5 with a fixed number of workers, 4; give MIN:MAX"),
        # Two workers would fit, the eight that may come do not.
        ({"min_workers": 2, "ranks": 8, "tables": {"table": tuple(range(0, 128, 8))}}, "8 workers"),
        ({"min_workers": 2, "ranks": 8, "tables": {"table2": TABLE2}}, "n * v = 8 workers * values of -31"),
    ],
)
def test_what_is_refused(cluster: Cluster, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        cluster.controller.create_job(replace(JobSpec("job", ranks=4, slots=16), **changes))
    assert message in str(refused.value)
    assert cluster.controller.jobs() == []


def test_over_a_tree_it_is_refused(tree: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match=r"over a tree of switches: 2:4 workers; a tree has a fixed number"):
        tree.controller.create_job(JobSpec("job", ranks=4, slots=16, min_workers=2, tree=True))


def test_a_fixed_job_says_so(cluster: Cluster) -> None:
    cluster.run()
    view = cluster.controller.job("job")
    assert (view.workers, view.min_workers, [*view.absent_ranks]) == (2, 2, [])
    assert {each.phase for each in view.members} == {pb.MemberPhase.Value(f"MEMBER_PHASE_{MemberPhase.IN.name}")}
