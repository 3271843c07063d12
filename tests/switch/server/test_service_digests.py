# SPDX-License-Identifier: Apache-2.0
"""Digests over P4Runtime: the bridge of tests/switch/programs/learner tells its controller what it sees."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2
from p4.v1.p4runtime_pb2 import DigestEntry, DigestList, Entity, StreamMessageRequest, Update

from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer
from hopsum_wire.p4runtime import p4info_pb2

from .controller import DELETE, INSERT, MODIFY, Controller, wait_until

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
    wait_until(lambda: not engine.digests._gathering["learned_t"].sent.keys() - {2})  # type: ignore[union-attr]
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
    ) == [
        code_pb2.ALREADY_EXISTS,
        code_pb2.NOT_FOUND,
        code_pb2.NOT_FOUND,
        code_pb2.INVALID_ARGUMENT,
        code_pb2.INVALID_ARGUMENT,
    ]
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
    wait_until(lambda: switch.dataplane.stats()["digests"] == {} and switch._service._primary is None)
    port.inject(frame(1))
    wait_until(lambda: switch.dataplane.stats()["digests"] == {"no_primary": 1})
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
