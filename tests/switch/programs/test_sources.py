# SPDX-License-Identifier: Apache-2.0
"""The compiled programs belong to their sources, and make a frame, or nothing, of arbitrary bytes."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hopsum_switch.engine import Engine
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


@pytest.mark.system
@pytest.mark.parametrize("name", NAMES)
def test_random_bytes_are_frames_too(engine_of: Callable[[str], Engine], name: str) -> None:
    engine, rng = engine_of(name), random.Random(name)
    starts = [
        b"",
        b"\xff" * 12 + b"\x08\x00",
        b"\xff" * 12 + b"\x08\x00\x45",
        bytes(12) + b"\x08\x00\x45" + bytes(5) + b"\0\0\x40\x06",
    ]
    for _ in range(500):
        frame = rng.choice(starts) + rng.randbytes(rng.choice([0, 1, 7, 8, 20, 40, 1500]))
        for output in engine.process(rng.randrange(512), frame, rng.randrange(2**50)):
            assert len(output.frame) <= len(frame) + 12
