# SPDX-License-Identifier: Apache-2.0
"""A worker process of trainings: trains by DDP over a shaped link, one training after the other.

Messages to the parent: ("bound", sockets) for each codec · ("ready",) · ("step", number) at
each point of a curve, a sign of life · ("done", *TrainingRun) after each training. From the parent: the path of each
codec's membership file · a TrainingOrder for each training · None at the end.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent, Communicator, Span
from hopsum.codec import ErrorFeedback, make_codec
from hopsum.codec.interface import feeds_back
from hopsum.config import Method
from hopsum.serial.collective import CollectiveCommunicator
from hopsum.torch import HopsumState, hopsum_hook
from hopsum.torch.diloco import DiLoCo
from hopsum_evaluation.bench.allreduce_worker import bind_sockets
from hopsum_evaluation.torch.gloo_bench import join_gloo
from hopsum_evaluation.training.accuracy_models import Batch, Learning, load_learning, loss, make_paced_learning
from hopsum_evaluation.training.accuracy_plan import (
    AUTO,
    MODELS,
    AccuracyPlan,
    TrainingOrder,
    TrainingRun,
    codec_of,
    diloco_of,
    low_rank_of,
    ranks_codec_of,
)
from hopsum_evaluation.training.other_schemes import Fp32DiLoCo, bf16_hook
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat

POWERSGD_RANKS = {"powersgd": 2, "powersgd-4": 4}
POWERSGD_START = 10
LOW_RANK_START = 10
"""Steps that are whole, for both, in trainings to a target."""
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
SETTLING_STEPS, POWERSGD_SETTLING_STEPS = 2, 4
"""Steps before those that are counted by their time: DDP makes its buckets anew after the first, PowerSGD compresses
from the third on and allocates there. The last one tells how many steps follow."""
LEAST_STEPS = 2
ONE_BUCKET_MB = 1024
"""torch's PowerSGD begins an all-reduce when the one before has ended, in a callback. With several buckets ranks may
begin them in different orders, and gloo, which matches them by order, aborts the process."""
PROBES = 4
"""Number of runs in which compute and all-reduce of a step are timed, each by itself."""
_INTERFACE = "eth0"


class Reducers(NamedTuple):
    """Objects that average gradients, by scheme: sockets or process groups of theirs are made before trainings."""

    sums: dict[str, Communicator]
    """Communicators of the schemes that sum codes, by a switch or by the ranks, by name of the scheme."""
    apart: dict[str, Communicator]
    """Agents of the same codecs whose codec never works while the network does, for timed models, by scheme."""
    spans: list[Span]
    """The spans of time of agents in `apart` since the list was cleared."""


def work(seat: Seat, plan: AccuracyPlan, pipe: Connection) -> None:
    """Run one worker in a process, in the network namespace of its seat: do each training that the parent sends.

    The messages on the pipe are those of the module.
    """
    # Before any socket or thread: both stay in the namespace in which they were made.
    assert seat.namespace is not None
    enter_namespace(seat.namespace)
    joined = [bind_sockets(seat, plan.services, pipe) for _ in plan.codecs]
    join_gloo(plan.folder / "rendezvous", seat.rank, plan.workers, _INTERFACE)
    torch.set_num_threads(plan.threads)
    if plan.device == "cuda":
        torch.cuda.set_device(seat.rank % torch.cuda.device_count())
        # As people train: on tensor cores.
        torch.set_float32_matmul_precision("high")
    learning = load_learning(plan.model)
    if plan.compute_s:
        learning = make_paced_learning(learning, plan.compute_s)
    with ExitStack() as stack:
        sums: dict[str, Communicator] = {}
        for scheme in plan.by_ranks:
            made, group = (
                make_codec(ranks_codec_of(scheme) or scheme, workers=plan.workers),
                dist.new_group(backend="gloo"),
            )
            sums[scheme] = stack.enter_context(CollectiveCommunicator("gloo", group, seat.rank, codec=made, seed=0))
        apart: dict[str, Communicator] = {}
        spans: list[Span] = []
        for codec, (membership, links, side) in zip(plan.codecs, joined, strict=True):
            second = codec in sums
            agent = Agent(
                membership, seat.rank, codec=codec_of(codec), link=links, side=side, timing=plan.timing,
                overlap=not second, trace=spans.append if second else None,
            )  # fmt: skip
            (apart if second else sums)[codec] = stack.enter_context(agent)
        reducers = Reducers(sums, apart, spans)
        pipe.send(("ready",))
        while (message := pipe.recv()) is not None:
            order = TrainingOrder(*message)
            trained = _train(order, learning, plan, seat.rank, reducers, pipe)
            # DDP is part of cycles: its gradients would stay in memory during the next training.
            gc.collect()
            pipe.send(("done", *trained))
    dist.destroy_process_group()


def _train(
    order: TrainingOrder, learning: Learning, plan: AccuracyPlan, rank: int, reducers: Reducers, pipe: Connection
) -> TrainingRun:
    network = learning.make_network(order.seed % (1 << 31)).to(plan.device)
    sync = diloco_of(order.scheme)
    # PowerSGD gets one bucket: see ONE_BUCKET_MB.
    bucket_mb = ONE_BUCKET_MB if order.scheme in POWERSGD_RANKS else None
    # Without views gradients take their memory twice: with large models on one machine it is scarce. All ranks make the
    # same parameters from the seed: to send those of the first one would take minutes over slow links.
    ddp = DistributedDataParallel(network, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, init_sync=False)
    state = None if sync.every else _register(ddp, order, reducers)
    optimiser = learning.make_optimiser(ddp)
    replica = _diloco(network, order, reducers) if sync.every else None
    # A stream for each rank: with one seed for all, ranks would draw the same batches.
    shuffle = np.random.default_rng([order.seed, rank])

    def draw() -> Batch:
        given, asked = learning.draw(shuffle, order.batch)
        return given.to(plan.device), asked.to(plan.device)

    took: list[float] = []
    used: list[float] = []
    points: list[tuple[int, float, float]] = []
    settling = POWERSGD_SETTLING_STEPS if order.scheme in POWERSGD_RANKS else SETTLING_STEPS
    # Whole periods of DiLoCo: one step in each waits for the network.
    settling = max(settling, sync.every)
    steps = order.steps
    if not steps:
        while state is not None and state.choice is not None and state.choice.is_trying:
            _step(ddp, optimiser, draw())
        # After a trial these steps deliver the residuals of the other methods.
        settled = [_step(ddp, optimiser, draw(), replica) for _ in range(settling)]
        steps = _settle(settled[-1], order.seconds)
        steps += -steps % max(sync.every, 1)
    began_bytes, began_again = _interface_bytes(), _retransmits(order, reducers)
    for step in range(1, steps + 1):
        batch = draw()
        used_s = time.process_time()
        took.append(_step(ddp, optimiser, batch, replica))
        used.append(time.process_time() - used_s)
        if order.every and step % order.every == 0:
            reached = torch.zeros(1)
            if rank == 0:
                points.append((step, sum(took), learning.measure(network)))
                pipe.send(("step", step))
                reached += MODELS[plan.model].is_reached(points[-1][2])
            dist.broadcast(reached, 0)
            if reached:
                break
    moved = max(now - then for now, then in zip(_interface_bytes(), began_bytes, strict=True))
    steps = len(took)
    again = (_retransmits(order, reducers) - began_again) / steps
    compute_s = _compute(ddp, optimiser, batch)
    reduce_s = _reduce(order, network, plan, reducers) if order.steps else None
    encode_s = decode_s = None
    method = None if state is None or state.choice is None else state.method_in_use
    # What scheme auto has encoded depends on its choice: the parts of each method are in rows of their own.
    if state is not None and method is None and order.scheme in reducers.apart:
        state.attach(reducers.apart[order.scheme], ddp)
        # The spans of the second step: the first one finds cold caches.
        for _ in range(2):
            reducers.spans.clear()
            _step(ddp, optimiser, batch)
        encode_s, decode_s = (_seconds_in(reducers.spans, *stages) for stages in (("prepare", "encode"), ("decode",)))
    first = int(order.steps > 0)
    step_s, step_cpu_s = float(np.mean(took[first:])), float(np.mean(used[first:]))
    return TrainingRun(
        points, step_s, compute_s, reduce_s, step_cpu_s, moved / steps, encode_s, decode_s, again, method
    )


def _retransmits(order: TrainingOrder, reducers: Reducers) -> int:
    return reducers.sums[order.scheme].statistics.traffic.retransmits if order.scheme in reducers.sums else 0


def _settle(last_s: float, seconds: float) -> int:
    """Return the steps that take `seconds` on the slowest rank, LEAST_STEPS at least. last_s: of one here."""
    slowest = torch.tensor(last_s)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(LEAST_STEPS, ceil(seconds / float(slowest)))


def _seconds_in(spans: Sequence[Span], *stages: str) -> float:
    return sum(each.stop_s - each.start_s for each in spans if each.stage in stages)


def _interface_bytes() -> tuple[int, int]:
    """Read how many bytes this namespace's interface has received and sent."""
    rows = (line.split() for line in Path("/proc/thread-self/net/dev").read_text().splitlines())
    row = next(row for row in rows if row[:1] == [f"{_INTERFACE}:"])
    return int(row[1]), int(row[9])


def _step(
    module: DistributedDataParallel,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    replica: DiLoCo | Fp32DiLoCo | None = None,
) -> float:
    """Take one step, of a replica by itself where it is synchronised rarely. Return its seconds."""
    start = time.perf_counter()
    optimiser.zero_grad()
    with nullcontext() if replica is None else module.no_sync():
        loss(module, batch).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    if replica is not None:
        replica.step()
    if batch[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _register(ddp: DistributedDataParallel, order: TrainingOrder, reducers: Reducers) -> HopsumState | None:
    """Register the hook of the order's scheme. Return its state where it is hopsum's."""
    scheme = order.scheme
    if scheme == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif scheme == "bf16":
        ddp.register_comm_hook(None, bf16_hook)
    elif scheme in POWERSGD_RANKS:
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWERSGD_RANKS[scheme],
            # 2 is the least that torch takes: then all steps that are counted by their time compress.
            start_powerSGD_iter=POWERSGD_START if order.steps else 2,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif scheme in reducers.sums:
        # As with PowerSGD, all steps that are counted by their time compress.
        start = LOW_RANK_START if order.steps else 0
        method: Method = "auto" if scheme == AUTO else "hopsum"
        own = HopsumState(reducers.sums[scheme], ddp, low_rank=low_rank_of(scheme), low_rank_start=start, method=method)
        ddp.register_comm_hook(own, hopsum_hook)
        return own
    return None


def _diloco(network: nn.Module, order: TrainingOrder, reducers: Reducers) -> DiLoCo | Fp32DiLoCo:
    """Make the DiLoCo of a scheme."""
    sync = diloco_of(order.scheme)
    if sync.in_fp32:
        return Fp32DiLoCo(network, sync.every)
    return DiLoCo(network, reducers.sums[order.scheme], sync_every=sync.every)


def _compute(ddp: DistributedDataParallel, optimiser: torch.optim.Optimizer, batch: Batch) -> float:
    """Time a step without its all-reduce, on all ranks at the same time. Return the median, in seconds.

    The training has ended after it: the optimiser moves nothing any more.
    """
    # With a learning rate of 0 the steps take their time and leave the parameters as they are.
    for group in optimiser.param_groups:
        group["lr"] = 0.0
    found = []
    with ddp.no_sync():
        for _ in range(PROBES):
            dist.barrier()
            found.append(_step(ddp, optimiser, batch))
    return float(np.median(found))


def _reduce(order: TrainingOrder, network: nn.Module, plan: AccuracyPlan, reducers: Reducers) -> float | None:
    """Time an all-reduce of the gradient, with conversions and error feedback as in training.

    Return the median of a tight loop, in seconds, or None for PowerSGD, low rank and DiLoCo.
    """
    if order.scheme in POWERSGD_RANKS or low_rank_of(order.scheme) or diloco_of(order.scheme).every:
        return None
    scheme = order.scheme
    gradient = torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None])
    # A residual of its own: the one of the training must not change after the training.
    keeps = scheme in reducers.sums and feeds_back(reducers.sums[scheme].codec)
    feedback = ErrorFeedback(gradient.numel()) if keeps else None
    found = []
    dist.barrier()
    for _ in range(PROBES + 1):
        mean: Any = gradient.clone()
        start = time.perf_counter()
        if scheme in reducers.sums:
            reducers.sums[scheme].allreduce(mean.numpy(), feedback=feedback, out=mean.numpy())
        elif scheme in HALVES:
            half = mean.to(HALVES[scheme])
            dist.all_reduce(half)
            mean.copy_(half)
            mean /= plan.workers
        else:
            dist.all_reduce(mean)
            mean /= plan.workers
        found.append(time.perf_counter() - start)
    # Ranks begin the first one with cold caches, and not at the same time.
    return float(np.median(found[1:]))
