# SPDX-License-Identifier: Apache-2.0
"""Ranks that train by DistributedDataParallel with a ledger, under torchrun: `ledger_worker.py URL [SWITCH_PID]`.

Rank 0 prints JSON. With the process id of a switch, rank 0 kills that switch between two buckets of step 4, and
training falls back to the process group. With HOPSUM_LOW_RANK matrices travel as factors from step 2 on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from ledger import Ledger, Model, digest, draw, loss_of

import hopsum
from hopsum.torch import register_comm_hook

STEPS, LOST_IN_STEP = 7, 4


def train(comm: Any, switch: int | None) -> dict[str, Any]:
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.002)
    falls_back = {"on_switch_lost": "fall_back", "codec_on": "device" if comm.rank == 1 else "host"}
    options = falls_back if switch else {}
    state = register_comm_hook(ddp, comm, uncompressed=["left.bias"], low_rank_start=2, **options)
    ledger, optimizer = Ledger(ddp, state), torch.optim.SGD(ddp.parameters(), lr=0.02)
    step, ways = 0, list[float]()

    def kill(gradient: torch.Tensor) -> None:
        """The gradient of a middle layer: a bucket is under way, another one is not yet."""
        if switch and step == LOST_IN_STEP and comm.rank == 0:
            os.kill(switch, signal.SIGKILL)

    ddp.module.trunk[2].weight.register_hook(kill)
    for step in range(STEPS):
        batch = draw(comm.rank, step)
        ledger.owe([batch])
        optimizer.zero_grad()
        loss_of(ddp, batch).backward()  # type: ignore[no-untyped-call]
        ledger.pay()
        optimizer.step()
        ways.append(state.compression_stats()["compresses"])
    residuals = state.state_dict()["residuals"][state.owner].values()
    return {
        **ledger.close(),
        "ways": ways,
        "digest": digest(ddp.parameters()),
        "residual": sum(float(each.abs().sum()) for each in residuals),
        "stats": state.compression_stats(),
        "seat": [comm.rank, comm.workers],
    }


def main() -> None:
    url, *pids = sys.argv[1:]
    switch = int(pids[0]) if pids else None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    patience = {} if switch else {"retransmit_s": 1.0}
    # Books balance exactly where sums are whole.
    with hopsum.connect(url, codec="thc:result_bits=8", backend="numpy", unreachable_s=1.0, **patience) as comm:
        every: list[dict[str, Any]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, train(comm, switch))
    if dist.get_rank() == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
