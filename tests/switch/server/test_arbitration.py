# SPDX-License-Identifier: Apache-2.0
"""The arbitration state machine, row by row, and packet I/O over real streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_base.quiet_grpc import STREAMS_MAX
from hopsum_switch.p4runtime.service import MAX_ELECTION_ID, MAX_STREAMS, Arbitration, Notice, P4RuntimeService
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer

from ...support.processes import await_that
from ...support.rapid_reset import reset_calls
from .controller import CPU_PORT, INSERT, Controller, l2

DEVICE = 7


def refused(call: object, *arguments: object) -> RpcCode:
    with pytest.raises(P4RuntimeError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.code


def test_ids_have_128_bits() -> None:
    state = Arbitration(DEVICE)
    state.update("a", DEVICE, (1 << 64) - 1)
    assert state.update("b", DEVICE, 1 << 64)[-1] == Notice("b", RpcCode.OK, 1 << 64)
    assert state.update("c", DEVICE, MAX_ELECTION_ID)[-1] == Notice("c", RpcCode.OK, MAX_ELECTION_ID)
    assert refused(state.update, "d", DEVICE, MAX_ELECTION_ID + 1) is RpcCode.INVALID_ARGUMENT


def test_an_id_in_use_is_refused_and_changes_nothing() -> None:
    state = Arbitration(DEVICE)
    state.update("a", DEVICE, 1)
    state.update("b", DEVICE, 0)
    assert refused(state.update, "c", DEVICE, 1) is RpcCode.INVALID_ARGUMENT
    assert refused(state.update, "b", DEVICE, 1) is RpcCode.INVALID_ARGUMENT
    assert state.update("a", DEVICE, 1) == [Notice("b", RpcCode.ALREADY_EXISTS, 1), Notice("a", RpcCode.OK, 1)]


def test_other_devices_and_roles_are_refused() -> None:
    state = Arbitration(DEVICE)
    assert refused(state.update, "a", DEVICE + 1, 1) is RpcCode.NOT_FOUND
    assert refused(state.update, "a", DEVICE, 1, "operator") is RpcCode.INVALID_ARGUMENT
    state.update("a", DEVICE, 1)
    assert refused(state.update, "a", DEVICE + 1, 1) is RpcCode.FAILED_PRECONDITION


EVENTS = st.lists(st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 4), st.just("leave"))))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(EVENTS)
def test_in_every_history_the_highest_id_ever_may_write_and_changes_are_told(events: list[tuple[str, Any]]) -> None:
    """All hear of a change, the primary last; else only who asks is answered. Nobody succeeds a lost primary."""
    state, ids, highest, primary = Arbitration(DEVICE), dict[str, int | None](), None, None
    for client, action in events:
        before, took_it = primary, False
        if action == "leave":
            notices = state.disconnect(client)
            hear = []
            ids.pop(client, None)
        elif action is not None and action in [held for name, held in ids.items() if name != client]:
            assert refused(state.update, client, DEVICE, action) is RpcCode.INVALID_ARGUMENT
            continue
        else:
            notices = state.update(client, DEVICE, action)
            hear, ids[client] = [client], action
            took_it = action is not None and (highest is None or action >= highest)
            highest = action if took_it else highest
        primary = next((name for name, held in ids.items() if held is not None and held == highest), None)
        if primary != before or took_it:
            hear = sorted(ids, key=lambda name: name == primary)
        others = RpcCode.NOT_FOUND if primary is None else RpcCode.ALREADY_EXISTS
        assert notices == [Notice(name, RpcCode.OK if name == primary else others, highest) for name in hear]
        assert state.primary == primary
        for held in (None, *range(5)):
            if primary is not None and held == highest:
                state.check_writer(held)
            else:
                assert refused(state.check_writer, held) is RpcCode.PERMISSION_DENIED


def client(stack: ExitStack, switch: SwitchServer, device_id: int = 1) -> Controller:
    return stack.enter_context(Controller(switch.grpc_address, device_id))


def test_primaries_and_backups_are_told_and_one_may_write(switch: SwitchServer, stack: ExitStack) -> None:
    big = 7 << 64 | 3
    first, second = client(stack, switch), client(stack, switch)
    first.arbitrate(None)
    assert first.told() == (code_pb2.NOT_FOUND, None)
    first.arbitrate(big - 1)
    assert first.told() == (code_pb2.OK, big - 1)
    second.arbitrate(big)
    assert second.told() == (code_pb2.OK, big)
    assert first.told() == (code_pb2.ALREADY_EXISTS, big)
    second.write(l2(INSERT, b"\x01"))
    with pytest.raises(grpc.RpcError) as caught:
        first.write(l2(INSERT, b"\x02"))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    second.close_stream()
    assert first.told() == (code_pb2.NOT_FOUND, big)
    with pytest.raises(grpc.RpcError, match="no client is primary"):
        second.write(l2(INSERT, b"\x02"))
    first.arbitrate(big)
    assert first.told() == (code_pb2.OK, big)
    assert len(first.read_tables()) == 1 + 2, "the one inserted and two constant ones"


def test_a_bad_arbitration_ends_the_stream(switch: SwitchServer, stack: ExitStack) -> None:
    primary, other = client(stack, switch).become_primary(5), client(stack, switch)
    other.arbitrate(6, role="operator")
    assert other.stream_end() is grpc.StatusCode.INVALID_ARGUMENT
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


def test_packets_go_out_and_come_in(switch: SwitchServer, memory_ports: list[MemoryPort], stack: ExitStack) -> None:
    ports = memory_ports
    primary = client(stack, switch).become_primary()
    lldp = bytes(12) + b"\x88\xcc" + b"hello"
    ports[3].inject(lldp)
    packet = primary.next().packet
    assert packet.payload == lldp
    assert [(m.metadata_id, m.value) for m in packet.metadata] == [(1, b"\x03"), (2, b"\x01")]
    primary.send(packet_out(b"\0\x01", bytes(20)))
    await_that(lambda: switch.dataplane.ports()[1]["sent"] == 1)
    assert [port.pop_sent() for port in ports] == [[], [bytes(20)], [], []]
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


def test_calls_that_are_reset_at_once_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP/2 rapid reset while all threads are taken: what waits for one is bounded."""
    proceed, handled = threading.Event(), threading.Semaphore(0)

    def wait(*_: object) -> Iterator[object]:
        handled.release()
        proceed.wait()
        yield from ()

    monkeypatch.setattr(P4RuntimeService, "StreamChannel", wait)
    with SwitchServer(device_id=1) as switch, Controller(switch.grpc_address) as controller:
        reset_calls(switch.grpc_address, "/p4.v1.P4Runtime/StreamChannel", 4000)
        proceed.set()
        # Answered by the same threads, so after all calls that waited for one.
        assert controller.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version
    assert 1 <= handled._value <= 2 * STREAMS_MAX
