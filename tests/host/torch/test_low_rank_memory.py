# SPDX-License-Identifier: Apache-2.0
"""The peak memory of a worker with low rank: `pytest -s` prints it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

WORKER = Path(__file__).with_name("memory_worker.py")


def test_gradient_feedback_and_factors() -> None:
    """Three times the gradient: itself, its residual, and that of before the step. A fifth is for all the rest."""
    done = subprocess.run([sys.executable, str(WORKER)], capture_output=True, text=True, check=True, timeout=120)
    peak = float(done.stdout)
    print(f"peak memory of a worker: {peak:.2f} times the gradient")
    assert 2.9 < peak <= 3.2
