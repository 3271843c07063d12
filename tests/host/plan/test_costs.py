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

DOCS = Path(__file__).resolve().parents[3] / "docs"
PERFORMANCE = (DOCS / "performance.md").read_text()


@pytest.mark.parametrize("codec", ["thc", "uhc", "fixed"])
def test_shipped_codec_costs_are_documented(codec: str) -> None:
    row = re.search(rf"^\| {codec}, numba \| \**([\d,]+)\** \([^|]+\| \**([\d,]+)\**", PERFORMANCE, re.MULTILINE)
    assert row is not None
    encode_s, decode_s = shipped_costs().codec_s(codec, 1_000_000, 1.0)
    assert [1 / encode_s, 1 / decode_s] == pytest.approx([float(rate.replace(",", "")) for rate in row.groups()])


def test_shipped_costs_of_lossless_are_documented() -> None:
    """Stages of 1 % and 20 %, as printed; 5 %, which was not used, within 15 %."""
    text = (DOCS / "lossless.md").read_text()
    for density, slack in ((0.01, 1e-9), (0.20, 1e-9), (0.05, 0.15)):
        row = re.search(
            rf"^\| {density * 100:.0f} %, bitmap \|([^|]+)\|([^|]+)\|([^|]+)\|([^|]+)\|", text, re.MULTILINE
        )
        assert row is not None
        ranges, index, peel, solve = (float(cell.strip().removesuffix(" ms")) / 1e3 for cell in row.groups())
        found = shipped_costs().codec_s("lossless", 1 << 24, density)
        assert found == pytest.approx((ranges + index + peel, solve), rel=slack)


def test_shipped_network_costs_are_documented() -> None:
    costs = shipped_costs()
    chunk = re.search(r"a chunk costs ([\d.]+) to ([\d.]+) in the network's thread", PERFORMANCE)
    update = re.search(r"The switch takes ([\d.]+) to ([\d.]+) microseconds an UPDATE", PERFORMANCE)
    for name, found in (("chunk", chunk), ("update", update)):
        assert found is not None
        assert costs[name].seconds == pytest.approx((float(found[1]) + float(found[2])) / 2 * 1e-6)
    assert "0.016 s to put means in place" in PERFORMANCE
    assert costs["place"].seconds == pytest.approx(0.016 / 25e6)
    assert all(each.origin.startswith("docs/") for each in (costs[name] for name in NAMES))


def test_shipped_costs_of_forms_are_documented_shares_of_thc() -> None:
    costs = shipped_costs()
    both = re.search(r"`thc:bits=2` encodes at ([\d.]+) and decodes at ([\d.]+) of thc's rate", PERFORMANCE)
    unpack = re.search(r"runs at ([\d.]+) times the rate of thc's decoding", PERFORMANCE)
    shots = re.search(r"at ([\d.]+) of the rate of thc's encoding in 4 bits, ([\d.]+) in 8 bits", PERFORMANCE)
    assert both is not None
    assert unpack is not None
    assert shots is not None
    shares = {"encode_thc_paired": both[1], "decode_thc_paired": both[2], "decode_packed": unpack[1]}
    for name, share in (shares | {"two_shot_4": shots[1], "two_shot_8": shots[2]}).items():
        plain = costs["decode_thc" if name.startswith("decode") else "encode_thc"].seconds
        assert costs[name].seconds == pytest.approx(plain / float(share))


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
