# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_replaced.py, under torchrun: `switch_lost_worker.py MEMBERSHIP SWITCH_PID`; rank 0 prints JSON.

Rank 0 kills the switch between two buckets of step 4. Training goes on until three steps after all ranks fell back.
"""

from __future__ import annotations

import hashlib
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
from ledger import Ledger, Model, draw, loss_of

import hopsum
from hopsum.torch import register_comm_hook

LOST_IN_STEP = 4


def train(comm: Any, switch: int) -> dict[str, Any]:
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.002)
    codec_on = "device" if comm.rank == 1 else "host"
    state = register_comm_hook(ddp, comm, on_switch_lost="fall_back", uncompressed=["left.bias"], codec_on=codec_on)
    ledger, optimizer = Ledger(ddp, state), torch.optim.SGD(ddp.parameters(), lr=0.02)
    step, after, ways = 0, 0, list[float]()

    def kill(gradient: torch.Tensor) -> None:
        """The gradient of a middle layer: a bucket is under way, another one is not yet."""
        if step == LOST_IN_STEP and comm.rank == 0:
            os.kill(switch, signal.SIGKILL)

    ddp.module.trunk[2].weight.register_hook(kill)
    while after < 3:
        batch = draw(comm.rank, step)
        ledger.owe([batch])
        optimizer.zero_grad()
        loss_of(ddp, batch).backward()  # type: ignore[no-untyped-call]
        ledger.pay()
        optimizer.step()
        step, after = step + 1, after + (not state.compresses)
        ways.append(state.compression_stats()["compresses"])
    data = b"".join(each.detach().numpy().tobytes() for each in ddp.parameters())
    return {**ledger.close(), "ways": ways, "digest": hashlib.sha256(data).hexdigest()}


def main() -> None:
    membership, switch = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    with hopsum.connect(f"file://{membership}", rank=rank, backend="numpy", unreachable_s=1.0) as comm:
        every: list[dict[str, Any]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, train(comm, int(switch)))
    if rank == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
