# SPDX-License-Identifier: Apache-2.0
"""Print the peak memory of a worker with low rank, its gradient included, by the size of the gradient."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.host.torch.test_hook import Bucket

from hopsum.connection import connect
from hopsum.torch import HopsumState, hopsum_hook
from hopsum_evaluation.bench.timing import memory

WIDTH, MATRICES, STEPS = 2048, 8, 4


def steps(state: HopsumState, model: nn.Module, buffers: list[torch.Tensor], count: int) -> None:
    """Hand over each matrix as a bucket of its own, as DDP does with large ones."""
    for _ in range(count):
        last = len(buffers) - 1
        buckets = [
            Bucket(model, [f"{number}.weight"], each, number, number == last) for number, each in enumerate(buffers)
        ]
        for future in [hopsum_hook(state, each) for each in buckets]:  # type: ignore[arg-type]
            future.wait()


def make(width: int, count: int) -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(count)])


def main() -> None:
    torch.set_num_threads(1)
    with connect("memory://peak?workers=1", rank=0, codec="thc") as comm:
        # Kernels are compiled and libraries loaded before anything is measured.
        small, model = make(64, 2), make(WIDTH, MATRICES)
        options = {"low_rank": 8, "low_rank_start": 0}
        steps(HopsumState(comm, small, **options), small, [torch.randn(64 * 64) for _ in small], 2)  # type: ignore[arg-type]
        state = HopsumState(comm, model, **options)  # type: ignore[arg-type]
        before = memory(os.getpid())["rss"]
        buffers = [torch.randn(WIDTH * WIDTH) for _ in model]
        steps(state, model, buffers, STEPS)
        print((memory(os.getpid())["peak"] - before) / (4 * WIDTH * WIDTH * MATRICES))


if __name__ == "__main__":
    main()
