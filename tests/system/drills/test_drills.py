# SPDX-License-Identifier: Apache-2.0
"""Drills: real processes and real signals. `make drills` runs all of them, other runs a small selection."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...support.processes import assert_killed_leaves_nothing
from .catalogue import DRILLS, SHORT
from .drill import CHECKS

pytestmark = pytest.mark.long
SCALE = os.environ.get("DRILL_SCALE", "")
"""The factor of training steps, which `make drills` sets."""
SMALL = "0.3"


def command(name: str, target: str, folder: Path, scale: str = SCALE or SMALL) -> list[str]:
    return [sys.executable, "-m", "drills", name, target, str(folder), scale, str(os.getpid())]


def environment() -> dict[str, str]:
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_drill(name: str, target: str, folder: Path) -> dict[str, Any]:
    """Run a drill in a process of its own. Return its report."""
    done = subprocess.run(command(name, target, folder), env=environment(), stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    if report["skipped"]:
        pytest.skip(report["skipped"])
    return report


@pytest.mark.parametrize("name", DRILLS if SCALE else SHORT)
def test_drill(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    report = run_drill(name, os.environ.get("DRILL_TARGET") or "native", tmp_path)
    record_property("drill", report)
    assert not report["failure"], json.dumps(report, indent=1)
    assert {check: ok for check, (ok, _) in report["checks"].items()} == dict.fromkeys(CHECKS, True), report
    assert report["events"]
    assert report["steps"] > 0


def test_a_controller_dies_in_its_writes_to_bmv2(tmp_path: Path) -> None:
    report = run_drill("controller-killed-in-writes", "bmv2", tmp_path)
    assert not report["failure"], json.dumps(report, indent=1)
    assert all(ok for ok, _ in report["checks"].values()), report


def test_a_drill_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    name = "split" if os.geteuid() == 0 and shutil.which("ip") else "worker-killed"
    assert_killed_leaves_nothing(command(name, "native", tmp_path), processes=6, environment=environment())
