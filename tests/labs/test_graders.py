# SPDX-License-Identifier: Apache-2.0
"""The graders: a solution keeps all rules, and every program that breaks a rule is found."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hopsum_labs.grading import COMPILER, Compiled, Verdict, compile_program, compiled_solution, grade
from hopsum_labs.lab_switch import Testbed, start_embedded
from hopsum_labs.levels import LEVELS, PROGRAM, Level
from hopsum_labs.rule_checks import LabError
from hopsum_switch.backend import Backend

from . import mutants

EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: level.word)
RECORDED = mutants.recorded()


def graded(name: str, folder: Path, only: str | None = None) -> dict[str, Verdict]:
    """Return the verdict of every case, or of one, on a recorded program."""
    level = LEVELS[name.partition("/")[0]]
    recorded = RECORDED["programs"][name]
    compiled = Compiled(folder / "program.json", folder / "program.p4info.txtpb")
    compiled.program.write_text(json.dumps(recorded["json"]))
    compiled.p4info.write_text(recorded["p4info"])
    verdicts = grade([case for case in level.cases() if only in (None, case.name)], compiled)
    return {verdict.case.name: verdict for verdict in verdicts}


@EVERY_LEVEL
def test_the_solution_keeps_every_rule(level: Level) -> None:
    reasons = {verdict.case.name: verdict.reason for verdict in grade(level.cases(), compiled_solution(level))}
    assert reasons == dict.fromkeys(reasons, "")


@EVERY_LEVEL
def test_the_solution_keeps_every_rule_in_machine_code(level: Level) -> None:
    solution = compiled_solution(level)
    for case in level.cases():
        start = partial(start_embedded, backend=Backend.NATIVE)
        with Testbed(solution.program, solution.p4info, start) as switch:
            case.check(switch)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: f"{mutant.level}-{mutant.name}")
def test_a_broken_rule_is_found(mutant: mutants.Mutant, tmp_path: Path) -> None:
    verdict = graded(f"{mutant.level}/{mutant.name}", tmp_path, mutant.breaks)[mutant.breaks]
    assert verdict.reason
    assert verdict.points == 0


@EVERY_LEVEL
def test_every_rule_has_a_program_that_breaks_it(level: Level) -> None:
    broken = {mutant.breaks for mutant in mutants.MUTANTS if mutant.level == level.word}
    assert broken == {case.name for case in level.cases()}


@EVERY_LEVEL
def test_a_skeleton_earns_nothing(level: Level, tmp_path: Path) -> None:
    verdicts = graded(f"{level.word}/{mutants.SKELETON}", tmp_path)
    assert {name: verdict.points for name, verdict in verdicts.items()} == dict.fromkeys(verdicts, 0)


def test_the_recorded_programs_are_those_of_the_sources() -> None:
    assert RECORDED["sources"] == mutants.hashes(), "run `cd tests && python -m labs.mutants`"


@EVERY_LEVEL
def test_handouts_promise_the_points_of_the_cases(level: Level) -> None:
    overview = (Path(__file__).parents[2] / "labs" / "README.md").read_text()
    row = next(line for line in overview.splitlines() if line.startswith(f"| {level.word} "))
    assert row.rstrip("| ").endswith(f" {level.points}")


def test_a_program_without_the_table_says_which_is_missing(tmp_path: Path) -> None:
    udp, solution = LEVELS["udp"], compiled_solution(LEVELS["ethernet"])
    reasons = [verdict.reason for verdict in grade(udp.cases(), solution)]
    assert all("set_job" in reason for reason in reasons)


def test_a_table_that_is_never_applied_is_named(tmp_path: Path) -> None:
    reasons = [verdict.reason for verdict in graded(f"udp/{mutants.SKELETON}", tmp_path).values()]
    assert all("has no table MyIngress.forward" in reason and "apply it" in reason for reason in reasons)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "aggregate.json"
    broken.write_text("{}")
    level = LEVELS["ethernet"]
    with pytest.raises(LabError, match=r"the switch does not load .*aggregate\.json"):
        list(grade(level.cases(), Compiled(broken, compiled_solution(level).p4info)))


def test_without_a_compiler_the_message_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=f"{COMPILER} is not on PATH.*packages.*--solution"):
        compile_program(LEVELS["udp"].solution / f"{PROGRAM}.p4", tmp_path)


@pytest.fixture
def compiler() -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not on PATH")


@pytest.mark.usefixtures("compiler")
@EVERY_LEVEL
def test_skeleton_and_solution_compile(level: Level, tmp_path: Path) -> None:
    for folder in (level.exercise, level.solution):
        made: Any = compile_program(folder / f"{PROGRAM}.p4", tmp_path)
        assert made.program.is_file()


@pytest.mark.usefixtures("compiler")
def test_a_compiler_error_is_shown(tmp_path: Path) -> None:
    source = tmp_path / f"{PROGRAM}.p4"
    source.write_text("header {")
    with pytest.raises(LabError, match="syntax error"):
        compile_program(source, tmp_path)
