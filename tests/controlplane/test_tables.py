# SPDX-License-Identifier: Apache-2.0
"""The builders of entries, and the loss simulator, on switches that know the program's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import xor

import pytest

from hopsum_controlplane import (
    ControlPlaneError,
    Job,
    JobSpec,
    LeafEndpoint,
    ParentEndpoint,
    SwitchController,
    SwitchEndpoint,
)
from hopsum_controlplane.entries import Insert, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.entry_plan import plan
from hopsum_controlplane.job_spec import MAX_PORT
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.p4runtime_encoding import decode_entity, encode_update
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.tables import address, admit, forward, lookup, loss, reply, requantize
from hopsum_controlplane.tables.loss import Direction
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import MAX_WORKERS

from .conftest import TABLE2, TABLE3, TABLE4, TABLE16

GENERATION = 0x66554433


@pytest.fixture
def job(make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint) -> Job:
    tables = {"table16": TABLE16, "table4": TABLE4, "table3": TABLE3, "table2": TABLE2}
    spec = make_spec(workers=3, quorum=2, min_quorum=1, **tables)
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
    assert admit.workers(job) == [
        TableEntry(
            "workers",
            {"generation": GENERATION, "worker": rank},
            "admit",
            {"worker_bit": 1 << rank, "port": rank + 1, "address": 0x0A000001 + rank, "udp_port": 4000 + rank},
        )
        for rank in range(3)
    ]


def test_reply(job: Job) -> None:
    assert reply.group(job) == [MulticastGroup(6, (Replica(1, 0), Replica(2, 1), Replica(3, 2)))]
    assert [entry.match["worker"] for entry in reply.rewrite(job)] == [0, 1, 2]
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
    [
        (0, 1, "load_table8", 1),
        (1, 2, "load_table16", 2),
        (2, 9, "load_table8", 1),
        (3, 10, "load_table3", 1),
        (4, 11, "load_table2", 1),
    ],
)
def test_lookup_broadcasts_the_table(job: Job, index: int, op: int, action: str, lane_bytes: int) -> None:
    entry = lookup.lookup(job)[index]
    values = (job.spec.tables["table"], TABLE16, TABLE4[:16], TABLE3[:8], TABLE2[:4])[index]
    table = [value % (1 << 8 * lane_bytes) for value in values]
    assert (entry.table, entry.match, entry.action) == ("lookup", {"generation": GENERATION, "op": op}, action)
    assert list(entry.params) == [f"c{number}" for number in range(len(table))]

    def lanes(value: int) -> bytes:
        return value.to_bytes(lane_bytes, "big") * (256 // lane_bytes)

    for code in range(len(table)):  # a code's value is the sum of the terms all of whose bits it has, without carries
        terms = (value for number, value in enumerate(entry.params.values()) if number & code == number)
        assert reduce(xor, terms).to_bytes(256, "big") == lanes(table[code])


def codes_of(entry: TableEntry) -> list[int]:
    """Return the code of every sum of 7 bits, found as the program finds it: a carry in each step."""
    params = [value & 0xFF for value in entry.params.values()]  # of one lane
    codes = []
    for sum_ in range(128):
        code, first = 0, 0
        while first < len(params):
            values = params[first : 2 * first + 1]
            value = reduce(xor, (each for number, each in enumerate(values) if number & code == number))
            code, first = code << 1 | (sum_ + value) >> 7, 2 * first + 1
        codes.append(code)
    return codes


@pytest.mark.parametrize(
    ("index", "op", "action", "thresholds"),
    [
        (0, 9, "load_thresholds4", TABLE4[16:]),
        (1, 10, "load_thresholds3", TABLE3[8:]),
        (2, 11, "load_thresholds2", TABLE2[4:]),
    ],
)
def test_requantize_finds_the_code_of_every_sum(
    job: Job, index: int, op: int, action: str, thresholds: tuple[int, ...]
) -> None:
    entry = requantize.requantize(job)[index]
    assert (entry.table, entry.match, entry.action) == ("requantize", {"generation": GENERATION, "op": op}, action)
    assert list(entry.params) == [f"t{number}" for number in range(len(thresholds))]
    for value in entry.params.values():
        assert value.to_bytes(256, "big") == bytes([value & 0xFF]) * 256
    assert codes_of(entry) == [sum(each <= sum_ for each in thresholds) for sum_ in range(128)]


@pytest.mark.parametrize("thresholds", [(1, 1, 1), (127, 127, 127), (1, 64, 127), (64, 64, 65), (1, 2, 3)])
def test_thresholds_may_be_equal_and_at_either_end(job: Job, thresholds: tuple[int, ...]) -> None:
    tables = {"table2": (*TABLE2[:4], *thresholds)}
    (entry,) = requantize.requantize(replace(job, spec=replace(job.spec, tables=tables)))
    assert codes_of(entry) == [sum(each <= sum_ for each in thresholds) for sum_ in range(128)]


@pytest.mark.parametrize(
    ("tables", "ops", "again"),
    [({}, [], []), ({"table16": TABLE16}, [2], []), ({"table4": TABLE4}, [9], [9]), ({"table2": TABLE2}, [11], [11])],
)
def test_a_job_has_the_lookups_of_its_table_alone(
    job: Job, tables: dict[str, tuple[int, ...]], ops: list[int], again: list[int]
) -> None:
    alone = replace(job, spec=replace(job.spec, tables=tables))
    assert [entry.match["op"] for entry in lookup.lookup(alone)] == ops
    assert [entry.match["op"] for entry in requantize.requantize(alone)] == again


def test_only_a_root_looks_sums_up_and_only_switches_with_workers_look_codes_up(job: Job) -> None:
    tables = {"table4": TABLE4}
    leaf = LeafEndpoint(3, 9, "02:00:00:00:03:03", "10.0.3.254", (3,))
    above = ParentEndpoint(0, 1, "02:00:00:00:00:01", "10.0.9.1", 4)
    for changes, tables_of_entries in (
        ({"leaves": (leaf,)}, ["lookup", "requantize"]),
        ({"leaves": (leaf,), "workers": ()}, ["requantize"]),
        ({"parent": above}, ["lookup"]),
        ({"leaves": (leaf,), "workers": (), "parent": above}, []),
    ):
        spec = replace(job.spec, quorum=None, tables=tables, **changes)
        spec.check()
        entries = plan(replace(job, spec=spec)).support
        found = [each.table for each in entries if isinstance(each, TableEntry)]
        assert [table for table in found if table in ("lookup", "requantize")] == tables_of_entries


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
        *requantize.requantize(job),
        *reply.rewrite(job),
        *reply.group(job),
        *forward.l2({"02:00:00:00:01:07": 3}),
        *forward.broadcast([1, 2]),
    ]
    for entity in entities:
        assert decode_entity(p4info, encode_update(p4info, Insert(entity)).entity) == entity


def test_the_program_has_room_for_every_job(p4info: P4Info) -> None:
    assert p4info.tables["jobs"].size >= 64
    assert p4info.tables["lookup"].size >= 5 * 64
    assert p4info.tables["requantize"].size >= 3 * 64
    for table in ("workers", "rewrite"):
        assert p4info.tables[table].size >= 64 * (MAX_WORKERS + 1), "of 64 workers and one observer"
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


def test_installed_entries_are_not_written_again(device: FakeDevice, controller: SwitchController) -> None:
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
