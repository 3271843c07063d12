# SPDX-License-Identifier: Apache-2.0
"""The conditions and the events of a job, in the controller's view and in the operator's message."""

from __future__ import annotations

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster.job_history import KEPT_EVENTS
from hopsum_controlplane.cluster.job_status import JobCondition, SwitchTrouble, conditions_of, status_of
from hopsum_controlplane.errors import SessionLostError
from hopsum_ptf.fake_device import Failure
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import message_to_dict

from .world import LEASE_S, Cluster, device_of, enter


def conditions(cluster: Cluster) -> dict[str, pb.JobCondition]:
    return {each.type: each for each in cluster.controller.job("job").conditions}


def statuses(cluster: Cluster) -> list[bool]:
    """Return MembersJoined, SwitchReady, EntriesInstalled and Ready."""
    found = conditions(cluster)
    assert list(found) == ["MembersJoined", "SwitchReady", "EntriesInstalled", "Ready"]
    return [each.status for each in found.values()]


def events(cluster: Cluster) -> list[str]:
    return [each.reason for each in cluster.controller.job("job").events]


def test_conditions_become_true_one_after_the_other(cluster: Cluster) -> None:
    crew = cluster.make("job")
    assert statuses(cluster) == [False, True, False, False]
    missing = conditions(cluster)["MembersJoined"]
    assert (missing.reason, missing.message) == ("Missing", "0 of 2 workers: ranks 0, 1 are not there")
    crew[0].join()
    assert conditions(cluster)["MembersJoined"].message == "1 of 2 workers: rank 1 is not there"
    assert conditions(cluster)["Ready"].message == "waits for rank 1 of 2 to join"
    crew[1].join()
    assert statuses(cluster) == [True, True, True, True]
    generation = cluster.controller.job("job").generation
    assert conditions(cluster)["EntriesInstalled"].message == f"generation {generation}"


def test_a_condition_has_the_time_of_its_last_change(cluster: Cluster) -> None:
    crew = cluster.run()
    cluster.clock.sleep(LEASE_S / 2)
    crew[0].beat()
    assert {each.age_s for each in conditions(cluster).values()} == {LEASE_S / 2}
    cluster.clock.sleep(LEASE_S / 2)
    cluster.controller.tick()  # rank 1 was silent for its lease
    assert statuses(cluster) == [False, True, False, False]
    cluster.clock.sleep(3)
    ages = {name: each.age_s for name, each in conditions(cluster).items()}
    assert ages == {"MembersJoined": 3, "SwitchReady": LEASE_S + 3, "EntriesInstalled": 3, "Ready": 3}


def test_a_job_without_its_quorum_has_its_entries_and_is_not_ready(cluster: Cluster) -> None:
    crew = cluster.run(workers=3, quorum=2)
    crew[0].leave()
    assert statuses(cluster) == [False, True, True, True]
    crew[1].leave()
    assert statuses(cluster) == [False, True, True, False]
    assert conditions(cluster)["Ready"].reason == "Stalled"


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
        found = conditions(cluster)["SwitchReady"]
        assert (found.status, found.reason) == (False, "Unreachable")
        assert "no answer about" in found.message
        assert conditions(cluster)["Ready"].status
    cluster.clock.sleep(60)
    cluster.controller.reconcile("s1")
    assert conditions(cluster)["SwitchReady"].status
    last = [each for each in cluster.controller.job("job").events if each.reason.startswith("Switch")]
    assert [(each.type, each.reason, each.count) for each in last] == [
        ("Warning", "SwitchLost", 1),
        ("Normal", "SwitchBack", 1),
    ]


def test_entries_that_a_switch_refuses_are_a_condition_of_the_job_alone(cluster: Cluster) -> None:
    crew, device = cluster.make("job"), device_of(cluster)
    device.fail(at=device.updates, failure=Failure.REFUSED)
    for worker in crew:
        worker.join()
    assert statuses(cluster) == [True, True, False, False]
    refused = conditions(cluster)["EntriesInstalled"]
    assert (refused.reason, "INTERNAL" in refused.message) == ("Delayed", True)
    ended = [each for each in cluster.controller.job("job").events if each.reason == "GenerationEnded"]
    assert [each.type for each in ended] == ["Warning"]
    assert "switch s1 did not take it" in ended[0].message


@pytest.mark.parametrize(
    ("word", "expected"), [("not_primary", "NotPrimary"), ("other_program", "OtherProgram"), ("store", "Store")]
)
def test_the_reason_of_a_switch_is_one_word(cluster: Cluster, word: str, expected: str) -> None:
    cluster.make("job")
    record = cluster.controller._cache.get("job")
    status = status_of(record, "words", {}, LEASE_S)
    _, found, entries, _ = conditions_of(record, SwitchTrouble(word, "s1: words", "words"), status)
    assert found == JobCondition("SwitchReady", False, expected, "s1: words")
    assert (entries.reason, entries.message) == ("SwitchNotReady", "words")
    assert conditions_of(record, SwitchTrouble(), status)[1] == JobCondition("SwitchReady", True, "Reachable", "")


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


def test_a_restarted_controller_says_so_and_goes_on(cluster: Cluster) -> None:
    crew = cluster.run()
    cluster.start()
    (event,) = cluster.controller.job("job").events
    assert (event.reason, event.message) == ("Restored", "the controller was started; the job is running")
    assert statuses(cluster) == [True, True, True, True]
    crew[0].leave()
    assert events(cluster) == ["Restored", "MemberLeft"]


def test_a_job_that_is_being_deleted_says_so(cluster: Cluster) -> None:
    enter(cluster.make("job"))
    device = device_of(cluster)
    device.fail(at=device.updates, failure=Failure.UNREACHABLE)
    with pytest.raises(ControlPlaneError):
        cluster.controller.delete_job("job")
    assert "Deleting" in events(cluster)
    assert statuses(cluster) == [True, False, False, False]


def test_the_operators_message_has_them_and_a_list_has_no_events(cluster: Cluster) -> None:
    cluster.run()
    cluster.clock.sleep(2)
    message = message_to_dict(cluster.controller.job("job"))
    ready, created = message["conditions"][-1], message["events"][0]
    assert ready == {"type": "Ready", "status": True, "reason": "Healthy", "message": "", "age_s": 2.0}
    expected = {"type": "Normal", "reason": "Created", "message": "2 workers, switch s1", "count": 1, "age_s": 2.0}
    assert created == expected
    (listed,) = cluster.controller.jobs()
    assert (len(listed.conditions), len(listed.events)) == (4, 0)
