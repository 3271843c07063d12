# SPDX-License-Identifier: Apache-2.0
"""All-reduces by torch.distributed over gloo: subjects of `hopsum bench allreduce`, on the same links as hopsum's.

Rings in fp32 and fp16, and codec `two-shot` as users have it: over `collective://gloo`, with error feedback.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hopsum.agent import Communicator
from hopsum.codec import ErrorFeedback, make_codec
from hopsum.serial.collective import CollectiveCommunicator
from hopsum_evaluation.bench.allreduce_worker import GLOO, AllReducePlan, take_turns
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat


def work(seat: Seat, plan: AllReducePlan, pipe: Connection) -> None:
    """Run one worker of gloo in a process, in its seat's namespace: take each turn that the parent sends."""
    # Before gloo opens a socket: a socket stays in the namespace in which it was made.
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    join_gloo(plan.folder / "rendezvous", seat.rank, plan.workers, plan.interface)
    gloo = _Gloo(plan, seat.rank)
    take_turns(plan, seat.rank, gloo, pipe)
    gloo.close()
    dist.destroy_process_group()


def join_gloo(rendezvous: Path, rank: int, workers: int, interface: str) -> None:
    """Join torch's default process group, gloo, of worker processes of one machine. Waits for all of them.

    They meet by the file `rendezvous` and send over `interface`. Sets GLOO_SOCKET_IFNAME in this process, and one
    thread for torch.
    """
    # As hopsum's workers: one thread computes, and shares the host's cores with gloo's own.
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=workers)


class _Gloo:
    """gloo as the reducer of a rank.

    The timed part is that of a training step: fp16 converts there and back, both rings divide by the number of
    workers. Any other subject is a codec, which quantises, adds and dequantises.
    """

    def __init__(self, plan: AllReducePlan, rank: int) -> None:
        self.retransmits = 0
        self._plan, self._rank, self._workers = plan, rank, plan.workers
        self._communicators: dict[str, Communicator] = {}
        self._kept: dict[str, ErrorFeedback] = {}

    def prepare(self, elements: int) -> None:
        self._kept.clear()

    def reduce(self, subject: str, gradient: NDArray[np.float32]) -> None:
        mean = torch.from_numpy(gradient)
        if subject not in GLOO:
            kept = self._kept.setdefault(subject, ErrorFeedback(gradient.size))
            self._communicator(subject).allreduce(gradient, feedback=kept, out=gradient)
        elif subject == "gloo-fp16":
            half = mean.half()
            dist.all_reduce(half)
            mean.copy_(half)
            mean /= self._workers
        else:
            dist.all_reduce(mean)
            mean /= self._workers

    def _communicator(self, codec: str) -> Communicator:
        """Return the communicator of a codec. All ranks make it at the same turn, which warms up."""
        if codec not in self._communicators:
            made, group = make_codec(codec, workers=self._workers), dist.new_group(backend="gloo")
            seed = self._plan.seed
            self._communicators[codec] = CollectiveCommunicator("gloo", group, self._rank, codec=made, seed=seed)
        return self._communicators[codec]

    def close(self) -> None:
        """Close the communicators."""
        for each in self._communicators.values():
            each.close()
