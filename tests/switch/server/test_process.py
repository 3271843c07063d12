# SPDX-License-Identifier: Apache-2.0
"""The switch as a process: command line, the ready line, signals, its end, dead clients, and frames that go round."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2

from hopsum_switch.cli import main, parse_interface_port, parse_metrics_address, parse_udp_port, parse_unix_port
from hopsum_switch.management import ManagementClient
from hopsum_switch.native.loop_code import LOOP_CODE
from hopsum_switch.p4runtime.service import MAX_STREAMS
from hopsum_switch.ports.port import PortError
from hopsum_switch.ports.udp import UdpAddress
from hopsum_switch.ports.unix import open_peer
from hopsum_switch.server import SwitchServer

from ...support.processes import await_that
from ...system.drills.silent_proxy import SilentProxy
from ..core.builder import assign, build, field, hexstr, primitive
from .controller import CPU_PORT, DEADLINE_S, INSERT, P4INFO, PROGRAM, Controller, l2
from .switch_process import COMMAND, LOADED, SWITCH, address_in, started

pytestmark = pytest.mark.system


def test_it_serves_what_it_was_told_and_ends_on_sigterm(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"p{number}") for number in (1, 2)]
    arguments = ["--device-id", "42", "--cpu-port", str(CPU_PORT), "--udp", "7=127.0.0.1:0,as=10.0.0.1:24677"]
    for number, path in enumerate(paths, 1):
        arguments += ["--unix", f"{number}={path}"]
    with started(*LOADED, *arguments) as (process, address, _):
        assert process.stdout is not None
        assert re.fullmatch(r"udp 7=127\.0\.0\.1:\d+\n", process.stdout.readline()), "the port that was found"
        with Controller(address, 42) as controller, ManagementClient(address) as management:
            controller.become_primary().write(l2(INSERT, b"\x05", "forward", b"\x02"))
            kinds = {number: port["kind"] for number, port in management.list_ports().items()}
            assert kinds == {1: "unix", 2: "unix", 7: "udp", CPU_PORT: "cpu"}
            assert management.list_ports()[7]["as"] == "10.0.0.1:24677"
        with open_peer(paths[0]) as first, open_peer(paths[1]) as second:
            second.settimeout(DEADLINE_S)
            frame = bytes(5) + b"\x05" + bytes(8)
            first.send(frame)
            assert second.recv(100) == frame
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out, errors) == (0, "", "")
    assert sorted(os.listdir(tmp_path)) == ["p1.peer", "p2.peer"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_open_streams_and_without_a_program(number: signal.Signals) -> None:
    with started() as (process, address, _), Controller(address, device_id=0) as controller:
        controller.become_primary()
        assert not controller.get_pipeline().HasField("config")
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
        controller.stream_end()


def test_a_signal_that_another_thread_takes_ends_it() -> None:
    """The packet loop sleeps meanwhile, as it may at the moment when a signal comes."""
    with started() as (process, _, _):
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task") if int(name) != process.pid]
        assert ctypes.CDLL(None).tgkill(process.pid, threads[-1], signal.SIGTERM) == 0
        assert process.wait(DEADLINE_S) == 0


def test_what_a_stranger_says_in_http2_reaches_no_log() -> None:
    words = b"\x1b]0;title\x07\nhopsum_switch: a forged line"

    def frame(kind: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + bytes((kind, 0, 0, 0, 0, 0)) + payload

    with started() as (process, address, _):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
            goaway = frame(7, struct.pack(">II", 0, 2) + words)
            stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"") + goaway)
            while stranger.recv(4096):
                pass
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out, errors) == (0, "", "")


def test_requests_that_do_not_parse_keep_nothing_and_hold_nobody() -> None:
    """gRPC's own server keeps such a call for good, and waits for it at its end, if its parser may fail."""
    with started() as (process, address, _), grpc.insecure_channel(address) as channel:

        def ask(call: Callable[..., Any], count: int) -> None:
            for _ in range(count):
                with pytest.raises(grpc.RpcError) as refused:
                    list(call(timeout=DEADLINE_S))
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        def resident_kb() -> int:
            return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[0])

        read = partial(channel.unary_stream("/p4.v1.P4Runtime/Read"), b"\xff")
        stream = channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")
        ask(read, 50)
        before_kb = resident_kb()
        ask(read, 500)
        # Kept calls would be 8,500 kB.
        assert resident_kb() - before_kb < 4000
        ask(lambda timeout: stream(iter([b"\xff"]), timeout=timeout), MAX_STREAMS + 4)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert errors.count("\n") == 1, "one line a minute"
        assert "requests that do not parse: 1 since the start, the last one of /p4.v1.P4Runtime/Read" in errors


@pytest.mark.parametrize("by_another_thread", [False, True])
def test_a_signal_ends_its_wait_for_frames_in_machine_code(by_another_thread: bool) -> None:
    """The packet loop holds the gate there, and Python has nothing to do."""
    if LOOP_CODE.wait() is None:
        pytest.skip("the compiled loop needs Linux on 64 bits, numba and llvmlite")
    with started(*LOADED, "--backend", "native", "--udp", "1=127.0.0.1:0") as (process, address, _):
        with ManagementClient(address) as management, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            host, _, port = management.list_ports()[1]["address"].rpartition(":")
            for count in range(1, 10):
                peer.sendto(bytes(100), (host, int(port)))
                await_that(lambda count=count: management.stats()["packets"] == count)
        thread = process.pid
        if by_another_thread:
            thread = max(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))
        ctypes.CDLL(None).tgkill(process.pid, thread, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("target", [[], ["-"], ["file"]], ids=["default", "stderr", "file"])
def test_trace_shows_packets(tmp_path: Path, target: list[str]) -> None:
    paths = [str(tmp_path / name) if name == "file" else name for name in target]
    with started(*LOADED, "--cpu-port", "9", "--udp", "3=127.0.0.1:0", "--trace", *paths) as (process, address, _):
        with ManagementClient(address) as management:
            host, _, port = management.list_ports()[3]["address"].rpartition(":")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                peer.sendto(b"hello", (host, int(port)))
            await_that(lambda: management.stats()["packets"] == 1)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=DEADLINE_S)[1]
    shown = Path(paths[0]).read_text() if target == ["file"] else errors
    assert shown.startswith("packet 1: port 3, 47 bytes")
    assert "020000000003020000000103" in shown


def test_it_compiles_what_it_is_given_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOPSUM_COMPILED", "0")  # so that the program is all that is compiled
    for backend, compiled in (("--backend=interpreter", 0), ("--backend=auto", 1), ("--backend=native", 1)):
        arguments = [] if backend == "--backend=auto" else [backend]
        with started(*LOADED, "--cpu-port", "9", *arguments) as (process, _, _):
            assert len(list(tmp_path.glob("hopsum-switch/*.o"))) == compiled
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=DEADLINE_S) == ("", "")


def test_without_llvmlite_it_interprets_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llvmlite.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with started(*LOADED) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=DEADLINE_S)[1]
    assert "runs in the interpreter: " in errors
    assert "the native back end needs numpy and llvmlite (pip install hopsum[switch]): none here" in errors
    done = subprocess.run(
        [*COMMAND, *LOADED, "--backend", "native"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "the program cannot run here: the native back end needs" in done.stderr


PARENT = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:] + ["--die-with-parent", str(os.getpid())], stdout=subprocess.PIPE, text=True)
print(process.pid, process.stdout.readline(), end="", flush=True)
sys.stdin.read()
"""


def test_it_dies_with_a_killed_parent(tmp_path: Path) -> None:
    path = tmp_path / "p1"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *COMMAND, "--unix", f"1={path}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent:
        pid, _, line = parent.stdout.readline().partition(" ")
        address_in(line)
        child = os.pidfd_open(int(pid))
        try:
            assert path.exists()
            parent.kill()
            assert select.select([child], [], [], DEADLINE_S)[0], "the switch outlived its parent"
        finally:
            os.close(child)
    assert not path.exists(), "it cleaned up"


def test_an_orphan_does_not_start() -> None:
    done = subprocess.run([*COMMAND, "--die-with-parent", "1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "parent process 1 ended before this one was started" in done.stderr


def test_a_taken_grpc_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([*COMMAND, "--grpc", address], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"error: cannot listen on {address}: it is in use" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--program", str(PROGRAM)], "--program and --p4info go together"),
        (["--program", "/nonexistent.json", "--p4info", str(P4INFO)], "there is no file /nonexistent.json"),
        (["--udp", "1:127.0.0.1:5"], "does not start with PORT="),
        (["--udp", "1=localhost:5"], "not a dotted IPv4 address"),
        (["--udp", "1=127.0.0.1:5,at=1.2.3.4:5"], "the options are as=IP:UDPPORT and gso=off"),
        (["--udp", "600=127.0.0.1:5"], "switch port 600 does not exist"),
        (["--unix", "x=/tmp/a"], "'x' is not a switch port number"),
        (["--unix", "1="], "does not start with PORT="),
        (["--seed", "-1"], "'-1' is not a seed: 0..18446744073709551615"),
        (["--seed", str(2**64)], "is not a seed"),
        (["--cpu-port", "511"], "switch port 511 does not exist"),
        (["--backend", "native", "--trace"], "native code reports no events"),
        (["-i", "veth1"], "'veth1' is not PORT@NAME"),
        (["--interface", "1@"], "'1@' is not PORT@NAME"),
        (["--interface", "511@veth1"], "switch port 511 does not exist"),
        (["--metrics", "host:"], "'host:' is not HOST:PORT or PORT"),
        (["--metrics", ":9100"], "':9100' is not HOST:PORT or PORT"),
        (["--metrics", "65536"], "'65536' is not HOST:PORT or PORT"),
    ],
)
def test_usage_errors_say_what_to_give(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--udp", "1=127.0.0.1:0", "--udp", "1=127.0.0.1:0"], "switch port 1 is already bound"),
        (["--udp", "1=0.0.0.0:0"], "add as=IP:UDPPORT"),
        (["--grpc", "localhost"], "cannot listen on localhost"),
        (["--grpc", "203.0.113.7:0"], "cannot listen on 203.0.113.7:0"),
        (["--grpc", "unix:"], "cannot listen on unix:"),
        (["--grpc", "unix:/nonexistent/dir/p"], "cannot listen on unix:/nonexistent/dir/p"),
        (["--unix", "1=/nonexistent/dir/p"], "cannot bind /nonexistent/dir/p: No such file or directory"),
        (["--program", str(P4INFO), "--p4info", str(P4INFO)], "the program cannot run here"),
        (["--program", str(PROGRAM), "--p4info", str(PROGRAM)], "not a P4Info in text format"),
        (["--cpu-port", "1", "--udp", "1=127.0.0.1:0"], "already bound"),
        (["-i", "1@nowhere"], "there is no interface 'nowhere' in this network namespace; there are: "),
        (["--metrics", "203.0.113.7:0"], "cannot serve metrics on 203.0.113.7:0"),
        (["--trace", "/nonexistent/dir/trace"], "No such file or directory: '/nonexistent/dir/trace'"),
    ],
)
def test_errors_at_the_start_say_what_to_change(arguments: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("python -m hopsum_switch: error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_port_arguments_are_read() -> None:
    shown_as = UdpAddress("10.0.0.1", 24677)
    assert parse_udp_port("300=127.0.0.1:5,as=10.0.0.1:24677") == (300, UdpAddress("127.0.0.1", 5), shown_as, True)
    assert parse_udp_port("0=127.0.0.1:0") == (0, UdpAddress("127.0.0.1", 0), None, True)
    assert parse_udp_port("0=127.0.0.1:0,gso=off") == (0, UdpAddress("127.0.0.1", 0), None, False)
    assert parse_unix_port("3=/tmp/a=b,c") == (3, "/tmp/a=b,c")
    assert parse_interface_port("0@veth0@x") == (0, "veth0@x")
    assert parse_metrics_address("9100") == ("127.0.0.1", 9100)
    assert parse_metrics_address("0.0.0.0:0") == ("0.0.0.0", 0)
    with pytest.raises(PortError):
        parse_udp_port("0=127.0.0.1:0,")


@pytest.fixture
def way(empty_switch: SwitchServer) -> Iterator[SilentProxy]:
    with closing(SilentProxy("127.0.0.1", empty_switch.grpc_address)) as way:
        yield way


def test_a_dead_connection_loses_its_mastership(empty_switch: SwitchServer, way: SilentProxy) -> None:
    with Controller(empty_switch.grpc_address) as backup, Controller(way.address) as lost:
        lost.become_primary(7)
        backup.arbitrate(5)
        assert backup.told() == (code_pb2.ALREADY_EXISTS, 7)
        way.kill_connections()
        assert backup.told() == (code_pb2.NOT_FOUND, 7), "nobody is primary"
        backup.become_primary(8)
        lost.channel.close()  # it will hear of nothing by itself


def test_a_client_that_comes_back_gets_its_election_id(empty_switch: SwitchServer, way: SilentProxy) -> None:
    with Controller(way.address) as lost:
        lost.become_primary(7)
        way.kill_connections()

        def is_primary_again() -> bool:
            with Controller(empty_switch.grpc_address) as again:
                again.arbitrate(7)
                try:
                    return again.told() == (code_pb2.OK, 7)
                except AssertionError:  # refused: the id is in use
                    return False

        assert not is_primary_again()
        await_that(is_primary_again)
        lost.channel.close()


ROUND, STRAIGHT = b"\x00" + bytes(59), b"\x01" + bytes(59)


def fill(peer: socket.socket) -> None:
    """Send frames that go round until the switch's queue is full."""
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            peer.send(ROUND)


@pytest.mark.parametrize("backend", ["interpreter", "native"])
def test_frames_that_go_round_for_ever_stop_neither_requests_nor_signals(tmp_path: Path, backend: str) -> None:
    builder = build()
    builder.primitives += [
        primitive("_jump_if_zero", field("h", "a"), hexstr(0)),
        assign(field("standard_metadata", "egress_spec"), hexstr(2)),
    ]
    program, p4info, ports = tmp_path / "loop.json", tmp_path / "loop.p4info.txtpb", [tmp_path / "p1", tmp_path / "p2"]
    program.write_text(builder.text())
    p4info.touch()
    arguments = ["--metrics", "0", "--backend", backend, "--program", str(program), "--p4info", str(p4info)]
    arguments += ["--unix", f"1={ports[0]}", "--unix", f"2={ports[1]}"]
    command = [*SWITCH, "--grpc", f"unix:{tmp_path / 'grpc'}"]
    with (
        started(*arguments, command=command) as (process, address, url),
        ManagementClient(address, timeout_s=DEADLINE_S) as management,
        open_peer(str(ports[0])) as peer,
        open_peer(str(ports[1])) as receiver,
    ):
        for drops in range(1, 6):
            fill(peer)
            await_that(lambda drops=drops: management.stats()["dropped"].get("steps", 0) >= drops)
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
            assert 'dropped_frames_total{port="none",reason="steps"}' in response.read().decode()
        peer.settimeout(DEADLINE_S)
        receiver.settimeout(DEADLINE_S)
        peer.send(STRAIGHT)
        assert receiver.recv(100) == STRAIGHT
        fill(peer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
