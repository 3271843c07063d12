# SPDX-License-Identifier: Apache-2.0
"""Arbitration and packet I/O over real streams."""

from __future__ import annotations

from contextlib import ExitStack

import grpc
import pytest
from google.rpc import code_pb2

from hopsum_switch.p4runtime.service import MAX_STREAMS
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer
from hopsum_wire.p4runtime import p4runtime_pb2

from .controller import CPU_PORT, INSERT, Controller, l2, wait_until

BIG = 7 << 64 | 3


def client(stack: ExitStack, switch: SwitchServer, device_id: int = 1) -> Controller:
    return stack.enter_context(Controller(switch.grpc_address, device_id))


def test_primaries_and_backups_are_told(switch: SwitchServer, stack: ExitStack) -> None:
    first, second = client(stack, switch), client(stack, switch)
    first.arbitrate(None)
    assert first.told() == (code_pb2.NOT_FOUND, None)
    first.arbitrate(BIG - 1)
    assert first.told() == (code_pb2.OK, BIG - 1)
    second.arbitrate(BIG)
    assert second.told() == (code_pb2.OK, BIG)
    assert first.told() == (code_pb2.ALREADY_EXISTS, BIG)
    second.write(l2(INSERT, b"\x01"))
    with pytest.raises(grpc.RpcError) as caught:
        first.write(l2(INSERT, b"\x02"))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    second.close_stream()
    assert first.told() == (code_pb2.NOT_FOUND, BIG)
    with pytest.raises(grpc.RpcError, match="no client is primary"):
        second.write(l2(INSERT, b"\x02"))
    first.arbitrate(BIG)
    assert first.told() == (code_pb2.OK, BIG)
    assert len(first.read_tables()) == 1 + 2, "the one inserted and two constant ones"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"election_id": 5}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"election_id": 6, "device_id": 9}, grpc.StatusCode.NOT_FOUND),
        ({"election_id": 6, "role": "operator"}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_bad_arbitrations_end_the_stream(
    switch: SwitchServer, stack: ExitStack, fields: dict[str, int], code: grpc.StatusCode
) -> None:
    primary, other = client(stack, switch).become_primary(5), client(stack, switch)
    other.arbitrate(**fields)  # type: ignore[arg-type]
    assert other.stream_end() is code
    primary.write(l2(INSERT, b"\x01"))


def test_a_live_client_cannot_move_to_another_device(switch: SwitchServer, stack: ExitStack) -> None:
    primary, backup = client(stack, switch).become_primary(5), client(stack, switch)
    backup.arbitrate(1)
    assert backup.told() == (code_pb2.ALREADY_EXISTS, 5)
    primary.arbitrate(5, device_id=2)
    assert primary.stream_end() is grpc.StatusCode.FAILED_PRECONDITION
    assert backup.told() == (code_pb2.NOT_FOUND, 5), "a refused primary is gone"


def test_streams_are_limited_and_places_come_free(switch: SwitchServer, stack: ExitStack) -> None:
    clients = [client(stack, switch) for _ in range(MAX_STREAMS)]
    for number, each in enumerate(clients):
        each.become_primary(number)
    late = client(stack, switch)
    late.arbitrate(99)
    assert late.stream_end() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert clients[0].read_tables(), "unary requests are still served"
    clients[0].close_stream()
    client(stack, switch).become_primary(100)


def packet_out(port: bytes, payload: bytes, *ids: int) -> p4runtime_pb2.StreamMessageRequest:
    message = p4runtime_pb2.StreamMessageRequest()
    message.packet.payload = payload
    for number, value in zip(ids or (1, 2), (port, b"\0"), strict=True):
        message.packet.metadata.add(metadata_id=number, value=value)
    return message


def test_packets_go_out_and_come_in(switch: SwitchServer, stack: ExitStack) -> None:
    ports = [MemoryPort() for _ in range(4)]
    for number, port in enumerate(ports):
        switch.dataplane.unbind(number)
        switch.dataplane.bind(number, port)
    primary = client(stack, switch).become_primary()
    lldp = bytes(12) + b"\x88\xcc" + b"hello"
    ports[3].inject(lldp)
    packet = primary.next().packet
    assert packet.payload == lldp
    assert [(m.metadata_id, m.value) for m in packet.metadata] == [(1, b"\x03"), (2, b"\x01")]
    primary.send(packet_out(b"\0\x01", bytes(20)))
    wait_until(lambda: switch.dataplane.ports()[1]["sent"] == 1)
    assert [port.take() for port in ports] == [[], [bytes(20)], [], []]
    cpu = switch.dataplane.ports()[CPU_PORT]
    assert (cpu["kind"], cpu["sent"], cpu["received"], cpu["dropped"]) == ("cpu", 1, 1, {})


def test_packets_that_make_no_sense_are_reported(switch: SwitchServer, stack: ExitStack) -> None:
    primary = client(stack, switch).become_primary(2)
    for message, text in [
        (packet_out(b"\x02\x00", b""), "does not fit 9 bits"),
        (packet_out(b"\x01", b"", 1, 7), r"field 2"),
    ]:
        primary.send(message)
        error = primary.next().error
        assert text in error.message
        assert error.packet_out.packet_out == message.packet
    backup = client(stack, switch)
    backup.arbitrate(1)
    assert backup.told()[0] == code_pb2.ALREADY_EXISTS
    backup.send(packet_out(b"\x01", b""))
    assert backup.next().error.canonical_code == code_pb2.PERMISSION_DENIED
    acknowledgement = p4runtime_pb2.StreamMessageRequest()
    acknowledgement.digest_ack.digest_id = 5
    primary.send(acknowledgement)
    error = primary.next().error
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack == acknowledgement.digest_ack


def test_packet_ins_without_a_primary_are_counted(switch: SwitchServer) -> None:
    switch.dataplane.inject(0, bytes(12) + b"\x88\xcc")
    assert switch.dataplane.ports()[CPU_PORT]["dropped"] == {"no_primary": 1}


def test_a_switch_without_cpu_port_says_so() -> None:
    with SwitchServer(device_id=1) as switch, Controller(switch.grpc_address) as controller:
        controller.become_primary().send(packet_out(b"\x01", b""))
        assert "--cpu-port" in controller.next().error.message
