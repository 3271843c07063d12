# SPDX-License-Identifier: Apache-2.0
"""Costs: the shipped ones are the documented ones; files replace them or are refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hopsum.plan import Cost, Costs, PlanError, shipped_costs
from hopsum.plan.costs import NAMES, costs_from_json


def test_shipped_costs_are_documented() -> None:
    """The table of docs/planning.md has every shipped cost, in nanoseconds."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "planning.md").read_text()
    rows = {name: float(cost) for name, cost in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE)}
    assert rows == pytest.approx({name: shipped_costs()[name].seconds * 1e9 for name in NAMES})


def test_every_shipped_cost_says_how_where_and_when_it_was_measured() -> None:
    for origin in shipped_costs().origins():
        assert re.fullmatch(r"`hopsum plan --calibrate`, .+: .+, \d+ cores, \d{4}-\d\d-\d\d", origin)


def test_a_file_replaces_what_it_names() -> None:
    text = json.dumps({"chunk": {"seconds": 1e-6, "origin": "here"}})
    costs = costs_from_json(text, "costs.json")
    assert costs["chunk"] == Cost(1e-6, "here")
    assert costs["update"] == shipped_costs()["update"]
    assert costs_from_json(json.dumps(costs.as_json()), "again").as_json() == costs.as_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "costs.json: no costs"),
        ("[1]", "costs.json: no costs"),
        ('{"chunk": 3}', "costs.json: no costs"),
        ('{"chunk": {"seconds": 1}}', "costs.json: no costs"),
        ('{"chunks": {"seconds": 1, "origin": ""}}', "costs.json: costs: chunks missing or unknown"),
        ('{"chunk": {"seconds": -1, "origin": ""}}', "costs.json: cost chunk: -1 s"),
        ('{"chunk": {"seconds": NaN, "origin": ""}}', "costs.json: cost chunk: nan s"),
    ],
)
def test_a_bad_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        costs_from_json(text, "costs.json")


def test_missing_costs_and_codecs_are_refused() -> None:
    with pytest.raises(PlanError, match="encode_thc"):
        Costs({})
    with pytest.raises(PlanError, match="'gzip': costs are known of thc"):
        shipped_costs().codec_s("gzip", 10, 1.0)


def test_the_model_needs_numpy_only() -> None:
    unwanted = ("rich", "matplotlib", "numba", "torch", "grpc", "scapy")
    code = f"import hopsum.plan, sys; sys.exit(', '.join(m for m in {unwanted} if m in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
