# SPDX-License-Identifier: Apache-2.0
"""Gradients by the book: what a model's own gradients come to must be what was applied and what is left."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum.torch import HopsumState

Batch = tuple[torch.Tensor, ...]


class Ledger:
    """Adds up, by parameter: gradients of a twin that knows nothing of DDP, and the gradients that DDP applied."""

    def __init__(self, ddp: DistributedDataParallel, state: HopsumState) -> None:
        self.ddp, self.state = ddp, state
        self.owed = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in self._parameters()}
        self.paid = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in self._parameters()}

    def owe(self, batches: Iterable[Batch]) -> dict[str, torch.Tensor]:
        """Add this rank's gradients of the summed losses of the batches, and return them; before DDP sees these."""
        twin = copy.deepcopy(self.ddp.module)
        twin.zero_grad()
        for batch in batches:
            loss_of(twin, batch).backward()  # type: ignore[no-untyped-call]
        gradients = {name: each.grad for name, each in twin.named_parameters() if each.grad is not None}
        for name, gradient in gradients.items():
            self.owed[name] += gradient.double()
        return gradients

    def pay(self, scale: float = 1.0) -> None:
        """Add the gradients that DDP left in the parameters."""
        for name, parameter in self._parameters():
            if parameter.grad is not None:
                self.paid[name] += parameter.grad.double() / scale

    def close(self, scale: float = 1.0) -> dict[str, float]:
        """Return how far the books are out, the largest residual (the same over all ranks), and a digest of paid."""
        residuals = self.state.state_dict()["residuals"][self.state.owner]
        out = largest = 0.0
        for name, owed in self.owed.items():
            left = residuals.get(name, torch.zeros(owed.numel())).double().reshape(owed.shape) / scale
            both = torch.stack([owed, left])
            dist.all_reduce(both)
            owed_mean, left_mean = both / dist.get_world_size()
            out = max(out, float((self.paid[name] + left_mean - owed_mean).abs().max()))
            largest = max(largest, float(left_mean.abs().max()))
        return {"out": out, "largest": largest, "paid": sum(float(each.sum()) for each in self.paid.values())}

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.ddp.module.named_parameters())


class Model(nn.Module):
    """Two layers of trunk and two heads, of which a batch may use one or both."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 32))
        self.left = nn.Linear(32, 8)
        self.right = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, heads: str = "both") -> torch.Tensor:
        inner = self.trunk(x)
        if heads == "both":
            both: torch.Tensor = self.left(inner) + self.right(inner)
            return both
        one: torch.Tensor = (self.left if heads == "left" else self.right)(inner)
        return one


def loss_of(module: Any, batch: Batch, heads: str = "both") -> torch.Tensor:
    """Return the loss of a batch; which heads it uses is its third tensor, if there is one."""
    x, target = batch[:2]
    if len(batch) > 2:
        heads = ("both", "left", "right")[int(batch[2])]
    loss: torch.Tensor = (module(x, heads).float() - target).square().sum(1).mean()
    return loss


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a digest of the bytes of tensors."""
    data = b"".join(each.detach().contiguous().view(torch.uint8).numpy().tobytes() for each in tensors)
    return hashlib.sha256(data).hexdigest()


def draw(rank: int, step: int, heads: int | None = None, dtype: torch.dtype = torch.float32) -> Batch:
    """Return a batch that follows from its arguments."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 20, generator=generator)
    batch = (x.to(dtype), x[:, :8] - 0.5 * x[:, 8:16])
    return batch if heads is None else (*batch, torch.tensor(heads))
