# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus gets them: a scrape of a running switch process, and the text format."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopsum_switch.observe.metrics import MAX_CELLS, MAX_CLIENTS, MetricsError, MetricsServer, expose
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.unix import open_peer
from hopsum_switch.server import SwitchServer

from .controller import CPU_PORT, DEADLINE_S, INSERT, Controller, l2, wait_until
from .switch_process import LOADED, started

pytestmark = pytest.mark.system

Values = dict[str, float]


def parse(text: str) -> Values:
    """Return the values by name with labels; fail where the text is not as the format says, or has anything twice."""
    values: Values = {}
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            shown = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            name = sample.name + (f"{{{shown}}}" if shown else "")
            assert name not in values, f"{name} twice"
            values[name] = sample.value
    return values


def scrape(url: str) -> Values:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse(response.read().decode())


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
            wait_until(lambda: scrape(url)["hopsum_switch_packets_processed_total"] == 3)
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
    assert values[prefix + 'p4_counter_packets_total{counter="StationIngress.received",index="1"}'] == 3
    assert values[prefix + 'p4_counter_bytes_total{counter="StationIngress.received",index="1"}'] == 162
    assert values[prefix + 'table_entries{table="StationIngress.l2"}'] == 2
    assert values[prefix + 'table_entries{table="StationIngress.routes"}'] == 0


def test_a_switch_without_a_program_shows_its_ports(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    with started("--metrics", "0", "--unix", f"1={path}") as (_, _, url):
        with open_peer(path) as peer:
            peer.send(bytes(60))
            wait_until(lambda: 'hopsum_switch_dropped_frames_total{port="none",reason="no_pipeline"}' in scrape(url))
        assert not any("info" in name or "p4_counter" in name for name in scrape(url))
        for path in ("healthz", "readyz"):
            with urllib.request.urlopen(url.replace("metrics", path), timeout=DEADLINE_S) as answer:
                assert answer.read() == b"ok\n"


def test_large_counters_are_bounded(switch: SwitchServer) -> None:
    values = parse(expose(switch.dataplane).decode())
    cells = [name for name in values if name.startswith("hopsum_switch_p4_counter_packets_total")]
    assert len(cells) == MAX_CELLS
    assert (
        f'hopsum_switch_p4_counter_packets_total{{counter="StationIngress.received",index="{MAX_CELLS - 1}"}}' in cells
    )
    assert values['hopsum_switch_p4_counter_cells{counter="StationIngress.received"}'] == 512


def test_engine_errors_are_counted(switch: SwitchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    assert switch.dataplane.engine is not None
    monkeypatch.setattr(switch.dataplane.engine, "process", fail)
    switch.dataplane.inject(1, bytes(60))
    values = parse(expose(switch.dataplane).decode())
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
        return error.code, error.reason


def test_other_paths_say_where_the_metrics_are(dataplane: Dataplane) -> None:
    with MetricsServer(dataplane) as server:
        assert "hopsum_switch_packets_processed_total" in scrape(server.url + "?name=x")
        assert status(server.url.removesuffix("/metrics")) == (404, "metrics are at /metrics")


def test_a_failure_to_collect_is_a_500_and_not_the_end(dataplane: Dataplane, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsServer(dataplane) as server:
        with monkeypatch.context() as broken:
            broken.setattr(dataplane, "stats", lambda: {})
            assert status(server.url) == (500, "the switch's log has the reason")
        assert scrape(server.url)["hopsum_switch_packets_processed_total"] == 0


def test_a_silent_client_does_not_keep_others_waiting(dataplane: Dataplane) -> None:
    with MetricsServer(dataplane) as server, socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.send(b"GET /met")
        assert scrape(server.url)


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


def test_of_many_clients_the_oldest_is_cut_off(dataplane: Dataplane) -> None:
    with MetricsServer(dataplane) as server, ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S))
            for _ in range(3 * MAX_CLIENTS)
        ]
        assert scrape(server.url)
        for client in silent[: 2 * MAX_CLIENTS]:
            assert client.recv(1) == b"", "it was closed"
        wait_until(lambda: sum("process_request" in thread.name for thread in threading.enumerate()) <= MAX_CLIENTS)


def test_a_client_that_sends_a_byte_now_and_then_has_its_time(
    dataplane: Dataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopsum_switch.observe.metrics.CLIENT_S", 0.2)
    with (
        MetricsServer(dataplane) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=0.05) as client,
    ):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                client.send(b"G")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was served for ever")


def test_a_taken_address_is_named(dataplane: Dataplane) -> None:
    with (
        MetricsServer(dataplane) as server,
        pytest.raises(MetricsError, match=rf"cannot serve metrics on 127\.0\.0\.1:{server.port}: .* in use"),
    ):
        MetricsServer(dataplane, port=server.port)
    with pytest.raises(MetricsError, match="cannot serve metrics on no-such-host"):
        MetricsServer(dataplane, "no-such-host.invalid")
