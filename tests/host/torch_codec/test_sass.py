# SPDX-License-Identifier: Apache-2.0
"""What the compiler makes of the kernels for sm_90, which needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def kernels() -> dict[str, dict[str, Any]]:
    """In a process of its own: in this one triton may interpret."""
    pytest.importorskip("triton", reason="triton is not installed")
    command = [sys.executable, "-m", "hopsum_evaluation.torch.sass", "--json"]
    for name in ("encode, float32", "subtract"):
        command += ["--only", name]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {kernel["name"]: kernel for kernel in json.loads(done.stdout)["kernels"]}


@pytest.mark.parametrize(("name", "instructions", "fused"), [("encode, float32", 48, 32), ("subtract", 32, 0)])
def test_kernels_compile_for_sm90(kernels: dict[str, dict[str, Any]], name: str, instructions: int, fused: int) -> None:
    """In registers, without waiting for other warps, with subnormal numbers, and no inexact multiply-add."""
    kernel = kernels[name]
    assert (kernel["spilled_bytes"], kernel["flushing"], kernel["fused"]) == (0, 0, fused)
    if tuple(map(int, version("triton").split(".")[:2])) >= (3, 9):
        assert kernel["barriers"] == 0
    assert kernel["registers"] <= 96
    assert 10 < kernel["instructions"] <= instructions


def test_compiling_is_refused_where_triton_interprets() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "hopsum_evaluation.torch.sass"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "TRITON_INTERPRET=1 is set" in done.stderr
