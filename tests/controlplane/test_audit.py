# SPDX-License-Identifier: Apache-2.0
"""Changes that others made on a switch: reported, and repaired, however often the switch fails meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from hopsum_controlplane import ControlPlaneError, Job, SwitchEndpoint
from hopsum_controlplane.audit import Audit
from hopsum_controlplane.entries import Delete, Entity, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.tables import address, admit, lookup, reply, requantize
from hopsum_ptf.fake_device import Failure, FakeDevice

from .conftest import TABLE4, Connect, MakeSpec

BUILDERS = (admit.jobs, admit.workers, lookup.lookup, requantize.requantize, reply.rewrite, reply.group)
# A job with 3 workers and 2 tables: jobs, 3 workers, 2 lookups, thresholds, 3 rewrites, a group.
ENTRIES = 11


@pytest.fixture
def make_spec(make_spec: MakeSpec) -> MakeSpec:
    return partial(make_spec, table4=TABLE4)


def entities_of(job: Job) -> list[Entity]:
    return [entity for build in BUILDERS for entity in build(job)]


def desired(switch: SwitchEndpoint, *jobs: Job) -> dict[tuple[object, ...], Entity]:
    entities = [address.switch_address(switch), *(entity for job in jobs for entity in entities_of(job))]
    return {entity.key(): entity for entity in entities}


def altered(entity: Entity) -> Entity:
    """Return the entity as nobody of ours would have written it."""
    if isinstance(entity, MulticastGroup):
        return replace(entity, replicas=(*entity.replicas, Replica(77, 77)))
    name, value = next(iter(entity.params.items()))
    return replace(entity, params={**entity.params, name: value ^ 1})


STRANGERS: list[Entity] = [
    TableEntry("workers", {"generation": 5, "worker": 0}, "admit", dict.fromkeys(("worker_bit", "port", "address"), 1)),
    TableEntry("rewrite", {"generation": 5, "worker": 0}, "to_worker", {"dst_port": 1}),
    TableEntry("jobs", {"generation": 5}, "job", {"slot_base": 0}),
    MulticastGroup(9, (Replica(1, 1),)),
    TableEntry("switch_address", {"address": 1}, "set_switch_mac", {"mac": 2}),
]


def counts(audit: Audit) -> dict[str, int]:
    """Return the number of wrong entries by kind, and of jobs that are lost by that."""
    return {
        "checked": audit.checked,
        "foreign": len(audit.foreign),
        "leftover": len(audit.leftover),
        "missing": sum(len(finding.missing) for finding in audit.findings) + isinstance(audit.address, Insert),
        "changed": sum(len(finding.changed) for finding in audit.findings) + isinstance(audit.address, Modify),
        "lost_jobs": len(audit.lost),
    }


def test_nothing_is_wrong(make_spec: MakeSpec, connect: Connect) -> None:
    device = FakeDevice()
    controller = connect(device)
    controller.create_job(make_spec())
    device.write([Insert(MulticastGroup(65, ())), Insert(TableEntry("l2", {"dst": 1}, "forward", {"port": 1}))])
    audit, written = controller.audit(), device.updates
    assert audit.clean
    assert audit.in_words() == []
    assert counts(audit) == {
        "checked": ENTRIES + 1, "foreign": 0, "leftover": 0, "missing": 0, "changed": 0, "lost_jobs": 0,
    }  # fmt: skip
    repair = controller.repair(audit)
    assert (repair.removed, repair.restored, repair.lost, repair.ended) == ((), (), (), ())
    assert device.updates == written


@pytest.mark.parametrize("k", range(ENTRIES))
def test_a_job_of_which_an_entry_is_missing_is_never_filled_up(
    make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint, k: int
) -> None:
    device = FakeDevice()
    controller = connect(device)
    job, other = controller.create_job(make_spec("job")), controller.create_job(make_spec("other"))
    gone = entities_of(job)[k]
    device.write([Delete(gone)])
    device.batches.clear()

    audit = controller.audit()
    assert audit.lost == (job,)
    assert counts(audit)["missing"] == 1
    (line,) = audit.in_words()
    assert line.startswith(
        f"lost: job 'job', generation {job.generation}: 1 of {ENTRIES} entries missing, among them {gone}"
    )
    repair = controller.repair(audit)
    assert (repair.lost, repair.ended, controller.jobs) == ((job,), (job,), (other,))
    assert device.entities == desired(switch_endpoint, other)
    assert not [update for batch in device.batches for update in batch if not isinstance(update, Delete)]
    assert controller.audit().clean
    again = controller.create_job(make_spec("job"))
    assert again.slot_base == job.slot_base
    assert again.generation > other.generation


@pytest.mark.parametrize("k", range(ENTRIES))
def test_a_changed_entry(make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint, k: int) -> None:
    device = FakeDevice()
    controller = connect(device)
    job = controller.create_job(make_spec())
    wanted = entities_of(job)[k]
    device.write([Modify(altered(wanted))])

    audit = controller.audit()
    assert counts(audit)["changed"] == 1
    (line,) = audit.in_words()
    assert f"1 of {ENTRIES} entries changed, among them {altered(wanted)} instead of {wanted}" in line
    repair = controller.repair(audit)
    if isinstance(wanted, TableEntry) and wanted.table != "rewrite":  # sums may be wrong
        assert (audit.lost, repair.lost, repair.restored, controller.jobs) == ((job,), (job,), (), ())
        assert device.entities == desired(switch_endpoint)
    else:
        assert (audit.lost, repair.lost, repair.restored, controller.jobs) == ((), (), (wanted,), (job,))
        assert device.entities == desired(switch_endpoint, job)
    assert controller.audit().clean


def test_entries_of_nobody_are_removed(make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint) -> None:
    device = FakeDevice()
    controller = connect(device)
    job = controller.create_job(make_spec())
    device.write([Insert(entity) for entity in STRANGERS])
    device.batches.clear()
    audit = controller.audit()
    assert set(map(str, audit.foreign)) == set(map(str, STRANGERS))
    assert sorted(audit.in_words()) == sorted(f"foreign: {entity}" for entity in STRANGERS)
    assert set(map(str, controller.repair(audit).removed)) == set(map(str, STRANGERS))
    assert [update.entity for update in device.batches[0]] == [STRANGERS[2]], "what admits packets goes first"
    assert device.entities == desired(switch_endpoint, job)


@pytest.mark.parametrize("change", [Delete, Modify])
def test_the_address_of_the_service_comes_back(
    connect: Connect, switch_endpoint: SwitchEndpoint, change: type[Delete | Modify]
) -> None:
    device = FakeDevice()
    controller = connect(device)
    entry = address.switch_address(switch_endpoint)
    device.write([change(replace(entry, params={"mac": 7}))])
    audit = controller.audit()
    needed = "insert" if change is Delete else "modify"
    assert audit.in_words() == [f"address of the service: {needed} {entry} is needed"]
    for _ in range(2):  # the second time there is nothing to do
        controller.repair(audit)
        assert device.entities == desired(switch_endpoint)


def test_an_old_audit_harms_nothing_that_came_later(
    make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint
) -> None:
    device = FakeDevice()
    controller = connect(device)
    lost, changed = controller.create_job(make_spec("lost")), controller.create_job(make_spec("changed"))
    (group,) = reply.group(replace(lost, group=3, job_index=2))
    device.write([Delete(admit.jobs(lost)[0]), Modify(altered(reply.rewrite(changed)[0])), Insert(group)])
    old = controller.audit()
    device.write([Delete(group)])
    controller.delete_job(lost)
    controller.delete_job(changed)
    jobs = [controller.create_job(make_spec(f"new {number}")) for number in range(3)]
    repair = controller.repair(old)
    assert (repair.removed, repair.restored, repair.lost, repair.ended) == ((), (), (), ())
    assert device.entities == desired(switch_endpoint, *jobs)


def test_a_partial_removal_continues(make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint) -> None:
    device = FakeDevice(fail_at=1 + ENTRIES + 3, failure=Failure.UNREACHABLE)
    controller = connect(device)
    job = controller.create_job(make_spec())
    with pytest.raises(ControlPlaneError):
        controller.delete_job(job)
    device.repair()
    assert controller.ending == (job,)
    audit = controller.audit()
    assert (counts(audit)["leftover"], audit.lost) == (ENTRIES - 3, ())
    assert audit.in_words()[0].startswith("leftover: ")
    assert controller.repair(audit).ended == (job,)
    assert device.entities == desired(switch_endpoint)
    assert controller.jobs == ()


def _meddle(device: FakeDevice, lost: Job, spoiled: Job, moved: Job) -> None:
    device.write(
        [
            *(Delete(entry) for entry in admit.workers(lost)[:2]),
            Modify(altered(lookup.lookup(spoiled)[0])),
            *(Modify(altered(entity)) for entity in (*reply.rewrite(moved), *reply.group(moved))),
            *(Insert(entity) for entity in STRANGERS),
            Delete(address.switch_address(moved.switch)),
        ]
    )


@pytest.mark.parametrize("failure", list(Failure))
def test_a_repair_continues_where_it_stopped(
    make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint, failure: Failure
) -> None:
    k, failed = 0, True
    while failed:
        device = FakeDevice()
        controller = connect(device)
        lost, spoiled, moved = (controller.create_job(make_spec(name)) for name in ("lost", "spoiled", "moved"))
        _meddle(device, lost, spoiled, moved)
        audit = controller.audit()
        assert audit.lost == (lost, spoiled)
        device.fail(at=device.updates + k, failure=failure)
        try:
            controller.repair(audit)
            failed = False
        except ControlPlaneError:
            device.repair()
            controller.repair(controller.audit())
        assert device.entities == desired(switch_endpoint, moved)
        assert (controller.jobs, controller.free_capacity.jobs) == ((moved,), 63)
        k += 1
    assert k > 2 * ENTRIES, "every update that there was has failed once"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_switch_ends_up_as_it_should(
    make_spec: MakeSpec, connect: Connect, switch_endpoint: SwitchEndpoint, seed: int
) -> None:
    """Jobs come and go, others meddle, the switch fails at random: after an undisturbed repair all is well."""
    choose = random.Random(seed)
    device = FakeDevice()
    controller = connect(device)
    seen: set[int] = set()
    for step in range(60):
        device.fail(at=device.updates + choose.randrange(12), failure=choose.choice(list(Failure)))
        running = [job for job in controller.jobs if job not in controller.ending]
        try:
            match choose.randrange(4):
                case 0:
                    job = controller.create_job(make_spec(f"job {step}", workers=choose.randint(1, 4)))
                    assert job.generation not in seen
                    seen.add(job.generation)
                case 1 if running:
                    controller.delete_job(choose.choice(running))
                case 2 if device.entities:
                    entity = choose.choice(list(device.entities.values()))
                    device.write([Delete(entity) if choose.random() < 0.5 else Modify(altered(entity))])
                case _:
                    controller.repair(controller.audit())
        except ControlPlaneError:
            if choose.random() < 0.5:
                device.repair()
                controller = connect(device, adopt=controller.jobs, generations=controller._generations)
    device.repair()
    controller.repair(controller.audit())
    assert controller.ending == ()
    assert device.entities == desired(switch_endpoint, *controller.jobs)
    assert controller.free_capacity.slots == 2048 - sum(job.slots for job in controller.jobs)
