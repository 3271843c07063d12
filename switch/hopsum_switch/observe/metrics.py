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
  hopsum_switch_table_entries{table}

At /healthz and /readyz: 200 and `ok`, or 503 and the reason. The switch is healthy while the packet loop runs. It is
ready under the same condition, since a controller can push the program then.

The program's own counters, which may have the frames that it drops, are read over P4Runtime, or by
`hopsum switch-ctl snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hopsum_base.web_server import HttpAnswer, ReadOnlyServer, health_answer

from ..engine import Engine
from ..ports.dataplane import Dataplane
from ..program.ir import INDEX_OUT_OF_RANGE

PATH = "/metrics"
HEALTH_PATHS = ("/healthz", "/readyz")
# The time in which the packet loop has to come by for the switch to be healthy.
ANSWER_S = 2.0
_encode, CONTENT_TYPE = choose_encoder("")


class MetricsError(Exception):
    """Metrics cannot be served. The message says what to change."""


def render_metrics(dataplane: Dataplane) -> bytes:
    """Read a data plane's metrics now, and return them as text of type CONTENT_TYPE in bytes. Takes the gate."""
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
        yield _family(f"hopsum_switch_{name}", "counter", text, [({}, value)])


def _port_families(ports: Mapping[int, Mapping[str, Any]], dropped: Mapping[str, int]) -> Iterator[Metric]:
    for unit, suffix in (("frames", ""), ("bytes", "_bytes")):
        samples = [
            ({"port": str(number), "direction": direction}, port[direction + suffix])
            for number, port in ports.items()
            for direction in ("received", "sent")
        ]
        yield _family(f"hopsum_switch_port_{unit}_total", "counter", f"{unit.capitalize()} through a port.", samples)
    by_port = {"none": dropped, **{str(number): port["dropped"] for number, port in ports.items()}}
    drops = [
        ({"port": port, "reason": reason}, count)
        for port, reasons in by_port.items()
        for reason, count in reasons.items()
    ]
    yield _family("hopsum_switch_dropped_frames_total", "counter", "Frames dropped outside of the program.", drops)


def _engine_families(engine: Engine) -> Iterator[Metric]:
    info = ({"backend": engine.backend, "program": engine.program.name}, 1)
    yield _family("hopsum_switch_info", "gauge", "What runs.", [info])
    tables = [({"table": name}, len(table)) for name, table in engine.tables.items()]
    yield _family("hopsum_switch_table_entries", "gauge", "Entries of a table.", tables)


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    """Return all values of one name, each with its labels. Names of counters end in `_total`."""
    # OpenMetrics names the family of a counter without `_total`, and its samples with it.
    family = Metric(name.removesuffix("_total"), text, kind)
    for labels, value in samples:
        family.add_sample(name, labels, value)
    return family


class MetricsServer(ReadOnlyServer):
    """HTTP server of the metrics and the health of a data plane. `close`, or the context manager, stops it."""

    def __init__(self, dataplane: Dataplane, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen and serve. Port 0: any free one. Raises MetricsError: the address is in use or not of this machine."""

        def why_not_healthy() -> str:
            return (
                "" if dataplane.responds_within(ANSWER_S) else f"the packet loop did not come by within {ANSWER_S:g} s"
            )

        health = health_answer(why_not_healthy)
        answers = {
            PATH: HttpAnswer(CONTENT_TYPE, lambda: render_metrics(dataplane)),
            **dict.fromkeys(HEALTH_PATHS, health),
        }
        try:
            super().__init__((host, port), lambda environ: answers.get(environ["PATH_INFO"]), f"metrics are at {PATH}")
        except (OSError, OverflowError) as error:
            raise MetricsError(f"cannot serve metrics on {host}:{port}: {error}; choose another HOST:PORT") from error
        self.url = f"http://{host}:{self.port}{PATH}"
