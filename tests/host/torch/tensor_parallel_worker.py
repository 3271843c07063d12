# SPDX-License-Identifier: Apache-2.0
"""One rank of test_tensor_parallel.py, as a process: `tensor_parallel_worker.py RANK STORE`; prints JSON.

Four ranks are a mesh of two data-parallel by two tensor-parallel ranks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.agent import Communicator
from hopsum.config import ConfigError
from hopsum.torch import DiLoCo, HopsumState, register_all_reduce_hook, register_comm_hook

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate
except ImportError:
    replicate = None  # type: ignore[assignment]  # not in older torch

STEPS = 12


class Layers(nn.Module):
    """Two layers that tensor parallelism shards, between two that it replicates."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(64)
        self.up, self.down, self.head = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.down(torch.tanh(self.up(self.norm(x)))))
        return made


def parallel(mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(Layers(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})


class Training:
    """A DistributedDataParallel over the mesh, trained by AdamW."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.ddp = DistributedDataParallel(parallel(mesh), device_mesh=mesh["dp"], bucket_cap_mb=0.02)
        # Before the first forward pass, in which torch takes some of them out of the module.
        self.parameters = dict(self.ddp.module.named_parameters())
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=3e-3)
        self.generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            x = torch.randn(32, 64, generator=self.generator)
            self.optimizer.zero_grad()
            (self.ddp(x) - x[:, :8].abs()).square().mean().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def digests(self) -> dict[str, str]:
        found = self.parameters.items()
        return {name: hashlib.sha256(each.detach().numpy().tobytes()).hexdigest()[:16] for name, each in found}


def connect(mesh: DeviceMesh) -> Communicator:
    """Connect the ranks that have this rank's shards."""
    ranks = dist.get_process_group_ranks(mesh["dp"].get_group())
    group = dist.new_group(ranks, use_local_synchronization=True)
    return hopsum.connect("collective://gloo", group=group, codec="thc", backend="numpy")


class Lines(logging.Handler):
    """Collects what hopsum.torch logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logger = logging.getLogger("hopsum.torch")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def trained(mesh: DeviceMesh, **options: Any) -> dict[str, Any]:
    """Train with the hook, by two communicators one after the other."""
    lines, training = Lines(), Training(mesh)
    with connect(mesh) as first:
        state = register_comm_hook(training.ddp, first, **options)
        told = list(lines.lines)
        training.run(STEPS)
        compressed = sorted(state.state_dict()["residuals"][state.owner])
    with connect(mesh) as second:
        state.attach(second, training.ddp)
        training.run(2)
    return {"digests": training.digests(), "compressed": compressed, "lines": told}


def plain(mesh: DeviceMesh) -> dict[str, Any]:
    training = Training(mesh)
    training.run(STEPS + 2)
    return {"digests": training.digests()}


def refused(mesh: DeviceMesh) -> list[str]:
    """A hook that comes too late, and the ways that have no process group for replicated parameters."""
    texts = []
    late, model = Training(mesh), parallel(mesh)
    late.run(1)
    with connect(mesh) as comm:
        calls = [lambda: HopsumState(comm, late.ddp), lambda: DiLoCo(model, comm, sync_every=2)]
        if replicate is not None:
            calls.append(lambda: register_all_reduce_hook(replicate(model, mesh=mesh["dp"]), comm))
        for call in calls:
            try:
                call()
            except ValueError as error:
                texts.append(str(error))
    return texts


def one_line(rank: int) -> dict[str, Any]:
    """The hook connects the ranks of the DistributedDataParallel, and waits for no other ones."""
    some = dist.new_group([1, 2])
    if rank not in (1, 2):
        return {}
    ddp, texts = DistributedDataParallel(Layers(), process_group=some), []
    for variables in ({"HOPSUM_URL": "collective://gloo"}, {"HOPSUM_LEASE_S": "sixty"} if rank == 2 else {}):
        os.environ |= variables
        try:
            register_comm_hook(ddp)
        except ConfigError as error:
            texts.append(str(error))
        for name in variables:
            del os.environ[name]
    os.environ["HOPSUM_IP"] = "127.0.0.1"
    state = register_comm_hook(ddp)
    ddp(torch.full((2, 64), float(rank))).sum().backward()
    digest = hashlib.sha256(b"".join(each.grad.numpy().tobytes() for each in ddp.parameters())).hexdigest()
    found = {"texts": texts, "place": [state.communicator.rank, state.communicator.workers], "digest": digest}
    state.communicator.close()
    return found


def main() -> None:
    rank, store = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole, factors = trained(mesh), trained(mesh, low_rank=2, low_rank_start=1)
    print(
        json.dumps(
            {
                "whole": whole,
                "factors": factors,
                "plain": plain(mesh),
                "refused": refused(mesh),
                "one_line": one_line(int(rank)),
            }
        )
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
