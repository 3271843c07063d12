# SPDX-License-Identifier: Apache-2.0
"""A rank of test_processes.py, under torchrun: `training_worker.py URL RANKS_FOLDER`.

Trains by DistributedDataParallel with a ledger. Every rank writes a JSON file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1] / "torch"))
from ledger import Ledger, Model, draw, loss_of

import hopsum
from hopsum.torch import register_comm_hook

STEPS = 8


def train(comm: Any) -> dict[str, Any]:
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.002)
    state = register_comm_hook(ddp, comm, uncompressed=["left.bias"])
    ledger, optimizer = Ledger(ddp, state), torch.optim.SGD(ddp.parameters(), lr=0.02)
    for step in range(STEPS):
        batch = draw(comm.rank, step)
        ledger.owe([batch])
        optimizer.zero_grad()
        loss_of(ddp, batch).backward()  # type: ignore[no-untyped-call]
        ledger.pay()
        optimizer.step()
    data = b"".join(each.detach().numpy().tobytes() for each in ddp.parameters())
    residual = sum(float(each.abs().sum()) for each in state.state_dict()["residuals"][state.owner].values())
    return {
        **ledger.close(),
        "digest": hashlib.sha256(data).hexdigest(),
        "residual": residual,
        "stats": state.compression_stats(),
        "seat": [comm.rank, comm.workers],
    }


def main() -> None:
    url, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with hopsum.connect(url, backend="numpy", retransmit_s=1.0, unreachable_s=1.0) as comm:
        found = train(comm)
        (Path(folder) / f"rank{rank}.json").write_text(json.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
