# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run and print the keys that are promised."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from hopsum_topologies.bmv2 import bmv2_unavailable


def bench(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hopsum.cli.main", "bench", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {"machine", "versions", "commit", "seed", "runs"} <= set(report)
    return report


def test_dataplane() -> None:
    report = bench("dataplane", "--scale", "0.05")
    keys = ["native.pipeline_codes_per_s", "native.socket_codes_per_s", "native.packets_per_s", "memcpy_codes_per_s"]
    keys += [] if bmv2_unavailable() else ["bmv2.codes_per_s", "bmv2.packets_per_s"]
    for key in keys:
        assert 0 < report[f"{key}_min"] <= report[key] <= report[f"{key}_max"], key
    assert (report["bmv2.codes_per_s"] is None) == (bmv2_unavailable() is not None)
    assert report["lanes"] == 1024


def test_codec() -> None:
    report = bench("codec", "--scale", "0.02")
    rows = {(row["codec"], row["backend"]): row for row in report["codecs"]}
    assert {("thc", "numpy"), ("fixed", "numpy")} <= set(rows)
    for row in rows.values():
        assert row["encode_elements_per_s"] > 0
        assert row["decode_elements_per_s"] > 0
    thc = rows["thc", "numpy"]
    assert abs(thc["nmse"] / thc["nmse_expected"] - 1) < 0.2
