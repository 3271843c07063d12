# SPDX-License-Identifier: Apache-2.0
"""The compiled programs belong to their sources, and what is in them decides what happens."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hopsum_switch.program import load_program

HERE = Path(__file__).parent
NAMES = ["router", "firewall", "segments", "mirror", "rounds", "police", "learner"]
COMPILER = "p4c-bm2-ss"
COMPILER_VERSION = "1.2.5.16"  # wrote the JSON here; another version may write the same program differently


def compiler_version() -> str | None:
    if shutil.which(COMPILER) is None:
        return None
    answer = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return (answer.stdout + answer.stderr).partition("Version ")[2].partition(" ")[0]


@pytest.mark.skipif(compiler_version() != COMPILER_VERSION, reason=f"needs {COMPILER} {COMPILER_VERSION}")
@pytest.mark.parametrize("name", NAMES)
def test_compiling_again_changes_nothing(name: str, tmp_path: Path) -> None:
    shutil.copy(HERE / name / f"{name}.p4", tmp_path)
    info, program = f"{name}.p4info.txtpb", f"{name}.json"
    command = [COMPILER, "--arch", "v1model", "--p4runtime-files", info, "-o", program, f"{name}.p4"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    for file in (info, program):
        assert (tmp_path / file).read_text() == (HERE / name / file).read_text(), f"{file}: run {' '.join(command)}"


@pytest.mark.parametrize("name", NAMES)
def test_operations_know_their_source_line(name: str) -> None:
    program = load_program((HERE / name / f"{name}.json").read_text())
    assert program.name == f"{name}.p4"
    for action in program.actions.values():
        files = {source.file for source in action.sources if source is not None}
        assert not action.body or files == {f"{name}.p4"}, action.name
