# SPDX-License-Identifier: Apache-2.0
"""The course's graders on bmv2: the same verdicts as on the embedded switch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hopsum_labs.grading import CompiledProgram, compiled_solution, grade
from hopsum_labs.lab_switch import TARGETS
from hopsum_labs.levels import LEVELS, Level

from ...labs import mutants

pytestmark = pytest.mark.skipif(shutil.which("simple_switch_grpc") is None, reason="simple_switch_grpc is not on PATH")
EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: level.word)


def verdicts(level: Level, compiled: CompiledProgram, target: str) -> dict[str, str]:
    """Return for each case why its rule was not kept, nothing where it was."""
    return {each.case.name: each.reason for each in grade(level.cases(), compiled, TARGETS[target])}


@EVERY_LEVEL
def test_the_solution_keeps_every_rule(level: Level) -> None:
    found = verdicts(level, compiled_solution(level), "bmv2")
    assert found == dict.fromkeys(found, "")


@EVERY_LEVEL
def test_a_program_that_breaks_a_rule_gets_the_same_verdicts(level: Level, tmp_path: Path) -> None:
    mutant = next(each for each in mutants.MUTANTS if each.level == level.word)
    compiled = mutants.write_recorded(f"{mutant.level}/{mutant.name}", tmp_path)
    found, native = (verdicts(level, compiled, target) for target in ("bmv2", "native"))
    assert {name for name in found if found[name]} == {name for name in native if native[name]}
    assert found[mutant.breaks]
