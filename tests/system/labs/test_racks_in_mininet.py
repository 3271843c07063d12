# SPDX-License-Identifier: Apache-2.0
"""The plain Mininet script of level racks, as a student runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hopsum_labs.levels import LEVELS, PROGRAM, WORKER
from hopsum_topologies import Namespace
from hopsum_topologies.mininet_network import PYTHON
from hopsum_topologies.process import launcher_command

from ...support.targets import require_network

DEADLINE_S = 300.0
RIGHT = re.compile(r"^rank (\d+) of (\d+): 20 sums are right", re.MULTILINE)
CONFINED = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


def hopsum() -> str:
    """Return the command of the environment that runs the tests."""
    found = shutil.which("hopsum", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert found is not None
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A student's folder, with the solution compiled into it."""
    require_network("mininet")
    made = tmp_path / "racks"
    shutil.copytree(LEVELS["racks"].exercise, made)
    for name in (f"{PROGRAM}.json", f"{PROGRAM}.p4info.txtpb"):
        shutil.copy(LEVELS["racks"].solution / name, made)
    shutil.copy(LEVELS["ethernet"].solution / WORKER, made)
    return made


def run(folder: Path, *arguments: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    """Run network.py in a network of its own."""
    with Namespace() as home:
        words: Sequence[str] = (*CONFINED, PYTHON, str(folder / "network.py"), *arguments)
        environment = {**os.environ, "HOPSUM": hopsum(), "TMPDIR": str(folder)}
        prefixed, variables = launcher_command(words, home.name, environment)
        variables.pop("PYTHONPATH")
        return subprocess.run(
            prefixed, env=variables, input=commands, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )


@pytest.mark.parametrize("switch", ["embedded", "bmv2"])
def test_every_worker_of_both_racks_gets_the_sum(folder: Path, switch: str) -> None:
    done = run(folder, "--switch", switch, "--worker", str(folder / WORKER), "--workers", "3", "--no-prompt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(RIGHT.findall(done.stdout)) == [(str(rank), "6") for rank in range(6)]


def test_the_prompt_shows_the_network(folder: Path) -> None:
    done = run(folder, commands="links\nexit\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leaf1-eth9<->spine-eth1" in done.stdout + done.stderr  # where Mininet logs is its own affair


def test_a_wrong_program_is_told_by_the_workers(folder: Path) -> None:
    shutil.copy(LEVELS["ethernet"].solution / f"{PROGRAM}.json", folder)
    shutil.copy(LEVELS["ethernet"].solution / f"{PROGRAM}.p4info.txtpb", folder)
    done = run(folder, "--worker", str(folder / WORKER), "--no-prompt")
    assert done.returncode != 0
    assert "set_leaf" in done.stderr


def test_without_hopsum_the_script_says_where_to_find_it(folder: Path) -> None:
    command = [PYTHON, "-c", "from p4_switches import hopsum_command; hopsum_command()"]
    environment = {"PATH": "/nowhere"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "HOPSUM=$(command -v hopsum)" in done.stderr
