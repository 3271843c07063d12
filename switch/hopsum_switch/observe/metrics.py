# SPDX-License-Identifier: Apache-2.0
"""Metrics of a running switch for Prometheus, over HTTP at /metrics::

  hopsum_switch_info{backend, program}                        1 while a program is loaded
  hopsum_switch_packets_processed_total                       frames that entered the engine
  hopsum_switch_busy_seconds_total                            time in the engine and in sending
  hopsum_switch_index_out_of_range_total                      accesses outside a register, counter or meter array
  hopsum_switch_engine_errors_total                           frames lost because the engine failed
  hopsum_switch_port_frames_total{port, direction}            direction: received or sent
  hopsum_switch_port_bytes_total{port, direction}             whole frames, Ethernet included
  hopsum_switch_dropped_frames_total{port, reason}            port "none": frames that no port can be charged with
  hopsum_switch_p4_counter_packets_total{counter, index}      cells of the program's indexed counters
  hopsum_switch_p4_counter_bytes_total{counter, index}
  hopsum_switch_p4_counter_cells{counter}                     size of the counter (cells from 256 on are not shown)
  hopsum_switch_table_entries{table}

At /healthz and /readyz: 200 and `ok`, or 503 and the reason. The switch is healthy while the packet loop runs. It is
ready under the same condition, since a controller can push the program then.

The frames that the program itself drops are in the program's own counters, if it has any. A scrape delays packets
while the counters are copied.

On loopback only requests for 127.0.0.1, ::1 or localhost are answered: a web page whose own name resolves
to this address reads nothing. A client has 10 s. The server has at most 16 clients and disconnects the oldest one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..engine import Engine
from ..ports.dataplane import Dataplane
from ..program.ir import INDEX_OUT_OF_RANGE

_log = logging.getLogger("hopsum_switch.metrics")

PATH = "/metrics"
HEALTH_PATHS = ("/healthz", "/readyz")
# The time in which the packet loop has to come by for the switch to be healthy.
ANSWER_S = 2.0
# Of one counter: every cell is a time series that Prometheus stores.
MAX_CELLS = 256
# Each client has a thread. A client that sends nothing must not keep others out.
MAX_CLIENTS = 16
CLIENT_S = 10.0
_encode, CONTENT_TYPE = choose_encoder("")


class MetricsError(Exception):
    """Metrics cannot be served. The message says what to change."""


class Sample(NamedTuple):
    """One value with the labels that distinguish it in its family."""

    labels: Mapping[str, str]
    value: float


def expose(dataplane: Dataplane) -> bytes:
    """Return the body of a scrape, of CONTENT_TYPE."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(dataplane))
    return _encode(registry)


class _Collector(Collector):
    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane

    def collect(self) -> list[Metric]:
        """Return all metrics at about this moment."""
        stats = self._dataplane.stats()
        families = [*_switch_families(stats), *_port_families(self._dataplane.ports(), stats["dropped"])]
        # Ports and counts were read before, so these values are of about the same moment, not of one.
        with self._dataplane.gate.control():
            engine = self._dataplane.engine
            if isinstance(engine, Engine):
                families += _engine_families(engine)
        return families


def _switch_families(stats: Mapping[str, Any]) -> Iterator[Metric]:
    single = (
        ("packets_processed_total", "Frames that entered the engine.", stats["packets"]),
        ("busy_seconds_total", "Time spent in the engine and in sending.", stats["busy_s"]),
        (
            "index_out_of_range_total",
            "Accesses with an index outside a register, counter or meter array.",
            stats["faults"].get(INDEX_OUT_OF_RANGE, 0),
        ),
        ("engine_errors_total", "Frames lost because the engine failed.", stats["dropped"].get("engine_error", 0)),
    )
    for name, text, value in single:
        yield _family(f"hopsum_switch_{name}", "counter", text, [Sample({}, value)])


def _port_families(ports: Mapping[int, Mapping[str, Any]], dropped: Mapping[str, int]) -> Iterator[Metric]:
    for unit, suffix in (("frames", ""), ("bytes", "_bytes")):
        samples = [
            Sample({"port": str(number), "direction": direction}, port[direction + suffix])
            for number, port in ports.items()
            for direction in ("received", "sent")
        ]
        yield _family(f"hopsum_switch_port_{unit}_total", "counter", f"{unit.capitalize()} through a port.", samples)
    by_port = {"none": dropped, **{str(number): port["dropped"] for number, port in ports.items()}}
    drops = [
        Sample({"port": port, "reason": reason}, count)
        for port, reasons in by_port.items()
        for reason, count in reasons.items()
    ]
    yield _family("hopsum_switch_dropped_frames_total", "counter", "Frames dropped outside of the program.", drops)


def _engine_families(engine: Engine) -> Iterator[Metric]:
    info = Sample({"backend": engine.backend, "program": engine.program.name}, 1)
    yield _family("hopsum_switch_info", "gauge", "What runs.", [info])
    tables = [Sample({"table": name}, len(table)) for name, table in engine.tables.items()]
    yield _family("hopsum_switch_table_entries", "gauge", "Entries of a table.", tables)
    indexed = [counter for counter in engine.program.counters.values() if counter.table is None]
    sizes = [Sample({"counter": counter.name}, counter.size) for counter in indexed]
    yield _family("hopsum_switch_p4_counter_cells", "gauge", "Size of an indexed counter.", sizes)
    for unit in ("packets", "bytes"):
        cells = [
            Sample({"counter": counter.name, "index": str(index)}, value)
            for counter in indexed
            for index, value in enumerate(getattr(engine.counters.cells(counter.name), unit)[:MAX_CELLS])
        ]
        yield _family(f"hopsum_switch_p4_counter_{unit}_total", "counter", f"{unit.capitalize()} counted.", cells)


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Metric:
    """Return all values of one name. Names of counters end in `_total`."""
    # OpenMetrics names the family of a counter without `_total`, and its samples with it.
    family = Metric(name.removesuffix("_total"), text, kind)
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


class MetricsServer:
    """Server of the metrics of a data plane, in threads of its own. The context manager stops it."""

    def __init__(self, dataplane: Dataplane, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. With port 0 the kernel selects one. Raises MetricsError where the address is in use or not local."""
        try:
            self._server = _Server((host, port), dataplane)
        except (OSError, OverflowError) as error:
            raise MetricsError(f"cannot serve metrics on {host}:{port}: {error}; choose another HOST:PORT") from error
        self.port = int(self._server.server_address[1])
        self.url = f"http://{host}:{self.port}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server and end its thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], dataplane: Dataplane) -> None:
        self.dataplane = dataplane
        self._clients: dict[Any, float] = {}  # socket -> until when; the oldest first
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        self.local_only = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, in place of the oldest client where there are too many."""
        with self._lock:
            self._clients[request] = time.monotonic() + CLIENT_S
            self._cut_off(list(self._clients)[:-MAX_CLIENTS])
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Disconnect the clients whose time is over. Called twice a second."""
        now = time.monotonic()
        with self._lock:
            self._cut_off([client for client, until in self._clients.items() if until < now])

    def shutdown_request(self, request: Any) -> None:
        """Forget a client and close its connection."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def _cut_off(self, clients: list[Any]) -> None:
        """Shut these clients' sockets down, so that their threads end. The caller holds the lock."""
        for client in clients:
            del self._clients[client]
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a client that went away out of the log's errors."""
        _log.debug("a scrape by %s broke off", client_address, exc_info=True)


def _is_local(host: str) -> bool:
    """Return whether a Host header names this machine's loopback, with a port or without."""
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer one request for metrics or health."""
        if self.server.local_only and not _is_local(self.headers.get("Host", "localhost")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this is 127.0.0.1 or localhost, and has no other name")
            return
        path = self.path.partition("?")[0]
        if path in HEALTH_PATHS:
            well = self.server.dataplane.answers(ANSWER_S)
            status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
            told = "ok\n" if well else f"the packet loop did not come by within {ANSWER_S:g} s\n"
            self._send(status, "text/plain; charset=utf-8", told.encode())
            return
        if path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        try:
            body = expose(self.server.dataplane)
        except Exception:
            _log.exception("the metrics cannot be collected")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the switch's log has the reason")
            return
        self._send(HTTPStatus.OK, CONTENT_TYPE, body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the log."""
