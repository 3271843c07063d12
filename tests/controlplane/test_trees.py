# SPDX-License-Identifier: Apache-2.0
"""One job over a spine and two leaves: asked for, made, ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
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
    SwitchEndpoint,
    WorkerEndpoint,
    create_tree,
    delete_tree,
)
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_wire.membership import membership_document

from ..support.jobs import TABLE, TABLE16, spec_options
from .conftest import TABLE2, TABLE3, TABLE4

CLOCK_S = 1_000_000.0


def endpoint(node: int) -> SwitchEndpoint:
    """Return the address of a switch: 0 is the spine."""
    return SwitchEndpoint(f"02:00:00:00:00:{0xA0 + node:02x}", f"10.9.0.{node + 1}")


def worker_at(rank: int, port: int) -> WorkerEndpoint:
    return WorkerEndpoint(rank, port, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000 + rank)


def racks(*sizes: int) -> tuple[LeafGroup, ...]:
    first = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(
        LeafGroup(tuple(worker_at(start + i, 10 + i) for i in range(size)), 1, 1 + at)
        for at, (start, size) in enumerate(zip(first, sizes, strict=True))
    )


def tree_of(*sizes: int, **options: Any) -> tuple[JobSpec, tuple[LeafGroup, ...]]:
    tables = {"table": TABLE, "table16": TABLE16, "table4": TABLE4 if sum(sizes) <= 4 else None}
    return JobSpec(**{"name": "tree", "slots": 4, **spec_options(**{**tables, **options})}), racks(*sizes)


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
    tree = create_tree(*tree_of(2, 2), controllers)
    assert {job.generation for job in (tree.spine, *tree.leaves)} == {tree.generation}
    with pytest.raises(ControlPlaneError, match="a job 'tree' exists"):
        create_tree(*tree_of(2, 2), controllers)
    delete_tree(tree, controllers)
    assert installed_entries(devices) == before
    with pytest.raises(ControlPlaneError, match="no tree job 'tree' with generation"):
        delete_tree(tree, controllers)
    assert create_tree(*tree_of(2, 2), controllers).generation > tree.generation


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("write", [0, 3])
def test_a_failure_on_any_switch_leaves_nothing(
    controllers: list[SwitchController], devices: list[FakeDevice], node: int, write: int
) -> None:
    before = installed_entries(devices)
    devices[node].fail(at=devices[node].updates + write, failure=Failure.REFUSED)
    with pytest.raises(ControlPlaneError):
        create_tree(*tree_of(2, 2), controllers)
    assert installed_entries(devices) == before
    devices[node].repair()
    create_tree(*tree_of(2, 2), controllers)


def test_an_end_that_fails_on_one_switch_continues(
    controllers: list[SwitchController], devices: list[FakeDevice]
) -> None:
    before = installed_entries(devices)
    tree = create_tree(*tree_of(2, 2), controllers)
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
        (tree_of(2), "1 racks on 2 leaves"),
        (tree_of(2, 0), "a rack without workers"),
        ((tree_of(2)[0], (racks(2)[0], racks(2)[0])), "ranks 0, 0, 1, 1"),
        (tree_of(8, 9, table=(*range(15), 16)), "n \\* g = 17 workers \\* granularity 16 = 272 may overflow"),
        ((tree_of(1, 1)[0], tuple(replace(one, uplink=511) for one in racks(1, 1))), "switch port 511"),
    ],
)
def test_what_is_refused_writes_nothing(
    controllers: list[SwitchController],
    devices: list[FakeDevice],
    wrong: tuple[JobSpec, tuple[LeafGroup, ...]],
    message: str,
) -> None:
    before = [len(device.batches) for device in devices]
    with pytest.raises(ControlPlaneError, match=message):
        create_tree(*wrong, controllers)
    assert [len(device.batches) for device in devices] == before


def test_lanes_are_proved_for_all_workers_of_the_tree(controllers: list[SwitchController]) -> None:
    """Each rack alone would fit, both do not; 16 of granularity 15 do."""
    create_tree(*tree_of(8, 8, table=(*range(16),), table16=None), controllers)
    with pytest.raises(ControlPlaneError, match="n \\* g = 18 workers"):
        create_tree(*tree_of(9, 9, table=(*range(16),), table16=None, name="other"), controllers)
    with pytest.raises(ControlPlaneError, match=r"n \* v = 5 workers \* values of -31 \.\. 31 = 155"):
        create_tree(*tree_of(2, 3, table4=TABLE4), controllers)


def test_finished_sums_are_looked_up_at_the_spine_and_codes_at_the_leaves(
    controllers: list[SwitchController], devices: list[FakeDevice]
) -> None:
    tree = create_tree(*tree_of(2, 2), controllers)
    for device, ops in zip(devices, ([], [1, 2, 9], [1, 2, 9]), strict=True):
        assert sorted(entry.match["op"] for entry in device.read_table("lookup")) == ops
    found = [[entry.match for entry in device.read_table("requantize")] for device in devices]
    assert found == [[{"generation": tree.generation, "op": 9}], [], []]
    assert {tree.membership(rack).tables["table4"] for rack in (0, 1)} == {TABLE4}


@pytest.mark.parametrize(
    ("tables", "numbers"),
    [({"table3": TABLE3}, "384 for LOOKUP_ADD_LOOKUP3"), ({"table2": TABLE2}, "256 for LOOKUP_ADD_LOOKUP2")],
)
def test_a_tree_has_no_shorter_codes(
    controllers: list[SwitchController], devices: list[FakeDevice], tables: dict[str, Any], numbers: str
) -> None:
    """A leaf would make a PARTIAL that is too much longer than the UPDATE that completes it."""
    before = [len(device.batches) for device in devices]
    (name,) = tables
    with pytest.raises(ControlPlaneError) as refused:
        create_tree(*tree_of(2, 2, **tables), controllers)
    assert f"{name} in a tree of switches: a leaf makes a PARTIAL of 1024 bytes" in str(refused.value)
    assert f"from an UPDATE of {numbers.split()[0]} bytes for {numbers.split()[2]}" in str(refused.value)
    assert "take the codec with bits=4, or use one switch" in str(refused.value)
    assert [len(device.batches) for device in devices] == before


def test_memberships_name_everybody_and_the_own_leaf(controllers: list[SwitchController]) -> None:
    tree = create_tree(*tree_of(2, 1), controllers)
    one, other = (membership_document(tree.membership(rack)) for rack in (0, 1))
    assert [worker["rank"] for worker in one["workers"]] == [0, 1, 2]
    assert (one["switch"]["ip"], other["switch"]["ip"]) == (endpoint(1).ip, endpoint(2).ip)
    assert one["workers"] == other["workers"]
    assert one["workers"][2]["send_to"]["ip"] == endpoint(2).ip
    assert [worker["leaf"] for worker in one["workers"]] == [0, 0, 2]
    assert one["quorum"] == 3


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
    tree = create_tree(*tree_of(2, 2), controllers)
    for job in (tree.spine, *tree.leaves):
        assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
