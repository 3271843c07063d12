# SPDX-License-Identifier: Apache-2.0
"""Triton runs its kernels in its interpreter here, which it decides when it is imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both backends on the CPU: plain operations, and the kernels themselves under Triton's interpreter."""
    if request.param == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("triton compiles for the GPU of this machine: test_cuda.py")
    return str(request.param)
