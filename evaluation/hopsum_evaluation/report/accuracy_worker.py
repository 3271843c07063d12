# SPDX-License-Identifier: Apache-2.0
"""A worker of section `accuracy`: trains with DDP behind a shaped link, gradients reduced in one way after the other.

Messages to the parent: ("bound", (ip, port)) for each codec · ("ready", [Ready of each model]) · ("step", number) at
each look, so that long trainings are not taken for hanging · ("done", Trained) after each training. From the parent:
the path of each codec's membership file · Order for each training · None at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent
from hopsum.codec import ErrorFeedback, make_codec
from hopsum.communicator import Communicator
from hopsum.torch import DiLoCo, HopsumState, hopsum_hook
from hopsum.transport.udp_link import UdpLink
from hopsum_evaluation.baselines.two_shot import BITS
from hopsum_evaluation.report.accuracy_models import Batch, Learning, load_learning, loss
from hopsum_evaluation.report.accuracy_plan import DILOCO, AccuracyPlan, Ready, TrainingOrder, TrainingRun
from hopsum_evaluation.report.diloco import GlooMeans, make_diloco
from hopsum_evaluation.report.software import SoftwareServers
from hopsum_evaluation.report.topk import TopKState, exchange, largest, topk_hook
from hopsum_evaluation.report.two_shot import TwoShotExchange, TwoShotState, part_elements, two_shot_hook
from hopsum_topologies.seat import Seat

POWERSGD_RANK = 2
POWERSGD_START = 10
ONE_BUCKET_MB = 1024
"""torch's PowerSGD begins an all-reduce when the one before has ended, in a callback. With several buckets ranks may
begin them in different orders, and gloo, which matches them by order, aborts the process."""
PROBES = 4
"""Times that the parts of a step are timed alone."""
_INTERFACE = "eth0"


class Reducers(NamedTuple):
    """The reducers of gradients, by scheme. The rest needs nothing that is made beforehand."""

    sums: dict[str, Communicator]
    """The summation of codes, by the switch or by servers in its place; and of fp32 over gloo for `diloco`."""
    exchanges: dict[str, TwoShotExchange]


def work(seat: Seat, plan: AccuracyPlan, pipe: Connection) -> None:
    """Be one worker, in the namespace where it belongs."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = _INTERFACE
    joined = [_join(seat, plan, pipe) for _ in plan.codecs]
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.folder}/rendezvous", rank=seat.rank, world_size=plan.workers
    )
    learning = {name: load_learning(name) for name in plan.models}
    with ExitStack() as stack:
        servers = SoftwareServers(make_codec("thc", workers=plan.workers))
        means = stack.enter_context(GlooMeans(plan.workers))
        sums: dict[str, Communicator] = {"thc-ps": stack.enter_context(servers), "diloco": means}
        for codec, (membership, links) in zip(plan.codecs, joined, strict=True):
            sums[codec] = stack.enter_context(Agent(membership, seat.rank, codec=codec, link=links))
        exchanges = {f"two-shot-{bits}": TwoShotExchange(bits, plan.workers) for bits in BITS}
        for exchange in exchanges.values():
            stack.callback(exchange.close)
        reducers = Reducers(sums, exchanges)
        pipe.send(("ready", [tuple(_ready(each)) for each in learning.values()]))
        while (message := pipe.recv()) is not None:
            order = TrainingOrder(*message)
            trained = _train(order, learning[order.model], plan, seat.rank, reducers, pipe)
            pipe.send(("done", *trained))
    dist.destroy_process_group()


def _join(seat: Seat, plan: AccuracyPlan, pipe: Connection) -> tuple[str, list[UdpLink]]:
    """Return the membership file of a job, and the links over which this worker takes part, one for each shard."""
    links = [UdpLink((seat.ip, 0), service, gso="auto") for service in plan.services]
    pipe.send(("bound", [link.local for link in links]))
    membership: str = pipe.recv()
    return membership, links


def _ready(learning: Learning) -> Ready:
    return Ready(sum(each.numel() for each in learning.make_network(0).parameters()), learning.data)


def _train(
    order: TrainingOrder, learning: Learning, plan: AccuracyPlan, rank: int, reducers: Reducers, pipe: Connection
) -> TrainingRun:
    network = learning.make_network(order.seed % (1 << 31))
    replica = _replica(network, order, reducers)
    optimiser = learning.make_optimiser(replica.module)
    shuffle = np.random.default_rng([order.seed, rank])
    took: list[float] = []
    used: list[float] = []
    points: list[tuple[int, float, float]] = []
    began_bytes = _interface_bytes()
    for step in range(1, order.steps + 1):
        batch = learning.draw(shuffle, order.batch)
        used_s = time.process_time()
        took.append(_step(replica.module, optimiser, batch, replica.after(step == order.steps)))
        used.append(time.process_time() - used_s)
        if step % order.every == 0:
            if rank == 0:
                with replica.measured():
                    points.append((step, sum(took), learning.measure(network)))
                pipe.send(("step", step))
            dist.barrier()
    moved = max(now - then for now, then in zip(_interface_bytes(), began_bytes, strict=True))
    compute_s = _compute(replica, learning, batch)
    reduce_s = _reduce(order, network, plan, reducers)
    return TrainingRun(
        points, float(np.mean(took[1:])), compute_s, reduce_s, float(np.mean(used[1:])), moved / order.steps
    )


class _Replica(NamedTuple):
    """A network and its way to be averaged."""

    module: nn.Module
    """A DistributedDataParallel, or the network itself where DiLoCo averages it."""
    diloco: DiLoCo | None

    def after(self, last: bool) -> Callable[[], None]:
        """Return what belongs to a step after the inner optimiser's."""
        diloco = self.diloco
        if diloco is None:
            return lambda: None

        def synchronise() -> None:
            diloco.step()
            if last:
                diloco.finish()

        return synchronise

    def measured(self) -> AbstractContextManager[None]:
        """Return a context in which the network has the parameters to measure."""
        return nullcontext() if self.diloco is None else self.diloco.global_parameters()

    def alone(self) -> AbstractContextManager[None]:
        """Return a context in which a step keeps its gradient to itself."""
        return self.module.no_sync() if isinstance(self.module, DistributedDataParallel) else nullcontext()


def _replica(network: nn.Module, order: TrainingOrder, reducers: Reducers) -> _Replica:
    if order.scheme in DILOCO:
        comm = reducers.sums["diloco" if order.scheme == "diloco" else order.diloco.codec]
        return _Replica(network, make_diloco(network, comm, order.diloco))
    ddp = DistributedDataParallel(network, bucket_cap_mb=ONE_BUCKET_MB if order.scheme == "powersgd" else None)
    _register(ddp, order.scheme, reducers)
    return _Replica(ddp, None)


def _interface_bytes() -> tuple[int, int]:
    """Return the bytes that this namespace's interface received and sent so far."""
    rows = (line.split() for line in Path("/proc/thread-self/net/dev").read_text().splitlines())
    row = next(row for row in rows if row[:1] == [f"{_INTERFACE}:"])
    return int(row[1]), int(row[9])


def _step(
    module: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch, after: Callable[[], None] = lambda: None
) -> float:
    """Take one step, and what comes after it. Return its seconds."""
    start = time.perf_counter()
    optimiser.zero_grad()
    loss(module, batch).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    after()
    return time.perf_counter() - start


def _register(ddp: DistributedDataParallel, scheme: str, reducers: Reducers) -> None:
    if scheme == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif scheme == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=POWERSGD_START,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif scheme == "topk":
        ddp.register_comm_hook(TopKState(), topk_hook)
    elif scheme in reducers.exchanges:
        ddp.register_comm_hook(TwoShotState(reducers.exchanges[scheme]), two_shot_hook)
    elif scheme in reducers.sums:
        ddp.register_comm_hook(HopsumState(reducers.sums[scheme], ddp), hopsum_hook)


def _compute(replica: _Replica, learning: Learning, batch: Batch) -> float:
    """Return the seconds of a step that keeps its gradient to itself and changes nothing else."""
    still = learning.make_optimiser(replica.module)
    for group in still.param_groups:
        group["lr"] = 0.0
    found = []
    with replica.alone():
        for _ in range(PROBES):
            dist.barrier()
            found.append(_step(replica.module, still, batch))
    return float(np.median(found))


def _reduce(order: TrainingOrder, network: nn.Module, plan: AccuracyPlan, reducers: Reducers) -> float | None:
    """Return the seconds of an all-reduce of the gradient, with conversions and error feedback as in training."""
    if order.scheme == "powersgd":
        return None
    scheme = order.diloco.codec if order.scheme == "diloco-hopsum" else order.scheme
    steps = order.diloco.sync_every if order.scheme in DILOCO else 1
    gradient = torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None])
    feedback = ErrorFeedback(gradient.numel())
    left = np.zeros(part_elements(gradient.numel(), plan.workers), np.float32)
    found = []
    for _ in range(PROBES):
        mean: Any = gradient.clone()
        dist.barrier()
        start = time.perf_counter()
        if scheme in reducers.sums:
            reducers.sums[scheme].allreduce(mean.numpy(), feedback=feedback, out=mean.numpy())
        elif scheme in reducers.exchanges:
            reducers.exchanges[scheme].mean(mean.numpy(), left)
        elif scheme == "fp16":
            half = mean.half()
            dist.all_reduce(half)
            mean.copy_(half)
            mean /= plan.workers
        elif scheme == "topk":
            exchange(mean, largest(mean)).wait()
        else:
            dist.all_reduce(mean)
            mean /= plan.workers
        found.append(time.perf_counter() - start)
    return float(np.median(found)) / steps
