# SPDX-License-Identifier: Apache-2.0
"""Jobs made and ended on a switch in memory, which fails wherever it can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum_controlplane import ControlPlaneError, GenerationAllocator, SwitchController, SwitchEndpoint
from hopsum_controlplane.devices.device import Capabilities
from hopsum_controlplane.entries import Delete, Insert, MulticastGroup, Replica, TableEntry, Update
from hopsum_ptf.fake_device import Failure, FakeDevice

from .conftest import NOW, TABLE2, TABLE3, TABLE4, TABLE16, Connect, MakeSpec

# Updates of a job with 3 workers: a lookup, 3 rewrites, 3 workers, a group, then `jobs`.
UPDATES = 9


def tables_of(batch: tuple[Update, ...]) -> list[str]:
    entities = [update.entity for update in batch]
    return [entity.table if isinstance(entity, TableEntry) else "group" for entity in entities]


def test_a_job_is_live_last_and_dead_first(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice()
    controller = connect(device)
    before = dict(device.entities)
    device.batches.clear()
    job = controller.create_job(make_spec())
    controller.delete_job(job)

    made, live, dead, gone = device.batches
    assert set(tables_of(made)) == {"lookup", "rewrite", "workers", "group"}
    assert tables_of(live) == tables_of(dead) == ["jobs"]
    assert sorted(tables_of(gone)) == sorted(tables_of(made))
    assert all(isinstance(update, Insert) for update in (*made, *live))
    assert all(isinstance(update, Delete) for update in (*dead, *gone))
    assert device.entities == before


def test_what_a_job_is_given(make_spec: MakeSpec, connect: Connect) -> None:
    controller = connect(FakeDevice())
    first = controller.create_job(make_spec("a", slots=100))
    second = controller.create_job(make_spec("b", slots=28))
    assert (first.generation, first.job_index, first.slot_base) == (NOW + 1, 0, 0)
    assert (first.slots, first.group, first.quorum) == (100, 1, 3)
    assert (second.generation, second.job_index, second.slot_base, second.group) == (NOW + 2, 1, 100, 2)
    assert controller.jobs == (first, second)

    controller.delete_job(first)
    third = controller.create_job(make_spec("c", slots=64))
    assert (third.generation, third.job_index, third.slot_base) == (NOW + 3, 0, 0)


def test_the_window_is_what_the_target_can_take(make_spec: MakeSpec, connect: Connect) -> None:
    controller = connect(FakeDevice(capabilities=Capabilities("small", max_window=32)))
    assert controller.create_job(make_spec("a", slots=100)).window == 32
    assert controller.create_job(make_spec("b", slots=10)).window == 10


@pytest.mark.parametrize(("limit", "fits"), [(None, True), (768, True), (767, False), (512, False)])
def test_a_target_in_which_frames_cannot_grow_enough(
    make_spec: MakeSpec, connect: Connect, limit: int | None, fits: bool
) -> None:
    device = FakeDevice(capabilities=Capabilities("narrow", max_growth_bytes=limit))
    controller = connect(device)
    wide, written = make_spec("wide", table16=TABLE16), device.updates
    if fits:
        controller.create_job(wide)
        return
    message = f"'wide': LOOKUP_ADD16 lets a frame grow by 768 bytes in the switch, narrow has room for {limit} more"
    with pytest.raises(ControlPlaneError, match=message):
        controller.create_job(wide)
    assert device.updates == written
    codes = {"table4": TABLE4, "table3": TABLE3, "table2": TABLE2}
    controller.create_job(make_spec("narrow", **codes))


def test_thresholds_are_installed_before_the_job_lives_and_removed_after_it(
    make_spec: MakeSpec, connect: Connect
) -> None:
    """The program looks a finished sum up when its slot has changed already: the entry must not be missing then."""
    device = FakeDevice()
    controller = connect(device)
    device.batches.clear()
    controller.delete_job(controller.create_job(make_spec(table4=TABLE4)))
    assert ["requantize" in tables_of(batch) for batch in device.batches] == [True, False, False, True]
    assert [tables_of(batch) for batch in device.batches[1:3]] == [["jobs"], ["jobs"]]


@pytest.mark.parametrize("failure", [Failure.REFUSED, Failure.UNANSWERED])
@pytest.mark.parametrize("k", range(UPDATES))
def test_a_failed_creation_leaves_nothing(make_spec: MakeSpec, connect: Connect, failure: Failure, k: int) -> None:
    device = FakeDevice(fail_at=1 + k, failure=failure)  # update 0 is the switch's address
    controller = connect(device)
    before = dict(device.entities)
    with pytest.raises(ControlPlaneError):
        controller.create_job(make_spec())
    assert device.entities == before
    assert controller.jobs == ()

    device.repair()
    job = controller.create_job(make_spec(slots=2048))
    assert (job.slot_base, job.job_index) == (0, 0)
    assert job.generation == NOW + 2, "the generation of a failed creation must not come back"


def test_the_failures_above_were_all_there_are(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice(fail_at=1 + UPDATES)
    connect(device).create_job(make_spec())
    assert device.updates == 1 + UPDATES


@pytest.mark.parametrize("k", range(UPDATES))
def test_a_region_stays_taken_until_its_entries_are_gone(make_spec: MakeSpec, connect: Connect, k: int) -> None:
    device = FakeDevice(fail_at=1 + k, failure=Failure.UNREACHABLE)
    controller = connect(device)
    before = dict(device.entities)
    with pytest.raises(ControlPlaneError, match=r"slots 0 \.\. 15 and job index 0 stay taken"):
        controller.create_job(make_spec())
    (leftover,) = controller.jobs

    device.repair()
    other = controller.create_job(make_spec("other"))
    assert (other.slot_base, other.job_index) == (16, 1)
    controller.delete_job(other)
    controller.delete_job(leftover)
    assert device.entities == before
    assert controller.create_job(make_spec()).slot_base == 0


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("k", range(UPDATES))
def test_a_failed_deletion_continues_where_it_stopped(
    make_spec: MakeSpec, connect: Connect, failure: Failure, k: int
) -> None:
    device = FakeDevice(fail_at=1 + UPDATES + k, failure=failure)
    controller = connect(device)
    before = dict(device.entities)
    job = controller.create_job(make_spec())
    with pytest.raises(ControlPlaneError):
        controller.delete_job(job)
    assert controller.jobs == (job,)
    untouched = k == 0 and failure is Failure.REFUSED
    assert controller.ending == (() if untouched else (job,))

    device.repair()
    assert controller.create_job(make_spec("other")).slot_base == 16
    controller.delete_job(job)
    controller.delete_job(controller.jobs[0])
    assert device.entities == before


def test_a_job_whose_admission_cannot_be_removed_is_untouched(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice(fail_at=1 + UPDATES)
    controller = connect(device)
    job = controller.create_job(make_spec())
    before = dict(device.entities)
    with pytest.raises(ControlPlaneError):
        controller.delete_job(job)
    assert device.entities == before
    assert (controller.jobs, controller.ending) == ((job,), ())
    assert controller.audit().clean


def test_an_entry_of_somebody_else_is_not_removed(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice()
    controller = connect(device)
    theirs = MulticastGroup(1, (Replica(9, 9),))
    device.write([Insert(theirs)])
    before = dict(device.entities)
    with pytest.raises(ControlPlaneError, match="ALREADY_EXISTS"):
        controller.create_job(make_spec())
    assert device.entities == before


def test_an_interrupted_creation_leaves_nothing(
    make_spec: MakeSpec, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    controller = connect(device)
    before = dict(device.entities)
    write = device.write

    def interrupted(updates: list[Update]) -> None:
        write(updates)
        if isinstance(updates[0], Insert):
            raise KeyboardInterrupt

    monkeypatch.setattr(device, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        controller.create_job(make_spec())
    assert device.entities == before
    assert controller.jobs == ()


def test_wrong_requests_write_nothing(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice()
    controller = connect(device)
    job = controller.create_job(make_spec("a", slots=2000))
    written = device.updates
    with pytest.raises(ControlPlaneError, match="a job 'a' exists"):
        controller.create_job(make_spec("a"))
    with pytest.raises(ControlPlaneError, match="no 49 contiguous slots"):
        controller.create_job(make_spec("b", slots=49))
    with pytest.raises(ControlPlaneError, match="no job 'a' with generation"):
        controller.delete_job(replace(job, generation=1))
    assert device.updates == written
    controller.delete_job(job)
    with pytest.raises(ControlPlaneError, match="no job 'a' with generation"):
        controller.delete_job(job)
    with pytest.raises(ControlPlaneError, match="no job 'a' with generation"):
        controller.job_counters(job)


def test_a_job_without_workers_is_for_a_cluster(make_spec: MakeSpec, connect: Connect) -> None:
    controller, asked = connect(FakeDevice()), replace(make_spec(), workers=(), ranks=3)
    controller.check(asked)
    with pytest.raises(ControlPlaneError, match="no workers; name the places"):
        controller.create_job(asked)


def test_all_job_indices_taken(make_spec: MakeSpec, connect: Connect) -> None:
    controller = connect(FakeDevice())
    for index in range(64):
        controller.create_job(make_spec(f"job {index}", workers=1, slots=1, table=None))
    with pytest.raises(ControlPlaneError, match="all 64 jobs"):
        controller.create_job(make_spec("one more", slots=1))


def test_a_new_controller_refuses_what_another_left(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice()
    job = connect(device).create_job(make_spec())
    before = dict(device.entities)
    with pytest.raises(
        ControlPlaneError,
        match=f"9 entries of another controller are installed here, live .* .{job.generation}",
    ):
        connect(device)
    assert device.entities == before

    device.batches.clear()
    controller = connect(device, remove_existing=True)
    assert tables_of(device.batches[0]) == ["jobs"], "the old generation is dead before anything else goes"
    assert [entity for entity in device.entities.values() if "generation" in getattr(entity, "match", {})] == []
    assert controller.create_job(make_spec()).generation == job.generation + 1, (
        "the clock does not advance: generations must"
    )


def test_the_switch_address_is_written_once(connect: Connect) -> None:
    device = FakeDevice()
    connect(device)
    connect(device)
    assert device.read_table("switch_address") == [
        TableEntry("switch_address", {"address": 0x0A0000FE}, "set_switch_mac", {"mac": 0x0200000000AA})
    ]
    assert device.updates == 1


def test_another_mac_replaces_the_installed_one(connect: Connect) -> None:
    device = FakeDevice()
    connect(device)
    SwitchController(device, SwitchEndpoint("02:00:00:00:00:bb", "10.0.0.254"))
    assert [entry.params for entry in device.read_table("switch_address")] == [{"mac": 0x0200000000BB}]


def test_controllers_may_share_an_allocator_of_generations(make_spec: MakeSpec, connect: Connect) -> None:
    generations = GenerationAllocator()
    jobs = [connect(FakeDevice(), generations=generations).create_job(make_spec()) for _ in range(3)]
    assert len({job.generation for job in jobs}) == 3


def test_events_are_counted_from_the_start_of_the_job(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice()
    device.counters["job_events"] = {16: 1000, 17: 7}
    controller = connect(device)
    controller.create_job(make_spec("a"))
    job = controller.create_job(make_spec("b"))
    device.counters["job_events"] = {0: 99, 16: 1005, 17: 8, 20: 3, 22: 2, 32: 99}
    others = ("duplicate", "answered", "fault", "closed", "resent", "taken", "known", "relayed")
    counted = {"added": 5, "completed": 1, "stale": 3, "probed": 2}
    assert controller.job_counters(job) == dict.fromkeys(others, 0) | counted


def test_drops_have_names(connect: Connect) -> None:
    device = FakeDevice()
    device.counters["drops"] = {1: 4, 8: 2, 17: 1, 18: 5, 19: 6}
    drops = connect(device).drop_counters()
    assert {reason: packets for reason, packets in drops.items() if packets} == {
        "truncated": 4,
        "unknown_generation": 2,
        "no_route": 1,
        "observer": 5,
        "simulated": 6,
    }
    assert len(drops) == 20
