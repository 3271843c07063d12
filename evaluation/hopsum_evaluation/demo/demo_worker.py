# SPDX-License-Identifier: Apache-2.0
"""A worker process of the demo: trains through the switch, measures the error of the mean, trains in fp32.

Messages to the parent, in this order: ("bound", (ip, port), (ip, TCP port) for peers or None) · ("step", phase, step,
loss) ... · ("trained", DemoResult) after the first training · ("nmse", Nmse or None) · ("step", ...) ... · ("baseline",
accuracy, seconds of a step).
From the parent: the membership file's path · True once it has read the interfaces after the first training.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent, CommunicatorStatistics
from hopsum.codec.thc import Thc
from hopsum.protocol.worker import Timing
from hopsum.torch import HopsumState, hopsum_hook
from hopsum_evaluation.command_options import view_of
from hopsum_evaluation.demo.digits_network import Images, accuracy, load_images, make_network
from hopsum_evaluation.expected_error import expected_nmse_of
from hopsum_evaluation.torch.gloo_bench import join_gloo
from hopsum_topologies.description import HOST_INTERFACE
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import LinkKind, Seat, open_seat_link

RETRANSMIT_S = 0.25
RETRANSMIT_MIN_S = 0.05
"""Once round trips are known. Four workers and a switch on few cores: a result that is later than that is not lost."""
CHANNELS = 16
"""Channels of the network's first convolution."""
_REST = 4810
PROBES = 16
"""All-reduces of one gradient by which the error of the mean is measured."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Settings of all workers of a demo."""

    workers: int
    steps: int
    batch: int
    codec: str
    data: str
    seed: int
    parameters: int
    """The number of parameters that the network should have, about."""
    quorum: int
    loss: float
    """The share of frames that is lost, at every switch port in both directions."""
    peers: bool
    """Results that the switch no longer has come from the other workers."""
    deadline_s: float
    """The deadline of each phase of an all-reduce."""
    folder: Path
    """The folder for torch's rendezvous."""
    link: LinkKind = "udp"
    pcap: Path | None = None
    """Folder for each worker's packets."""
    show: bool = False
    """Print every packet."""
    rate_bits_per_s: float | None = None
    """The rate of every worker's link, where each worker process is in the namespace of its seat. None: the data
    socket only."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Figures of a worker after the training through the switch."""

    loss_first: float
    loss_last: float
    step_s: float
    """Mean of the steps after the first."""
    accuracy: float
    digest: str
    """SHA-256 of all parameters."""
    statistics: CommunicatorStatistics
    parameters: int


@dataclass(frozen=True, slots=True)
class Nmse:
    """Error of the mean of one gradient that all workers have: E||mean' - x||^2 / ||x||^2."""

    measured: float
    theory: float | None
    """None for a codec without one, or where sums may be without a worker."""


def work(seat: Seat, plan: DemoPlan, pipe: Connection) -> None:
    """Run one worker in a process of its own: train twice and report to the parent, by the messages of the module.

    stdout becomes stderr unless `plan.show` is set.
    """
    interface, ip = "lo", "127.0.0.1"
    if plan.rate_bits_per_s is not None:
        assert seat.namespace is not None
        # Before any socket or thread: gloo and the peers have the worker's own link too.
        enter_namespace(seat.namespace)
        interface, ip = HOST_INTERFACE, seat.ip
    link = open_seat_link(seat, plan.link, view_of(plan.pcap, seat.rank, show=plan.show))
    # Data sockets may be in namespaces, but all processes run on this host: peers repair over loopback.
    side = socket.create_server((ip, 0)) if plan.peers else None
    pipe.send(("bound", link.local, side and side.getsockname()))
    membership: str = pipe.recv()
    if not plan.show:
        # Gloo of torch 2.8 prints on stdout, which belongs to the report.
        os.dup2(2, 1)
    join_gloo(plan.folder / "rendezvous", seat.rank, plan.workers, interface)
    images = load_images(plan.data)
    retransmit_s = min(RETRANSMIT_S, plan.deadline_s)
    timing = Timing(retransmit_s=retransmit_s, retransmit_min_s=RETRANSMIT_MIN_S, deadline_s=plan.deadline_s)
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        agent = stack.enter_context(
            Agent(membership, seat.rank, codec=plan.codec, timing=timing, link=link, side=side, seed=plan.seed)
        )
        network = _make_network(images, plan)
        ddp = DistributedDataParallel(network)
        ddp.register_comm_hook(HopsumState(agent, ddp), hopsum_hook)
        trained = _train(ddp, images, plan, seat.rank, pipe, plan.codec)
        parameters = sum(each.numel() for each in network.parameters())
        found = accuracy(network, images)
        pipe.send(("trained", DemoResult(*trained, found, _digest(network), agent.statistics, parameters)))
        if not pipe.recv():
            return
        pipe.send(("nmse", _measure_nmse(agent, network, seat.rank)))
    join_gloo(plan.folder / "rendezvous-fp32", seat.rank, plan.workers, interface)
    network = _make_network(images, plan)
    *_, step_s = _train(DistributedDataParallel(network), images, plan, seat.rank, pipe, "fp32")
    pipe.send(("baseline", accuracy(network, images), step_s))
    dist.destroy_process_group()


def _make_network(images: Images, plan: DemoPlan) -> nn.Module:
    height, width = images.train_x.shape[2:]
    # A hidden unit has the second convolution's output, a bias and ten weights. The rest has _REST parameters.
    unit = 2 * CHANNELS * (height // 2) * (width // 2) + 11
    return make_network(images, plan.seed, CHANNELS, max(1, round((plan.parameters - _REST) / unit)))


def _train(
    ddp: DistributedDataParallel, images: Images, plan: DemoPlan, rank: int, pipe: Connection, phase: str
) -> tuple[float, float, float]:
    """Take the plan's steps. Return this rank's mean loss of the first and of the last ten, and seconds of a step."""
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    shuffle = np.random.default_rng([plan.seed, rank])
    losses, took = [], []
    for step in range(plan.steps):
        batch = torch.from_numpy(shuffle.integers(0, len(images.train_y), plan.batch))
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = cross_entropy(ddp(images.train_x[batch]), images.train_y[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        took.append(time.perf_counter() - start)
        losses.append(float(loss.detach()))
        pipe.send(("step", phase, step, losses[-1]))
    # Without the first step, in which DDP has other buckets and everything is cold.
    return float(np.mean(losses[:10])), float(np.mean(losses[-10:])), float(np.mean(took[1:]))


def _digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def _measure_nmse(agent: Agent, network: nn.Module, rank: int) -> Nmse | None:
    """Sum rank 0's last gradient on all ranks, several times. None if it is zero, and on all ranks but 0."""
    gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    dist.broadcast(gradient, 0)
    x: NDArray[np.float32] = gradient.numpy()
    energy = float(np.square(x, dtype=np.float64).sum())
    if energy == 0.0:
        return None
    errors = [np.square(agent.allreduce(x).mean - x, dtype=np.float64).sum() for _ in range(PROBES)]
    if rank:
        return None
    theory = None
    if isinstance(agent.codec, Thc) and agent.membership.quorum == agent.workers:
        theory = expected_nmse_of(x, agent.codec, np.random.default_rng(1))
    return Nmse(float(np.mean(errors)) / energy, theory)
