# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus gets them, and the address of a switch that is not told one."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_cli.shell import build_parser
from hopsum_switch import management_command
from hopsum_switch.grpc_address import ServerError, default_address
from hopsum_switch.observe.metrics import MetricsError, MetricsServer, render_metrics
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.unix import open_peer
from hopsum_switch.server import SwitchServer

from ...support.printed import Values, parse_metrics
from ...support.processes import await_that
from .controller import CPU_PORT, DEADLINE_S, INSERT, Controller, l2
from .switch_process import LOADED, SWITCH, started

pytestmark = pytest.mark.system


def scrape(url: str) -> Values:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse_metrics(response.read().decode())


@pytest.mark.parametrize("backend", ["interpreter", "native"])
def test_a_scrape_shows_what_went_through(tmp_path: Path, backend: str) -> None:
    path = str(tmp_path / "p1")
    arguments = ["--unix", f"1={path}", "--cpu-port", str(CPU_PORT), "--backend", backend]
    with started(*LOADED, "--metrics", "0", *arguments) as (_, grpc_address, url):
        with Controller(grpc_address, 0) as controller:
            controller.become_primary().write(l2(INSERT, b"\x05", "forward", b"\x02"), l2(INSERT, b"\x06"))
        with open_peer(path) as peer:
            for destination in (b"\x05", b"\x07", b"\x07"):  # to port 2, which is not bound; dropped; dropped
                peer.send(bytes(5) + destination + bytes(48))
            await_that(lambda: scrape(url)["hopsum_switch_packets_processed_total"] == 3)
        values = scrape(url)
    prefix = "hopsum_switch_"
    assert values[prefix + f'info{{backend="{backend}",program="station.p4"}}'] == 1
    assert values[prefix + 'port_frames_total{direction="received",port="1"}'] == 3
    assert values[prefix + 'port_bytes_total{direction="received",port="1"}'] == 162
    assert values[prefix + 'port_frames_total{direction="sent",port="1"}'] == 0
    assert values[prefix + f'port_bytes_total{{direction="sent",port="{CPU_PORT}"}}'] == 0
    assert values[prefix + 'dropped_frames_total{port="none",reason="no_such_port"}'] == 1
    assert values[prefix + "engine_errors_total"] == 0
    assert values[prefix + "busy_seconds_total"] > 0
    assert values[prefix + 'table_entries{table="StationIngress.l2"}'] == 2
    assert values[prefix + 'table_entries{table="StationIngress.routes"}'] == 0


def test_a_switch_without_a_program_shows_its_ports(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    with started("--metrics", "0", "--unix", f"1={path}") as (_, _, url):
        with open_peer(path) as peer:
            peer.send(bytes(60))
            await_that(lambda: 'hopsum_switch_dropped_frames_total{port="none",reason="no_pipeline"}' in scrape(url))
        assert not any("info" in name for name in scrape(url))
        for path in ("healthz", "readyz"):
            with urllib.request.urlopen(url.replace("metrics", path), timeout=DEADLINE_S) as answer:
                assert answer.read() == b"ok\n"


def test_engine_errors_are_counted(switch: SwitchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    assert switch.dataplane.engine is not None
    monkeypatch.setattr(switch.dataplane.engine, "process", fail)
    switch.dataplane.inject(1, bytes(60))
    values = parse_metrics(render_metrics(switch.dataplane).decode())
    assert values["hopsum_switch_engine_errors_total"] == 1


@pytest.fixture
def dataplane() -> Iterator[Dataplane]:
    dataplane = Dataplane()
    yield dataplane
    dataplane.close()


def status(url: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, timeout=DEADLINE_S)
    with caught.value as error:
        return error.code, error.read().decode().rstrip()


def test_other_paths_say_where_the_metrics_are(dataplane: Dataplane) -> None:
    with MetricsServer(dataplane) as server:
        assert "hopsum_switch_packets_processed_total" in scrape(server.url + "?name=x")
        assert status(server.url.removesuffix("/metrics")) == (404, "metrics are at /metrics")


def test_a_failure_to_collect_is_a_500_and_not_the_end(dataplane: Dataplane, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsServer(dataplane) as server:
        with monkeypatch.context() as broken:
            broken.setattr(dataplane, "stats", lambda: {})
            assert status(server.url) == (500, "the log of this process has the reason")
        assert scrape(server.url)["hopsum_switch_packets_processed_total"] == 0


def request(server: MetricsServer, host: str) -> str:
    """Return the status line of a scrape with this Host header."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as client:
        client.sendall(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        return client.makefile().readline().rstrip()


def test_on_loopback_no_other_name_is_answered(dataplane: Dataplane) -> None:
    with MetricsServer(dataplane) as server:
        for host in ("localhost", "127.0.0.1", f"127.0.0.1:{server.port}", f"localhost:{server.port}", "[::1]:9100"):
            assert request(server, host).endswith("200 OK")
        for host in ("rebound.example", "127.evil.example", f"rebound.example:{server.port}", "[::2]", ""):
            assert " 421 " in request(server, host)
    with MetricsServer(dataplane, "0.0.0.0") as server:
        assert request(server, "switch-7.example").endswith("200 OK")


def test_a_taken_address_is_named(dataplane: Dataplane) -> None:
    with (
        MetricsServer(dataplane) as server,
        pytest.raises(MetricsError, match=rf"cannot serve metrics on 127\.0\.0\.1:{server.port}: .* in use"),
    ):
        MetricsServer(dataplane, port=server.port)
    with pytest.raises(MetricsError, match="cannot serve metrics on no-such-host"):
        MetricsServer(dataplane, "no-such-host.invalid")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def refused(*arguments: str) -> str:
    """Return what a switch says that cannot start."""
    done = subprocess.run([*SWITCH, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_it_is_a_socket_for_its_user_alone_and_its_tools_find_it(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("--udp", "7=127.0.0.1:0", command=SWITCH) as (process, address, _):
        path = runtime / f"hopsum-{os.getuid()}" / "switch.sock"
        assert address == default_address() == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert management_command.main(["ports"]) == 0
        assert list(json.loads(capsys.readouterr().out)) == ["7"]
        assert build_parser().parse_args([]).address == address
        with Controller(address, device_id=0) as controller:
            controller.become_primary()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert not path.exists()


def test_without_a_runtime_folder_it_is_under_the_one_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/somewhere")
    assert default_address() == f"unix:/somewhere/hopsum-{os.getuid()}/switch.sock"


@pytest.mark.parametrize("given", [False, True])
def test_a_second_switch_says_what_to_give_it_and_the_first_one_continues(runtime: Path, given: bool) -> None:
    arguments = ["--grpc", f"unix:{runtime / 'mine'}"] if given else []
    with started(*arguments, command=SWITCH) as (_, address, _):
        message = refused(*arguments)
        assert f"cannot listen on {address}: another switch listens there" in message
        assert "--grpc unix:PATH or --grpc HOST:PORT" in message
        with Controller(address, device_id=0) as controller:
            controller.become_primary()
        with started() as (_, other, _):
            assert other.startswith("127.0.0.1:")


def test_of_two_that_start_at_once_one_starts(runtime: Path) -> None:
    pair = [subprocess.Popen(SWITCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        lines = []
        for process in pair:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        assert sorted(line.partition(" ")[0] for line in lines) == ["", "ready"]
        for process in pair:
            process.terminate()
        errors = [process.communicate(timeout=DEADLINE_S)[1] for process in pair]
        assert sorted("another switch listens there" in text for text in errors) == [False, True]
    finally:
        for process in pair:
            process.kill()
            process.wait()


def test_what_a_killed_switch_left_is_taken_over(runtime: Path) -> None:
    with started(command=SWITCH) as (process, address, _):
        process.kill()
        process.wait(DEADLINE_S)
        assert Path(address.removeprefix("unix:")).exists()
    with started(command=SWITCH) as (_, again, _):
        assert again == address


def test_a_folder_that_is_open_to_others_is_refused(runtime: Path) -> None:
    folder = runtime / f"hopsum-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ServerError, match=r"open to others.*--grpc unix:PATH"), SwitchServer(default_address()):
        pass
    folder.rmdir()
    folder.symlink_to("/")
    with pytest.raises(ServerError, match=r"cannot make the folder.*--grpc unix:PATH"), SwitchServer(default_address()):
        pass


def test_a_path_that_was_given_is_for_its_user_alone_too(tmp_path: Path) -> None:
    with SwitchServer(f"unix:{tmp_path / 'socket'}"):
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ServerError, match="cannot listen on"), SwitchServer(f"unix:{tmp_path / 'file'}"):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_socket_whose_queue_is_full_is_somebodys(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(0)
        waiting.connect(str(tmp_path / "socket"))
        with pytest.raises(ServerError, match="another switch"), SwitchServer(f"unix:{tmp_path / 'socket'}"):
            pass
