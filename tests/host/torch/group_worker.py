# SPDX-License-Identifier: Apache-2.0
"""One rank of test_group.py, as a process: `group_worker.py RANK WORKERS MEMBERSHIP STORE`; prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent
from hopsum.codec import make_codec
from hopsum.protocol.worker import Timing
from hopsum.torch import ProcessGroupHopsum, register_comm_hook

LARGE = 2048


def sums(agent: Agent, rank: int) -> dict[str, list[Any]]:
    """Return of each result: its type, how many all-reduces the agent made, least and greatest element as text."""
    found: dict[str, list[Any]] = {}
    cases: list[tuple[str, torch.Tensor, Any]] = [
        ("float32 SUM", torch.full((LARGE,), rank + 1.0), dist.ReduceOp.SUM),
        ("float32 AVG", torch.full((LARGE,), rank + 1.0), dist.ReduceOp.AVG),
        ("float16 AVG", torch.full((LARGE,), rank + 1.0, dtype=torch.float16), dist.ReduceOp.AVG),
        ("bfloat16 SUM", torch.full((64, 32), rank + 1.0, dtype=torch.bfloat16).t(), dist.ReduceOp.SUM),
        ("float32 MAX", torch.full((LARGE,), rank + 1.0), dist.ReduceOp.MAX),
        ("float64 SUM", torch.full((LARGE,), rank + 1.0, dtype=torch.float64), dist.ReduceOp.SUM),
        ("int64 SUM", torch.full((LARGE,), rank + 1), dist.ReduceOp.SUM),
        ("small SUM", torch.full((1023,), rank + 1.0), dist.ReduceOp.SUM),
        ("small AVG", torch.full((1023,), rank + 1.0), dist.ReduceOp.AVG),
        ("infinite SUM", torch.full((LARGE,), torch.inf if rank else 1.0), dist.ReduceOp.SUM),
    ]
    for name, tensor, op in cases:
        before = agent.statistics.allreduces
        dist.all_reduce(tensor, op)
        gone = agent.statistics.allreduces - before
        found[name] = [str(tensor.dtype), gone, str(float(tensor.min())), str(float(tensor.max()))]
    return found


def in_flight(agent: Agent, rank: int) -> list[float]:
    """Start several at once and return their sums, read from the works' futures."""
    works = [dist.all_reduce(torch.full((LARGE,), float(each + rank)), async_op=True) for each in range(4)]
    return [float(work.get_future().wait()[0].mean()) for work in works if work is not None]


def replicate(agent: Agent, rank: int) -> list[float]:
    """Return the mean of a DTensor and the all-reduces of the agent. Only torch has the work of such a sum."""
    before, mesh = agent.statistics.allreduces, DeviceMesh.from_group(dist.group.WORLD, "cpu")
    partial = DTensor.from_local(torch.full((LARGE,), rank + 1.0), mesh, [Partial()])
    summed: Any = partial.redistribute(placements=[Replicate()])
    return [float(summed.to_local().mean()), agent.statistics.allreduces - before]


def rest(agent: Agent, rank: int) -> dict[str, Any]:
    """Use what Gloo does."""
    mine, gathered, objects = torch.full((4,), float(rank)), [torch.zeros(4) for _ in range(2)], [None, None]
    dist.all_gather(gathered, mine)
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast(mine, 1)
    dist.barrier()
    halves = torch.zeros(2)
    dist.reduce_scatter(halves, [torch.full((2,), rank + 1.0), torch.full((2,), rank + 3.0)])
    got = torch.zeros(1)
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(got, 0)
    swapped, both = torch.zeros(2), [torch.full((2,), rank + 1.0), torch.full((3,), rank + 3.0)]
    dist.all_to_all_single(swapped, torch.tensor([rank + 1.0, rank + 3.0]))
    dist.all_reduce_coalesced(both)
    work = dist.broadcast(torch.zeros(1), 0, async_op=True)
    assert work is not None
    work.wait()
    group = dist.new_group([0, 1])
    large, before = torch.full((LARGE,), rank + 1.0), agent.statistics.allreduces
    dist.all_reduce(large, group=group)
    return {
        "gathered": [each.tolist()[0] for each in gathered],
        "objects": objects,
        "broadcast": mine.tolist()[0],
        "halves": halves.tolist(),
        "received": got.item(),
        "swapped": swapped.tolist(),
        "coalesced": [each.tolist()[0] for each in both],
        "subgroup": [dist.get_backend(group), float(large.mean()), agent.statistics.allreduces - before],
    }


def train(agent: Agent, rank: int) -> dict[str, Any]:
    """DDP without a hook, whose buckets are large enough."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 4)))
    optimizer, before, losses = torch.optim.SGD(ddp.parameters(), lr=0.05), agent.statistics.allreduces, []
    for step in range(10):
        generator = torch.Generator().manual_seed(2 * step + rank)
        x = torch.randn(32, 40, generator=generator)
        optimizer.zero_grad()
        loss = (ddp(x) - x[:, :4]).square().sum(1).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    total = sum(float(each.detach().double().sum()) for each in ddp.parameters())
    texts = []
    try:
        register_comm_hook(ddp, agent)
    except ValueError as failure:
        texts.append(str(failure))
    return {"losses": losses, "total": total, "gone": agent.statistics.allreduces - before, "texts": texts}


def refuse(agent: Agent, rank: int) -> list[str]:
    """Return what is said about groups that the agent does not fit, and about an agent that is closed."""
    texts = []
    for make in (lambda: ProcessGroupHopsum.Options(agent), lambda: "no options"):
        try:
            dist.new_group([rank], use_local_synchronization=True, backend="hopsum", pg_options=make())
        except (ValueError, TypeError) as failure:
            texts.append(f"{type(failure).__name__}: {failure}")
    options = ProcessGroupHopsum.Options(agent, on_nonfinite="raise")
    strict = dist.new_group([0, 1], backend="hopsum", pg_options=options)
    for tensor in (torch.full((LARGE,), torch.nan), torch.ones(LARGE)):
        try:
            dist.all_reduce(tensor, group=strict)
        except Exception as failure:
            texts.append(f"{type(failure).__name__}: {failure}")
    agent.close()
    try:
        dist.all_reduce(torch.ones(LARGE))
    except Exception as failure:
        texts.append(f"{type(failure).__name__}: {failure}")
    return texts


def main() -> None:
    rank, workers, membership, store = sys.argv[1:]
    torch.set_num_threads(1)
    codec = make_codec("fixed", workers=int(workers), backend="numpy")
    with Agent(membership, int(rank), codec=codec, timing=Timing(retransmit_s=0.2, deadline_s=60.0)) as agent:
        dist.init_process_group(
            "hopsum",
            init_method=f"file://{store}",
            rank=int(rank),
            world_size=int(workers),
            pg_options=ProcessGroupHopsum.Options(agent),
        )
        found: dict[str, Any] = {"backend": dist.get_backend(), "sums": sums(agent, int(rank))}
        found["in_flight"] = in_flight(agent, int(rank))
        found["replicate"] = replicate(agent, int(rank))
        found["rest"] = rest(agent, int(rank))
        found["train"] = train(agent, int(rank))
        found["refuse"] = refuse(agent, int(rank))
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
