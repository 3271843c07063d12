# SPDX-License-Identifier: Apache-2.0
"""The health of a job, from its first worker to its last, and in every view of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster.job_status import Health
from hopsum_controlplane.errors import SessionLostError
from hopsum_controlplane.prometheus_metrics import collect
from hopsum_controlplane.web.page_state import PageState
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.watch.snapshots import state, tone

from .world import LEASE_S, Cluster, Worker, switch_config


@pytest.fixture
def switch() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def cluster(tmp_path: Path, switch: FakeDevice) -> Iterator[Cluster]:
    made = Cluster(tmp_path, (switch_config(),), {"s1": switch})
    made.start()
    yield made
    made.stop()


def view(cluster: Cluster, job: str = "job") -> pb.Job:
    return cluster.controller.job(job)


def is_now(cluster: Cluster, health: Health, *words: str) -> None:
    """Assert a job's health, in the manager's view, the operator's message, the page and the metrics."""
    found = message_to_dict(view(cluster))
    missing = [word for word in words if word not in found["health_reason"]]
    assert (found["health"], missing) == (health.value, []), found
    (shown,) = json.loads(json.dumps(PageState(cluster.controller).document()))["jobs"]
    assert shown["health"] == health.value
    (family,) = [each for each in collect(cluster.controller) if each.name.endswith("job_health")]
    assert {sample.labels["health"]: sample.value for sample in family.samples} == {
        each.value: int(each is health) for each in Health
    }


def time_passes(cluster: Cluster, seconds: float, *heard: Worker) -> None:
    """Let time pass in which only these workers are heard."""
    for _ in range(4):
        cluster.clock.sleep(seconds / 4)
        for worker in heard:
            worker.beat()
    cluster.controller.tick()


def test_a_job_that_nobody_is_in_is_idle(cluster: Cluster) -> None:
    crew = cluster.make("job")
    is_now(cluster, Health.IDLE, "no worker has joined")
    crew[0].join()
    is_now(cluster, Health.WAITING, "waits for rank 1 of 2 to join")
    crew[1].join()
    for worker in crew:
        worker.membership()
    is_now(cluster, Health.HEALTHY)
    assert view(cluster).health_reason == ""
    for worker in crew:
        worker.leave()
    cluster.controller.tick()
    is_now(cluster, Health.IDLE, "its last generation ended: all its workers have left")


def test_a_quorum_goes_on_and_is_degraded(cluster: Cluster) -> None:
    crew = cluster.run("job", 3, quorum=2)
    time_passes(cluster, LEASE_S + 0.1, *crew[1:])
    is_now(cluster, Health.DEGRADED, f"rank 0 was evicted: it was silent for {LEASE_S:g} s")
    crew[1].leave()
    is_now(cluster, Health.STALLED, "rank 1 has left", "rank 2 is left, 2 complete a sum")


def test_heartbeats_that_are_missing(cluster: Cluster) -> None:
    crew = cluster.run("job")
    time_passes(cluster, LEASE_S * 0.8, crew[0])
    is_now(cluster, Health.DEGRADED, "rank 1 has missed heartbeats: it is evicted in 2.0 s")
    crew[1].beat()
    is_now(cluster, Health.HEALTHY)


def test_a_job_whose_workers_all_died_has_failed(cluster: Cluster) -> None:
    cluster.run("job")
    time_passes(cluster, LEASE_S + 0.1)
    is_now(cluster, Health.FAILED, "its last generation ended: the lease of rank 0 ran out")
    assert view(cluster).ended_age_s == 0
    cluster.clock.sleep(90)
    assert view(cluster).ended_age_s == 90
    assert view(cluster).begun_age_s == pytest.approx(100.1)


def test_a_switch_with_a_condition(cluster: Cluster, switch: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    crew = cluster.make("job")

    def fail(*_: object, **__: object) -> None:
        raise SessionLostError("no P4Runtime server answered", where="10.0.0.9:9559")

    def breaks(name: str, words: Callable[[], Any]) -> None:
        with monkeypatch.context() as broken:
            for method in ("read_counter", "read_table"):
                broken.setattr(switch, method, fail)
            words()

    def look() -> None:
        cluster.controller.switches()
        is_now(cluster, Health.DEGRADED, "no P4Runtime server answered")

    for worker in crew:
        worker.join()
    for worker in crew:
        worker.membership()
    breaks("running", look)


def test_members_say_when_they_were_heard_and_why_they_were_given_up(cluster: Cluster) -> None:
    crew = cluster.run("job", 3, quorum=1)
    crew[0].beat(allreduces=7)
    cluster.clock.sleep(3)
    crew[1].beat()
    assert [each["heartbeat_age_s"] for each in message_to_dict(view(cluster))["members"]] == [3, 0, None]
    time_passes(cluster, LEASE_S, crew[0])
    assert [member.reason for member in view(cluster).members] == ["", *[f"it was silent for {LEASE_S:g} s"] * 2]


def test_a_refusal_has_its_time(cluster: Cluster) -> None:
    crew = cluster.make("job")
    assert not view(cluster).HasField("last_refusal_age_s")
    with pytest.raises(ControlPlaneError):
        crew[0].join(wire_version=99)
    cluster.clock.sleep(400)
    assert view(cluster).last_refusal_age_s == 400


def test_a_state_is_shown_with_its_health() -> None:
    assert state({"state": "running", "health": "healthy"}) == "running"
    assert state({"state": "running", "health": "stalled"}) == "running, stalled"
    tones = [tone({"health": health.value}) for health in Health]
    assert tones == ["good", "quiet", "wait", "bad", "bad", "wait"]
