# SPDX-License-Identifier: Apache-2.0
"""Ports and statistics over the management RPC, and `hopsum switch-ctl` on a switch in this process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from hopsum_switch import management_command
from hopsum_switch.management import SERVICE, ManagementClient, ManagementError
from hopsum_switch.ports.unix import UnixPort, open_peer
from hopsum_switch.server import SwitchServer

from ...support.processes import await_that
from .controller import DEADLINE_S


@pytest.fixture
def client(switch: SwitchServer) -> Iterator[ManagementClient]:
    with ManagementClient(switch.grpc_address, timeout_s=DEADLINE_S) as client:
        yield client


def test_ports_are_bound_and_listed(client: ManagementClient) -> None:
    address = client.bind_udp(10, "127.0.0.1:0", "10.0.0.1:24677")
    ports = client.list_ports()
    assert sorted(ports) == [0, 1, 2, 3, 10, 510]
    assert (ports[10]["kind"], ports[10]["address"], ports[10]["as"]) == ("udp", address, "10.0.0.1:24677")


def test_counters_show_what_went_through(client: ManagementClient, switch: SwitchServer, tmp_path: Path) -> None:
    path = str(tmp_path / "p12")
    switch.dataplane.bind(12, UnixPort.bind(path))
    host, _, port = client.bind_udp(10, "127.0.0.1:0").rpartition(":")
    before = client.stats()
    with open_peer(path) as peer, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        peer.settimeout(DEADLINE_S)
        udp.sendto(b"to nowhere", (host, int(port)))
        peer.send(b"\xff" * 12 + b"\x88\xcc")  # a packet-in that nobody is there to take
        await_that(lambda: client.stats()["packets"] >= before["packets"] + 2)
    ports = client.list_ports()
    assert (ports[10]["received"], ports[10]["received_bytes"], ports[12]["received"]) == (1, 52, 1)
    assert ports[510]["dropped"] == {"no_primary": 1}
    assert client.stats()["uptime_s"] >= before["uptime_s"] >= 0
    assert client.stats()["busy_s"] > 0


def test_refusals_carry_the_message(client: ManagementClient) -> None:
    with pytest.raises(ManagementError, match="port 1 is already bound"):
        client.bind_udp(1, "127.0.0.1:0")
    with pytest.raises(ManagementError, match="add as="):
        client.bind_udp(10, "0.0.0.0:0")
    with pytest.raises(ManagementError, match="not HOST:PORT"):
        client.bind_udp(10, "nonsense")
    with pytest.raises(ManagementError, match="511 does not exist"):
        client.bind_udp(511, "127.0.0.1:0")
    assert sorted(client.list_ports()) == [0, 1, 2, 3, 510]


def test_a_silent_switch_is_an_error_not_a_hang() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with (
            ManagementClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.1) as client,
            pytest.raises(ManagementError, match="Stats"),
        ):
            client.stats()


@pytest.mark.parametrize(
    ("method", "request_bytes"),
    [
        ("Stats", b"{"),
        ("Stats", b"[]"),
        ("Stats", b'{"port": 1}'),
        ("Stats", b"\xff"),
        ("Stats", b"[" * 100_000),
        ("BindUdp", b"{}"),
        ("BindUdp", b'{"port": true, "address": "127.0.0.1:0"}'),
        ("BindUdp", b'{"port": "1", "address": "127.0.0.1:0"}'),
        ("BindUdp", b'{"port": 1, "address": 7}'),
        ("BindUdp", b'{"port": 1, "address": "127.0.0.1:0", "ass": "10.0.0.1:1"}'),
        ("Snapshot", b'{"names": "all"}'),
        ("Snapshot", b'{"names": [7]}'),
        ("Snapshot", b'{"names": ["nothing"]}'),
    ],
)
def test_bad_requests_are_named_so(switch: SwitchServer, method: str, request_bytes: bytes) -> None:
    with grpc.insecure_channel(switch.grpc_address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as caught:
            call(request_bytes, timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


FRAME = bytes(11) + b"\x07\x12\x34" + bytes(46)
REGISTER, COUNTER = "StationIngress.last_source", "StationIngress.received"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(switch: SwitchServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = management_command.main(["--grpc", switch.grpc_address, *arguments])
        return status, *capsys.readouterr()

    return run


def test_ports_and_stats_are_shown(run: Run, switch: SwitchServer) -> None:
    switch.dataplane.inject(2, FRAME)
    status, out, _ = run("ports")
    assert (status, json.loads(out)["2"]["received"]) == (0, 1)
    status, out, _ = run("stats")
    assert (status, json.loads(out)["packets"]) == (0, 1)


def test_parts_are_taken(run: Run, switch: SwitchServer) -> None:
    switch.dataplane.inject(2, FRAME)
    status, out, _ = run("snapshot", "--name", REGISTER)
    assert status == 0
    shown = json.loads(out)
    assert not shown["counters"]
    assert shown["registers"][REGISTER]["values"][:4] == ["0x0", "0x0", "0x7", "0x0"]


def test_refusals_and_silence_have_a_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, errors = run("snapshot", "--name", "nothing")
    assert (status, out) == (2, "")
    assert "no register or counter 'nothing'" in errors
    monkeypatch.setattr(management_command, "_TIMEOUT_S", 0.1)
    status, _, errors = run("--grpc", "127.0.0.1:1", "stats")
    assert status == 2
    assert "hopsum switch-ctl: error: Stats:" in errors


def test_a_switch_without_a_program_has_no_state(empty_switch: SwitchServer) -> None:
    with (
        ManagementClient(empty_switch.grpc_address, timeout_s=DEADLINE_S) as client,
        pytest.raises(ManagementError, match="no program is loaded"),
    ):
        client.snapshot()


def test_snapshots_fall_between_packets(switch: SwitchServer) -> None:
    """A packet writes its register before another thread may look, or not at all: both sides agree always."""
    stop = threading.Event()

    def traffic() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            switch.dataplane.inject(3, bytes(6) + number.to_bytes(6, "big") + bytes(48))

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        with ManagementClient(switch.grpc_address, timeout_s=DEADLINE_S) as client:
            seen: list[int] = []
            while len(seen) < 20 or seen[-1] == seen[0]:  # the traffic's thread may have to wait for a processor
                assert thread.is_alive(), "an exception in it would leave this loop without an end"
                taken = client.snapshot([REGISTER, COUNTER])
                seen.append(taken["counters"][COUNTER]["packets"][3])
                assert taken["registers"][REGISTER]["values"][3] == hex(seen[-1])
    finally:
        stop.set()
        thread.join()
    assert seen == sorted(seen)
