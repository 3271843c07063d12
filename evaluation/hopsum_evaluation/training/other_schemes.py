# SPDX-License-Identifier: Apache-2.0
"""Schemes over gloo that the trainings compare hopsum with: a hook for bf16, and DiLoCo in fp32.

No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from hopsum.torch.diloco import OUTER_LR, OUTER_MOMENTUM


def bf16_hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in bfloat16, by torch's own hook."""
    # Under another name: DDP refuses torch's by its name where there is no NCCL, and gloo adds bfloat16 as well.
    return default_hooks.bf16_compress_hook(None, bucket)  # type: ignore[arg-type]  # None: of all ranks, as torch says


class Fp32DiLoCo:
    """DiLoCo (arXiv 2311.08105) with pseudo-gradients in fp32, as torchft does it, without its fault tolerance.

    Args:
        model: this replica, before its first step, equal on all ranks.
        sync_every: inner steps between two synchronisations.
    """

    def __init__(self, model: nn.Module, sync_every: int) -> None:
        self.steps, self._every = 0, sync_every
        self._local = list(model.parameters())
        self._global = [nn.Parameter(each.detach().clone()) for each in self._local]
        self._outer = torch.optim.SGD(self._global, OUTER_LR, OUTER_MOMENTUM, nesterov=True)

    def step(self) -> None:
        """Count an inner step. At each `sync_every`-th, average the replicas' changes, and take the outer step."""
        self.steps += 1
        if self.steps % self._every:
            return
        with torch.no_grad():
            changes = torch.cat([(start - now).flatten() for start, now in zip(self._global, self._local, strict=True)])
            dist.all_reduce(changes)
            changes /= dist.get_world_size()
            parts = torch.split(changes, [each.numel() for each in self._global])
            for each, part in zip(self._global, parts, strict=True):
                each.grad = part.view(each.shape)
            self._outer.step()
            for now, start in zip(self._local, self._global, strict=True):
                now.copy_(start)
