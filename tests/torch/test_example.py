# SPDX-License-Identifier: Apache-2.0
"""The example runs under torchrun as it stands, learns, and ends with the same parameters on all ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .job import serve_job

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp_digits.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]


def test_two_ranks_learn_alike(tmp_path: Path) -> None:
    path = tmp_path / "membership.json"
    with serve_job(path, 2) as switch:
        command = [sys.executable, *TORCHRUN, str(EXAMPLE), "--membership", str(path), "--steps", "100"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first["parameters_sha256"] == second["parameters_sha256"]
    assert first["loss_first"] > 2
    assert first["loss_last"] < 0.8
    assert first["accuracy"] > 0.7
    assert first["ratio_up"] > 6
    assert not switch.aggregator.drops
