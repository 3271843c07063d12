# SPDX-License-Identifier: Apache-2.0
"""All-reduces by torch.distributed over gloo: a subject of `hopsum bench allreduce`, beside hopsum's on the same links.

Imported by name, in processes that are already where they belong.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, Clock, Measured, memory_of_this, vector_of
from hopsum_topologies.seat import Seat


def work(seat: Seat, plan: AllReducePlan, pipe: Connection) -> None:
    """Be one worker: an all-reduce in the type that is asked for, whenever the parent says so.

    What is timed is that of a training step: fp16 converts there and back, both divide by the number of workers.
    """
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.folder}/rendezvous", rank=seat.rank, world_size=plan.workers
    )
    x = torch.from_numpy(vector_of(plan, seat.rank))
    pipe.send(("ready", memory_of_this()["rss"]))
    while (subject := pipe.recv()) is not None:
        mean = x.clone()  # an all-reduce works in place: the gradient of a step
        clock = Clock()
        if subject == "gloo-fp16":
            half = mean.half()
            dist.all_reduce(half)
            mean.copy_(half)
        else:
            dist.all_reduce(mean)
        mean /= plan.workers
        seconds, cpu = clock.read()
        first = mean[: plan.checked].numpy()
        pipe.send(("done", *Measured(seconds, cpu, first, memory_of_this()["peak"], [], 0)))
    dist.destroy_process_group()
