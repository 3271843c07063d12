# SPDX-License-Identifier: Apache-2.0
"""Conditions of a cluster with problems, as workers and operators see them: strangers, refusals, late switches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import JobState, JoinRequest, Pending
from hopsum_controlplane.entries import Delete, Insert, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.errors import (
    ClusterConfigError,
    ResourceExhaustedError,
    SessionLostError,
    SwitchUnavailableError,
    UnauthenticatedError,
)
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_wire.control import control_pb2 as pb

from .conftest import MakeCluster
from .world import LEASE_S, Cluster, beat_of, device_of, state_of, time_passes


@pytest.mark.parametrize("restart", [False, True])
def test_what_others_change_is_repaired(cluster: Cluster, restart: bool, caplog: pytest.LogCaptureFixture) -> None:
    crew, other = cluster.run(), cluster.run("other")
    device = device_of(cluster)
    device.write(
        [Insert(MulticastGroup(9, (Replica(1, 1),))), Insert(TableEntry("jobs", {"generation": 5}, "job", {}))]
    )
    if restart:
        cluster.start(may_remove=lambda name, what: True)
    else:
        time_passes(cluster, LEASE_S, *crew, *other)
        view = cluster.controller.switches()[0]
        assert (view.audits, view.entries_repaired) == (1, 2)
        assert [line.split(":")[0] for line in view.findings] == ["foreign", "foreign"]
    assert "switch s1: took off 2 entries: " in caplog.text
    assert "jobs[generation=5]" in caplog.text
    cluster.check()
    assert {state_of(job) for job in cluster.controller.jobs()} == {JobState.RUNNING}


def test_a_switch_of_somebody_else_is_left_alone(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    device = device_of(cluster)
    cluster.stop()
    theirs = TableEntry("jobs", {"generation": 5}, "job", {})
    device.write([Insert(theirs)])
    cluster.start()
    view = cluster.controller.switches()[0]
    assert (view.reachable, "1 entries of another controller are installed here" in view.condition) == (False, True)
    with pytest.raises(ResourceExhaustedError, match=r"s1: .*entries of another controller"):
        cluster.make()
    device.write([Delete(theirs)])
    cluster.clock.sleep(1)
    cluster.controller.tick()
    assert cluster.controller.switches()[0].condition == ""
    cluster.run()


def test_a_switch_that_refuses_is_asked_again(cluster: Cluster) -> None:
    crew, device = cluster.make(), device_of(cluster)
    device.write([Insert(MulticastGroup(1, (Replica(9, 9),)))])  # in the way of the first job
    crew[0].join()
    crew[1].join()
    pending = crew[0].membership()
    assert isinstance(pending, Pending)
    assert (list(pending.missing_ranks), pending.state) == ([], pb.JOB_STATE_FORMING)
    assert "ALREADY_EXISTS" in pending.condition
    other = cluster.run("other")  # the switch has no problem, only the job
    cluster.clock.sleep(1)
    cluster.controller.tick()  # removes what was in the way first
    assert isinstance(crew[0].membership(), dict)
    assert other[0].beat().reason == ""
    cluster.check()
    assert cluster.controller.job("job").condition == ""


def test_deleting_waits_for_the_switch(cluster: Cluster) -> None:
    crew, device = cluster.run(), device_of(cluster)
    device.fail(at=device.updates, failure=Failure.UNREACHABLE)
    with pytest.raises(
        SwitchUnavailableError, match=r"job 'job' is ending, and 16 slots of switch 's1' stay taken: .*keeps trying"
    ):
        cluster.controller.delete_job("job")
    assert crew[0].beat() == beat_of(JobState.ENDING, 0, "the job was deleted")
    with pytest.raises(SwitchUnavailableError):
        cluster.controller.delete_job("job")
    device.repair()
    cluster.controller.delete_job("job")
    assert cluster.controller.jobs() == []
    cluster.check()


def test_a_device_is_missing(cluster: Cluster) -> None:
    cluster.devices = {}
    with pytest.raises(ClusterConfigError, match="no device for switch 's1'"):
        cluster.start()


def test_a_switch_that_starts_later(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    device, up = device_of(cluster), False

    def open_it() -> FakeDevice:
        if not up:
            raise ControlPlaneError("no P4Runtime server answered", where="127.0.0.1:9559", hint="start the switch")
        return device

    cluster.devices = {"s1": open_it}  # type: ignore[dict-item]
    cluster.start()
    view = cluster.controller.switches()[0]
    assert (view.reachable, "no P4Runtime server answered" in view.condition) == (False, True)
    up = True
    cluster.clock.sleep(1.0)
    cluster.controller.tick()
    assert cluster.controller.switches()[0].reachable
    cluster.run()


def test_nothing_shows_a_secret(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    crew = cluster.make()
    token, request = crew[0].token, crew[0].request()
    texts = [repr(request), repr(cluster.controller.create_job), repr(cluster.controller)]
    texts += [repr(worker.join()) for worker in crew]
    wrong = (replace(request, token=token + "x"), replace(request, udp_port=9), replace(request, version=token * 9))
    for odd in wrong:
        with pytest.raises(ControlPlaneError) as error:
            cluster.controller.member_requests.join(odd)
        texts += [repr(error.value), str(error.value), str(error.value.__cause__)]
    second = cluster.controller.member_requests.join(replace(crew[1].request(), incarnation=b"i" * 16))
    with pytest.raises(UnauthenticatedError) as refused:
        cluster.controller.member_requests.heartbeat("job", 0, second.secret)
    records = cluster.controller._cache.records()
    texts += [repr(refused.value), repr(records), repr(cluster.controller.jobs()), repr(cluster.controller.switches())]
    texts.append(caplog.text)
    cluster.stop()
    for file in cluster.config.database.parent.iterdir():
        texts.append(file.read_bytes().decode("latin-1"))
    assert any("installing -> running" in text for text in texts)
    for secret in (token, *(repr(each.secret)[2:-1] for each in crew), crew[0].secret.decode("latin-1")):
        assert not any(secret in text for text in texts)
    assert not any(JoinRequest.__name__ in text and "incarnation" in text for text in texts)


def test_who_looks_at_a_generation_that_is_just_over_makes_no_condition(cluster: Cluster) -> None:
    _, second = cluster.run()
    before = cluster.controller._cache.get("job").job
    assert before is not None
    second.start_again()
    assert cluster.controller._reconcilers["s1"].read_counters(before) == {}
    assert cluster.controller.switches()[0].condition == ""


@pytest.mark.parametrize(
    ("error", "text"), [(SessionLostError("nobody answers"), "s1: nobody answers"), (ControlPlaneError("odd"), "")]
)
def test_workers_hear_that_their_switch_is_not_reached(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: ControlPlaneError, text: str
) -> None:
    """Only of a switch that gives no answer, and only as long as it gives none."""
    crew = cluster.run()
    assert crew[0].beat().switch_unreachable == ""

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(device_of(cluster), "read_counter", fail)
        cluster.controller.job("job")
        (switch,) = (each for each in cluster.controller.switches() if each.name == "s1")
        assert switch.condition.startswith("nobody answers" if text else "odd")
        beat = crew[0].beat()
    assert beat.switch_unreachable == text
    assert (beat.state, beat.generation) == (pb.JOB_STATE_RUNNING, crew[0].generation), "sums may continue"
    cluster.clock.sleep(2)
    cluster.controller.tick()
    assert crew[0].beat().switch_unreachable == ""
