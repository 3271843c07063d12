# SPDX-License-Identifier: Apache-2.0
"""One rank whose settings differ from the other's: what it is told, as a line of JSON.

python agreement_worker.py RANK STORE
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.communicator import JoinError
from hopsum.torch import register_comm_hook


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    told: dict[str, str] = {}
    try:
        hopsum.connect("collective://gloo", seed=rank, codec="fixed", backend="numpy")
    except JoinError as error:
        told["seed"] = str(error)
    with hopsum.connect("collective://gloo", codec="fixed", backend="numpy") as job:
        for name, options in {
            "start_iter": {"start_iter": 3 * rank},
            "uncompressed": {"uncompressed": ["bias"] if rank else []},
        }.items():
            try:
                register_comm_hook(DistributedDataParallel(torch.nn.Linear(2, 2)), job, **options)
            except ValueError as error:
                told[name] = str(error)
        register_comm_hook(DistributedDataParallel(torch.nn.Linear(2, 2)), job, error_feedback=bool(rank))
    print(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
