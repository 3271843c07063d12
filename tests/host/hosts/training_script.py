# SPDX-License-Identifier: Apache-2.0
"""A DDP training script with one line of hopsum; prints what became of it. Run under torchrun: OUTPUT_FOLDER [MODE]."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hopsum.torch import register_comm_hook


def main(folder: Path, mode: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
    state = register_comm_hook(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(5):
        x = torch.randn(32, 64, generator=generator)
        loss = ((ddp(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = ddp.module.weight.detach().numpy().tobytes()
    comm = state.communicator
    told = {
        "shards": [str(shard.worker(rank).send_to) for shard in comm.membership.shards],
        "losses": losses,
        "digest": hashlib.sha256(weights).hexdigest(),
        "children": children(),
        "pid": os.getpid(),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    if mode == "stay":
        time.sleep(600)
    comm.close()
    dist.destroy_process_group()


def children() -> list[int]:
    """Return the processes that this one has started, also by threads that have none of torch's names."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:] or [""])
