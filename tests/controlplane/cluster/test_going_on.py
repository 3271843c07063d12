# SPDX-License-Identifier: Apache-2.0
"""The end of a generation whose job goes on, as workers see it: reports, newcomers, lost ones, rounds that run out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hopsum_controlplane.cluster import (
    InvalidRequestError,
    JobState,
    MemberPhase,
    UnauthenticatedError,
)
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.lifecycle import ROUNDS_MOST
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import parse_membership

from .world import LEASE_S, Cluster, Worker, beat_of, device_of, enter, pending_of, phase_of, state_of

NOBODY_NEW = {"start": None, "start_generation": 0, "allreduces": None, "replaced": []}


def document_of(worker: Worker) -> dict[str, Any]:
    """Return a worker's membership as one whose answer got lost has it."""
    worker.generation = 0
    found = worker.membership()
    assert isinstance(found, dict)
    parse_membership(json.dumps(found))
    return dict(json.loads(json.dumps(found)))


def pass_a_lease(cluster: Cluster, *heard: Worker) -> None:
    for _ in range(4):
        cluster.clock.sleep(LEASE_S / 4)
        for worker in heard:
            worker.beat()
    cluster.controller.tick()


def forget(cluster: Cluster, crew: list[Worker]) -> None:
    """Let the switch forget its entries, and the controller see that."""
    device = device_of(cluster)
    device.entities.clear()
    pass_a_lease(cluster, *crew)
    assert state_of(cluster.controller.job(crew[0].job)) is JobState.FORMING


def test_the_same_members_go_on(cluster: Cluster) -> None:
    crew = cluster.run()
    assert "resume" not in document_of(crew[0])
    forget(cluster, crew)
    crew[0].held, crew[1].held = ((0, 40),), ((0, 20), (24, 50))
    enter(crew)
    document = document_of(crew[0])
    assert document == document_of(crew[1])
    runs = [((0, 20), [0, 1]), ((20, 24), [0]), ((24, 40), [0, 1]), ((40, 50), [1])]
    decided = [{"first": first, "end": end, "ranks": ranks} for (first, end), ranks in runs]
    assert document["resume"] == {"base": 0, **NOBODY_NEW, "decided": decided}
    cluster.start()
    assert document_of(crew[0]) == document  # it is in the database


def test_a_newcomer_begins_behind_the_others(cluster: Cluster) -> None:
    first, second = cluster.run()
    second.start_again()
    why = "rank 1 was started again, at 10.0.1.2:4001"
    assert first.membership() == pending_of((0,), JobState.FORMING, reason=why)
    first.join(report=Report(first.generation, 40, 60, ((30, 45),), 3))
    document = document_of(first)
    expected = {"start": 60, "start_generation": document["generation"], "allreduces": 3, "replaced": [1]}
    assert document["resume"] == {"base": 32, **expected, "decided": [{"first": 32, "end": 45, "ranks": [0]}]}
    assert document_of(second) == document


def test_a_join_is_repeated_with_its_report(cluster: Cluster) -> None:
    first, second = crew = cluster.run()
    forget(cluster, crew)
    once = first.join()
    assert first.join() == once
    before = first.report()
    second.join()
    generation = cluster.controller.job("job").generation
    assert first.join(report=before) == once
    assert first.membership() != pending_of((), JobState.RUNNING)
    assert first.join(report=before) == once  # late, from before the generation
    assert cluster.controller.job("job").generation == generation
    with pytest.raises(
        InvalidRequestError, match=r"join of job 'job': report: generation 0; generations are 1 \.\. 4294967295"
    ):
        first.join(report=Report(0, 0, 0, (), 0))
    assert cluster.controller.job("job").last_refusal.startswith("join of job 'job': report: generation 0")


def test_a_quorum_goes_on(cluster: Cluster) -> None:
    first, second, third = cluster.run(workers=3, quorum=2)
    generation, actual = first.generation, cluster.installed_entries()
    pass_a_lease(cluster, first, third)
    assert first.beat() == beat_of(JobState.RUNNING, generation, "", (1,))
    why = "rank 1 of job 'job' was evicted: nothing was heard of it for 10 s"
    assert second.beat() == beat_of(JobState.RUNNING, 0, why)
    with pytest.raises(UnauthenticatedError, match="evicted"):
        second.membership()
    second.leave()  # it closes
    assert cluster.installed_entries() == actual
    assert [phase_of(member) for member in cluster.controller.job("job").members] == [
        MemberPhase.IN,
        MemberPhase.LOST,
        MemberPhase.IN,
    ]
    cluster.start()
    assert first.beat() == beat_of(JobState.RUNNING, generation, "", (1,))
    assert document_of(first)["workers"][1]["rank"] == 1
    second.start_again()
    assert "rank 1 was started again" in first.beat().reason
    for worker in (first, third):
        worker.generation = generation
        worker.join()
    assert document_of(second)["resume"]["replaced"] == [1]
    cluster.check()


def test_rounds_run_out(cluster: Cluster) -> None:
    first, second = cluster.run(slots=16)
    most = float(ROUNDS_MOST * 16)
    assert first.beat(position=most).generation == first.generation
    old, first.generation = first.generation, 0
    first.beat(position=2 * most)  # of no generation
    first.generation = old
    beat = first.beat(position=most + 16)
    assert (beat.state, beat.generation) == (pb.JOB_STATE_CHANGING, 0)
    assert beat.reason == (
        "rank 0 has used 3221225473 of the 4294967296 rounds that a slot has in a generation: they begin anew in "
        "another"
    )
    cluster.controller.tick()
    assert second.beat(position=most + 16).reason == beat.reason
    enter([first, second])
    assert first.generation > old
    assert first.beat(position=0.0).generation == first.generation
