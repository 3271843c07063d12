# SPDX-License-Identifier: Apache-2.0
"""A worker process of the demo: trains through the switch, measures the error of the mean, trains in fp32.

Messages to the parent, in this order: ("bound", (ip, port), (ip, TCP port) for peers or None) · ("step", phase, step,
loss) ... · ("trained", Trained) after the first training · ("nmse", Nmse or None) · ("step", ...) ... · ("baseline",
accuracy).
From the parent: the membership file's path · True once it has read the interfaces after the first training.
"""

from __future__ import annotations

import hashlib
import os
import socket
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

from hopsum.agent import Agent
from hopsum.codec.thc import Thc
from hopsum.communicator import CommunicatorStatistics
from hopsum.protocol.worker import Timing
from hopsum.torch import HopsumState, hopsum_hook
from hopsum_evaluation.command_options import view_of
from hopsum_evaluation.demo.digits_network import Images, accuracy, load_images, make_network
from hopsum_evaluation.expected_error import expected_nmse_of
from hopsum_evaluation.torch.gloo_bench import join_gloo
from hopsum_topologies.seat import LinkKind, Seat, open_seat_link

RETRANSMIT_S = 0.25
RETRANSMIT_MIN_S = 0.05
"""Once round trips are known. Four workers and a switch on few cores: a result that is later than that is not lost."""
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


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Figures of a worker after the training through the switch."""

    loss_first: float
    loss_last: float
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
    """Be one worker."""
    link = open_seat_link(seat, plan.link, view_of(plan.pcap, seat.rank, show=plan.show))
    # Links may be in namespaces, but all processes run on this host: peers repair over loopback.
    side = socket.create_server(("127.0.0.1", 0)) if plan.peers else None
    pipe.send(("bound", link.local, side and side.getsockname()))
    membership: str = pipe.recv()
    if not plan.show:
        # Gloo of torch 2.8 prints on stdout, which belongs to the report.
        os.dup2(2, 1)
    join_gloo(plan.folder / "rendezvous", seat.rank, plan.workers, "lo")
    images = load_images(plan.data)
    retransmit_s = min(RETRANSMIT_S, plan.deadline_s)
    timing = Timing(retransmit_s=retransmit_s, retransmit_min_s=RETRANSMIT_MIN_S, deadline_s=plan.deadline_s)
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        agent = stack.enter_context(
            Agent(membership, seat.rank, codec=plan.codec, timing=timing, link=link, side=side, seed=plan.seed)
        )
        network = make_network(images, plan.seed)
        ddp = DistributedDataParallel(network)
        ddp.register_comm_hook(HopsumState(agent, ddp), hopsum_hook)
        losses = _train(ddp, images, plan, seat.rank, pipe, plan.codec)
        parameters = sum(each.numel() for each in network.parameters())
        found = accuracy(network, images)
        pipe.send(("trained", DemoResult(*losses, found, _digest(network), agent.statistics, parameters)))
        if not pipe.recv():
            return
        pipe.send(("nmse", _measure_nmse(agent, network)))
    join_gloo(plan.folder / "rendezvous-fp32", seat.rank, plan.workers, "lo")
    network = make_network(images, plan.seed)
    _train(DistributedDataParallel(network), images, plan, seat.rank, pipe, "fp32")
    pipe.send(("baseline", accuracy(network, images)))
    dist.destroy_process_group()


def _train(
    ddp: DistributedDataParallel, images: Images, plan: DemoPlan, rank: int, pipe: Connection, phase: str
) -> tuple[float, float]:
    """Take the plan's steps. Return the mean loss of the first and of the last ten of this rank."""
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    shuffle = np.random.default_rng([plan.seed, rank])
    losses = []
    for step in range(plan.steps):
        batch = torch.from_numpy(shuffle.integers(0, len(images.train_y), plan.batch))
        optimiser.zero_grad()
        loss = cross_entropy(ddp(images.train_x[batch]), images.train_y[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
        pipe.send(("step", phase, step, losses[-1]))
    return float(np.mean(losses[:10])), float(np.mean(losses[-10:]))


def _digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def _measure_nmse(agent: Agent, network: nn.Module) -> Nmse | None:
    """Sum rank 0's last gradient on all ranks, several times, or None if it is zero."""
    gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    dist.broadcast(gradient, 0)
    x: NDArray[np.float32] = gradient.numpy()
    energy = float(np.square(x, dtype=np.float64).sum())
    if energy == 0.0:
        return None
    errors = [np.square(agent.allreduce(x).mean - x, dtype=np.float64).sum() for _ in range(PROBES)]
    theory = None
    if isinstance(agent.codec, Thc) and agent.membership.quorum == agent.workers:
        table = agent.codec.table
        theory = expected_nmse_of(x, table.values, table.bound, agent.workers, np.random.default_rng(1))
    return Nmse(float(np.mean(errors)) / energy, theory)
