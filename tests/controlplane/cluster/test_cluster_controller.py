# SPDX-License-Identifier: Apache-2.0
"""The ordinary life of a cluster, and ends of generations whose jobs continue, as workers and operators see them."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import JobState, MemberPhase
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.lifecycle import ROUNDS_MOST
from hopsum_controlplane.cluster.liveness import GRACE_S
from hopsum_controlplane.errors import InvalidRequestError, UnauthenticatedError, UnknownJobError
from hopsum_wire import WIRE_VERSION
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import parse_membership

from .conftest import MakeCluster
from .world import (
    LEASE_S,
    TABLE,
    Cluster,
    Worker,
    beat_of,
    device_of,
    enter,
    pending_of,
    phase_of,
    state_of,
    switch_config,
    time_passes,
)

UNHEARD = (
    "nothing was heard of it for 10 s (lease_s: longer by HOPSUM_LEASE_S on rank 0 with hosts://, else by hopsum job "
    "create --lease)"
)


def test_a_job_from_beginning_to_end(cluster: Cluster) -> None:
    first, second = cluster.make(table=TABLE, quorum=1)
    joined = first.join()
    assert (joined.rank, joined.lease_s, joined.heartbeat_s) == (0, LEASE_S, 2.0)
    assert first.membership() == pending_of((1,), JobState.FORMING, gone_ranks=(1,))
    assert first.beat() == beat_of(JobState.FORMING, 0, "")
    second.join()
    document = first.membership()
    assert isinstance(document, dict)
    assert second.membership() == document
    found = parse_membership(json.dumps(document))
    assert (found.job, found.slots, found.quorum, found.tables) == ("job", 16, 1, {"table": TABLE})
    assert [(each.endpoint.address, each.side_port) for each in found.workers] == [
        (("10.0.1.1", 4000), 5000),
        (("10.0.1.2", 4001), 5001),
    ]
    cluster.check()
    assert first.beat(retransmits=3.0) == beat_of(JobState.RUNNING, found.generation, "")
    view = cluster.controller.job("job")
    assert (state_of(view), view.generation, [*view.missing_ranks]) == (JobState.RUNNING, found.generation, [])
    assert view.members[0].statistics == {"retransmits": 3.0}
    assert set(view.counters.values()) == {0}
    first.leave()
    cluster.check()
    assert first.beat() == beat_of(JobState.RUNNING, found.generation, "")
    second.leave()
    assert state_of(cluster.controller.job("job")) is JobState.FORMING
    assert not cluster.controller.job("job").members
    cluster.check()
    cluster.controller.delete_job("job")
    assert cluster.controller.jobs() == []
    assert cluster.controller.switches()[0].slots_used == 0
    for call in (first.beat, first.membership, first.leave, first.join):
        with pytest.raises(UnknownJobError, match="no job 'job'"):
            call()
    with pytest.raises(UnknownJobError):
        cluster.controller.delete_job("job")


def test_silence_ends_the_generation(cluster: Cluster) -> None:
    first, second = crew = cluster.run()
    old = first.generation
    cluster.clock.sleep(LEASE_S - 1)
    first.beat()
    cluster.controller.tick()
    assert cluster.controller.job("job").members[1].lease_left_s == 1
    cluster.clock.sleep(1)
    cluster.controller.tick()
    reason = f"the lease of rank 1 ran out: {UNHEARD}"
    assert first.beat() == beat_of(JobState.FORMING, 0, reason)
    why = f"rank 1 of job 'job' was evicted: {UNHEARD}"
    assert second.beat() == beat_of(JobState.FORMING, 0, why)
    with pytest.raises(UnauthenticatedError, match=re.escape(f"evicted: {UNHEARD}; close, and connect again")):
        second.membership()
    assert first.membership() == pending_of((0, 1), JobState.FORMING, gone_ranks=(1,), reason=reason)
    cluster.check()
    first.join()
    second.start_again()
    for worker in crew:
        assert isinstance(worker.membership(), dict)
    assert first.generation > old
    assert first.beat() == beat_of(JobState.RUNNING, first.generation, "")
    cluster.check()


def test_whose_connection_is_not_silent_keeps_its_place_without_heartbeats(cluster: Cluster) -> None:
    """It runs, and its interpreter is held by other code: its lease lasts from the last bytes on."""
    first, _ = cluster.run()
    silent_s = 3.0
    cluster.controller.liveness.silences_s = lambda: {("job", 1): silent_s, ("other", 0): 0.0}
    for _ in range(5):
        cluster.clock.sleep(LEASE_S - 1)
        first.beat()
        cluster.controller.tick()
        assert cluster.controller.job("job").members[1].lease_left_s == LEASE_S - silent_s
    assert cluster.controller.job("job").health == pb.JOB_HEALTH_HEALTHY
    silent_s = LEASE_S
    cluster.clock.sleep(LEASE_S - 1)
    first.beat()
    cluster.controller.tick()
    assert first.beat().reason == f"the lease of rank 1 ran out: {UNHEARD}"


def test_a_connection_that_ended_is_no_sign_of_life(cluster: Cluster) -> None:
    first, second = cluster.run()
    cluster.controller.liveness.silences_s = lambda: {("job", 0): 0.0}
    second.disconnect()
    cluster.clock.sleep(GRACE_S)
    cluster.controller.tick()
    assert "the connection of rank 1 ended" in first.beat().reason


def test_what_a_worker_says_as_it_leaves_is_one_line_of_some_length(cluster: Cluster) -> None:
    first, second = cluster.run()
    second.leave("RuntimeError: CUDA\x1b[2J\nout of memory " + 400 * "y")
    told = first.beat()
    assert told.generation == 0
    assert told.reason.startswith("rank 1 left unfinished: RuntimeError: CUDA [2J out of memory yyy")
    assert len(told.reason) < 350


def test_a_rank_that_left_and_was_started_again(cluster: Cluster) -> None:
    first, second = cluster.run()
    generation = first.generation
    first.leave()
    first.start_again()
    for _ in range(4):
        second.beat()
        first.beat()
        cluster.controller.tick()
        assert cluster.controller.job("job").generation == generation, "the others may be about to leave as well"
        cluster.clock.sleep(LEASE_S / 4)
    second.beat()
    first.beat()
    cluster.controller.tick()
    assert "rank 0 had left and was started again, and the others did not leave within 10 s" in second.beat().reason
    second.join()
    assert isinstance(second.membership(), dict)
    assert isinstance(first.membership(), dict)
    assert second.generation > generation


def test_a_connection_that_ends_shortens_the_lease_until_the_member_is_heard_again(cluster: Cluster) -> None:
    first, second = cluster.run()
    second.disconnect()
    cluster.clock.sleep(GRACE_S - 0.1)
    cluster.controller.tick()
    assert first.beat().generation, "it may come back"
    second.beat()
    cluster.clock.sleep(GRACE_S)
    cluster.controller.tick()
    assert first.beat().generation, "it came back"
    second.disconnect()
    cluster.clock.sleep(GRACE_S)
    cluster.controller.tick()
    assert first.beat().reason == "the connection of rank 1 ended, and nothing was heard of it for 2 s"


def test_workers_of_a_deleted_job_are_told(cluster: Cluster) -> None:
    first, second = cluster.run()
    cluster.controller.delete_job("job", by="ipv4:10.0.0.7:4000")
    for call in (first.beat, second.join):
        with pytest.raises(
            UnknownJobError, match=r"no job 'job': the job was deleted by ipv4:10\.0\.0\.7:4000 at 20.* UTC"
        ):
            call()
    with pytest.raises(UnknownJobError, match="no job 'jib'; make it first"):
        cluster.controller.job("jib")


def test_an_absence_of_the_controller_is_nobodys_silence(cluster: Cluster) -> None:
    crew = cluster.run()
    cluster.clock.sleep(LEASE_S - 1)
    crew[0].beat()
    cluster.clock.sleep(60)
    cluster.controller.liveness.extend_for_absence(60)
    crew[0].disconnect()  # as all connections may be
    cluster.controller.expire()
    lefts = [member.lease_left_s for member in cluster.controller.job("job").members]
    assert lefts == [LEASE_S, 1], "as before the absence"
    cluster.clock.sleep(1)
    cluster.controller.expire()
    assert crew[0].beat().generation == 0, "silence counts again"
    assert "the lease of rank 1 ran out" in cluster.controller.job("job").reason


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"wire_version": WIRE_VERSION + 1}, InvalidRequestError, "install the same hopsum"),
        ({"rank": 2}, InvalidRequestError, r"no rank 2; its workers are 0 \.\. 1"),
        ({"rank": -1}, InvalidRequestError, "rank -1"),
        ({"ip": "10.0.0.256"}, InvalidRequestError, "not the IPv4 address of a host"),
        (
            {"ip": "192.0.2.1"},
            InvalidRequestError,
            r"192\.0\.2\.1 is of no network of switch 's1', .* 10\.0\.0\.0/16 at port 1",
        ),
        ({"mac": "x"}, InvalidRequestError, "not the MAC address"),
        ({"udp_port": 0}, InvalidRequestError, "UDP port 0"),
        ({"side_port": 65536}, InvalidRequestError, "side port 65536"),
        ({"incarnation": b"short"}, InvalidRequestError, "an incarnation of 5 bytes; it has 16"),
        ({"version": "v" * 65}, InvalidRequestError, "a version of 65 characters"),
        ({"version": "1\x1b[2J"}, InvalidRequestError, r"a version .1.x1b.2J.; send printable"),
        ({"token": "wrong"}, UnauthenticatedError, "wrong token for job 'job'"),
        ({"job": "other"}, UnknownJobError, "no job 'other'"),
        ({"ip": "10.0.1.2", "udp_port": 4001}, InvalidRequestError, r"rank 1 is at 10\.0\.1\.2:4001 already"),
    ],
)
def test_joins_that_are_refused(
    cluster: Cluster, changes: dict[str, object], error: type[ControlPlaneError], message: str
) -> None:
    first, second = cluster.make()
    second.join()
    before = cluster.controller.jobs()
    with pytest.raises(error, match=message):
        first.join(**changes)
    now = cluster.controller.job("job")
    assert now.joins_refused == (error is InvalidRequestError)  # who has no token leaves no trace
    now.ClearField("events")
    for name in ("joins_refused", "last_refusal", "last_refusal_age_s"):
        now.ClearField(name)
    assert [now] == before


def test_the_location_of_a_worker(make_cluster: MakeCluster) -> None:
    config = switch_config(1, {3: "10.0.0.0/16", 300: "10.0.1.2/32"}, service_address=("127.0.0.1", 47500))
    cluster = make_cluster(config)
    first, second = crew = cluster.make()
    assert cluster.controller.member_requests.locate("job", first.token).send_to == pb.Endpoint(
        ip="127.0.0.1", udp_port=47500
    )
    with pytest.raises(UnauthenticatedError):
        cluster.controller.member_requests.locate("job", second.token[1:])
    first.join(mac="02:00:00:00:07:07")
    second.join()
    rewrites = [entry for entry in device_of(cluster).read_table("rewrite") if entry.match["worker"] == 1]
    assert rewrites[0].params["dst_mac"] == 0x02_00_00_01_01_2C  # the address of port 300's peers
    assert [member.port for member in cluster.controller.job("job").members] == [3, 300]
    document = crew[0].membership()
    assert isinstance(document, dict)
    assert document["workers"][1]["send_to"] == {"ip": "127.0.0.1", "udp_port": 47500}
    cluster.config = replace(cluster.config, switches=(replace(config, driver="bmv2"),))
    cluster.start()
    with pytest.raises(InvalidRequestError, match="no MAC address, which a bmv2 switch needs"):
        second.start_again()


def test_statistics_are_checked(cluster: Cluster) -> None:
    first, _ = cluster.run()
    for odd in ({"a b": 1.0}, {"a": float("nan")}, {f"n{number}": 0.0 for number in range(65)}):
        with pytest.raises(InvalidRequestError):
            first.beat(**odd)


def test_waiting_ends_with_the_generation_and_with_the_job(cluster: Cluster) -> None:
    for name in ("begun", "deleted"):
        first, second = cluster.make(name)
        first.join()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(first.membership, timeout_s=60.0)
            if name == "begun":
                second.join()
                assert isinstance(found.result(60.0), dict)
            else:
                cluster.controller.delete_job(name)
                with pytest.raises(UnknownJobError):
                    found.result(60.0)


NOBODY_NEW = {"start": None, "start_generation": 0, "allreduces": None, "replaced": []}


def document_of(worker: Worker) -> dict[str, Any]:
    """Return a worker's membership as one whose answer got lost has it."""
    worker.generation = 0
    found = worker.membership()
    assert isinstance(found, dict)
    parse_membership(json.dumps(found))
    return dict(json.loads(json.dumps(found)))


def forget(cluster: Cluster, crew: list[Worker]) -> None:
    """Let the switch forget its entries, and the controller see that."""
    device = device_of(cluster)
    device.entities.clear()
    time_passes(cluster, LEASE_S, *crew)
    assert state_of(cluster.controller.job(crew[0].job)) is JobState.FORMING


def test_the_same_members_continue(cluster: Cluster) -> None:
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


def test_a_report_that_makes_no_sense_is_refused_by_the_name_of_its_field(cluster: Cluster) -> None:
    first, _ = crew = cluster.run()
    forget(cluster, crew)
    with pytest.raises(
        InvalidRequestError, match=r"join of job 'job': report: generation 0; generations are 1 \.\. 4294967295"
    ):
        first.join(report=Report(0, 0, 0, (), 0))
    assert cluster.controller.job("job").last_refusal.startswith("join of job 'job': report: generation 0")


def test_a_quorum_continues(cluster: Cluster) -> None:
    first, second, third = cluster.run(workers=3, quorum=2)
    generation, actual = first.generation, cluster.installed_entries()
    time_passes(cluster, LEASE_S, first, third)
    assert first.beat() == beat_of(JobState.RUNNING, generation, "", (1,))
    why = f"rank 1 of job 'job' was evicted: {UNHEARD}"
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
