# SPDX-License-Identifier: Apache-2.0
"""Alert rules, their tests by promtool, and a Prometheus that scrapes a controller and evaluates them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hopsum_base import __version__
from hopsum_controlplane.web.prometheus_metrics import FAMILIES, PREFIX
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess

from ...support.pages import blocks, type_in
from .test_controller import NOBODY, START_S, start, write_config
from .test_reload import certify, needs_openssl

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "docs" / "prometheus" / "hopsum.rules.yml"
PAGE = (ROOT / "docs" / "failures.md").read_text()
(SCRAPE,) = blocks("operating", "See what happens", "yaml")
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


def alerts() -> dict[str, str]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def test_every_metric_of_the_rules_exists_with_its_labels() -> None:
    known = {PREFIX + name: set(labels) for name, _, _, labels in FAMILIES}
    asked = 0
    for alert, expression in alerts().items():
        for name, labels in re.findall(rf"({PREFIX}\w+)(?:\{{(.*?)\}})?", expression):
            base = re.sub(r"_(sum|count|bucket)$", "", name) if name not in known else name
            assert base in known, (alert, name)
            assert {each.partition("=")[0].strip() for each in labels.split(",") if each} <= known[base], (
                alert,
                labels,
            )
            asked += 1
    assert asked >= 10


def test_the_page_has_every_alert() -> None:
    assert set(re.findall(r"^\| (\w+) \| (?:none|critical|warning) \|", PAGE, re.MULTILINE)) == set(alerts())


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH")
def test_the_commands_on_the_page() -> None:
    (block,) = blocks("failures", "Alarms")
    type_in(ROOT, block)


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH")
@pytest.mark.parametrize("alert", sorted(alerts()))
def test_promtool_notices_when_a_rule_is_gone(alert: str, tmp_path: Path) -> None:
    """The tests of the rules hold each of them."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    document = yaml.safe_load(RULES.read_text())
    (group,) = document["groups"]
    group["rules"] = [rule for rule in group["rules"] if rule["alert"] != alert]
    (tmp_path / RULES.name).write_text(yaml.safe_dump(document))
    shutil.copy(RULES.with_suffix(".test.yml"), tmp_path / "tests.yml")
    done = subprocess.run([str(PROMTOOL), "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 0


def ask(at: str, what: str, **arguments: str) -> Any:
    url = f"http://{at}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=START_S) as response:
        return json.load(response)["data"]


@needs_openssl
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH")
def test_a_prometheus_scrapes_a_controller_and_an_alert_fires(tmp_path: Path, stack: ExitStack) -> None:
    """The switch of this controller does not answer, and its certificate ends in two days."""
    certify(tmp_path, "controller")
    controller = start(
        stack, write_config(tmp_path, NOBODY, 'tls_certificate = "server.pem"\ntls_key = "server.key"\n')
    )
    (page,) = re.findall(r"^page http://(\S+)/$", controller.process.log_text(), re.MULTILINE)
    rules = RULES.read_text().replace("for: 30s", "for: 1s")
    (tmp_path / RULES.name).write_text(rules)
    (rule_files,) = blocks("failures", "Alarms", "yaml")
    often = "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
    (tmp_path / "prometheus.yml").write_text(often + rule_files + SCRAPE.replace("127.0.0.1:4701", page))
    at = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    prometheus = ManagedProcess([str(PROMETHEUS), *options, f"--web.listen-address={at}"], tmp_path / "prometheus.log")
    stack.callback(prometheus.stop)
    prometheus.wait_for(lambda: "ready to receive" in prometheus.log_text(), "readiness", START_S)

    def fires(alert: str) -> bool:
        query = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        return bool(ask(at, "query", query=query)["result"])

    for alert in ("Watchdog", "HopsumSwitchLost", "HopsumCertificateEnds"):
        prometheus.wait_for(lambda alert=alert: fires(alert), alert, START_S)
    (build,) = ask(at, "query", query=f"{PREFIX}build_info")["result"]
    assert build["metric"]["version"] == __version__
    assert not fires("HopsumDatabaseNotWritable")
    assert not fires("HopsumControllerDown")
