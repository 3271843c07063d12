# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels compile for a GPU: the interpreter also takes what the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.long]


def test_every_kernel_compiles_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    # Triton decides when it is imported whether it interprets, so that it compiles in a process of its own.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 16
