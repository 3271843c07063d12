# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_fsdp.py, two replicas of two shards, under torchrun: `fsdp_worker.py FOLDER`; rank 0 prints JSON."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from ledger import Model, digest, draw, loss_of

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate
except ImportError:  # before torch 2.9
    replicate = None

import hopsum
from hopsum.torch import DiLoCo, ReplicaState, register_all_reduce_hook
from hopsum.torch.fsdp import ReplicaStateDict


def make(
    comm: Any,
    mesh: DeviceMesh,
    weights: dict[str, torch.Tensor] | None = None,
    *,
    device_of: int = 1,
    whole_mesh: bool = False,
) -> tuple[Any, ReplicaState]:
    """Return a sharded model, with these shards if given, and its state.

    Replica `device_of` encodes and decodes where its gradients are, the other one on the host. With `whole_mesh` torch
    knows the replicas, and would average them itself.
    """
    model: Any = Model()
    for each in (model.trunk, model):
        fully_shard(each, mesh=mesh if whole_mesh else mesh["shard"])
    if weights is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.to_local().copy_(weights[name].to_local())
    return model, register_all_reduce_hook(model, comm, codec_on="device" if comm.rank == device_of else "host")


def step(model: Any, number: int) -> str:
    """Take a step of SGD and return a digest of this rank's shards."""
    model.zero_grad()
    loss_of(model, draw(dist.get_rank(), number)).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for each in model.parameters():
            each.to_local().sub_(each.grad.to_local(), alpha=0.02)
    return digest(each.to_local() for each in model.parameters())


def books(model: Any, state: ReplicaState, mesh: DeviceMesh) -> dict[str, float]:
    """Train with a twin that torch averages nothing of, and return how far the books are out."""
    own: dict[str, torch.Tensor] = {}
    paid = {name: torch.zeros_like(each.to_local(), dtype=torch.float64) for name, each in model.named_parameters()}
    for number in range(6):
        twin: Any = Model()
        for each in (twin.trunk, twin):
            fully_shard(each, mesh=mesh["shard"])
        twin.load_state_dict(model.state_dict())
        loss_of(twin, draw(dist.get_rank(), number)).backward()  # type: ignore[no-untyped-call]
        for name, each in twin.named_parameters():
            own[name] = own.get(name, 0) + each.grad.to_local().double()
        step(model, number)
        for name, each in model.named_parameters():
            paid[name] += each.grad.to_local().double()
    out = largest = 0.0
    for name, owed in own.items():
        left = state.state_dict()["residuals"][state.owner][name].double()[: owed.numel()].reshape(owed.shape)
        both = torch.stack([owed, left])
        dist.all_reduce(both, group=mesh.get_group("replicate"))
        out = max(out, float((paid[name] + both[1] / 2 - both[0] / 2).abs().max()))
        largest = max(largest, float(left.abs().max()))
    return {"out": out, "largest": largest}


def resume(comm: Any, mesh: DeviceMesh, model: Any, state: ReplicaState) -> dict[str, str]:
    """Return digests after one more step: of the run, of one from its checkpoint, and of one without residuals.

    Replicas change places after the checkpoint: the one that encoded on the device does so on the host. And torch knows
    the replicas then.
    """
    weights, saved = copy.deepcopy(model.state_dict()), copy.deepcopy(state.state_dict())
    found, number = {}, comm.statistics.allreduces
    for name in ("went_on", "restored", "without"):
        again, fresh = (model, state) if name == "went_on" else make(comm, mesh, weights, device_of=0, whole_mesh=True)
        if name == "restored":
            fresh.load_state_dict(saved)
        comm._submitted = number  # randomness follows from the count: the same for all three
        found[name] = step(again, 9)
    return found


class Complex(nn.Module):
    """A layer with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()


def by_replicate(comm: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """Train with `replicate()` next to plain DDP; return how far gradients and weights are apart, and a digest."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(20, 7), Complex())
    plain = DistributedDataParallel(copy.deepcopy(model), process_group=mesh.get_group("replicate"))
    for each in (model[1], model):
        replicate(each, mesh=mesh["replicate"])
    register_all_reduce_hook(model, comm)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, plain)]
    apart = 0.0
    for number in range(4):
        for each, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            x, target = draw(dist.get_rank(), number)
            (each(x) - target).square().sum(1).mean().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            apart = max(apart, float((ours.grad.to_local() - theirs.grad).abs().max()))
        for optimizer in optimizers:
            optimizer.step()
    weights = [each.to_local().detach() for each in model.parameters()]
    moved = max(float((ours - theirs).abs().max()) for ours, theirs in zip(weights, plain.parameters(), strict=True))
    imaginary = float(model[1].weight.grad.to_local().imag.abs().max())
    return {"apart": apart, "moved": moved, "digest": digest(weights), "imaginary": imaginary}


def refusals(mesh: DeviceMesh, comm: Any, state: ReplicaState) -> list[str]:
    world: Any = fully_shard(Model(), mesh=init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard")))
    split: Any = fully_shard(
        parallelize_module(nn.Linear(4, 4), mesh["shard"], ColwiseParallel()), mesh=mesh["replicate"]
    )
    foreign: Any = {**state.state_dict(), "shards": 7}
    texts = []
    for act in (
        lambda: register_all_reduce_hook(world, comm),
        lambda: register_all_reduce_hook(split, comm),
        lambda: register_all_reduce_hook(nn.Linear(2, 2), comm),
        lambda: state.load_state_dict(ReplicaStateDict(**foreign)),
    ):
        try:
            act()
        except (TypeError, ValueError) as error:
            texts.append(str(error))
    return texts


def by_diloco(comm: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """Replicas of two shards that train by themselves and are synchronised by DiLoCo, each shard in its own job."""
    model: Any = Model()
    for each in (model.trunk, model):
        fully_shard(each, mesh=mesh["shard"])
    diloco = DiLoCo(model, comm, sync_every=3)
    begun = step(model, 0)
    diloco.step()
    between: list[str] = [""] * 2
    dist.all_gather_object(between, begun, group=mesh.get_group("replicate"))
    for number in range(1, 6):
        step(model, number)
        diloco.step()
    whole = model.state_dict()["trunk.0.weight"].full_tensor()
    found = {"shard": digest(each.to_local() for each in model.parameters()), "whole": digest([whole])}
    return {**found, "apart": between[0] != between[1], "allreduces": diloco.allreduces}


def main() -> None:
    folder = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    replica, shard = mesh.get_local_rank("replicate"), mesh.get_local_rank("shard")
    found: dict[str, Any] = {}
    with hopsum.connect(
        f"file://{folder}/job{shard}.json", rank=replica, codec="thc:result_bits=8", backend="numpy"
    ) as comm:
        model, state = make(comm, mesh)
        found |= books(model, state, mesh)
        found |= resume(comm, mesh, model, state)
        found["texts"] = refusals(mesh, comm, state)
    with hopsum.connect(
        f"file://{folder}/job{2 + shard}.json", rank=replica, codec="thc:result_bits=8", backend="numpy"
    ) as comm:
        found["diloco"] = {**by_diloco(comm, mesh), "place": shard}
    with hopsum.connect(f"file://{folder}/job{4 + shard}.json", rank=replica, codec="fixed") as comm:
        found["replicate"] = {**by_replicate(comm, mesh), "place": shard} if replicate else {}
    every: list[dict[str, Any]] = [{}] * 4
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
