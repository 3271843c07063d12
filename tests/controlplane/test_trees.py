# SPDX-License-Identifier: Apache-2.0
"""One job over a spine and two leaves: asked for, made, ended; and real workers through three native engines."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hopsum_controlplane import (
    ControlPlaneError,
    GenerationAllocator,
    Job,
    JobSpec,
    LeafEndpoint,
    LeafGroup,
    ParentEndpoint,
    SwitchController,
    TreeSpec,
    create_tree,
    delete_tree,
)
from hopsum_controlplane.cluster.state_store import json_of, value_of
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_wire import Event, Op
from hopsum_wire.membership import membership_document

from ..host.protocol.jobs import TABLE, TABLE6, TABLE16
from ..host.protocol.network import Network, Weather, make_task
from .tree_bed import CLOCK_S, Fabric, endpoint, worker_at

pytestmark = pytest.mark.system
SCALE = int(os.environ.get("TEST_SCALE", "1"))
LOSSY = Weather(drop=0.05, duplicate=0.05)
CALM = Weather(drop=0, duplicate=0, delay_s=0.001, straggle=0)


def racks(*sizes: int) -> tuple[LeafGroup, ...]:
    first = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(
        LeafGroup(tuple(worker_at(start + i, 10 + i) for i in range(size)), 1, 1 + at)
        for at, (start, size) in enumerate(zip(first, sizes, strict=True))
    )


def spec(*sizes: int, **options: Any) -> TreeSpec:
    tables = {"table": TABLE, "table16": TABLE16, "table6": TABLE6 if sum(sizes) <= 9 else None}
    return TreeSpec("tree", racks(*sizes), 4, **{**tables, **options})


# ---- through native engines --------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 1), (4, 4)], ids=str)
def test_sums_are_exact_with_loss_on_every_link(sizes: tuple[int, ...]) -> None:
    """Two generations one after the other, on the same registers."""
    for seed in range(SCALE):
        rng = random.Random(seed)
        fabric = Fabric(Network(rng, LOSSY), sizes)
        for _ in range(2):
            tree = create_tree(replace(spec(*sizes, table=TABLE), racks=fabric.racks), fabric.controllers)
            fabric.run(tree.generation, 4, [make_task(rng, sum(sizes)) for _ in range(4)])
            delete_tree(tree, fabric.controllers)


def test_every_operation_through_the_tree() -> None:
    rng = random.Random(9)
    fabric = Fabric(Network(rng, LOSSY), (2, 2))
    tree = create_tree(spec(2, 2), fabric.controllers)
    tasks = {task.op: task for task in (make_task(rng, 4) for _ in range(80))}
    assert set(tasks) == set(Op)
    fabric.run(tree.generation, 4, list(tasks.values()))


def test_a_link_between_racks_carries_a_quarter_of_a_flat_layout() -> None:
    """Two racks of four, no loss, counted frames: one PARTIAL up and one RESULT down a chunk, not four of each."""
    task = make_task(random.Random(1), 8)
    chunks = task.payloads.shape[1]
    fabric = Fabric(Network(random.Random(2), CALM), (4, 4))
    tree = create_tree(spec(4, 4), fabric.controllers)
    fabric.run(tree.generation, 4, [task])
    in_tree = dict(fabric.frames)
    assert in_tree == {(1, 0): chunks, (0, 1): chunks, (2, 0): chunks, (0, 2): chunks}
    delete_tree(tree, fabric.controllers)
    fabric.frames.clear()
    fabric.forward_to_spine()
    members = tuple(replace(one, port=1 + at) for at, rack in enumerate(fabric.racks) for one in rack.workers)
    flat = fabric.controllers[0].create_job(JobSpec("flat", members, 4, TABLE, table16=TABLE16, table6=TABLE6))
    fabric.run(flat.generation, 4, [task], flat=True)
    assert fabric.frames == {link: 4 * frames for link, frames in in_tree.items()}


def test_what_the_switches_counted() -> None:
    fabric = Fabric(Network(random.Random(3), CALM), (2, 2))
    tree = create_tree(spec(2, 2), fabric.controllers)
    task = make_task(random.Random(4), 4)
    chunks = task.payloads.shape[1]
    fabric.run(tree.generation, 4, [task])
    cells = [device.engine.counters for device in fabric.devices]
    events = [
        {
            Event(at % 16): cell.packets
            for at, cell in enumerate(one.read_all("HopsumIngress.slot.job_events"))
            if cell.packets
        }
        for one in cells
    ]
    assert events[0] == {Event.ADDED: 2 * chunks, Event.COMPLETED: chunks}
    assert events[1] == events[2] == {Event.ADDED: 2 * chunks, Event.CLOSED: chunks, Event.TAKEN: chunks}


# ---- made and ended ----------------------------------------------------------------------------------------


@pytest.fixture
def devices(p4info: P4Info) -> list[FakeDevice]:
    return [FakeDevice(p4info) for _ in range(3)]


@pytest.fixture
def controllers(devices: list[FakeDevice]) -> list[SwitchController]:
    generations = GenerationAllocator()
    return [
        SwitchController(device, endpoint(node), generations=generations, clock=lambda: CLOCK_S)
        for node, device in enumerate(devices)
    ]


def installed_entries(devices: list[FakeDevice]) -> list[int]:
    return [len(device.entities) for device in devices]


def test_one_generation_on_all_switches(controllers: list[SwitchController], devices: list[FakeDevice]) -> None:
    before = installed_entries(devices)
    tree = create_tree(spec(2, 2), controllers)
    assert {job.generation for job in (tree.spine, *tree.leaves)} == {tree.generation}
    with pytest.raises(ControlPlaneError, match="a job 'tree' exists"):
        create_tree(spec(2, 2), controllers)
    delete_tree(tree, controllers)
    assert installed_entries(devices) == before
    with pytest.raises(ControlPlaneError, match="no tree job 'tree' with generation"):
        delete_tree(tree, controllers)
    assert create_tree(spec(2, 2), controllers).generation > tree.generation


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("write", [0, 3])
def test_a_failure_on_any_switch_leaves_nothing(
    controllers: list[SwitchController], devices: list[FakeDevice], node: int, write: int
) -> None:
    before = installed_entries(devices)
    devices[node].fail(at=devices[node].updates + write, failure=Failure.REFUSED)
    with pytest.raises(ControlPlaneError):
        create_tree(spec(2, 2), controllers)
    assert installed_entries(devices) == before
    devices[node].repair()
    create_tree(spec(2, 2), controllers)


def test_an_end_that_fails_on_one_switch_goes_on(
    controllers: list[SwitchController], devices: list[FakeDevice]
) -> None:
    before = installed_entries(devices)
    tree = create_tree(spec(2, 2), controllers)
    devices[1].fail(at=devices[1].updates, failure=Failure.UNREACHABLE)
    with pytest.raises(ControlPlaneError):
        delete_tree(tree, controllers)
    assert installed_entries(devices)[0] == before[0]
    assert installed_entries(devices)[2] == before[2]
    devices[1].repair()
    delete_tree(tree, controllers)
    assert installed_entries(devices) == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: spec(2), "1 racks on 2 leaves"),
        (lambda: spec(2, 0), "a rack without workers"),
        (lambda: replace(spec(2, 2), racks=(racks(2)[0], racks(2)[0])), "ranks 0, 0, 1, 1"),
        (lambda: spec(2, 2, quorum=3), "quorum 3"),
        (lambda: spec(2, 2, rack_quorum=3), "quorum 3"),
        (lambda: spec(2, 2, min_racks=3), "min_quorum 3"),
        (lambda: spec(8, 9, table=(*range(15), 16)), "n \\* g = 17 workers \\* granularity 16 = 272 may overflow"),
        (lambda: replace(spec(1, 1), racks=tuple(replace(one, uplink=511) for one in racks(1, 1))), "switch port 511"),
    ],
)
def test_what_is_refused_writes_nothing(
    controllers: list[SwitchController], devices: list[FakeDevice], wrong: Callable[[], TreeSpec], message: str
) -> None:
    before = [len(device.batches) for device in devices]
    with pytest.raises(ControlPlaneError, match=message):
        create_tree(wrong(), controllers)
    assert [len(device.batches) for device in devices] == before


def test_lanes_are_proved_for_all_workers_of_the_tree(controllers: list[SwitchController]) -> None:
    """Each rack alone would fit, both do not; 16 of granularity 15 do."""
    create_tree(spec(8, 8, table=(*range(16),), table16=None), controllers)
    with pytest.raises(ControlPlaneError, match="n \\* g = 18 workers"):
        create_tree(replace(spec(9, 9, table=(*range(16),), table16=None), name="other"), controllers)


def test_memberships_name_everybody_and_the_own_leaf(controllers: list[SwitchController]) -> None:
    tree = create_tree(spec(2, 1, rack_quorum=1), controllers)
    one, other = (membership_document(tree.membership(rack)) for rack in (0, 1))
    assert [worker["rank"] for worker in one["workers"]] == [0, 1, 2]
    assert (one["switch"]["ip"], other["switch"]["ip"]) == (endpoint(1).ip, endpoint(2).ip)
    assert one["workers"] == other["workers"]
    assert one["workers"][2]["send_to"]["ip"] == endpoint(2).ip
    assert [worker["leaf"] for worker in one["workers"]] == [0, 0, 2]
    assert one["quorum"] == 2
    assert "side_port" in one["workers"][0], "sums may be without a worker"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leaves": (LeafEndpoint(9, 1, "02:00:00:00:00:01", "10.0.0.1", ()),)}, "leaf 9 without workers"),
        (
            {"leaves": tuple(LeafEndpoint(9, 1, "02:00:00:00:00:01", "10.0.0.1", (i,)) for i in (4, 5))},
            "numbers of its",
        ),
        (
            {"leaves": (LeafEndpoint(9, 1, "02:00:00:00:00:01", "10.0.0.1", (0, 4)),)},
            "ranks below this switch: 0, 1, 2, 0",
        ),
        ({"parent": ParentEndpoint(0, 1, "02:00:00:00:00:01", "10.0.0.1", 2)}, "a tree of 2 workers with 3 below"),
        ({"parent": ParentEndpoint(0, 1, "02:00:00:00:00:01", "10.0.0.1", 65)}, "a tree of 65 workers"),
        ({"parent": ParentEndpoint(0, 999, "02:00:00:00:00:01", "10.0.0.1", 8)}, "switch port 999"),
    ],
)
def test_parts_that_are_wrong(make_spec: Callable[..., JobSpec], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ControlPlaneError, match=message):
        replace(make_spec(), **changes).check()


def test_parts_of_a_tree_survive_their_books(controllers: list[SwitchController]) -> None:
    tree = create_tree(spec(2, 2, table6=(*range(16),)), controllers)
    for job in (tree.spine, *tree.leaves):
        assert value_of(Job, json_of(job)) == job
        older = json.loads(json_of(job))
        del older["spec"]["table6"]
        older["spec"]["digits"] = None
        assert value_of(Job, json.dumps(older)).spec == replace(job.spec, table6=None), "a database of before"
