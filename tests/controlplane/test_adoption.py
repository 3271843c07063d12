# SPDX-License-Identifier: Apache-2.0
"""A controller that is started again: the jobs that it finds complete continue, incomplete ones do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from hopsum_controlplane import ControlPlaneError, Job, SwitchController, SwitchEndpoint
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, Replica
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.tables import admit, reply
from hopsum_ptf.fake_device import Failure, FakeDevice

from .conftest import NOW, TABLE4, Connect, MakeSpec
from .test_audit import ENTRIES, altered, desired, entities_of


@pytest.fixture
def make_spec(make_spec: MakeSpec) -> MakeSpec:
    return partial(make_spec, table4=TABLE4)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def recorded_jobs(device: FakeDevice, connect: Connect, make_spec: MakeSpec) -> list[Job]:
    """Make two jobs with a controller that is forgotten then."""
    controller = connect(device)
    return [controller.create_job(make_spec(name)) for name in ("first", "second")]


def test_complete_jobs_continue(
    device: FakeDevice, connect: Connect, make_spec: MakeSpec, recorded_jobs: list[Job], switch_endpoint: SwitchEndpoint
) -> None:
    written = device.updates
    controller = connect(device, adopt=recorded_jobs)
    assert device.updates == written
    assert {generation: adoption.lost for generation, adoption in controller.adoptions.items()} == {
        job.generation: False for job in recorded_jobs
    }
    assert controller.jobs == tuple(recorded_jobs)
    third = controller.create_job(make_spec("third"))
    assert (third.job_index, third.slot_base) == (2, 32)
    assert third.generation > max(job.generation for job in recorded_jobs)
    controller.delete_job(recorded_jobs[0])
    assert device.entities == desired(switch_endpoint, recorded_jobs[1], third)


def test_counters_continue(device: FakeDevice, connect: Connect, make_spec: MakeSpec) -> None:
    device.counters["job_events"] = {0: 1000}
    job = connect(device).create_job(make_spec())
    device.counters["job_events"] = {0: 1005}
    assert connect(device, adopt=[job]).job_counters(job)["added"] == 5
    forgetful = replace(job, events_at_start=())
    assert connect(device, adopt=[forgetful]).job_counters(forgetful)["added"] == 1005


@pytest.mark.parametrize("k", range(ENTRIES))
def test_an_incomplete_job_is_lost(
    device: FakeDevice,
    connect: Connect,
    make_spec: MakeSpec,
    recorded_jobs: list[Job],
    switch_endpoint: SwitchEndpoint,
    k: int,
) -> None:
    first, second = recorded_jobs
    gone = entities_of(first)[k]
    device.write([Delete(gone)])
    device.batches.clear()
    controller = connect(device, adopt=recorded_jobs)
    adoption = controller.adoptions[first.generation]
    assert (adoption.lost, adoption.missing, adoption.changed) == (True, (gone,), ())
    assert f"1 of {ENTRIES} entries missing, among them {gone}" in adoption.reason
    assert not controller.adoptions[second.generation].lost
    assert all(isinstance(update, Delete) for batch in device.batches for update in batch), "by rule E1"
    assert device.entities == desired(switch_endpoint, second)
    assert controller.create_job(make_spec("first")).slot_base == first.slot_base


def test_a_switch_that_forgot_is_not_filled_again(
    device: FakeDevice, connect: Connect, recorded_jobs: list[Job], switch_endpoint: SwitchEndpoint
) -> None:
    device.set_pipeline_config(PipelineConfig(b"", ""))
    device.batches.clear()
    controller = connect(device, adopt=recorded_jobs)
    assert [controller.adoptions[job.generation].lost for job in recorded_jobs] == [True, True]
    assert device.entities == desired(switch_endpoint)
    assert (controller.jobs, controller.free_capacity.slots) == ((), 2048)
    with pytest.raises(
        ControlPlaneError, match=f"generation {recorded_jobs[0].generation} has been on this switch before"
    ):
        controller.create_job(recorded_jobs[0].spec, generation=recorded_jobs[0].generation)


def test_changed_entries(
    device: FakeDevice, connect: Connect, recorded_jobs: list[Job], switch_endpoint: SwitchEndpoint
) -> None:
    first, second = recorded_jobs
    wanted = reply.rewrite(first)[1]
    device.write([Modify(altered(wanted)), Modify(altered(admit.workers(second)[2]))])
    adoptions = connect(device, adopt=recorded_jobs).adoptions
    assert [adoptions[job.generation].lost for job in recorded_jobs] == [False, True]
    assert adoptions[first.generation].changed == ((wanted, altered(wanted)),)
    assert device.entities == desired(switch_endpoint, first)


def test_jobs_of_nobody_stop_it(
    device: FakeDevice, connect: Connect, recorded_jobs: list[Job], switch_endpoint: SwitchEndpoint
) -> None:
    first, second = recorded_jobs
    before = dict(device.entities)
    with pytest.raises(
        ControlPlaneError, match=rf"{ENTRIES} entries of another .* live generations \[{second.generation}\]"
    ):
        connect(device, adopt=[first])
    assert device.entities == before
    controller = connect(device, adopt=[first], remove_existing=True)
    assert controller.jobs == (first,)
    assert device.entities == desired(switch_endpoint, first)


def test_a_service_that_has_moved(device: FakeDevice, recorded_jobs: list[Job]) -> None:
    elsewhere = SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.250")
    controller = SwitchController(device, elsewhere, adopt=recorded_jobs)
    assert [adoption.lost for adoption in controller.adoptions.values()] == [True, True]
    assert "made for the service at 10.0.0.254 (02:00:00:00:00:aa), which is at 10.0.0.250" in (
        controller.adoptions[recorded_jobs[0].generation].reason
    )
    assert device.entities == desired(elsewhere)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job_index": 0}, "job index 0 is taken"),
        ({"region": SlotRange(15, 16)}, r"slots 15 \.\. 30 are asked for, 0 \.\. 15 are taken"),
        ({"region": SlotRange(2040, 16)}, r"slots 2040 \.\. 2055 of a switch that has 2048"),
        ({"generation": NOW + 1}, f"two of the 2 jobs to adopt have the generation {NOW + 1}"),
    ],
)
def test_books_that_contradict_themselves(
    device: FakeDevice, connect: Connect, recorded_jobs: list[Job], change: dict[str, object], message: str
) -> None:
    first, second = recorded_jobs
    before = dict(device.entities)
    with pytest.raises(ControlPlaneError, match=message):
        connect(device, adopt=[first, replace(second, **change)])  # type: ignore[arg-type]
    assert device.entities == before


@pytest.mark.parametrize("failure", list(Failure))
def test_an_adoption_that_fails_is_repeated(
    connect: Connect, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint, failure: Failure
) -> None:
    k, failed = 0, True
    while failed:
        device = FakeDevice()
        before = connect(device)
        lost, spoiled, moved = jobs = [before.create_job(make_spec(name)) for name in ("lost", "spoiled", "moved")]
        device.write(
            [
                Delete(reply.rewrite(lost)[1]),
                Modify(altered(admit.jobs(spoiled)[0])),
                Modify(altered(reply.group(moved)[0])),
                Insert(MulticastGroup(9, (Replica(1, 1),))),
            ]
        )
        device.fail(at=device.updates + k, failure=failure)
        try:
            controller = connect(device, adopt=jobs, remove_existing=True)
            failed = False
        except ControlPlaneError:
            device.repair()
            controller = connect(device, adopt=jobs, remove_existing=True)
        fates = [controller.adoptions[job.generation].lost for job in jobs]
        assert fates == [True, True, False]
        assert device.entities == desired(switch_endpoint, moved)
        k += 1
    assert k > 2 * ENTRIES, "every update that there was has failed once"


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("k", range(ENTRIES))
def test_what_a_crashed_creation_left_is_ended(
    device: FakeDevice, connect: Connect, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint, failure: Failure, k: int
) -> None:
    """The database knows what may be installed before it is: adopting that ends it, unless all of it is installed."""
    controller = connect(device)
    device.fail(at=device.updates + k, failure=Failure.UNREACHABLE)
    with pytest.raises(ControlPlaneError):
        controller.create_job(make_spec())
    (job,) = controller.ending
    device.fail(at=device.updates + 1, failure=failure)
    try:
        connect(device, adopt=[job])
    except ControlPlaneError:
        device.repair()
    assert connect(device, adopt=[job]).adoptions[job.generation].lost
    assert device.entities == desired(switch_endpoint)


def test_allotments_that_cannot_be(device: FakeDevice, connect: Connect, make_spec: MakeSpec) -> None:
    controller = connect(device, slots=64)
    job = controller.create_job(make_spec("there"))
    written = device.updates
    wrong: list[tuple[dict[str, object], str]] = [
        ({"job_index": 0}, "job index 0 is taken"),
        ({"job_index": 64}, r"job index 64; job indices are 0 \.\. 63"),
        ({"region": SlotRange(8, 16)}, r"slots 8 \.\. 23 are asked for, 0 \.\. 15 are taken"),
        ({"region": SlotRange(56, 16)}, r"slots 56 \.\. 71 of a switch that has 64"),
        ({"region": SlotRange(16, 8)}, "a range of 8 slots for a job of 16"),
        ({"generation": 0}, r"generation 0; generations are 1 \.\. "),
        ({"generation": job.generation}, f"generation {job.generation} has been on this switch before"),
    ]
    for change, message in wrong:
        with pytest.raises(ControlPlaneError, match=message):
            controller.create_job(make_spec("new"), **change)  # type: ignore[arg-type]
    assert device.updates == written
    assert controller.free_capacity == (48, 48, 63)
