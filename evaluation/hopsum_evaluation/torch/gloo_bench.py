# SPDX-License-Identifier: Apache-2.0
"""All-reduces by torch.distributed over gloo: subjects of `hopsum bench allreduce`, beside hopsum's on the same links.

Rings in fp32 and fp16, and the two-shot all-reduce of codes: see `hopsum_evaluation.baselines.two_shot`.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist

from hopsum_evaluation.baselines.two_shot import BITS
from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, Clock, Measured, memory_of_this, vector_of
from hopsum_evaluation.report.other_schemes import TwoShotExchange, part_elements
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat


def work(seat: Seat, plan: AllReducePlan, pipe: Connection) -> None:
    """Be one worker: all-reduce in the type that the parent names, each time that it names one.

    The timed part is that of a training step: fp16 converts there and back, both divide by the number of workers.
    Two-shot quantises, adds and dequantises.
    """
    # Before gloo opens a socket: a socket stays in the namespace in which it was made.
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.folder}/rendezvous", rank=seat.rank, world_size=plan.workers
    )
    x = torch.from_numpy(vector_of(plan, seat.rank))
    left = np.zeros(part_elements(x.numel(), plan.workers), np.float32)
    exchanges = {f"two-shot-{bits}": TwoShotExchange(bits, plan.workers) for bits in BITS}
    pipe.send(("ready", memory_of_this()["rss"]))
    while (subject := pipe.recv()) is not None:
        mean = x.clone()  # an all-reduce works in place: the gradient of a step
        clock = Clock()
        if subject == "gloo-fp16":
            half = mean.half()
            dist.all_reduce(half)
            mean.copy_(half)
            mean /= plan.workers
        elif subject in exchanges:
            left[:] = 0
            mean = torch.from_numpy(exchanges[subject].mean(mean.numpy(), left)[0])
        else:
            dist.all_reduce(mean)
            mean /= plan.workers
        seconds, cpu = clock.read()
        first = mean[: plan.checked].numpy()
        pipe.send(("done", *Measured(seconds, cpu, first, memory_of_this()["peak"], [], 0)))
    for exchange in exchanges.values():
        exchange.close()
    dist.destroy_process_group()
