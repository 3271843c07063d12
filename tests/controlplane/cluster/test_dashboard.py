# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard and the page of settings have what the controller has."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, Field, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import SwitchConfig
from hopsum_controlplane.cluster.cluster_config import ClusterConfig, load_config
from hopsum_controlplane.errors import ClusterConfigError
from hopsum_controlplane.prometheus_metrics import FAMILIES, PREFIX

DASHBOARD = Path(__file__).resolve().parents[3] / "docs" / "grafana" / "hopsum.json"
PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
LABELS = {
    PREFIX + name + part: {*labels, *(["le"] if part == "_bucket" else [])}
    for name, kind, _, labels in FAMILIES
    for part in PARTS[kind]
}
KINDS = {PREFIX + name + part: kind for name, kind, *_ in FAMILIES for part in PARTS[kind]}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


@pytest.fixture(scope="module")
def targets(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_metric_exists(targets: list[tuple[str, str]], dashboard: dict[str, Any]) -> None:
    queries = [each["query"] for each in dashboard["templating"]["list"]]
    asked = {name for text in (*queries, *(expr for expr, _ in targets)) for name in re.findall(rf"{PREFIX}\w+", text)}
    assert len(asked) > 10
    assert asked - set(LABELS) == set()


def test_every_label_is_one_of_its_metric(targets: list[tuple[str, str]], dashboard: dict[str, Any]) -> None:
    for each in dashboard["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"])
        assert match
        assert match[2] in LABELS[match[1]]
    for expr, legend in targets:
        names = re.findall(rf"{PREFIX}\w+", expr)
        for metric, label in re.findall(rf"({PREFIX}\w+)\{{(\w+)=", expr):
            assert label in LABELS[metric], expr
        kept = [set(re.split(r",\s*", found)) for found in re.findall(r"by \(([^)]*)\)", expr)]
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        for labels in kept or [LABELS[name] for name in names]:
            assert shown <= labels, (expr, legend)
        assert all(labels <= LABELS[name] for labels in kept for name in names), expr


def test_counters_are_asked_for_their_rates_and_gauges_are_not(targets: list[tuple[str, str]]) -> None:
    for expr, _ in targets:
        for metric in re.findall(rf"{PREFIX}\w+", expr):
            is_rate = re.search(rf"(rate|increase)\({metric}\{{[^}}]*\}}\[\$__rate_interval\]\)", expr) is not None
            assert is_rate == (KINDS[metric] != "gauge"), expr


def test_panels_lie_beside_each_other(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = any(a[at] + a[size] <= b[at] for a, b in ((one, other), (other, one)) for at, size in ("xw", "yh"))
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "reference" / "configuration.md").read_text()


def rows_after(words: str) -> dict[str, list[str]]:
    """Return the table below a sentence of the page, by the names in its first column."""
    (found,) = re.findall(rf"^{re.escape(words)}.*\n\n\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()]
    assert all(row[0].startswith("`") for row in cells)
    return {row[0].strip("`"): row[1:] for row in cells}


def known_keys(folder: Path, text: str) -> list[str]:
    """Return the keys that the reader of the file names when it refuses another one."""
    path = folder / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ClusterConfigError) as refused:
        load_config(path)
    return refused.value.hint.removeprefix("there are ").split(", ")


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("The keys of `[controller]`", ""),
        ("The keys of each `[[switch]]`", "[controller]\ndatabase = 'x'\n[[switch]]\n"),
        ("The keys of each `[[link]]`", "[controller]\ndatabase = 'x'\n[[link]]\n"),
    ],
)
def test_the_manual_has_every_key(tmp_path: Path, words: str, before: str) -> None:
    text = f"{before or '[controller]'}\nqqqqqqqq = 1\n"
    assert sorted(rows_after(words)) == sorted(known_keys(tmp_path, text))


@pytest.mark.parametrize(
    ("words", "config"),
    [("The keys of `[controller]`", ClusterConfig), ("The keys of each `[[switch]]`", SwitchConfig)],
)
def test_the_manual_has_the_defaults(words: str, config: Any) -> None:
    told = {key: row[1].strip("`") for key, row in rows_after(words).items()}
    made: dict[str, Field[Any]] = {each.name: each for each in fields(config)}
    optional = {name: each.default for name, each in made.items() if name in told and each.default is not MISSING}
    assert len(optional) >= 5
    expected = {name: _written(value) for name, value in optional.items()}
    assert {name: told[name] for name in optional} == expected


def _written(value: object) -> str:
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
