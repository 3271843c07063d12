# SPDX-License-Identifier: Apache-2.0
"""A worker of section `accuracy`: trains with DDP behind a shaped link, gradients reduced in one way after the other.

Messages to the parent: ("bound", (ip, port)) · ("ready", parameters) · ("done", Trained) after each training. From the
parent: the membership file's path · Order for each training · None at the end.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent
from hopsum.cli.demo.model import Images, accuracy, load_images
from hopsum.cli.report.accuracy_plan import Order, Plan, Trained
from hopsum.cli.stage.seat import Seat
from hopsum.torch import State, hook
from hopsum.transport.link import UdpLink

POWERSGD_RANK = 2
POWERSGD_START = 10
PROBES = 4
"""Times that the parts of a step are timed alone."""
WIDTH = 960
_INTERFACE = "eth0"
_RATE, _MOMENTUM = 0.1, 0.9


def work(seat: Seat, plan: Plan, pipe: Connection) -> None:
    """Be one worker, in the namespace where it belongs."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = _INTERFACE
    link = UdpLink((seat.ip, 0), seat.switch, gso="auto")
    pipe.send(("bound", link.local))
    membership: str = pipe.recv()
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.folder}/rendezvous", rank=seat.rank, world_size=plan.workers
    )
    images = load_images("digits")
    with Agent(membership, seat.rank, codec="thc", link=link) as agent:
        pipe.send(("ready", sum(each.numel() for each in make_network(0).parameters())))
        while (order := pipe.recv()) is not None:
            pipe.send(("done", *_train(Order(*order), images, plan, seat.rank, agent)))
    dist.destroy_process_group()


def make_network(seed: int) -> nn.Module:
    """Return a convolutional network of about a million parameters for the digits, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def _train(order: Order, images: Images, plan: Plan, rank: int, agent: Agent) -> Trained:
    network = make_network(order.seed % (1 << 31))
    ddp = DistributedDataParallel(network)
    _register(ddp, order.scheme, agent)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=_RATE, momentum=_MOMENTUM)
    shuffle = np.random.default_rng([order.seed, rank])
    took: list[float] = []
    points: list[tuple[int, float, float]] = []
    for step in range(1, plan.steps + 1):
        batch = torch.from_numpy(shuffle.integers(0, len(images.train_y), plan.batch))
        took.append(_step(ddp, optimiser, images, batch))
        if step % plan.every == 0:
            if rank == 0:
                points.append((step, sum(took), accuracy(network, images)))
            dist.barrier()
    compute_s = _compute(ddp, images, batch)
    return Trained(points, float(np.mean(took[1:])), compute_s, _reduce(order.scheme, network, plan, agent))


def _step(ddp: nn.Module, optimiser: torch.optim.Optimizer, images: Images, batch: torch.Tensor) -> float:
    """Take one step; return its seconds."""
    start = time.perf_counter()
    optimiser.zero_grad()
    cross_entropy(ddp(images.train_x[batch]), images.train_y[batch]).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return time.perf_counter() - start


def _register(ddp: DistributedDataParallel, scheme: str, agent: Agent) -> None:
    if scheme == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif scheme == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=POWERSGD_START,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif scheme == "thc":
        ddp.register_comm_hook(State(agent, ddp), hook)


def _compute(ddp: DistributedDataParallel, images: Images, batch: torch.Tensor) -> float:
    """Return the seconds of a step that keeps its gradient to itself and changes nothing else."""
    still = torch.optim.SGD(ddp.parameters(), lr=0.0, momentum=_MOMENTUM)
    found = []
    with ddp.no_sync():
        for _ in range(PROBES):
            dist.barrier()
            found.append(_step(ddp, still, images, batch))
    return float(np.median(found))


def _reduce(scheme: str, network: nn.Module, plan: Plan, agent: Agent) -> float | None:
    """Return the seconds of an all-reduce of the gradient, with the conversions that belong to it."""
    if scheme == "powersgd":
        return None
    gradient = torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None])
    found = []
    for _ in range(PROBES):
        mean: Any = gradient.clone()
        dist.barrier()
        start = time.perf_counter()
        if scheme == "thc":
            agent.allreduce(mean.numpy())
        elif scheme == "fp16":
            half = mean.half()
            dist.all_reduce(half)
            mean.copy_(half)
            mean /= plan.workers
        else:
            dist.all_reduce(mean)
            mean /= plan.workers
        found.append(time.perf_counter() - start)
    return float(np.median(found))
