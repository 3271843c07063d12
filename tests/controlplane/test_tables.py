# SPDX-License-Identifier: Apache-2.0
"""The builders of entries, and the loss simulator, on switches that know the program's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import xor

import pytest

from hopsum_controlplane import ControlPlaneError, Job, JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.entries import Insert, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.job_spec import MAX_MEMBERS, MAX_PORT
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.p4runtime_encoding import decode_entity, encode_update
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.tables import address, admit, forward, lookup, loss, reply
from hopsum_controlplane.tables.loss import Direction
from hopsum_ptf.fake_device import FakeDevice

from .conftest import TABLE16

GENERATION = 0x66554433
TABLE6 = (*range(15), 21)


@pytest.fixture
def job(make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint, observer: WorkerEndpoint) -> Job:
    tables = {"table16": TABLE16, "table6": TABLE6}
    spec = make_spec(workers=3, quorum=2, min_quorum=1, observers=(observer,), **tables)
    return Job(spec, switch_endpoint, GENERATION, 5, SlotRange(32, 16), group=6, window=16)


def test_admit(job: Job) -> None:
    assert admit.jobs(job) == [
        TableEntry(
            "jobs",
            {"generation": GENERATION},
            "job",
            {"job_index": 5, "slot_base": 32, "slots": 16, "quorum": 2, "min_quorum": 1, "group": 6},
        )
    ]
    *workers, observer = admit.workers(job)
    assert workers == [
        TableEntry(
            "workers",
            {"generation": GENERATION, "worker": rank},
            "admit",
            {"worker_bit": 1 << rank, "port": rank + 1, "address": 0x0A000001 + rank, "udp_port": 4000 + rank},
        )
        for rank in range(3)
    ]
    assert observer == TableEntry(
        "workers",
        {"generation": GENERATION, "worker": 64},
        "admit",
        {"worker_bit": 0, "port": 7, "address": 0x0A0000C8, "udp_port": 6000},
    )


def test_reply(job: Job) -> None:
    assert reply.group(job) == [MulticastGroup(6, (Replica(1, 0), Replica(2, 1), Replica(3, 2)))], "no observers"
    assert [entry.match["worker"] for entry in reply.rewrite(job)] == [0, 1, 2, 64]
    assert reply.rewrite(job)[1] == TableEntry(
        "rewrite",
        {"generation": GENERATION, "worker": 1},
        "to_worker",
        {
            "src_mac": 0x0200000000AA,
            "dst_mac": 0x020000000101,
            "src_ip": 0x0A0000FE,
            "dst_ip": 0x0A000002,
            "dst_port": 4001,
        },
    )


@pytest.mark.parametrize(
    ("index", "op", "action", "lane_bytes"),
    [(0, 1, "load_table8", 1), (1, 2, "load_table16", 2), (2, 8, "load_table8", 1)],
)
def test_lookup_broadcasts_the_table(job: Job, index: int, op: int, action: str, lane_bytes: int) -> None:
    entry = lookup.lookup(job)[index]
    table = (job.spec.table, job.spec.table16, job.spec.table6)[index] or ()
    assert (entry.table, entry.match, entry.action) == ("lookup", {"generation": GENERATION, "op": op}, action)
    assert list(entry.params) == [f"c{number}" for number in range(16)]

    def lanes(value: int) -> bytes:
        return value.to_bytes(lane_bytes, "big") * (256 // lane_bytes)

    for code in range(16):  # a code's value is the sum of the terms all of whose bits it has, without carries
        terms = (value for number, value in enumerate(entry.params.values()) if number & code == number)
        assert reduce(xor, terms).to_bytes(256, "big") == lanes(table[code])


@pytest.mark.parametrize(("tables", "ops"), [({}, []), ({"table16": TABLE16}, [2]), ({"table6": TABLE6}, [8])])
def test_a_job_has_the_lookup_of_its_table_alone(job: Job, tables: dict[str, tuple[int, ...]], ops: list[int]) -> None:
    spec = replace(job.spec, **{"table": None, "table16": None, "table6": None, **tables})
    assert [entry.match["op"] for entry in lookup.lookup(replace(job, spec=spec))] == ops


@pytest.mark.parametrize(
    ("probability", "threshold"),
    [(1.0, 2**32 - 1), (0.5, 2**31), (1e-30, 1), (2**-32, 1), (1 - 2**-40, 2**32 - 1), (0.01, 42949673)],
)
@pytest.mark.parametrize(
    ("direction", "name"), [(Direction.INGRESS, "ingress_loss"), (Direction.EGRESS, "egress_loss")]
)
def test_loss(probability: float, threshold: int, direction: Direction, name: str) -> None:
    assert loss.loss(direction, 510, probability) == [
        TableEntry(f"{name}.loss", {"port": 510}, f"{name}.drop_with_probability", {"threshold": threshold})
    ]
    assert loss.loss(direction, 510, 0) == []


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), float("inf")])
def test_loss_with_a_wrong_probability(probability: float) -> None:
    with pytest.raises(ControlPlaneError, match=f"loss with probability {probability} on port 3; give one of 0 .. 1"):
        loss.loss(Direction.EGRESS, 3, probability)


@pytest.mark.parametrize("port", [-1, 511])
def test_loss_of_a_wrong_port(port: int) -> None:
    with pytest.raises(ControlPlaneError, match=f"loss of switch port {port}; ports are 0 .. 510"):
        loss.loss(Direction.INGRESS, port, 0)


def test_forward() -> None:
    assert forward.l2({"02:00:00:00:01:07": 3}) == [TableEntry("l2", {"dst": 0x020000000107}, "forward", {"port": 3})]
    assert forward.broadcast([1, 2]) == [
        MulticastGroup(65, (Replica(1, 0), Replica(2, 0))),
        TableEntry("l2", {"dst": 0xFFFFFFFFFFFF}, "flood", {"group": 65}),
    ]


def test_the_program_knows_every_entry(job: Job, p4info: P4Info) -> None:
    entities = [
        *admit.jobs(job),
        *admit.workers(job),
        address.switch_address(job.switch),
        *loss.loss(Direction.INGRESS, 7, 0.25),
        *loss.loss(Direction.EGRESS, 7, 0.25),
        *lookup.lookup(job),
        *reply.rewrite(job),
        *reply.group(job),
        *forward.l2({"02:00:00:00:01:07": 3}),
        *forward.broadcast([1, 2]),
    ]
    for entity in entities:
        assert decode_entity(p4info, encode_update(p4info, Insert(entity)).entity) == entity


def test_the_program_has_room_for_every_job(p4info: P4Info) -> None:
    assert p4info.tables["jobs"].size >= 64
    assert p4info.tables["lookup"].size >= 2 * 64
    for table in ("workers", "rewrite"):
        assert p4info.tables[table].size >= 64 * MAX_MEMBERS
    assert p4info.counters["job_events"].size >= 64 * 16
    assert p4info.counters["drops"].size >= 32
    for direction in Direction:
        assert p4info.tables[direction.table].size >= MAX_PORT + 1
        assert p4info.counters[direction.counter].size >= MAX_PORT + 1


@pytest.mark.parametrize("mac", ["", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "02-00-00-00-00-01"])
def test_addresses_of_no_host_are_refused(mac: str) -> None:
    with pytest.raises(ControlPlaneError, match="MAC address"):
        forward.l2({mac: 1})


INGRESS, EGRESS = "ingress_loss.loss", "egress_loss.loss"


@pytest.fixture
def device(p4info: P4Info) -> FakeDevice:
    return FakeDevice(p4info)


@pytest.fixture
def controller(device: FakeDevice, switch_endpoint: SwitchEndpoint) -> SwitchController:
    return SwitchController(device, switch_endpoint)


def installed_entries(device: FakeDevice) -> dict[tuple[str, int], int]:
    entries = (*device.read_table(INGRESS), *device.read_table(EGRESS))
    return {(entry.table, entry.match["port"]): entry.params["threshold"] for entry in entries}


def test_both_directions_of_several_ports(device: FakeDevice, controller: SwitchController) -> None:
    controller.set_loss(3, 0.5, 0.25)
    controller.set_loss(4, egress_probability=1)
    assert installed_entries(device) == {(INGRESS, 3): 2**31, (EGRESS, 3): 2**30, (EGRESS, 4): 2**32 - 1}
    controller.set_loss(3, 0.25, 0)
    assert installed_entries(device) == {(INGRESS, 3): 2**30, (EGRESS, 4): 2**32 - 1}
    controller.set_loss(3)
    assert installed_entries(device) == {(EGRESS, 4): 2**32 - 1}
    controller.set_loss(5, 0.5, 0.5)
    controller.clear_losses()
    assert installed_entries(device) == {}


def test_what_stands_is_not_written_again(device: FakeDevice, controller: SwitchController) -> None:
    controller.set_loss(3, 0.5, 0.25)
    written = device.updates
    controller.set_loss(3, 0.5, 0.25)
    controller.set_loss(9)
    assert device.updates == written
    controller.clear_losses()
    written = device.updates
    controller.clear_losses()
    assert device.updates == written


def test_a_later_controller_finds_and_replaces_it(
    device: FakeDevice, controller: SwitchController, switch_endpoint: SwitchEndpoint
) -> None:
    controller.set_loss(3, 0.5)
    SwitchController(device, switch_endpoint).set_loss(3, 0.25)
    assert installed_entries(device) == {(INGRESS, 3): 2**30}


def test_a_wrong_request_writes_nothing(device: FakeDevice, controller: SwitchController) -> None:
    controller.set_loss(3, 0.5)
    before = installed_entries(device)
    for port, ingress, egress in ((3, 0.1, 1.5), (3, -0.5, 0.1), (511, 0.1, 0.1)):
        with pytest.raises(ControlPlaneError, match="loss"):
            controller.set_loss(port, ingress, egress)
    assert installed_entries(device) == before


def test_lost_frames_by_port_and_direction(device: FakeDevice, controller: SwitchController) -> None:
    device.counters["ingress_loss.lost"] = {0: 4, 7: 1}
    device.counters["egress_loss.lost"] = {7: 2, 511: 3}
    lost = controller.loss_counters()
    assert lost == {0: (4, 0), 7: (1, 2), 511: (0, 3)}
    assert lost[7].egress == 2
