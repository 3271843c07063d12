# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_membership.py, four under torchrun: `checkpoint_worker.py FOLDER`; they save a distributed checkpoint.

Rank 0 prints the means of the residuals as JSON, as often as there are ranks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.torch import DiLoCo, ReplicaState, register_comm_hook

STEPS = 3


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))


def mean_owed(state: Any, share: float) -> dict[str, list[float]]:
    """Return the mean of this kind's residuals over the ranks, each of which has this share of it."""
    means = {}
    for name, residual in state.state_dict()["residuals"][state.owner].items():
        dist.all_reduce(summed := residual * share)
        means[name] = summed.tolist()
    return means


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with hopsum.connect("collective://gloo", backend="numpy") as comm:
        ddp = DistributedDataParallel(make_model())
        hook = register_comm_hook(ddp, comm)
        local = make_model()
        diloco = DiLoCo(local, comm, sync_every=1)
        torch.manual_seed(rank)
        for _ in range(STEPS):
            ddp(torch.randn(5, 3)).square().sum().backward()
            with torch.no_grad():
                for each in local.parameters():
                    each += torch.randn(each.shape)
            diloco.step()
        # As if it were a rank of two replicas of two shards.
        shapes = {"": {"0.bias": torch.Size([2])}}
        replica = ReplicaState(comm, shapes, torch.device("cpu"), shard=rank % 2, shards=2, on_nonfinite="raise")
        replica.owner, replica.workers = f"{rank // 2}/{rank % 2}", 2
        # Only shard 1 has residuals.
        replica._residuals.load({"0.bias": torch.full((2,), rank % 2 * (rank + 1.0))})
        states: dict[str, Any] = {"HopsumState": hook, "DiLoCo": diloco, "ReplicaState": replica}
        checkpoint.save(states, checkpoint_id=sys.argv[1])
        found = {name: mean_owed(each, 1 / 2 if each is replica else 1 / 4) for name, each in states.items()}
    if rank == 0:
        print(json.dumps([found] * dist.get_world_size()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
