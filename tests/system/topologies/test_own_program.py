# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology run --program`: the course's programs and workers on interfaces, on every target that runs here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hopsum_labs.levels import LEVELS, WORKER

from ...support.targets import require_network

NETWORK = f"{sys.executable} -m hopsum_labs.network"
DEADLINE_S = 300.0
RIGHT = re.compile(r"^\[\d+\] rank (\d+) of 3: 20 sums are right", re.MULTILINE)


def _run(level: str, *arguments: str, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    program = LEVELS[level].solution / "aggregate.json"
    words = [sys.executable, "-m", "hopsum_cli.main", "topology", "run", "star", "--workers", "3"]
    words += ["--program", str(program), *arguments, *(("--", *command) if command else ())]
    return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize(
    ("level", "target"), [("ethernet", "native"), ("ethernet", "bmv2"), ("ethernet", "mininet"), ("loss", "native")]
)
def test_the_course_runs_on_interfaces(level: str, target: str) -> None:
    require_network(target)
    worker = (*NETWORK.split(), "worker", str(LEVELS[level].solution / WORKER))
    done = _run(level, "--target", target, "--control", f"{NETWORK} control {level}", command=worker)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(RIGHT.findall(done.stdout)) == ["0", "1", "2"], done.stdout + done.stderr


def test_a_wrong_sum_is_told(tmp_path: Path) -> None:
    require_network("native")
    (tmp_path / WORKER).write_text("def all_reduce(port, rank, workers, vector):\n    return vector\n")
    worker = (*NETWORK.split(), "worker", str(tmp_path / WORKER))
    done = _run("ethernet", "--control", f"{NETWORK} control ethernet", command=worker)
    assert done.returncode == 1
    assert "rank 2: the sum is [6000, 6003," in done.stderr
    assert "all_reduce returned [3000, 3001," in done.stderr


@pytest.mark.parametrize("target", ["native", "mininet"])
def test_commands_are_told_the_network(target: str) -> None:
    require_network(target)
    show = "import json, os; print(os.environ.get('HOPSUM_HOST'), open(os.environ['HOPSUM_NETWORK']).read())"
    compact = show.replace("open(", "json.dumps(json.load(open(").replace(".read()", "))")
    done = _run(
        "ethernet",
        "--target",
        target,
        "--control",
        f'{sys.executable} -c "{compact}"',
        command=(sys.executable, "-c", compact),
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" ", 1) for line in re.sub(r"^\[\d+\] ", "", done.stdout, flags=re.MULTILINE).splitlines()]
    assert sorted(host for host, _ in rows) == ["None", "h1", "h2", "h3"]
    networks = {document for _, document in rows}
    assert len(networks) == 1
    network = json.loads(networks.pop())
    assert network["driver"] == ("native" if target == "native" else "bmv2")
    assert network["switches"]["s1"]["ports"] == {"1": "h1", "2": "h2", "3": "h3"}
    assert network["hosts"]["h2"] == {"ip": "10.0.0.2", "mac": "02:00:00:00:02:01", "switch": "s1", "port": 2}


def test_no_worker_starts_after_a_failed_control_command() -> None:
    require_network("native")
    done = _run("ethernet", "--control", "false", command=("echo", "started"))
    assert done.returncode == 1
    assert "the control command 'false' ended with 1; no worker was started" in done.stderr
    assert "started" not in done.stdout


def test_a_program_that_the_switch_refuses_is_told(tmp_path: Path) -> None:
    require_network("native")
    program = tmp_path / "empty.json"
    program.write_text("{}")
    (tmp_path / "empty.p4info.txtpb").write_text("")
    words = [sys.executable, "-m", "hopsum_cli.main", "topology", "run", "star", "--program", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "hopsum topology: " in done.stderr
    assert "Traceback" not in done.stderr
