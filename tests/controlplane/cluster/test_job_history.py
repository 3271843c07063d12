# SPDX-License-Identifier: Apache-2.0
"""Health and events of a job, from its first worker to its last, in every view."""

from __future__ import annotations

import json

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster.job_history import KEPT_EVENTS
from hopsum_controlplane.cluster.job_status import Health
from hopsum_controlplane.errors import SessionLostError
from hopsum_controlplane.web.page_state import PageState
from hopsum_controlplane.web.prometheus_metrics import collect
from hopsum_ptf.fake_device import Failure
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.watch.snapshots import health_tone, state_in_words

from .world import LEASE_S, Cluster, device_of, enter, time_passes


def events(cluster: Cluster) -> list[str]:
    return [each.reason for each in cluster.controller.job("job").events]


def test_a_switch_that_is_lost_and_comes_back_is_seen_by_its_jobs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, device = cluster.run(), device_of(cluster)

    def lost(table: str) -> None:
        raise SessionLostError(f"no answer about {table}", where=device.where)

    with monkeypatch.context() as patch:
        patch.setattr(device, "read_table", lost)
        for _ in range(2):
            cluster.clock.sleep(cluster.config.reconcile_interval_s)
            for worker in crew:
                worker.beat()
            cluster.controller.reconcile("s1")
    cluster.clock.sleep(60)
    cluster.controller.reconcile("s1")
    last = [each for each in cluster.controller.job("job").events if each.reason.startswith("Switch")]
    assert [(each.type, each.reason, each.count) for each in last] == [
        ("Warning", "SwitchLost", 1),
        ("Normal", "SwitchBack", 1),
    ]
    assert "no answer about" in last[0].message


def test_entries_that_a_switch_refuses_are_a_trouble_of_the_job_alone(cluster: Cluster) -> None:
    crew, device = cluster.make("job"), device_of(cluster)
    device.fail(at=device.updates, failure=Failure.REFUSED)
    for worker in crew:
        worker.join()
    assert "INTERNAL" in cluster.controller.job("job").health_reason
    assert cluster.controller.switches()[0].condition == ""
    ended = [each for each in cluster.controller.job("job").events if each.reason == "GenerationEnded"]
    assert [each.type for each in ended] == ["Warning"]
    assert "switch s1 did not take it" in ended[0].message


def test_the_life_of_a_job_is_told_by_its_events(cluster: Cluster) -> None:
    crew = cluster.run()
    first = cluster.controller.job("job").generation
    installed = ["Created", "MemberJoined", "MemberJoined", "GenerationBegun", "EntriesInstalled"]
    assert events(cluster) == installed
    told = [each.message for each in cluster.controller.job("job").events]
    assert told == [
        "2 workers, switch s1",
        "rank 0 has joined, at 10.0.1.1:4000",
        "rank 1 has joined, at 10.0.1.2:4001",
        f"generation {first} with ranks 0, 1",
        f"generation {first} runs",
    ]
    crew[1].leave(unfinished="out of memory")
    over = ["MemberLost", "GenerationEnded", "EntriesRemoved"]
    assert events(cluster) == [*installed, *over]
    lost = cluster.controller.job("job").events[len(installed)]
    assert (lost.type, "out of memory" in lost.message) == ("Warning", True)
    crew[0].join()
    crew[1].start_again()
    found = [each.message for each in cluster.controller.job("job").events[-4:-2]]
    assert found == [
        "rank 0 has joined again, at 10.0.1.1:4000",
        "rank 1 has joined, in the place of another worker, at 10.0.1.2:4001",
    ]
    for worker in crew:
        worker.membership()
        worker.leave()
    assert events(cluster)[-4:] == ["MemberLeft", "MemberLeft", "GenerationEnded", "EntriesRemoved"]
    assert {each.type for each in cluster.controller.job("job").events[-4:]} == {"Normal"}


def test_a_refused_join_that_comes_again_is_one_event_with_a_count(cluster: Cluster) -> None:
    crew = cluster.make("job")
    for _ in range(3):
        cluster.clock.sleep(1)
        with pytest.raises(ControlPlaneError):
            crew[0].join(ip="192.0.2.1")
    last = cluster.controller.job("job").events[-1]
    assert (last.type, last.reason, last.count, last.age_s) == ("Warning", "JoinRefused", 3, 0)
    assert cluster.controller.job("job").joins_refused == 3


def test_only_the_last_events_are_kept_and_none_of_a_job_that_is_gone(cluster: Cluster) -> None:
    crew = cluster.make("job")
    for _ in range(KEPT_EVENTS):
        crew[0].start_again()
        crew[0].leave()
    assert len(events(cluster)) == KEPT_EVENTS
    cluster.controller.delete_job("job")
    cluster.make("job")
    assert events(cluster) == ["Created"]


def test_a_restarted_controller_says_so_and_continues(cluster: Cluster) -> None:
    crew = cluster.run()
    cluster.start()
    (event,) = cluster.controller.job("job").events
    assert (event.reason, event.message) == ("Restored", "the controller was started; the job is running")
    crew[0].leave()
    assert events(cluster) == ["Restored", "MemberLeft"]


def test_a_job_that_is_being_deleted_says_so(cluster: Cluster) -> None:
    enter(cluster.make("job"))
    device = device_of(cluster)
    device.fail(at=device.updates, failure=Failure.UNREACHABLE)
    with pytest.raises(ControlPlaneError):
        cluster.controller.delete_job("job")
    assert "Deleting" in events(cluster)


def test_the_operators_message_has_them_and_a_list_has_no_events(cluster: Cluster) -> None:
    cluster.run()
    cluster.clock.sleep(2)
    message = message_to_dict(cluster.controller.job("job"))
    created = message["events"][0]
    expected = {"type": "Normal", "reason": "Created", "message": "2 workers, switch s1", "count": 1, "age_s": 2.0}
    assert created == expected
    (listed,) = cluster.controller.jobs()
    assert len(listed.events) == 0


def view(cluster: Cluster, job: str = "job") -> pb.Job:
    return cluster.controller.job(job)


def is_now(cluster: Cluster, health: Health, *words: str) -> None:
    """Assert a job's health, in the manager's view, the operator's message, the page and the metrics."""
    found = message_to_dict(view(cluster))
    missing = [word for word in words if word not in found["health_reason"]]
    assert (found["health"], missing) == (health.value, []), found
    (shown,) = json.loads(json.dumps(PageState(cluster.controller).read_values()))["jobs"]
    assert shown["health"] == health.value
    (family,) = [each for each in collect(cluster.controller) if each.name.endswith("job_health")]
    assert {sample.labels["health"]: sample.value for sample in family.samples} == {
        each.value: int(each is health) for each in Health
    }


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


def test_a_quorum_continues_and_is_degraded(cluster: Cluster) -> None:
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


def test_a_switch_with_a_condition(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.run("job")

    def fail(*_: object, **__: object) -> None:
        raise SessionLostError("no P4Runtime server answered", where="10.0.0.9:9559")

    for method in ("read_counter", "read_table"):
        monkeypatch.setattr(device_of(cluster), method, fail)
    cluster.controller.switches()
    is_now(cluster, Health.DEGRADED, "no P4Runtime server answered")


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
    assert state_in_words({"state": "running", "health": "healthy"}) == "running"
    assert state_in_words({"state": "running", "health": "stalled"}) == "running, stalled"
    tones = [health_tone({"health": health.value}) for health in Health]
    assert tones == ["good", "quiet", "wait", "bad", "bad", "wait"]
