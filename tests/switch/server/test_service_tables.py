# SPDX-License-Identifier: Apache-2.0
"""Tables, pipelines, multicast groups, counters and registers over P4Runtime: what is accepted, refused and read."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2
from p4.v1.p4runtime_pb2 import (
    CapabilitiesRequest,
    CounterData,
    CounterEntry,
    DirectCounterEntry,
    Entity,
    FieldMatch,
    MulticastGroupEntry,
    PacketReplicationEngineEntry,
    ReadRequest,
    RegisterEntry,
    Replica,
    TableEntry,
    Update,
)

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.engine import Engine
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.program.ir import ProgramIR
from hopsum_switch.server import SwitchServer

from ..core.builder import assign, build, field, hexstr
from .controller import DEADLINE_S, DELETE, INSERT, MODIFY, NAMES, P4INFO, PROGRAM, Controller, details, entry, l2

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


def test_a_batch_continues_after_an_error_and_reports_each_update(primary: Controller) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        primary.write(l2(INSERT, b"\1"), l2(INSERT, b""), l2(INSERT, b"\3"), l2(INSERT, b"\1"))
    found = details(caught.value)
    assert [d.canonical_code for d in found] == [0, code_pb2.OUT_OF_RANGE, 0, code_pb2.ALREADY_EXISTS]
    assert "h.ethernet.dst of table StationIngress.l2" in found[1].message
    assert found[0].message == ""
    assert len(primary.read_tables(table_id=NAMES.tables["l2"])) == 2


def test_errors_of_large_batches_still_arrive(primary: Controller) -> None:
    assert primary.refusals(*[l2(INSERT, b"")] * 60) == [code_pb2.OUT_OF_RANGE] * 60


def test_other_atomicities_are_unimplemented_and_other_devices_unknown(primary: Controller) -> None:
    for atomicity in (1, 2):
        with pytest.raises(grpc.RpcError) as caught:
            primary.write(l2(INSERT, MAC), atomicity=atomicity)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
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


def test_default_entries_are_changed_reset_and_in_force(
    switch: SwitchServer, memory_ports: list[MemoryPort], primary: Controller
) -> None:
    out = memory_ports[2]
    default = {"table_id": NAMES.tables["l2"], "is_default_action": True}
    (original,) = primary.read_tables(**default)
    assert original.action.action.action_id == NAMES.actions["drop"]
    update = entry(MODIFY, "l2", "forward", b"\x02", is_default_action=True, metadata=b"m")
    primary.write(update)
    assert primary.read_tables(**default) == [update.entity.table_entry]
    switch.dataplane.inject(0, FRAME)
    assert out.pop_sent() == [FRAME]
    primary.write(entry(MODIFY, "l2", is_default_action=True))
    assert primary.read_tables(**default) == [original]
    switch.dataplane.inject(0, FRAME)
    assert out.pop_sent() == []
    assert len(primary.read_tables(is_default_action=True)) == 4
    (constant,) = primary.read_tables(table_id=NAMES.tables["classes"], is_default_action=True)
    assert constant.is_const


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
        Entity(action_profile_member={"action_profile_id": 1}),
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
    codes = [d.canonical_code for d in details(caught)]
    assert codes == [INVALID, 0, *[INVALID] * 3, code_pb2.UNIMPLEMENTED]


def test_all_of_a_kind_that_no_program_has_are_none(primary: Controller) -> None:
    kinds = {"action_profile_member", "action_profile_group", "value_set_entry", "extern_entry", "meter_entry"}
    others = {"counter_entry", "direct_counter_entry", "direct_meter_entry", "digest_entry", "table_entry"}
    for kind in sorted(kinds | others):
        found = primary.read(Entity(**{kind: {}}))
        assert kind in others or found == [], kind


def direct(kind: int, update: Update, packets: int = 1) -> Update:
    data = CounterData(packet_count=packets)
    entry = DirectCounterEntry(table_entry=update.entity.table_entry, data=data)
    return Update(type=kind, entity=Entity(direct_counter_entry=entry))


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
    primary.write(direct(MODIFY, l2(INSERT, MAC, None), packets=3))
    everything = primary.read(Entity(direct_counter_entry=DirectCounterEntry()))
    assert [e.direct_counter_entry.data.packet_count for e in everything] == [3, 0]


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


SERVICE_OTHERS_FRAME = MAC + b"\x01\x02\x03\x04\x05\x06" + b"\x12\x34payload"


def refused(call: object, *arguments: object, **fields: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)  # type: ignore[operator]
    return caught.value.code(), caught.value.details()


def test_the_api_version_is_told(primary: Controller) -> None:
    assert primary.stub.Capabilities(CapabilitiesRequest()).p4runtime_api_version == "1.4.1"


def test_without_a_pipeline_nothing_else_works(client: Controller) -> None:
    assert not client.get_pipeline().HasField("config")
    assert refused(client.write, l2(INSERT, MAC))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert refused(client.read_tables)[0] is grpc.StatusCode.FAILED_PRECONDITION


def test_a_pipeline_is_pushed_and_read_back_in_parts(client: Controller) -> None:
    client.set_pipeline("VERIFY_AND_COMMIT", cookie=99)
    everything = client.get_pipeline().config
    assert (everything.p4info, everything.p4_device_config) == (NAMES.message, PROGRAM.read_bytes())
    assert everything.cookie.cookie == 99
    parts = {
        name: client.get_pipeline(name).config
        for name in ("COOKIE_ONLY", "P4INFO_AND_COOKIE", "DEVICE_CONFIG_AND_COOKIE")
    }
    assert [(c.HasField("p4info"), bool(c.p4_device_config), c.cookie.cookie) for c in parts.values()] == [
        (False, False, 99),
        (True, False, 99),
        (False, True, 99),
    ]
    client.set_pipeline("VERIFY_AND_COMMIT")
    config = client.get_pipeline("COOKIE_ONLY")
    assert config.HasField("config")
    assert not config.config.HasField("cookie")


def wrapped(program: bytes, *, before: bytes = b"\x08\x01", after: bytes = b"") -> bytes:
    """Serialise p4.tmp.P4DeviceConfig{reassign, device_data} as the library of p4lang's exercises does."""
    length = bytes([len(program) & 0x7F | 0x80, len(program) >> 7 & 0x7F | 0x80, len(program) >> 14])
    return before + b"\x1a" + length + program + after


@pytest.mark.parametrize(
    "config",
    [
        wrapped(PROGRAM.read_bytes()),
        # bmv2 takes fields in any order, `extras`, no `reassign`, and text with white space or a mark of its encoding.
        wrapped(PROGRAM.read_bytes(), before=b"\x12\x00", after=b"\x08\x01"),
        b"\n" + PROGRAM.read_bytes(),
        b"\xef\xbb\xbf" + PROGRAM.read_bytes(),
    ],
    ids=["wrapped", "reordered", "white space", "mark"],
)
def test_a_device_config_of_any_form_runs_and_is_read_back_as_pushed(client: Controller, config: bytes) -> None:
    client.set_pipeline("VERIFY_AND_COMMIT", program=config)
    client.write(l2(INSERT, MAC))
    assert client.get_pipeline().config.p4_device_config == config


def test_verify_changes_nothing_and_commit_clears_the_state(empty_switch: SwitchServer, client: Controller) -> None:
    client.set_pipeline("VERIFY")
    assert not client.get_pipeline().HasField("config")
    client.set_pipeline("VERIFY_AND_COMMIT")
    client.write(l2(INSERT, MAC))
    client.set_pipeline("VERIFY")
    assert len(client.read_tables(table_id=NAMES.tables["l2"])) == 1
    client.set_pipeline("VERIFY_AND_COMMIT")
    assert client.read_tables(table_id=NAMES.tables["l2"]) == []


def test_others_are_served_while_a_program_is_compiled() -> None:
    """And who is no longer primary when it is done has pushed in vain."""
    compiling, proceed = threading.Event(), threading.Event()

    def compile_slowly(program: ProgramIR) -> Engine:
        compiling.set()
        assert proceed.wait(DEADLINE_S)
        return Engine(program)

    with ExitStack() as stack:
        switch = stack.enter_context(SwitchServer(device_id=1, make_engine=compile_slowly))
        first, second = (stack.enter_context(Controller(switch.grpc_address)) for _ in range(2))
        first.become_primary(1)
        outcome: list[grpc.StatusCode] = []
        push = threading.Thread(target=lambda: outcome.append(refused(first.set_pipeline, "VERIFY_AND_COMMIT")[0]))
        push.start()
        try:
            assert compiling.wait(DEADLINE_S)
            assert not second.get_pipeline().HasField("config")
            second.become_primary(2)
        finally:
            proceed.set()
            push.join(DEADLINE_S)
        assert outcome == [grpc.StatusCode.PERMISSION_DENIED]
        assert not second.get_pipeline().HasField("config")
        second.set_pipeline("VERIFY_AND_COMMIT")
        assert second.get_pipeline().HasField("config")


def test_a_saved_pipeline_is_written_to_before_packets_see_it(empty_switch: SwitchServer, client: Controller) -> None:
    ports = [MemoryPort(), MemoryPort()]
    for number, port in enumerate(ports):
        empty_switch.dataplane.bind(number, port)
    assert refused(client.set_pipeline, "COMMIT", with_config=False)[0] is grpc.StatusCode.NOT_FOUND
    client.set_pipeline("VERIFY_AND_COMMIT", cookie=1)
    client.write(l2(INSERT, MAC, "forward", b"\0"))
    client.set_pipeline("VERIFY_AND_SAVE", cookie=2)
    assert client.get_pipeline("COOKIE_ONLY").config.cookie.cookie == 2
    assert client.read_tables(table_id=NAMES.tables["l2"]) == []
    client.write(l2(INSERT, MAC, "forward", b"\1"))
    empty_switch.dataplane.inject(3, SERVICE_OTHERS_FRAME)
    assert [port.pop_sent() for port in ports] == [[SERVICE_OTHERS_FRAME], []]
    assert refused(client.set_pipeline, "COMMIT")[0] is grpc.StatusCode.INVALID_ARGUMENT
    client.set_pipeline("COMMIT", with_config=False)
    empty_switch.dataplane.inject(3, SERVICE_OTHERS_FRAME)
    assert [port.pop_sent() for port in ports] == [[], [SERVICE_OTHERS_FRAME]]


@pytest.mark.parametrize("action", ["VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info, program: (info, b""), "needs p4info and p4_device_config"),
        (lambda info, program: (info, b"{"), "the program cannot run here"),
        (lambda info, program: (info, b"\xff"), "neither the JSON text that p4c-bm2-ss writes nor a p4.tmp"),
        (lambda info, program: (info, wrapped(program)[:-1]), "neither the JSON text"),
        (lambda info, program: (info, b"\x08" + b"\xff" * 4_000_000), "neither the JSON text"),
        (lambda info, program: (info, b"\x08\x01"), "2 bytes that begin with 0x0801, is neither"),
        (
            lambda info, program: (info, program.replace(b"StationIngress.l2", b"StationIngress.l3")),
            "no table StationIngress.l2",
        ),
        (
            lambda info, program: (info.replace("bitwidth: 48", "bitwidth: 47"), program),
            r"key h.ethernet.dst of table StationIngress.l2 is exact bit<48>, not exact bit<47>",
        ),
        (
            lambda info, program: (info.replace("match_type: LPM", "match_type: EXACT"), program),
            "is lpm bit<32>, not exact",
        ),
        (
            lambda info, program: (info.replace("size: 512", "size: 513"), program),
            "no counter StationIngress.received of size 513",
        ),
        (
            lambda info, program: (
                info.replace("size: 16\n}\ndigest", "").replace("bitwidth: 8\n  }\n}", "bitwidth: 9\n  }\n}", 1),
                program,
            ),
            "no action",
        ),
    ],
)
def test_configs_that_cannot_run_are_refused_by_name(
    primary: Controller, action: str, change: object, message: str
) -> None:
    info, program = change(P4INFO.read_text(), PROGRAM.read_bytes())  # type: ignore[operator]
    before = primary.get_pipeline()
    parsed = text_format.Parse(info, p4info_pb2.P4Info())
    code, details = refused(primary.set_pipeline, action, p4info=parsed, program=program)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in details
    assert primary.get_pipeline() == before


def looking_up(*, key: bool) -> tuple[p4info_pb2.P4Info, bytes]:
    """P4Info with a table `gone`, which the program lacks, and `tbl_in`, with a key of type error or hidden."""
    builder = build()
    info = p4info_pb2.P4Info()
    info.actions.add().preamble.id, info.actions[0].preamble.name = 21, "act"
    for number, name in ((11, "gone"), *(((12, "tbl_in"),) if key else ())):
        table = info.tables.add(size=16)
        table.preamble.id, table.preamble.name = number, name
        table.action_refs.add(id=21)
        table.match_fields.add(id=1, name="parser_error", match_type=p4info_pb2.MatchField.EXACT)
    if key:
        table_json = builder.data["pipelines"][0]["tables"][0]
        error = ["standard_metadata", "parser_error"]
        table_json["key"] = [{"match_type": "exact", "name": "parser_error", "target": error, "mask": None}]
        del table_json["default_entry"]
    builder.primitives.append(assign(field("standard_metadata", "egress_spec"), hexstr(1)))
    return info, builder.text().encode()


def test_a_table_that_the_compiler_removed_is_missed_by_nobody(client: Controller) -> None:
    info, program = looking_up(key=False)
    client.set_pipeline("VERIFY_AND_COMMIT", p4info=info, program=program)
    assert client.get_pipeline().config.p4info == info
    assert client.read_tables() == []
    with pytest.raises(grpc.RpcError) as caught:
        client.read_tables(table_id=11)
    assert "table gone is not in the program: p4c removed it" in details(caught.value)[0].message


def test_a_key_of_type_error_has_the_programs_width(empty_switch: SwitchServer, client: Controller) -> None:
    port = MemoryPort()
    empty_switch.dataplane.bind(1, port)
    info, program = looking_up(key=True)
    client.set_pipeline("VERIFY_AND_COMMIT", p4info=info, program=program)
    wanted = TableEntry(table_id=12)
    wanted.match.add(field_id=1).exact.value = b"\1"  # PacketTooShort
    wanted.action.action.action_id = 21
    client.write(Update(type=INSERT, entity=Entity(table_entry=wanted)))
    assert client.read_tables(table_id=12) == [wanted]
    for frame in (b"\0", b"\0\0"):
        empty_switch.dataplane.inject(0, frame)
    assert port.pop_sent() == [b"\0"]


def test_other_actions_and_other_clients_are_refused(primary: Controller) -> None:
    assert refused(primary.set_pipeline, "RECONCILE_AND_COMMIT")[0] is grpc.StatusCode.UNIMPLEMENTED
    assert refused(primary.set_pipeline, "UNSPECIFIED")[0] is grpc.StatusCode.INVALID_ARGUMENT
    primary.election_id = 7
    assert refused(primary.set_pipeline, "VERIFY")[0] is grpc.StatusCode.PERMISSION_DENIED


def group(kind: int, number: int, *replicas: Replica, metadata: bytes = b"") -> Update:
    message = MulticastGroupEntry(multicast_group_id=number, replicas=replicas, metadata=metadata)
    return Update(
        type=kind,
        entity=Entity(packet_replication_engine_entry=PacketReplicationEngineEntry(multicast_group_entry=message)),
    )


def read_groups(controller: Controller, number: int = 0) -> list[MulticastGroupEntry]:
    query = group(INSERT, number).entity
    return [e.packet_replication_engine_entry.multicast_group_entry for e in controller.read(query)]


def test_multicast_groups_replicate_in_order_and_come_back_as_written(
    switch: SwitchServer, memory_ports: list[MemoryPort], primary: Controller
) -> None:
    ports = {number: memory_ports[number] for number in (1, 2)}
    update = group(
        INSERT,
        5,
        Replica(egress_port=1, instance=1),
        Replica(port=b"\x02", instance=7),
        Replica(egress_port=2, instance=0),
        metadata=b"x",
    )
    primary.write(update, l2(INSERT, MAC, "flood", b"\x05"))
    (got,) = read_groups(primary)
    assert got == update.entity.packet_replication_engine_entry.multicast_group_entry
    switch.dataplane.inject(0, SERVICE_OTHERS_FRAME)
    assert {number: len(port.pop_sent()) for number, port in ports.items()} == {1: 1, 2: 2}
    assert primary.refusals(update) == [code_pb2.ALREADY_EXISTS]
    primary.write(group(MODIFY, 5, Replica(egress_port=1)))
    assert read_groups(primary, 5) == [MulticastGroupEntry(multicast_group_id=5, replicas=[Replica(egress_port=1)])]
    primary.write(group(DELETE, 5))
    assert read_groups(primary) == []
    switch.dataplane.inject(0, SERVICE_OTHERS_FRAME)
    assert not ports[1].pop_sent()


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (group(INSERT, 0, Replica(egress_port=1)), code_pb2.INVALID_ARGUMENT),
        (group(INSERT, 1 << 16, Replica(egress_port=1)), code_pb2.INVALID_ARGUMENT),
        (group(INSERT, 1, Replica()), code_pb2.INVALID_ARGUMENT),
        (group(INSERT, 1, Replica(egress_port=511)), code_pb2.INVALID_ARGUMENT),
        (group(INSERT, 1, Replica(port=b"\x02\x00")), code_pb2.OUT_OF_RANGE),
        (group(INSERT, 1, Replica(egress_port=1, instance=1 << 16)), code_pb2.INVALID_ARGUMENT),
        (group(INSERT, 1, Replica(egress_port=1), Replica(port=b"\x01")), code_pb2.INVALID_ARGUMENT),
        (group(MODIFY, 1, Replica(egress_port=1)), code_pb2.NOT_FOUND),
        (group(DELETE, 1), code_pb2.NOT_FOUND),
        (Update(type=INSERT, entity=Entity(packet_replication_engine_entry={})), code_pb2.UNIMPLEMENTED),
    ],
)
def test_groups_that_make_no_sense_are_refused(primary: Controller, update: Update, code: int) -> None:
    assert primary.refusals(update) == [code]
    assert read_groups(primary) == []


def counter(index: int | None, packets: int | None = None, counter_id: int = NAMES.counter, **fields: int) -> Entity:
    message = CounterEntry(counter_id=counter_id)
    if index is not None:
        message.index.index = index
    if packets is not None:
        message.data.packet_count = packets
    return Entity(counter_entry=message)


def test_counters_are_read_and_set(switch: SwitchServer, primary: Controller) -> None:
    switch.dataplane.inject(3, SERVICE_OTHERS_FRAME)
    (got,) = primary.read(counter(3))
    data = got.counter_entry.data
    assert (data.packet_count, data.byte_count) == (1, len(SERVICE_OTHERS_FRAME))
    everything = primary.read(counter(None, counter_id=0))
    assert [e.counter_entry.index.index for e in everything] == list(range(512))
    assert [e.counter_entry.index.index for e in everything if e.counter_entry.data.packet_count] == [3]
    primary.write(Update(type=MODIFY, entity=counter(4, 44)), Update(type=MODIFY, entity=counter(3)))
    assert [primary.read(counter(n))[0].counter_entry.data.packet_count for n in (3, 4)] == [1, 44]
    primary.write(Update(type=MODIFY, entity=counter(None, 0)))
    assert not any(e.counter_entry.data.packet_count for e in primary.read(counter(None)))


def register(index: int | None, value: bytes | None = None) -> Entity:
    message = RegisterEntry(register_id=NAMES.register)
    if index is not None:
        message.index.index = index
    if value is not None:
        message.data.bitstring = value
    return Entity(register_entry=message)


def test_registers_are_read_and_set(switch: SwitchServer, primary: Controller) -> None:
    switch.dataplane.inject(3, SERVICE_OTHERS_FRAME)
    assert primary.read(register(3)) == [register(3, SERVICE_OTHERS_FRAME[6:12])]
    primary.write(Update(type=MODIFY, entity=register(4, b"\0\x05")))
    assert primary.read(register(None)) == [
        register(n, {3: SERVICE_OTHERS_FRAME[6:12], 4: b"\x05"}.get(n, b"\0")) for n in range(16)
    ]
    boolean = register(4)
    boolean.register_entry.data.bool = True
    assert primary.refusals(
        Update(type=MODIFY, entity=boolean), Update(type=MODIFY, entity=register(4, b"\x01" + bytes(6)))
    ) == [code_pb2.INVALID_ARGUMENT, code_pb2.OUT_OF_RANGE]


@pytest.mark.parametrize("make", [counter, register])
def test_cells_that_do_not_exist_are_refused(primary: Controller, make: object) -> None:
    updates = [
        (MODIFY, -1, code_pb2.INVALID_ARGUMENT),
        (MODIFY, 512, code_pb2.OUT_OF_RANGE),
        (INSERT, 1, code_pb2.INVALID_ARGUMENT),
        (DELETE, 1, code_pb2.INVALID_ARGUMENT),
    ]
    got = primary.refusals(*(Update(type=kind, entity=make(index)) for kind, index, _ in updates))  # type: ignore[operator]
    assert got == [code for _, _, code in updates]
    assert primary.refusals(Update(type=MODIFY, entity=counter(1, 1, counter_id=9))) == [code_pb2.INVALID_ARGUMENT]


def test_a_large_answer_comes_in_several_messages(primary: Controller) -> None:
    for number in range(60):
        primary.write(l2(INSERT, bytes([number + 1]), metadata=bytes(100_000)))
    assert len(primary.read_tables(table_id=NAMES.tables["l2"])) == 60
    primary.write(entry(MODIFY, "l2", "drop", is_default_action=True))


def test_a_fault_of_the_server_is_one_line_for_the_client(
    switch: SwitchServer, primary: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No exception of Python goes to a client or a terminal, and the other updates of a batch are applied."""
    state = switch.dataplane.engine.tables["StationIngress.l2"]  # type: ignore[union-attr]
    insert, line = state.insert, "internal error: KeyError: 'lost' at switch/server/test_service_tables.py:"
    faults = [KeyError("lost")]

    def fail_once(*arguments: object, **fields: object) -> int:
        if faults:
            raise faults.pop()
        return insert(*arguments, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(state, "insert", fail_once)
    with pytest.raises(grpc.RpcError) as caught:
        primary.write(l2(INSERT, MAC), l2(INSERT, b"\x02" * 6))
    assert [detail.canonical_code for detail in details(caught.value)] == [13, 0]
    assert details(caught.value)[0].message.startswith(line)
    monkeypatch.setattr(state, "entries", lambda: faults[0])
    code, message = refused(primary.read_tables, table_id=NAMES.tables["l2"])
    assert (code, "internal error: IndexError" in message) == (grpc.StatusCode.INTERNAL, True)
    assert "please report this line" in message
    assert [record.exc_info for record in caplog.records] == [None, None]


def initial_entries(*, constant: bool) -> tuple[p4info_pb2.P4Info, bytes]:
    """A ternary table of 4 entries of which the program has two: p4c writes them as here, constant or initial."""
    builder = build()
    info = p4info_pb2.P4Info()
    info.actions.add().preamble.id, info.actions[0].preamble.name = 21, "act"
    table = info.tables.add(size=4, has_initial_entries=True, is_const_table=constant)
    table.preamble.id, table.preamble.name = 12, "tbl_in"
    table.action_refs.add(id=21)
    table.match_fields.add(id=1, name="a", bitwidth=8, match_type=p4info_pb2.MatchField.TERNARY)
    table_json = builder.data["pipelines"][0]["tables"][0]
    table_json |= {"match_type": "ternary", "max_size": 2}
    table_json["key"] = [{"match_type": "ternary", "name": "a", "target": ["h", "a"], "mask": None}]
    table_json["entries"] = [
        {
            "match_key": [{"match_type": "ternary", "key": hex(value), "mask": hex(mask)}],
            "action_entry": {"action_id": 0, "action_data": []},
            "priority": number,
        }
        for number, (value, mask) in enumerate([(3, 15), (0, 0)], 1)
    ]
    return info, builder.text().encode()


def initial(value: int, priority: int, **fields: object) -> TableEntry:
    entry = TableEntry(table_id=12, priority=priority, **fields)
    if value:
        entry.match.add(field_id=1).ternary.value, entry.match[0].ternary.mask = bytes([value]), b"\x0f"
    entry.action.action.action_id = 21
    return entry


def test_initial_entries_are_read_modified_deleted_and_joined_by_others(client: Controller) -> None:
    """The first of the source has the highest priority and the last has 1, as p4c writes them for P4Runtime."""
    info, program = initial_entries(constant=False)
    client.set_pipeline("VERIFY_AND_COMMIT", p4info=info, program=program)
    assert client.read_tables(table_id=12) == [initial(3, 2), initial(0, 1)]
    changed = initial(3, 2, metadata=b"mine")
    added = [initial(4, 9), initial(5, 1)]
    client.write(Update(type=MODIFY, entity=Entity(table_entry=changed)))
    client.write(*(Update(type=INSERT, entity=Entity(table_entry=each)) for each in added))
    full = Update(type=INSERT, entity=Entity(table_entry=initial(6, 1)))
    assert client.refusals(full) == [code_pb2.RESOURCE_EXHAUSTED]
    assert client.read_tables(table_id=12) == [changed, initial(0, 1), *added]
    client.write(Update(type=DELETE, entity=Entity(table_entry=initial(0, 1))), full)
    assert client.read_tables(table_id=12) == [changed, *added, initial(6, 1)]
    # Pushed once more, the table is as the program has it.
    client.set_pipeline("VERIFY_AND_COMMIT", p4info=info, program=program)
    assert client.read_tables(table_id=12) == [initial(3, 2), initial(0, 1)]


def test_entries_of_a_constant_table_stay(client: Controller) -> None:
    info, program = initial_entries(constant=True)
    client.set_pipeline("VERIFY_AND_COMMIT", p4info=info, program=program)
    for kind, each in ((INSERT, initial(4, 9)), (MODIFY, initial(3, 2)), (DELETE, initial(3, 2))):
        assert client.refusals(Update(type=kind, entity=Entity(table_entry=each))) == [code_pb2.PERMISSION_DENIED]
    assert client.read_tables(table_id=12) == [initial(3, 2, is_const=True), initial(0, 1, is_const=True)]
