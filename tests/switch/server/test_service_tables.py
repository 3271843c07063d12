# SPDX-License-Identifier: Apache-2.0
"""Table entries over P4Runtime: what is accepted, what is refused with which code, and what comes back."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2
from p4.v1.p4runtime_pb2 import CounterData, DirectCounterEntry, Entity, FieldMatch, ReadRequest, TableEntry, Update

from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer

from .controller import DELETE, INSERT, MODIFY, NAMES, Controller, details, entry, l2

MAC = b"\x0a\x0b\x0c\x0d\x0e\x0f"
FRAME = MAC + bytes(6) + b"\x12\x34payload"


def classes(kind: int, *matches: FieldMatch, priority: int = 10) -> Update:
    update = entry(kind, "classes", "mark", b"\x2a", priority=priority)
    update.entity.table_entry.match.extend(matches)
    return update


def ternary(value: bytes, mask: bytes) -> FieldMatch:
    match = FieldMatch(field_id=1)
    match.ternary.value, match.ternary.mask = value, mask
    return match


def between(low: bytes, high: bytes) -> FieldMatch:
    match = FieldMatch(field_id=2)
    match.range.low, match.range.high = low, high
    return match


def optional(value: bytes) -> FieldMatch:
    match = FieldMatch(field_id=3)
    match.optional.value = value
    return match


def route(kind: int, value: bytes, prefix_len: int, action: str | None = "forward") -> Update:
    update = entry(kind, "routes", action, *([b"\x03"] if action == "forward" else []))
    match = update.entity.table_entry.match.add(field_id=1)
    match.lpm.value, match.lpm.prefix_len = value, prefix_len
    return update


@pytest.mark.parametrize(
    "update",
    [
        l2(INSERT, MAC),
        l2(INSERT, MAC, "flood", b"\x01\x02", controller_metadata=7, metadata=b"mine"),
        route(INSERT, b"\x0a\0\0\0", 8),
        route(INSERT, b"\x0a\x01\x02\x03", 32, "NoAction"),
        entry(INSERT, "routes", "forward", b"\x01"),
        classes(INSERT),
        classes(INSERT, ternary(b"\x0a\0\0\0", b"\xff\0\0\0")),
        classes(INSERT, between(b"\0", b"\x3f"), optional(b"\x11")),
        classes(INSERT, ternary(b"\x01", b"\x01"), between(b"\x05", b"\x05"), optional(b"\0"), priority=2**31 - 1),
    ],
)
def test_what_is_written_is_read_and_can_be_deleted(primary: Controller, update: Update) -> None:
    written = update.entity.table_entry
    primary.write(update)
    assert primary.read_tables(table_id=written.table_id) == [written]
    assert written in primary.read_tables()
    assert primary.refusals(update) == [code_pb2.ALREADY_EXISTS]
    key = Entity(table_entry=TableEntry(table_id=written.table_id, match=written.match, priority=written.priority))
    assert [e.table_entry for e in primary.read(key)] == [written]
    primary.write(Update(type=DELETE, entity=key))
    assert primary.read_tables(table_id=written.table_id) == []
    assert primary.refusals(Update(type=DELETE, entity=key)) == [code_pb2.NOT_FOUND]


def test_padded_values_are_accepted_and_read_in_canonical_form(primary: Controller) -> None:
    primary.write(l2(INSERT, bytes(4) + b"\x05", "forward", bytes(3) + b"\x01"))
    (got,) = primary.read_tables(table_id=NAMES.tables["l2"])
    assert got == l2(INSERT, b"\x05", "forward", b"\x01").entity.table_entry
    assert primary.refusals(l2(INSERT, b"\x05")) == [code_pb2.ALREADY_EXISTS]


def with_(update: Update, **fields: object) -> Update:
    changed = Update()
    changed.CopyFrom(update)
    changed.entity.table_entry.MergeFrom(TableEntry(**fields))
    return changed


INVALID, RANGE, DENIED = code_pb2.INVALID_ARGUMENT, code_pb2.OUT_OF_RANGE, code_pb2.PERMISSION_DENIED
REFUSED = {
    "no type": (l2(Update.UNSPECIFIED, MAC), INVALID),
    "no entity": (Update(type=INSERT), INVALID),
    "no such table": (Update(type=INSERT, entity=Entity(table_entry=TableEntry(table_id=5))), INVALID),
    "no action": (l2(INSERT, MAC, None), INVALID),
    "action of another table": (entry(INSERT, "l2", "mark", b"\1", match={1: (MAC,)}), INVALID),
    "action for default entries only": (entry(INSERT, "l2", "drop", match={1: (MAC,)}), DENIED),
    "missing parameter": (entry(INSERT, "l2", "forward", match={1: (MAC,)}), INVALID),
    "extra parameter": (l2(INSERT, MAC, "forward", b"\1", b"\1"), INVALID),
    "parameter too large": (l2(INSERT, MAC, "forward", b"\2\0"), RANGE),
    "parameter empty": (l2(INSERT, MAC, "forward", b""), RANGE),
    "key too large": (l2(INSERT, b"\1" + bytes(6)), RANGE),
    "key empty": (l2(INSERT, b""), RANGE),
    "key missing": (entry(INSERT, "l2", "forward", b"\1"), INVALID),
    "key of another kind": (with_(entry(INSERT, "l2", "forward", b"\1"), match=[ternary(b"\1", b"\1")]), INVALID),
    "key twice": (with_(l2(INSERT, MAC), match=l2(INSERT, MAC).entity.table_entry.match), INVALID),
    "no such key": (entry(INSERT, "l2", "forward", b"\1", match={9: (MAC,)}), INVALID),
    "key without value": (with_(entry(INSERT, "l2", "forward", b"\1"), match=[FieldMatch(field_id=1)]), INVALID),
    "priority in an exact table": (l2(INSERT, MAC, priority=1), INVALID),
    "no priority": (classes(INSERT, priority=0), INVALID),
    "negative priority": (classes(INSERT, priority=-1), INVALID),
    "mask 0": (classes(INSERT, ternary(b"\0", b"\0")), INVALID),
    "bits outside the mask": (classes(INSERT, ternary(b"\3", b"\1")), INVALID),
    "whole range": (classes(INSERT, between(b"\0", b"\xff")), INVALID),
    "empty range": (classes(INSERT, between(b"\2", b"\1")), INVALID),
    "prefix 0": (route(INSERT, b"\0", 0), INVALID),
    "prefix too long": (route(INSERT, b"\1", 33), INVALID),
    "bits after the prefix": (route(INSERT, b"\x0a\0\0\1", 8), INVALID),
    "const set by a client": (with_(l2(INSERT, MAC), is_const=True), INVALID),
    "idle timeout": (with_(l2(INSERT, MAC), idle_timeout_ns=5), INVALID),
    "meter": (with_(l2(INSERT, MAC), meter_config={"cir": 5}), INVALID),
    "counter where there is none": (with_(route(INSERT, b"\x0a\0\0\0", 8), counter_data={"packet_count": 1}), INVALID),
    "negative counter": (with_(l2(INSERT, MAC), counter_data={"packet_count": -1}), INVALID),
    "insert into a constant table": (entry(INSERT, "kinds", "NoAction", match={1: (b"\1",)}), DENIED),
    "delete a constant entry": (entry(DELETE, "kinds", match={1: (b"\x08\x06",)}), DENIED),
    "modify a constant entry": (entry(MODIFY, "kinds", "NoAction", match={1: (b"\x08\x06",)}), DENIED),
    "insert a default entry": (entry(INSERT, "l2", "drop", is_default_action=True), INVALID),
    "delete a default entry": (entry(DELETE, "l2", is_default_action=True), INVALID),
    "default entry with a key": (with_(l2(MODIFY, MAC), is_default_action=True), INVALID),
    "constant default entry": (entry(MODIFY, "classes", "mark", b"\1", is_default_action=True), DENIED),
    "modify what is not there": (l2(MODIFY, MAC), code_pb2.NOT_FOUND),
    "action profile": (
        Update(type=INSERT, entity=Entity(action_profile_member={"member_id": 1})),
        code_pb2.UNIMPLEMENTED,
    ),
    "clone session": (
        Update(type=INSERT, entity=Entity(packet_replication_engine_entry={"clone_session_entry": {"session_id": 0}})),
        INVALID,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nonsense_is_refused_and_changes_nothing(primary: Controller, name: str) -> None:
    update, code = REFUSED[name]
    before = primary.read_tables()
    assert primary.refusals(update) == [code]
    assert primary.read_tables() == before
    assert len(before) == 2


def test_a_batch_goes_on_after_an_error_and_reports_each_update(primary: Controller) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        primary.write(l2(INSERT, b"\1"), l2(INSERT, b""), l2(INSERT, b"\3"), l2(INSERT, b"\1"))
    found = details(caught.value)
    assert [d.canonical_code for d in found] == [0, code_pb2.OUT_OF_RANGE, 0, code_pb2.ALREADY_EXISTS]
    assert "h.ethernet.dst of table StationIngress.l2" in found[1].message
    assert found[0].message == ""
    assert len(primary.read_tables(table_id=NAMES.tables["l2"])) == 2


def test_errors_of_large_batches_still_arrive(primary: Controller) -> None:
    assert primary.refusals(*[l2(INSERT, b"")] * 60) == [code_pb2.OUT_OF_RANGE] * 60


def test_a_full_table_says_so(primary: Controller) -> None:
    primary.write(*[route(INSERT, bytes([n]) + bytes(3), 8) for n in range(1, 5)])
    assert primary.refusals(route(INSERT, b"\x09\0\0\0", 8)) == [code_pb2.RESOURCE_EXHAUSTED]


def test_other_atomicities_are_unimplemented_and_other_devices_unknown(primary: Controller) -> None:
    for fields, code in (
        ({"atomicity": 1}, grpc.StatusCode.UNIMPLEMENTED),
        ({"atomicity": 2}, grpc.StatusCode.UNIMPLEMENTED),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            primary.write(l2(INSERT, MAC), **fields)
        assert caught.value.code() is code
    primary.device_id = 9
    for call in (lambda: primary.write(l2(INSERT, MAC)), primary.read_tables, primary.get_pipeline):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_modify_replaces_action_and_metadata(primary: Controller) -> None:
    primary.write(l2(INSERT, MAC, metadata=b"old", controller_metadata=1))
    update = l2(MODIFY, MAC, "flood", b"\x05", metadata=b"new")
    primary.write(update)
    assert primary.read_tables(table_id=NAMES.tables["l2"]) == [update.entity.table_entry]
    primary.write(l2(MODIFY, MAC, None))
    assert primary.read_tables(table_id=NAMES.tables["l2"]) == [update.entity.table_entry], "no action: no change"


def test_default_entries_are_changed_reset_and_in_force(switch: SwitchServer, primary: Controller) -> None:
    out = MemoryPort()
    switch.dataplane.unbind(2)
    switch.dataplane.bind(2, out)
    default = {"table_id": NAMES.tables["l2"], "is_default_action": True}
    (original,) = primary.read_tables(**default)
    assert original.action.action.action_id == NAMES.actions["drop"]
    update = entry(MODIFY, "l2", "forward", b"\x02", is_default_action=True, metadata=b"m")
    primary.write(update)
    assert primary.read_tables(**default) == [update.entity.table_entry]
    switch.dataplane.inject(0, FRAME)
    assert out.take() == [FRAME]
    primary.write(entry(MODIFY, "l2", is_default_action=True))
    assert primary.read_tables(**default) == [original]
    switch.dataplane.inject(0, FRAME)
    assert out.take() == []
    assert len(primary.read_tables(is_default_action=True)) == 4
    (constant,) = primary.read_tables(table_id=NAMES.tables["classes"], is_default_action=True)
    assert constant.is_const


def test_constant_entries_are_shown_as_such(primary: Controller) -> None:
    found = primary.read_tables(table_id=NAMES.tables["kinds"])
    assert [(e.is_const, e.match[0].exact.value) for e in found] == [(True, b"\x88\xcc"), (True, b"\x08\x06")]


def test_reads_can_be_filtered(primary: Controller) -> None:
    primary.write(
        l2(INSERT, b"\1", metadata=b"a"),
        l2(INSERT, b"\2", "flood", b"\5", controller_metadata=4),
        classes(INSERT, priority=5),
        classes(INSERT, optional(b"\6"), priority=6),
        classes(INSERT, optional(b"\6"), priority=7),
    )

    def keys(**fields: object) -> list[tuple[bytes, int]]:
        return [(e.match[0].exact.value if e.match else b"", e.priority) for e in primary.read_tables(**fields)]

    l2_id, classes_id = NAMES.tables["l2"], NAMES.tables["classes"]
    assert keys(table_id=l2_id, metadata=b"a") == [(b"\1", 0)]
    assert keys(table_id=l2_id, controller_metadata=4) == [(b"\2", 0)]
    assert keys(table_id=l2_id, action={"action": {"action_id": NAMES.actions["flood"]}}) == [(b"\2", 0)]
    assert keys(table_id=classes_id, priority=5) == [(b"", 5)]
    assert [e.priority for e in primary.read_tables(table_id=classes_id, match=[optional(b"\6")])] == [6, 7]
    assert keys(table_id=l2_id, match=l2(INSERT, b"\x77").entity.table_entry.match) == []


def test_reads_that_make_no_sense_fail_and_the_rest_is_answered(primary: Controller) -> None:
    bad = [
        Entity(),
        Entity(table_entry=TableEntry(table_id=5)),
        Entity(table_entry=TableEntry(priority=5)),
        Entity(meter_entry={"meter_id": 1}),
        Entity(action_profile_member={"member_id": 1}),
    ]
    good = Entity(table_entry=TableEntry(table_id=NAMES.tables["kinds"]))
    seen, caught = 0, None
    request = {"device_id": 1, "entities": [bad[0], good, *bad[1:]]}
    try:
        for response in primary.stub.Read(ReadRequest(**request)):
            seen += len(response.entities)
    except grpc.RpcError as error:
        caught = error
    assert seen == 2
    assert caught is not None
    assert [d.canonical_code for d in details(caught)] == [
        INVALID,
        0,
        INVALID,
        INVALID,
        INVALID,
        code_pb2.UNIMPLEMENTED,
    ]


def test_direct_counters_count_and_can_be_set(switch: SwitchServer, primary: Controller) -> None:
    primary.write(with_(l2(INSERT, MAC), counter_data={"packet_count": 10, "byte_count": 100}), l2(INSERT, b"\1"))
    switch.dataplane.inject(0, FRAME)
    key = l2(INSERT, MAC, None).entity.table_entry
    counted = CounterData(packet_count=11, byte_count=100 + len(FRAME))
    (got,) = primary.read(Entity(direct_counter_entry=DirectCounterEntry(table_entry=key)))
    assert got.direct_counter_entry == DirectCounterEntry(table_entry=key, data=counted)
    table = {"table_id": key.table_id}
    assert [e.HasField("counter_data") for e in primary.read_tables(**table)] == [False, False]
    assert [e.counter_data for e in primary.read_tables(**table, counter_data={})] == [counted, CounterData()]
    primary.write(l2(MODIFY, MAC, "flood", b"\1"))
    assert primary.read_tables(**table, counter_data={})[0].counter_data == counted, "modify keeps the count"
    primary.write(
        Update(
            type=MODIFY,
            entity=Entity(direct_counter_entry=DirectCounterEntry(table_entry=key, data=CounterData(packet_count=3))),
        )
    )
    everything = primary.read(Entity(direct_counter_entry=DirectCounterEntry()))
    assert [e.direct_counter_entry.data.packet_count for e in everything] == [3, 0]


def direct(kind: int, update: Update) -> Update:
    return Update(
        type=kind,
        entity=Entity(
            direct_counter_entry=DirectCounterEntry(
                table_entry=update.entity.table_entry, data=CounterData(packet_count=1)
            )
        ),
    )


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (direct(INSERT, l2(INSERT, MAC, None)), INVALID),
        (direct(DELETE, l2(INSERT, MAC, None)), INVALID),
        (direct(MODIFY, l2(INSERT, MAC, None)), code_pb2.NOT_FOUND),
        (direct(MODIFY, route(INSERT, b"\x0a\0\0\0", 8, None)), INVALID),
    ],
)
def test_direct_counters_exist_with_their_entries_only(primary: Controller, update: Update, code: int) -> None:
    assert primary.refusals(update) == [code]
