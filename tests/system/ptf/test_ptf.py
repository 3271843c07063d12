# SPDX-License-Identifier: Apache-2.0
"""The data-plane cases on every target that runs here, and that the machinery around them can say no."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest

from hopsum_model.chips import MODEL_CHIPS
from hopsum_ptf.case_runner import list_cases
from hopsum_ptf.model_device import model_unavailable
from hopsum_ptf.recording import recordings
from hopsum_topologies import bmv2_unavailable
from hopsum_topologies.ptf.case_results import read_results

from ...support.cases_table import CASES_ON
from ...support.targets import require_network

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "vectors" / "data"
FAILING = Path(__file__).resolve().parent / "failing"
UNRECORDED = {"loss.HalfOfWhatComesIn", "loss.HalfOfWhatGoesOut"}
"""They draw random numbers in the switch, so no two runs are the same."""
OF_LOOKUP_ADD16 = {
    "isolation.TablesOfBothWidthsInSeveralJobs",
    "lanes.AsManyWideSumsAsFit",
    "lanes.EveryWideCode",
    "lanes.LookupsOfBothWidthsByTurns",
    "lanes.WideSumsDoNotCarry",
    "operations.TableOfTheOtherWidth",
}
"""bmv2 has no room for the result, and the Tofino program does not have it: a case asks the target."""


def _command(target: str, *arguments: str) -> list[str]:
    if target == "bmv2":
        require_network(target)
    return [sys.executable, str(ROOT / "ptf_tests" / "run"), "--target", target, *arguments]


def _run(target: str, *arguments: str) -> tuple[int, str, dict[str, str]]:
    """Run a target's command; return exit status, output, and the table's cells by case."""
    done = subprocess.run(_command(target, *arguments), capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    start = lines.index(["case", target]) if ["case", target] in lines else len(lines)
    table = {line[0]: " ".join(line[1:]) for line in lines[start + 1 :] if line and ":" not in line[0]}
    return done.returncode, done.stdout + done.stderr, table


@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_every_case_passes(target: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    status, output, table = _run(target, "--logs", str(tmp_path))
    cases = list_cases()
    record_property(f"{CASES_ON}{target}", [astuple(each) for each in read_results(tmp_path / "results", cases)])
    assert status == 0, output
    skipped = dict.fromkeys(OF_LOOKUP_ADD16 if target == "bmv2" else (), "skipped")
    assert table == {**dict.fromkeys(cases, "ok"), **skipped}, output


def test_every_case_is_recorded() -> None:
    recorded = {path.name.removesuffix(".json.gz") for path in recordings(DATA)}
    assert recorded == set(list_cases()) - UNRECORDED - OF_LOOKUP_ADD16, "record again: python tools/record_vectors.py"


def test_deliberate_failures_are_noticed(tmp_path: Path) -> None:
    status, output, table = _run("native", "--folder", str(FAILING), "--logs", str(tmp_path))
    assert status != 0
    assert table == {
        "deliberate.SwitchDoesWhatTheOracleDoesNot": "FAILED",
        "deliberate.OracleDoesWhatTheSwitchDoesNot": "FAILED",
        "deliberate.CountersDiffer": "FAILED",
        "deliberate.BothAgreeButTheCaseExpectsOtherwise": "FAILED",
        "deliberate.FrameOutOfNowhere": "FAILED",
        "deliberate.Breaks": "ERROR",
        "deliberate.Skips": "skipped",
        "deliberate.Passes": "ok",
    }, output
    assert "native: deliberate.Breaks: ZeroDivisionError: deliberate" in output
    assert "native: deliberate.Skips: no reason" in output


def test_a_skip_on_native_is_a_failure() -> None:
    status, output, table = _run("native", "--folder", str(FAILING), "deliberate.Skips")
    assert (status, table) == (1, {"deliberate.Skips": "skipped"}), output


def test_only_passing_cases_are_recorded(tmp_path: Path) -> None:
    chosen = ("deliberate.Breaks", "deliberate.Passes")
    _run("native", "--folder", str(FAILING), "--record", str(tmp_path), *chosen)
    assert [path.name for path in recordings(tmp_path)] == ["deliberate.Passes.json.gz"]


def test_the_command_shows_every_target() -> None:
    case = "forwarding.UnknownAddress"
    command = [sys.executable, str(ROOT / "ptf_tests" / "run"), case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    bmv2 = "ok" if bmv2_unavailable() is None else "skipped"
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["case", "native", "bmv2", "tna", *MODEL_CHIPS] in lines
    models = ["ok" if model_unavailable(chip) is None else "skipped" for chip in MODEL_CHIPS.values()]
    assert [case, "ok", bmv2, "ok", *models] in lines


def test_unknown_case_is_an_error() -> None:
    status, output, _ = _run("native", "no_such_case")
    assert status == 2
    assert "no_such_case" in output
