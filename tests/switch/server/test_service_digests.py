# SPDX-License-Identifier: Apache-2.0
"""Digests, meters and clone sessions over P4Runtime."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2
from p4.v1.p4runtime_pb2 import (
    CloneSessionEntry,
    DigestEntry,
    DigestList,
    DirectMeterEntry,
    Entity,
    MeterConfig,
    MeterEntry,
    Replica,
    StreamMessageRequest,
    TableEntry,
    Update,
)

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer

from ...support.processes import await_that
from .controller import DELETE, INSERT, MODIFY, Controller

LEARNER = Path(__file__).parents[1] / "programs" / "learner"
INFO = text_format.Parse((LEARNER / "learner.p4info.txtpb").read_text(), p4info_pb2.P4Info())
IDS = {digest.preamble.name: digest.preamble.id for digest in INFO.digests}
PROBE = 0x88B5


@pytest.fixture
def bridge(empty_switch: SwitchServer, client: Controller) -> tuple[Controller, MemoryPort, SwitchServer]:
    """The primary client, port 3 and the switch."""
    port = MemoryPort()
    empty_switch.dataplane.bind(3, port)
    client.set_pipeline("VERIFY_AND_COMMIT", p4info=INFO, program=(LEARNER / "learner.json").read_bytes())
    return client, port, empty_switch


def frame(source: int, kind: int = 0x1234, destination: int = 9) -> bytes:
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + kind.to_bytes(2, "big")


def configure(kind: int, name: str = "learned_t", **config: int) -> Update:
    entry = DigestEntry(digest_id=IDS[name])
    for key, value in config.items():
        setattr(entry.config, key, value)
    return Update(type=kind, entity=Entity(digest_entry=entry))


def samples(message: DigestList) -> list[tuple[int, ...]]:
    return [tuple(int.from_bytes(m.bitstring, "big") for m in data.struct.members) for data in message.data]


def acknowledge(message: DigestList) -> StreamMessageRequest:
    request = StreamMessageRequest()
    request.digest_ack.digest_id, request.digest_ack.list_id = message.digest_id, message.list_id
    return request


def told(controller: Controller) -> DigestList:
    message = controller.next()
    assert message.WhichOneof("update") == "digest", message
    return message.digest


def test_a_sample_goes_to_the_primary_at_once(bridge: tuple[Controller, MemoryPort, SwitchServer]) -> None:
    controller, port, _ = bridge
    controller.write(configure(INSERT), configure(INSERT, "probed_t"))
    port.inject(frame(0xAABBCC))
    first = told(controller)
    assert (first.digest_id, first.list_id, samples(first)) == (IDS["learned_t"], 1, [(0xAABBCC, 3)])
    assert first.timestamp > 1_600_000_000 * 10**9
    port.inject(frame(1, PROBE, 0x123456))
    second = told(controller)
    assert (second.digest_id, second.list_id, samples(second)[0][0]) == (IDS["probed_t"], 1, 14)


def test_a_list_is_due_though_no_packet_comes(bridge: tuple[Controller, MemoryPort, SwitchServer]) -> None:
    controller, _, switch = bridge
    controller.write(configure(INSERT, max_timeout_ns=20_000_000))
    switch.dataplane.inject(3, frame(7))
    assert samples(told(controller)) == [(7, 3)]


def test_an_acknowledged_sample_is_told_again(bridge: tuple[Controller, MemoryPort, SwitchServer]) -> None:
    controller, port, switch = bridge
    controller.write(configure(INSERT, ack_timeout_ns=3600 * 10**9))
    for source in (1, 1, 2):
        port.inject(frame(source))
    lists = [told(controller), told(controller)]
    assert [samples(each) for each in lists] == [[(1, 3)], [(2, 3)]]
    controller.send(acknowledge(lists[0]))
    engine = switch.dataplane.engine
    await_that(lambda: not engine.digests._gathering["learned_t"].sent.keys() - {2})  # type: ignore[union-attr]
    port.inject(frame(2))
    port.inject(frame(1))
    assert samples(told(controller)) == [(1, 3)]


def test_entries_are_read_and_refused(bridge: tuple[Controller, MemoryPort, SwitchServer]) -> None:
    controller, _, _ = bridge
    everything = Entity(digest_entry=DigestEntry())
    assert controller.read(everything) == []
    update = configure(INSERT, max_list_size=7, max_timeout_ns=8, ack_timeout_ns=9)
    controller.write(update)
    assert controller.read(everything) == [update.entity]
    assert controller.read(Entity(digest_entry=DigestEntry(digest_id=IDS["learned_t"]))) == [update.entity]
    assert controller.refusals(
        update,
        configure(MODIFY, "probed_t"),
        configure(DELETE, "probed_t"),
        configure(MODIFY, max_timeout_ns=-1),
        Update(type=INSERT, entity=Entity(digest_entry=DigestEntry(digest_id=77))),
    ) == [code_pb2.ALREADY_EXISTS, *[code_pb2.NOT_FOUND] * 2, *[code_pb2.INVALID_ARGUMENT] * 2]
    with pytest.raises(grpc.RpcError) as caught:
        controller.read(Entity(digest_entry=DigestEntry(digest_id=IDS["probed_t"])))
    assert "probed_t is not configured" in str(caught.value.trailing_metadata()) + caught.value.details()
    assert controller.read(everything) == [update.entity]
    controller.write(configure(DELETE))
    assert controller.read(everything) == []


def test_only_the_primary_acknowledges(bridge: tuple[Controller, MemoryPort, SwitchServer]) -> None:
    _, _, switch = bridge
    request = acknowledge(DigestList(digest_id=IDS["learned_t"], list_id=1))
    with Controller(switch.grpc_address) as backup:
        backup.arbitrate(0)
        backup.told()
        backup.send(request)
        error = backup.next().error
        assert error.canonical_code == code_pb2.PERMISSION_DENIED
        assert error.digest_list_ack.digest_list_ack == request.digest_ack


def test_lists_without_a_primary_are_lost_and_told_again(bridge: tuple[Controller, MemoryPort, SwitchServer]) -> None:
    controller, port, switch = bridge
    controller.write(configure(INSERT, ack_timeout_ns=3600 * 10**9))
    controller.close_stream()
    await_that(lambda: switch.dataplane.stats()["digests"] == {} and switch._service._primary is None)
    port.inject(frame(1))
    await_that(lambda: switch.dataplane.stats()["digests"] == {"no_primary": 1})
    with Controller(switch.grpc_address) as second:
        second.become_primary(2)
        port.inject(frame(1))
        assert samples(told(second)) == [(1, 3)]
    assert switch.dataplane.stats()["digests"] == {"no_primary": 1, "sent": 1}


def test_a_digest_of_other_widths_is_not_of_this_program(client: Controller) -> None:
    other = p4info_pb2.P4Info()
    other.CopyFrom(INFO)
    other.type_info.structs["learned_t"].members[1].type_spec.bitstring.bit.bitwidth = 16
    with pytest.raises(grpc.RpcError, match=r"no digest learned_t of 48 \+ 16 bits"):
        client.set_pipeline("VERIFY_AND_COMMIT", p4info=other, program=(LEARNER / "learner.json").read_bytes())


PROGRAMS = Path(__file__).parents[1] / "programs"
INVALID, RANGE = code_pb2.INVALID_ARGUMENT, code_pb2.OUT_OF_RANGE
CONFIG = {"cir": 1, "cburst": 2, "pir": 3, "pburst": 4}


def p4info(name: str) -> p4info_pb2.P4Info:
    return text_format.Parse((PROGRAMS / name / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


POLICE = p4info("police")
CLASSES, FLOWS = POLICE.meters[0].preamble.id, POLICE.tables[0].preamble.id
FORWARD = next(a.preamble.id for a in POLICE.actions if a.preamble.alias == "forward")


def push(client: Controller, name: str) -> None:
    client.set_pipeline(
        "VERIFY_AND_COMMIT", p4info=p4info(name), program=(PROGRAMS / name / f"{name}.json").read_bytes()
    )


def session(kind: int, number: int, *replicas: Replica, **fields: int) -> Update:
    message = CloneSessionEntry(session_id=number, replicas=replicas, **fields)
    return Update(type=kind, entity=Entity(packet_replication_engine_entry={"clone_session_entry": message}))


def sessions(client: Controller, number: int = 0) -> list[CloneSessionEntry]:
    return [e.packet_replication_engine_entry.clone_session_entry for e in client.read(session(INSERT, number).entity)]


def test_clone_sessions_come_back_as_written_and_clone(empty_switch: SwitchServer, client: Controller) -> None:
    push(client, "mirror")
    ports = {number: MemoryPort() for number in (2, 3, 4)}
    for number, port in ports.items():
        empty_switch.dataplane.bind(number, port)
    update = session(
        INSERT, 5, Replica(egress_port=3, instance=1), Replica(port=b"\4", instance=2), packet_length_bytes=8
    )
    client.write(update)
    assert sessions(client) == [update.entity.packet_replication_engine_entry.clone_session_entry]
    frame = bytes([1, 0, 0, 0, 0, 9]) + b"rest"
    empty_switch.dataplane.inject(1, frame)
    taken = {number: port.pop_sent() for number, port in ports.items()}
    assert taken[3] == [b"\x01\x01\x00\x01\x00\x0a" + frame[:2]]
    assert taken[4] == [b"\x02\x01\x00\x01\x00\x0a" + frame[:2]]
    assert len(taken[2]) == 1
    assert client.refusals(update) == [code_pb2.ALREADY_EXISTS]
    client.write(session(MODIFY, 5, Replica(egress_port=3)))
    assert sessions(client, 5) == [CloneSessionEntry(session_id=5, replicas=[Replica(egress_port=3)])]
    client.write(session(DELETE, 5))
    assert sessions(client) == []
    empty_switch.dataplane.inject(1, frame)
    assert ports[3].pop_sent() == []


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (session(INSERT, 0, Replica(egress_port=1)), INVALID),
        (session(INSERT, 1 << 15, Replica(egress_port=1)), INVALID),
        (session(INSERT, 1, Replica()), INVALID),
        (session(INSERT, 1, Replica(egress_port=511)), INVALID),
        (session(INSERT, 1, Replica(port=b"\x02\x00")), RANGE),
        (session(INSERT, 1, Replica(egress_port=1), packet_length_bytes=-1), INVALID),
        (session(INSERT, 1, Replica(egress_port=1), class_of_service=1), code_pb2.UNIMPLEMENTED),
        (session(MODIFY, 1, Replica(egress_port=1)), code_pb2.NOT_FOUND),
        (session(DELETE, 1), code_pb2.NOT_FOUND),
    ],
)
def test_sessions_that_make_no_sense_are_refused(client: Controller, update: Update, code: int) -> None:
    push(client, "mirror")
    assert client.refusals(update) == [code]
    assert sessions(client) == []


def meter(index: int | None, config: dict[str, int] | None = None, number: int = CLASSES) -> Entity:
    message = MeterEntry(meter_id=number)
    if index is not None:
        message.index.index = index
    if config is not None:
        message.config.CopyFrom(MeterConfig(**config))
    return Entity(meter_entry=message)


def test_meters_are_configured_and_read(client: Controller) -> None:
    push(client, "police")
    client.write(Update(type=MODIFY, entity=meter(3, CONFIG)))
    assert client.read(meter(3)) == [meter(3, CONFIG)]
    assert client.read(meter(None, number=0)) == [meter(n, CONFIG if n == 3 else None) for n in range(8)]
    client.write(Update(type=MODIFY, entity=meter(None, CONFIG)), Update(type=MODIFY, entity=meter(3)))
    assert [e.meter_entry.HasField("config") for e in client.read(meter(None))] == [n != 3 for n in range(8)]


@pytest.mark.parametrize(
    ("kind", "entity", "code"),
    [
        (INSERT, meter(1, CONFIG), INVALID),
        (MODIFY, meter(8, CONFIG), RANGE),
        (MODIFY, meter(1, {"cir": 2, "pir": 1}), INVALID),
        (MODIFY, meter(1, {**CONFIG, "eburst": 1}), INVALID),
        (MODIFY, meter(1, CONFIG, number=7), INVALID),
    ],
)
def test_meters_that_make_no_sense_are_refused(client: Controller, kind: int, entity: Entity, code: int) -> None:
    push(client, "police")
    assert client.refusals(Update(type=kind, entity=entity)) == [code]
    assert not any(e.meter_entry.HasField("config") for e in client.read(meter(None)))


def flow(number: int, config: dict[str, int] | None = None, *, action: bool = True, **fields: object) -> TableEntry:
    message = TableEntry(table_id=FLOWS, **fields)
    message.match.add(field_id=1).exact.value = bytes([number])
    if action:
        message.action.action.action_id = FORWARD
        message.action.action.params.add(param_id=1, value=b"\3")
    if config is not None:
        message.meter_config.CopyFrom(MeterConfig(**config))
    return message


def direct(number: int | None, config: dict[str, int] | None = None) -> Entity:
    message = DirectMeterEntry(table_entry=TableEntry(table_id=FLOWS))
    if number is not None:
        message.table_entry.CopyFrom(flow(number, action=False))
    if config is not None:
        message.config.CopyFrom(MeterConfig(**config))
    return Entity(direct_meter_entry=message)


def test_direct_meters_come_and_go_with_their_entries(client: Controller) -> None:
    push(client, "police")
    client.write(*(Update(type=INSERT, entity=Entity(table_entry=flow(n, CONFIG if n == 1 else None))) for n in (1, 2)))
    assert client.read(direct(None)) == [direct(1, CONFIG), direct(2)]
    query = TableEntry(table_id=FLOWS, meter_config=MeterConfig())
    assert client.read(Entity(table_entry=query)) == [Entity(table_entry=entry) for entry in (flow(1, CONFIG), flow(2))]
    assert not client.read_tables(table_id=FLOWS)[0].HasField("meter_config"), "only when it is asked for"
    other = {**CONFIG, "pburst": 9}
    client.write(Update(type=MODIFY, entity=direct(2, other)))
    assert client.read(direct(2)) == [direct(2, other)]
    client.write(Update(type=MODIFY, entity=direct(2)), Update(type=MODIFY, entity=Entity(table_entry=flow(1))))
    assert client.read(direct(None)) == [direct(1), direct(2)]
    client.write(Update(type=MODIFY, entity=Entity(table_entry=flow(1, other, action=False))))
    client.write(Update(type=DELETE, entity=Entity(table_entry=flow(2, action=False))))
    assert client.read(direct(None)) == [direct(1, other)]


@pytest.mark.parametrize(
    ("kind", "entity", "code"),
    [
        (INSERT, Entity(table_entry=flow(1, {"cir": 2, "pir": 1})), INVALID),
        (INSERT, Entity(table_entry=flow(1, CONFIG, idle_timeout_ns=1)), INVALID),
        (INSERT, direct(1, CONFIG), INVALID),
        (MODIFY, direct(1, CONFIG), code_pb2.NOT_FOUND),
        (
            MODIFY,
            Entity(direct_meter_entry={"table_entry": {"table_id": FLOWS, "is_default_action": True}}),
            code_pb2.UNIMPLEMENTED,
        ),
        (
            MODIFY,
            Entity(table_entry=TableEntry(table_id=FLOWS, is_default_action=True, meter_config=MeterConfig(**CONFIG))),
            INVALID,
        ),
    ],
)
def test_direct_meters_that_make_no_sense_are_refused(client: Controller, kind: int, entity: Entity, code: int) -> None:
    push(client, "police")
    assert client.refusals(Update(type=kind, entity=entity)) == [code]
    assert client.read_tables(table_id=FLOWS) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("size: 8\n", "size: 9\n"), "no meter PoliceIngress.classes of size 9 in packets"),
        (lambda text: text.replace("unit: BYTES", "unit: PACKETS"), "no direct meter PoliceIngress.rates in packets"),
    ],
)
def test_meters_must_be_those_of_the_program(client: Controller, change: object, message: str) -> None:
    text = change((PROGRAMS / "police" / "police.p4info.txtpb").read_text())  # type: ignore[operator]
    info = text_format.Parse(text, p4info_pb2.P4Info())
    with pytest.raises(Exception, match=message):
        client.set_pipeline("VERIFY", p4info=info, program=(PROGRAMS / "police" / "police.json").read_bytes())
