# SPDX-License-Identifier: Apache-2.0
"""The command for a machine with a GPU, rehearsed on the CPU: the record has tests and benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "tools" / "record_cuda.py")]


def test_a_rehearsal_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = subprocess.run(
        [*COMMAND, "--device", "cpu", "--small", "--out", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = json.loads(path.read_text())
    if not torch.cuda.is_available():
        assert (record["tests"]["passed"], record["tests"]["reasons"]) == (0, ["no CUDA device"])
    assert record["bench"]["phases"]["kernel encode"]["elements_per_s"] > 0
    assert "all-reduce of 4,096 elements without a network:" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "--out", str(tmp_path / "no.json")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"torch {torch.__version__} sees no CUDA device: --device cpu rehearses" in done.stderr
    assert not (tmp_path / "no.json").exists()
