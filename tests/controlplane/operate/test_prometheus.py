# SPDX-License-Identifier: Apache-2.0
"""The metrics in a Prometheus: it finds nothing wrong with them, and answers all questions of the Grafana dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import ClusterController
from hopsum_controlplane.errors import SessionLostError
from hopsum_controlplane.prometheus_metrics import expose
from hopsum_controlplane.web import WebServer
from hopsum_ptf.fake_device import FakeDevice
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess
from hopsum_wire import Drop, Event
from hopsum_wire.watch.heartbeat import NAMES

from ...support.pages import blocks
from ..cluster.world import Cluster, Worker, switch_config

pytestmark = pytest.mark.system
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
DOCS = Path(__file__).resolve().parents[3] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "hopsum.json").read_text())
ANSWER_S, TICK_S = 120.0, 0.1
(CONFIG,) = blocks("operating", "See what happens", "yaml")
OFTEN = "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"


class World:
    """A cluster in which whatever the dashboard shows goes on: jobs, drops, conditions, refusals, repairs."""

    def __init__(self, folder: Path) -> None:
        networks = {1: "10.0.0.0/16"}
        self.healthy, self.broken = FakeDevice(), FakeDevice()
        configured = switch_config(1, networks), switch_config(2, networks)
        self.cluster = Cluster(folder, configured, {"s1": self.healthy, "s2": self.broken})
        self.cluster.start()
        self.crew: list[Worker] = self.cluster.run("train", 2, switch="s1")
        self.cluster.make("next", 2, switch="s1")
        self._beats = 0

    @property
    def controller(self) -> ClusterController:
        return self.cluster.controller

    def go_on(self) -> None:
        self._beats += 1
        for worker in self.crew:
            worker.beat(**dict.fromkeys(NAMES, float(self._beats)))
        self.healthy.counters["job_events"] = {Event.ADDED: self._beats}
        self.healthy.counters["drops"] = {Drop.SIMULATED: self._beats}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    made.go_on()

    def fail(*_: object) -> None:
        raise SessionLostError("nobody answers")

    monkeypatch.setattr(made.broken, "read_counter", fail)
    yield made
    made.cluster.stop()


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH")
def test_promtool_has_no_complaint(world: World) -> None:
    text = expose(world.controller)
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH")
def test_every_question_of_the_dashboard_has_an_answer(world: World, tmp_path: Path) -> None:
    at = f"127.0.0.1:{free_port()}"
    with WebServer(world.controller, "127.0.0.1:0", fresh_s=0) as server:
        config = tmp_path / "prometheus.yml"
        config.write_text(OFTEN + CONFIG.replace("127.0.0.1:4701", server.address))
        options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={at}"]
        prometheus = ManagedProcess([str(PROMETHEUS), *options], tmp_path / "prometheus.log")
        try:
            prometheus.wait_for(lambda: "ready to receive" in prometheus.log_text(), "readiness", ANSWER_S)
            for panel in DASHBOARD["panels"]:
                for target in panel["targets"]:
                    expression = in_words_of_prometheus(target["expr"])
                    found = until(lambda expression=expression: ask(at, "query", query=expression)["result"], world)
                    for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                        assert all(each["metric"].get(label) for each in found), (panel["title"], found)
            for variable in DASHBOARD["templating"]["list"][1:]:
                metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"])[0]
                assert ask(at, f"label/{label}/values", **{"match[]": metric})
            (error,) = ask(at, "query", query=in_words_of_prometheus(panel_titled("NMSE")))["result"][:1]
            assert float(error["value"][1]) == pytest.approx(1.0), "both counts grow alike here"
        finally:
            prometheus.stop()


def in_words_of_prometheus(expression: str) -> str:
    """Put in what Grafana puts in."""
    return expression.replace("$__rate_interval", "4s").replace("$switch", ".*").replace("$job", ".*")


def panel_titled(words: str) -> str:
    (found,) = [panel for panel in DASHBOARD["panels"] if words in panel["title"]]
    return str(found["targets"][0]["expr"])


def ask(at: str, what: str, **arguments: str) -> Any:
    url = f"http://{at}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=ANSWER_S) as response:
        answer = json.load(response)
    assert answer["status"] == "success", (arguments, answer)
    return answer["data"]


def until(condition: Callable[[], Any], world: World) -> Any:
    give_up_s = time.monotonic() + ANSWER_S
    while not (found := condition()):
        assert time.monotonic() < give_up_s
        world.go_on()
        time.sleep(TICK_S)
    return found
