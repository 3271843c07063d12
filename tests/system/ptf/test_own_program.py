# SPDX-License-Identifier: Apache-2.0
"""`hopsum ptf`: tests of any program, on every target that runs here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...labs import mutants
from ...support.targets import require_network

pytestmark = pytest.mark.shell

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "ptf"
LEFTOVERS = Path(__file__).parent / "programs"
SOLUTION = ROOT / "labs" / "hopsum_labs" / "solutions" / "ethernet" / "aggregate.json"
CASES = ("sums.TwoWorkers", "sums.NextRound", "sums.WrapsAround")
EVERY_TARGET = pytest.mark.parametrize("target", ["native", "bmv2"])
BROKEN = {"keeps_source": CASES, "adds_to_the_last_round": ("sums.NextRound",)}
"""Tests of the example that a mutant of the level fails."""


def _ptf(*arguments: object) -> tuple[int, str, dict[str, str]]:
    """Run the command; return exit status, output, and the outcomes in its table."""
    command = [sys.executable, "-m", "hopsum_cli.main", "ptf", *map(str, arguments)]
    paths = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])  # leftovers imports sums
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": paths})
    rows = [line.split() for line in done.stdout.splitlines()]
    start = next((number for number, row in enumerate(rows) if row[:1] == ["case"] and len(row) == 2), len(rows))
    outcomes = {row[0]: row[1] for row in rows[start + 1 :] if len(row) == 2}
    return done.returncode, done.stdout + done.stderr, outcomes


@EVERY_TARGET
def test_the_example_passes_on_the_solution(target: str, tmp_path: Path) -> None:
    if target != "native":
        require_network(target)
    status, output, outcomes = _ptf(SOLUTION, EXAMPLES, "--target", target, "--logs", tmp_path / "logs")
    assert outcomes == dict.fromkeys(CASES, "ok"), output
    assert status == 0, output
    assert len((tmp_path / "logs" / "results").read_text().splitlines()) == len(CASES)


@EVERY_TARGET
def test_a_test_begins_on_an_empty_switch(target: str) -> None:
    if target != "native":
        require_network(target)
    status, output, outcomes = _ptf(SOLUTION, LEFTOVERS, "--target", target)
    assert outcomes == dict.fromkeys(("leftovers.Leaves", "leftovers.Meets"), "ok"), output
    assert status == 0, output


@pytest.mark.parametrize("name", BROKEN)
def test_a_program_that_breaks_a_rule_fails(name: str, tmp_path: Path) -> None:
    status, output, outcomes = _ptf(mutants.write_recorded(f"ethernet/{name}", tmp_path).program, EXAMPLES)
    assert {case for case, outcome in outcomes.items() if outcome == "FAILED"} == set(BROKEN[name]), output
    assert status == 1


def test_the_trace_tells_what_the_switch_did(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    status, output, outcomes = _ptf(SOLUTION, EXAMPLES / "sums.py", "sums.TwoWorkers", "--trace", trace)
    assert (status, outcomes) == (0, {"sums.TwoWorkers": "ok"}), output
    assert "MyIngress.job" in trace.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("nowhere.json", EXAMPLES), 2, "there is no file nowhere.json"),
        ((SOLUTION, "nowhere"), 1, "there is no folder or module nowhere"),
        ((SOLUTION, EXAMPLES / "sums.py", "other.Case"), 1, "other.Case: not in"),
        ((SOLUTION, EXAMPLES, "sums.Nothing"), 1, "sums.Nothing"),
        ((SOLUTION, EXAMPLES, "--target", "bmv2", "--trace", "trace"), 2, "--trace: for the embedded switch alone"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments: tuple[object, ...], status: int, said: str) -> None:
    ended, output, _ = _ptf(*arguments)
    assert said in output
    assert ended == status


def test_a_program_without_its_p4info_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "mine.json"
    program.write_bytes(SOLUTION.read_bytes())
    status, output, _ = _ptf(program, EXAMPLES)
    assert status == 1
    assert "p4c-bm2-ss -o mine.json --p4runtime-files mine.p4info.txtpb" in output
