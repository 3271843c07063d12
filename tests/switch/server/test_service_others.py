# SPDX-License-Identifier: Apache-2.0
"""Pipelines, multicast groups, counters and registers over P4Runtime."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2
from p4.v1.p4runtime_pb2 import (
    CapabilitiesRequest,
    CounterEntry,
    Entity,
    MulticastGroupEntry,
    PacketReplicationEngineEntry,
    RegisterEntry,
    Replica,
    TableEntry,
    Update,
)

from hopsum_switch.engine import Engine
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.program.ir import ProgramIR
from hopsum_switch.server import SwitchServer
from hopsum_wire.p4runtime import p4info_pb2

from ..core.builder import assign, build, field, hexstr
from .controller import DEADLINE_S, DELETE, INSERT, MODIFY, NAMES, P4INFO, PROGRAM, Controller, details, entry, l2

MAC = b"\x0a\x0b\x0c\x0d\x0e\x0f"
FRAME = MAC + b"\x01\x02\x03\x04\x05\x06" + b"\x12\x34payload"


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
    compiling, go_on = threading.Event(), threading.Event()

    def compile_slowly(program: ProgramIR) -> Engine:
        compiling.set()
        assert go_on.wait(DEADLINE_S)
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
            go_on.set()
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
    empty_switch.dataplane.inject(3, FRAME)
    assert [port.take() for port in ports] == [[FRAME], []]
    assert refused(client.set_pipeline, "COMMIT")[0] is grpc.StatusCode.INVALID_ARGUMENT
    client.set_pipeline("COMMIT", with_config=False)
    empty_switch.dataplane.inject(3, FRAME)
    assert [port.take() for port in ports] == [[], [FRAME]]


@pytest.mark.parametrize("action", ["VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info, program: (info, b""), "needs p4info and p4_device_config"),
        (lambda info, program: (info, b"{"), "the program cannot run here"),
        (lambda info, program: (info, b"\xff"), "not JSON text"),
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
    assert port.take() == [b"\0"]


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
    switch: SwitchServer, primary: Controller
) -> None:
    ports = {number: MemoryPort() for number in (1, 2)}
    for number, port in ports.items():
        switch.dataplane.unbind(number)
        switch.dataplane.bind(number, port)
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
    switch.dataplane.inject(0, FRAME)
    assert {number: len(port.take()) for number, port in ports.items()} == {1: 1, 2: 2}
    assert primary.refusals(update) == [code_pb2.ALREADY_EXISTS]
    primary.write(group(MODIFY, 5, Replica(egress_port=1)))
    assert read_groups(primary, 5) == [MulticastGroupEntry(multicast_group_id=5, replicas=[Replica(egress_port=1)])]
    primary.write(group(DELETE, 5))
    assert read_groups(primary) == []
    switch.dataplane.inject(0, FRAME)
    assert not ports[1].take()


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
    switch.dataplane.inject(3, FRAME)
    (got,) = primary.read(counter(3))
    data = got.counter_entry.data
    assert (data.packet_count, data.byte_count) == (1, len(FRAME))
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
    switch.dataplane.inject(3, FRAME)
    assert primary.read(register(3)) == [register(3, FRAME[6:12])]
    primary.write(Update(type=MODIFY, entity=register(4, b"\0\x05")))
    assert primary.read(register(None)) == [register(n, {3: FRAME[6:12], 4: b"\x05"}.get(n, b"\0")) for n in range(16)]
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
