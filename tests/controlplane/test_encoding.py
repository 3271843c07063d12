# SPDX-License-Identifier: Apache-2.0
"""Names, ids and widths from a P4Info, and what is refused before it reaches a switch."""

from __future__ import annotations

import pytest

from hopsum_controlplane.entries import DefaultAction, Delete, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.p4runtime_encoding import decode_entity, encode_update
from hopsum_wire.p4runtime import p4runtime_pb2

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
    assert str(Delete(MulticastGroup(3, (Replica(1, 0),)))) == "delete multicast group 3 of 1/0"
