# SPDX-License-Identifier: Apache-2.0
"""All-reduces by torch.distributed over gloo: subjects of `hopsum bench allreduce`, beside hopsum's on the same links.

Rings in fp32 and fp16, and the two-shot all-reduce of codes: see `hopsum_evaluation.baselines.two_shot`.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hopsum.communicator import Span
from hopsum_evaluation.baselines.two_shot import BITS
from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, take_turns
from hopsum_evaluation.report.other_schemes import TwoShotExchange, part_elements
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat


def work(seat: Seat, plan: AllReducePlan, pipe: Connection) -> None:
    """Be one worker: all-reduce in the type that the parent names."""
    # Before gloo opens a socket: a socket stays in the namespace in which it was made.
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    join_gloo(plan.folder / "rendezvous", seat.rank, plan.workers, plan.interface)
    exchanges = {f"two-shot-{bits}": TwoShotExchange(bits, plan.workers) for bits in BITS}
    take_turns(plan, seat.rank, _Gloo(plan.workers, exchanges), pipe)
    for exchange in exchanges.values():
        exchange.close()
    dist.destroy_process_group()


def join_gloo(rendezvous: Path, rank: int, workers: int, interface: str) -> None:
    """Join a process group of worker processes of one machine, which meet by a file and talk over an interface."""
    # As hopsum's workers: one thread computes, and shares the host's cores with gloo's own.
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=workers)


class _Gloo:
    """gloo as the reducer of a rank.

    The timed part is that of a training step: fp16 converts there and back, both rings divide by the number of
    workers. Two-shot quantises, adds and dequantises.
    """

    def __init__(self, workers: int, exchanges: dict[str, TwoShotExchange]) -> None:
        self.spans: list[Span] = []
        self.retransmits = 0
        self._workers, self._exchanges = workers, exchanges
        self._left: dict[str, NDArray[np.float32]] = {}

    def prepare(self, elements: int) -> None:
        self._left = {
            subject: np.zeros(part_elements(elements, self._workers), np.float32) for subject in self._exchanges
        }

    def reduce(self, subject: str, gradient: NDArray[np.float32]) -> None:
        mean = torch.from_numpy(gradient)
        if subject in self._exchanges:
            gradient[:] = self._exchanges[subject].mean(gradient, self._left[subject])[0]
        elif subject == "gloo-fp16":
            half = mean.half()
            dist.all_reduce(half)
            mean.copy_(half)
            mean /= self._workers
        else:
            dist.all_reduce(mean)
            mean /= self._workers
