# SPDX-License-Identifier: Apache-2.0
"""Two ranks with one GPU train in every way that averages tensors there: torchrun, `hosts://`, torch's own groups."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from ..torch.embedded import torchrun

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("ranks_worker.py")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("gloo", "cpu"),
        pytest.param("gloo", "cuda", marks=needs_cuda),
        pytest.param("cpu:gloo,cuda:nccl", "cuda", marks=needs_cuda),
    ],
)
def test_every_way_of_training(backend: str, device: str) -> None:
    repeatable = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    (mine, others), _ = torchrun(WORKER, backend, device, ranks=2, environment=repeatable)
    ways = [name for name in mine if name != "function"]
    assert len(ways) == 6
    for way in ways:
        assert len(mine[way]["losses"]) == len(others[way]["losses"])
        assert mine[way]["losses"][-1] < 0.8 * mine[way]["losses"][0], way
        assert mine[way]["weights"] == others[way]["weights"], way
    for rank in (mine, others):
        assert rank["ddp_auto"]["losses"] == rank["ddp_device"]["losses"] == rank["ddp_host"]["losses"]
        crossed = {name: rank[f"ddp_{name}"]["bytes_from_device"] > 0 for name in ("auto", "device", "host")}
        assert crossed == {"auto": device == "cuda", "device": True, "host": False}
        assert rank["mixed_precision"]["skipped"] > 0
        assert rank["replicas"]["allreduces"] == 16
    assert mine["function"] == others["function"]
    assert all(error < 0.02 for error in mine["function"].values()), mine["function"]  # of a mean square of 0.58
