# SPDX-License-Identifier: Apache-2.0
"""What is refused before it reaches a switch: names, widths, specifications; and the membership file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_controlplane import (
    ControlPlaneError,
    Job,
    JobSpec,
    SwitchEndpoint,
    WorkerEndpoint,
    job_membership,
    write_membership,
)
from hopsum_controlplane.entries import DefaultAction, Delete, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.p4runtime_encoding import decode_entity, encode_update
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire import Op
from hopsum_wire.membership import membership_document

from .conftest import TABLE2, TABLE3, TABLE4, TABLE16

P4INFO = """
tables {
  preamble { id: 33554433 name: "Ingress.police.workers" alias: "workers" }
  match_fields { id: 1 name: "generation" bitwidth: 32 match_type: EXACT }
  match_fields { id: 2 name: "worker" bitwidth: 9 match_type: EXACT }
  size: 128
}
tables {
  preamble { id: 33554435 name: "Ingress.words" alias: "words" }
  match_fields { id: 1 name: "number" bitwidth: 8 match_type: TERNARY }
  match_fields { id: 2 name: "code" bitwidth: 12 match_type: TERNARY }
}
tables {
  preamble { id: 33554434 name: "Ingress.routes" alias: "routes" }
  match_fields { id: 1 name: "dst" bitwidth: 32 match_type: LPM }
}
actions {
  preamble { id: 16777217 name: "Ingress.police.admit" alias: "admit" }
  params { id: 1 name: "mask" bitwidth: 64 }
}
actions { preamble { id: 16777218 name: "Ingress.deny" alias: "deny" } }
counters { preamble { id: 301989889 name: "Ingress.drops" alias: "drops" } size: 32 }
"""


@pytest.fixture(scope="module")
def info() -> P4Info:
    return P4Info.from_text(P4INFO)


def entry(**changes: object) -> TableEntry:
    values = {"table": "workers", "match": {"generation": 0, "worker": 300}, "action": "admit", "params": {"mask": 256}}
    return TableEntry(**{**values, **changes})  # type: ignore[arg-type]


def test_an_entry_on_the_wire(info: P4Info) -> None:
    update = encode_update(info, Insert(entry()))
    assert update.type == p4runtime_pb2.Update.INSERT
    message = update.entity.table_entry
    assert message.table_id == 0x02000001
    assert [(key.field_id, key.exact.value) for key in message.match] == [(1, b"\x00"), (2, b"\x01\x2c")]
    assert message.action.action.action_id == 0x01000001
    assert [(param.param_id, param.value) for param in message.action.action.params] == [(1, b"\x01\x00")]
    assert encode_update(info, Modify(entry())).type == p4runtime_pb2.Update.MODIFY
    assert encode_update(info, Delete(entry())).type == p4runtime_pb2.Update.DELETE


def test_ternary_keys_match_all_bits(info: P4Info) -> None:
    message = encode_update(info, Insert(TableEntry("words", {"number": 3, "code": 300}, "deny"))).entity
    assert [(key.ternary.value, key.ternary.mask) for key in message.table_entry.match] == [
        (b"\x03", b"\xff"),
        (b"\x01\x2c", b"\x0f\xff"),
    ]
    assert message.table_entry.priority == 1
    assert encode_update(info, Insert(entry())).entity.table_entry.priority == 0
    message.table_entry.match[1].ternary.mask = b"\xff"
    with pytest.raises(ControlPlaneError, match="an entry of table words does not match all bits of code"):
        decode_entity(info, message)


def test_full_names_and_aliases_are_the_same(info: P4Info) -> None:
    full = entry(table="Ingress.police.workers", action="Ingress.police.admit")
    assert encode_update(info, Insert(full)).entity == encode_update(info, Insert(entry())).entity
    assert info.tables["Ingress.police.workers"] is info.tables["workers"]
    assert info.counters["drops"].size == 32


@pytest.mark.parametrize(
    "entity",
    [
        entry(),
        TableEntry("words", {"number": 0, "code": 300}, "deny"),
        DefaultAction("workers", "deny"),
        MulticastGroup(3, (Replica(1, 0), Replica(1, 5), Replica(510, 65535))),
    ],
)
def test_what_is_written_reads_the_same(info: P4Info, entity: TableEntry | DefaultAction | MulticastGroup) -> None:
    assert decode_entity(info, encode_update(info, Insert(entity)).entity) == entity


def test_replicas_are_read_in_order(info: P4Info) -> None:
    written = MulticastGroup(3, (Replica(2, 1), Replica(9, 0), Replica(1, 1)))
    read = decode_entity(info, encode_update(info, Insert(written)).entity)
    assert read == MulticastGroup(3, (Replica(9, 0), Replica(1, 1), Replica(2, 1)))


def test_both_forms_of_a_replica_port_are_read(info: P4Info) -> None:
    message = p4runtime_pb2.Entity()
    group = message.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = 3
    group.replicas.add(port=b"\x01\x02", instance=7)
    assert decode_entity(info, message) == MulticastGroup(3, (Replica(258, 7),))


def test_padded_values_are_read(info: P4Info) -> None:
    message = encode_update(info, Insert(entry())).entity
    message.table_entry.match[0].exact.value = b"\x00\x00\x00\x05"
    read = decode_entity(info, message)
    assert isinstance(read, TableEntry)
    assert read.match == {"generation": 5, "worker": 300}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry(table="worker"), "no table 'worker' among its 3; nearest names: workers, "),
        (entry(action="admits"), "no action 'admits' among its 2; nearest names: admit, "),
        (entry(match={"generation": 1, "rank": 2}), "no key of table workers 'rank'"),
        (entry(match={"generation": 1}), "no value for worker"),
        (entry(params={}), "no value for mask"),
        (entry(match={"generation": 1, "worker": 512}), "worker = 512 does not fit bit<9>"),
        (entry(params={"mask": -1}), "mask = -1 does not fit bit<64>"),
        (TableEntry("routes", {"dst": 1}, "deny"), "key dst of table routes is not matched exactly"),
    ],
)
def test_what_the_program_does_not_know_is_refused(info: P4Info, wrong: TableEntry, message: str) -> None:
    with pytest.raises(ControlPlaneError) as error:
        encode_update(info, Insert(wrong))
    assert message in str(error.value)


def test_an_id_of_another_program_is_refused(info: P4Info) -> None:
    message = encode_update(info, Insert(entry())).entity
    message.table_entry.table_id = 0x02000009
    with pytest.raises(ControlPlaneError, match="no table with id 0x02000009"):
        decode_entity(info, message)


def test_a_file_that_is_no_p4info() -> None:
    with pytest.raises(ControlPlaneError, match="not a P4Info"):
        P4Info.from_text("tables { nonsense")


def test_values_in_words() -> None:
    assert str(entry()) == "workers[generation=0, worker=300] -> admit(mask=256)"
    assert str(entry(params={"mask": 1 << 2047})) == "workers[generation=0, worker=300] -> admit(mask=<2048 bits>)"
    table = entry(params={f"c{number}": number << 2000 for number in range(16)})
    assert str(table) == "workers[generation=0, worker=300] -> admit(16 values of up to 2004 bits)"
    assert str(Delete(MulticastGroup(3, (Replica(1, 0),)))) == "delete multicast group 3 of 1/0"


@pytest.fixture
def job(make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint) -> Job:
    spec = make_spec(workers=2)
    spec = replace(spec, workers=spec.workers[::-1])
    return Job(spec, switch_endpoint, 77, 0, SlotRange(0, 16), group=1, window=8)


def test_it_says_what_a_worker_needs(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "membership.json"
    path.write_text("old")
    write_membership(job, path, {1: ("127.0.0.1", 5555)})
    assert json.loads(path.read_text()) == {
        "job": "job",
        "generation": 77,
        "slots": 16,
        "window": 8,
        "quorum": 2,
        "table": list(job.spec.tables["table"]),
        "table16": None,
        "wire_version": 1,
        "switch": {"ip": "10.0.0.254", "udp_port": 24677},
        "workers": [
            {"rank": 0, "ip": "10.0.0.1", "udp_port": 4000, "send_to": {"ip": "10.0.0.254", "udp_port": 24677}},
            {"rank": 1, "ip": "10.0.0.2", "udp_port": 4001, "send_to": {"ip": "127.0.0.1", "udp_port": 5555}},
        ],
    }
    assert list(tmp_path.iterdir()) == [path]


def test_a_code_group_of_its_own_is_told(job: Job) -> None:
    assert "code_group" not in document_of(job)
    assert document_of(replace(job, code_group=64)) == {**document_of(job), "code_group": 64}


def test_tables_of_other_lanes_are_told(job: Job) -> None:
    tables = {"table16": TABLE16, "table4": TABLE4, "table3": TABLE3, "table2": TABLE2}
    more = replace(job, spec=replace(job.spec, tables=tables))
    told = {"table": None, **{name: list(table) for name, table in tables.items()}}
    assert document_of(more) == {**document_of(job), **told}


def test_operations_are_told_where_some_are_missing(job: Job) -> None:
    assert "ops" not in document_of(job)
    few = replace(job, ops=(Op.ADD8, Op.MAX32))
    assert document_of(few) == {**document_of(job), "ops": ["ADD8", "MAX32"]}


def document_of(job: Job, **options: Any) -> dict[str, Any]:
    return membership_document(job_membership(job, **options))


def sides(document: dict[str, Any]) -> list[tuple[str | None, int | None]]:
    return [(worker.get("side_ip"), worker.get("side_port")) for worker in document["workers"]]


def test_side_channels_where_a_sum_may_be_without_a_worker(job: Job) -> None:
    none, own = [(None, None)] * 2, [(None, 4000), (None, 4001)]
    assert sides(document_of(job)) == none
    assert sides(document_of(job, side_channels=True)) == own
    small = replace(job, spec=replace(job.spec, quorum=1))
    assert sides(document_of(small)) == own
    assert sides(document_of(small, side_channels=False)) == none
    given = {0: ("10.0.0.1", 7000), 1: ("127.0.0.1", 7000)}
    assert sides(document_of(job, side_channels=given)) == [(None, 7000), ("127.0.0.1", 7000)]


def test_a_side_key_for_each_generation_where_there_are_side_channels(job: Job, tmp_path: Path) -> None:
    document = document_of(job, side_channels=True)
    assert re.fullmatch("[0-9a-f]{64}", document["side_key"])
    assert document_of(job, side_channels=True) == document, "each request for the generation's key is told the same"
    assert "side_key" not in document_of(job, side_channels=False)
    next_generation = Job.build(job.spec, job.switch, job.generation + 1, job.job_index, job.region)
    assert document_of(next_generation, side_channels=True)["side_key"] != document["side_key"]
    assert document["side_key"] not in repr(job)
    path = tmp_path / "membership.json"
    write_membership(job, path, side_channels=True)
    assert json.loads(path.read_text())["side_key"] == document["side_key"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({0: ("10.0.0.1", 7000)}, r"side channels of ranks \[0\], workers of ranks \[0, 1\]"),
        ({0: ("10.0.0.1", 7000), 2: ("10.0.0.2", 7000)}, r"side channels of ranks \[0, 2\]"),
        ({0: ("10.0.0.1", 7000), 1: ("10.0.0.1", 7000)}, r"2 side channels at 10\.0\.0\.1:7000"),
        ({0: ("10.0.0.1", 0), 1: ("10.0.0.1", 7000)}, "side channel of rank 0 at TCP port 0"),
        ({0: ("10.0.0", 7000), 1: ("10.0.0.1", 7000)}, "10.0.0"),
    ],
)
def test_side_channels_that_cannot_be(job: Job, tmp_path: Path, given: Any, message: str) -> None:
    path = tmp_path / "membership.json"
    with pytest.raises(ControlPlaneError, match=message):
        write_membership(job, path, side_channels=given)
    assert not path.exists()


def test_a_missing_folder_is_an_error(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneError, match="membership cannot be written"):
        write_membership(job, tmp_path / "missing" / "membership.json")


def refusal(spec: JobSpec) -> str:
    with pytest.raises(ControlPlaneError) as error:
        spec.check()
    return str(error.value)


def with_worker(spec: JobSpec, **changes: object) -> JobSpec:
    first, *rest = spec.workers
    return replace(spec, workers=(replace(first, **changes), *rest))


@pytest.mark.parametrize("workers", [1, 2, 64])
def test_a_right_specification_passes(make_spec: Callable[..., JobSpec], workers: int) -> None:
    spec = make_spec(workers=workers, table=None)
    spec.check()
    replace(spec, workers=spec.workers[::-1]).check()


def test_numbers_out_of_range(make_spec: Callable[..., JobSpec]) -> None:
    assert "without a name" in refusal(make_spec(name=""))
    assert "0 workers; a job has 1 .. 64" in refusal(make_spec(workers=0))
    assert "65 workers" in refusal(make_spec(workers=65, table=None))
    assert "0 slots; a job has 1 .. 2048" in refusal(make_spec(slots=0))
    assert "2049 slots" in refusal(make_spec(slots=2049))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 1}, "ranks 1, 1, 2; 3 workers have the ranks 0 .. 2, each once"),
        ({"rank": 3}, "ranks 3, 1, 2"),
        ({"port": 511}, "worker 0 on switch port 511"),
        ({"port": -1}, "worker 0 on switch port -1"),
        ({"udp_port": 0}, "UDP port 0"),
        ({"udp_port": 65536}, "UDP port 65536"),
        ({"mac": "ff:ff:ff:ff:ff:ff"}, "'ff:ff:ff:ff:ff:ff' is not the MAC address of a host"),
        ({"ip": "10.0.0"}, "'10.0.0' is not the IPv4 address of a host"),
        ({"ip": "224.0.0.1"}, "'224.0.0.1' is not"),
        ({"ip": "10.0.0.2", "udp_port": 4001}, "several workers at 10.0.0.2:4001"),
    ],
)
def test_wrong_workers(make_spec: Callable[..., JobSpec], changes: dict[str, object], message: str) -> None:
    assert message in refusal(with_worker(make_spec(), **changes))


def test_workers_may_share_an_address_and_a_switch_port() -> None:
    workers = tuple(WorkerEndpoint(rank, 1, "02:00:00:00:01:01", "127.0.0.1", 5000 + rank) for rank in range(4))
    JobSpec("loopback", workers, 8).check()


@pytest.mark.parametrize(("quorum", "min_quorum"), [(None, 1), (None, 3), (1, 1), (3, 3), (2, 1)])
def test_quorums_that_pass(make_spec: Callable[..., JobSpec], quorum: int | None, min_quorum: int) -> None:
    spec = make_spec(workers=3, quorum=quorum, min_quorum=min_quorum)
    spec.check()
    assert spec.effective_quorum == (quorum or 3)


@pytest.mark.parametrize(
    ("quorums", "message"),
    [
        ({"quorum": 0}, "quorum 0; of 3 workers it is 1 .. 3"),
        ({"quorum": 4}, "quorum 4; of 3 workers it is 1 .. 3"),
        ({"min_quorum": 0}, "min_quorum 0; with quorum 3 it is 1 .. 3"),
        ({"quorum": 2, "min_quorum": 3}, "min_quorum 3; with quorum 2 it is 1 .. 2"),
    ],
)
def test_wrong_quorums(make_spec: Callable[..., JobSpec], quorums: dict[str, int], message: str) -> None:
    assert message in refusal(make_spec(workers=3, **quorums))


def test_a_table_of_wide_lanes_too_fine_for_the_workers(make_spec: Callable[..., JobSpec]) -> None:
    table16 = (*range(15), 5000)
    make_spec(workers=13, table=None, table16=table16).check()
    refused = refusal(make_spec(workers=14, table=None, table16=table16))
    assert "n * g = 14 workers * granularity 5000 = 70000 may overflow a lane of 16 bits" in refused
    assert "15 entries" in refusal(make_spec(table16=table16[1:]))


@pytest.mark.parametrize("tables", [{"table4": TABLE4}, {"table3": TABLE3}, {"table2": TABLE2}])
def test_a_table_whose_sums_leave_signed_lanes_is_refused_with_the_numbers(
    make_spec: Callable[..., JobSpec], tables: dict[str, tuple[int, ...]]
) -> None:
    make_spec(workers=4, table=None, **tables).check()
    refused = refusal(make_spec(workers=5, table=None, **tables))
    assert "5 workers * values of -31 .. 31 = 155 may leave a lane of -128 .. 127, whose bound is 127" in refused
    assert "such values allow 4 workers, 5 workers allow values of -25 .. 25; use fewer workers, sm" in refused


def test_the_smaller_end_of_a_table_counts_too(make_spec: Callable[..., JobSpec]) -> None:
    make_spec(workers=1, table=None, table2=(-127, 0, 0, 127, 1, 1, 1)).check()
    assert "1 workers * values of -128 .. 128 = 128" in refusal(make_spec(workers=1, table2=(-128, 0, 0, 0, 1, 1, 1)))
    make_spec(workers=64, table=None, table2=(-1, 0, 0, 1, 1, 1, 1)).check()
    assert "64 workers allow values of -1 .. 1" in refusal(
        make_spec(workers=64, table=None, table2=(0, 0, 0, 2, 1, 1, 1))
    )


@pytest.mark.parametrize(
    ("table2", "message"),
    [
        (TABLE2[1:], "lookup table of 6 entries; a table for codes of 2 bits has 4 values of -128 .. 127, then 3 thr"),
        ((*TABLE2, 127), "lookup table of 8 entries"),
        ((True, *TABLE2[1:]), "T[0] = True is not an int"),
        ((128, *TABLE2[1:]), "T[0] = 128; a table for codes of 2 bits"),
        ((-129, *TABLE2[1:]), "T[0] = -129"),
        ((*TABLE2[:4], 0, 64, 96), "threshold 0 = 0; a table for codes of 2 bits"),
        ((*TABLE2[:4], 32, 64, 128), "threshold 2 = 128"),
        ((*TABLE2[:4], 32, 31, 96), "threshold 1 = 31 is below threshold 0 = 32"),
        ((*TABLE2[:4], 32, 64.5, 96), "threshold 1 = 64.5 is not an int"),
    ],
)
def test_wrong_tables_of_results_that_are_codes(
    make_spec: Callable[..., JobSpec], table2: tuple[Any, ...], message: str
) -> None:
    assert message in refusal(make_spec(table=None, table2=table2))


def test_a_table_too_fine_for_the_workers(make_spec: Callable[..., JobSpec]) -> None:
    assert "n * g = 13 workers * granularity 20 = 260" in refusal(make_spec(workers=13))
