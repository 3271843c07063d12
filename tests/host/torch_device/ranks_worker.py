# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_ranks.py, two on one device, `hosts://`: `ranks_worker.py BACKEND DEVICE` under torchrun.

Rank 0 prints what each way of training found, as JSON, by rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.agent import Communicator
from hopsum.torch import DiLoCo, register_all_reduce_hook, register_comm_hook

WIDTH = 512
STEPS = 8


def make_model(device: str) -> nn.Sequential:
    """Return the same small model on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)


def loss_of(model: nn.Module, device: str, step: int) -> torch.Tensor:
    """Return the loss on this rank's inputs of a step."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    x = torch.randn(64, WIDTH, generator=generator).to(device)
    loss: torch.Tensor = (model(x).float() - 1).square().mean()
    return loss


def train(device: str, model: nn.Module, steps: int = STEPS, after: Callable[[], object] = int) -> list[float]:
    """Take steps of SGD and return the losses."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, device, step)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after()
        losses.append(loss.item())
    return losses


def ddp(device: str, comm: Communicator, group: Any, *, codec_on: Any) -> dict[str, Any]:
    """Train by DDP's hook."""
    model = DistributedDataParallel(make_model(device), process_group=group)
    state = register_comm_hook(model, comm, codec_on=codec_on)
    losses = train(device, model)
    told = state.compression_stats()
    return {"losses": losses, "weights": checked(model), "bytes_from_device": told["bytes_from_device"]}


def mixed_precision(device: str, comm: Communicator, group: Any) -> dict[str, Any]:
    """Train in float16 with a scale of the loss that is too large in the first step."""
    model = DistributedDataParallel(make_model(device), process_group=group)
    state = register_comm_hook(model, comm, on_nonfinite="skip")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.5), torch.amp.GradScaler(device, init_scale=2.0**30)
    losses = []
    for step in range(24):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = loss_of(model, device, step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {"losses": losses, "weights": checked(model), "skipped": state.compression_stats()["skipped"]}


def replicas(device: str, comm: Communicator, group: Any) -> dict[str, Any]:
    """Train by FSDP2, with replicas of one rank."""
    mesh = init_device_mesh(device, (2, 1), mesh_dim_names=("replicate", "shard"))
    model: Any = make_model(device)
    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh["shard"])
    state = register_all_reduce_hook(model, comm)
    return {"losses": train(device, model), "weights": checked(model), "allreduces": state.allreduces}


def outer_steps(device: str, comm: Communicator, group: Any) -> dict[str, Any]:
    """Train by DiLoCo, and end after a synchronisation of the whole model."""
    model = make_model(device)
    outer = DiLoCo(model, comm, sync_every=4)
    losses = train(device, model, after=outer.step)
    outer.finish()
    return {"losses": losses, "weights": checked(model)}


def function(device: str, comm: Communicator, group: Any) -> dict[str, Any]:
    """Sum tensors of three types."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.linspace(-1, 1, 100_000, device=device) + comm.rank
        mean = hopsum.allreduce(x.to(dtype), comm)
        assert (mean.dtype, mean.device) == (dtype, x.device)
        found[str(dtype)] = float((mean.float() - torch.linspace(-0.5, 1.5, 100_000, device=device)).square().mean())
    return found


def checked(model: nn.Module) -> float:
    """Return a number that differs where any parameter does: their dot product with fixed random numbers."""
    own = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    weights = torch.cat([each.detach().flatten() for each in own]).cpu().double()
    return float(weights @ torch.randn(len(weights), dtype=torch.float64, generator=torch.Generator().manual_seed(2)))


def main() -> None:
    """Run all ways, one after the other."""
    backend, device = sys.argv[1:]
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(backend)
    group: Any = dist.new_group(backend="gloo")
    found: dict[str, Any] = {}
    with hopsum.connect("hosts://") as comm:
        for codec_on in ("auto", "device", "host"):
            found[f"ddp_{codec_on}"] = ddp(device, comm, group, codec_on=codec_on)
        for way in (mixed_precision, replicas, outer_steps, function):
            found[way.__name__] = way(device, comm, group)
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, found, group=group)
    if dist.get_rank() == 0:
        print(json.dumps(ranks))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
