# SPDX-License-Identifier: Apache-2.0
"""Worker processes of `hopsum bench allreduce`: in a namespace of their own with all that they open.

Messages to the parent: ("bound", (ip, port)) from hopsum's · ("ready", resident bytes) · ("done", seconds, first
elements of the mean, peak resident bytes, spans, retransmits) after each all-reduce. From the parent: the membership
file's path to hopsum's · the name of a subject for each all-reduce · None at the end.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import Agent, Span
from hopsum.cli.bench.placement import memory
from hopsum.cli.stage.seat import Seat
from hopsum.transport.link import UdpLink
from hopsum_topologies.netns import enter_namespace


@dataclass(frozen=True, slots=True)
class Plan:
    """What all workers of one crew do."""

    module: str
    """Whose `work` they run: those that need torch are not imported here."""
    workers: int
    elements: int
    buckets: int
    seed: int
    checked: int
    """Elements of the mean that the parent looks at."""
    interface: str
    folder: Path
    overlap: bool = True


def run(seat: Seat, plan: Plan, pipe: Connection) -> None:
    """Be one worker: first enter the namespace, then import and open what is needed."""
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    import_module(plan.module).work(seat, plan, pipe)


def work(seat: Seat, plan: Plan, pipe: Connection) -> None:
    """Be one worker of hopsum's."""
    link = UdpLink((seat.ip, 0), seat.switch)
    pipe.send(("bound", link.local))
    spans: list[Span] = []
    membership: str = pipe.recv()
    with Agent(
        membership, seat.rank, codec="thc", link=link, seed=plan.seed, overlap=plan.overlap, trace=spans.append
    ) as agent:
        buckets = np.array_split(vector_of(plan, seat.rank), plan.buckets)
        agent.allreduce(np.ones(1024, np.float32))
        pipe.send(("ready", memory_of_this()["rss"]))
        while pipe.recv() is not None:
            spans.clear()
            before = agent.statistics.traffic
            start = time.perf_counter()
            mean = np.empty(plan.elements, np.float32)
            parts = zip(buckets, np.array_split(mean, plan.buckets), strict=True)
            futures = [agent.submit(x, more=n + 1 < plan.buckets, out=out) for n, (x, out) in enumerate(parts)]
            for future in futures:
                future.result()
            seconds = time.perf_counter() - start
            retransmits = (agent.statistics.traffic - before).retransmits
            pipe.send(("done", seconds, mean[: plan.checked], memory_of_this()["peak"], list(spans), retransmits))


def vector_of(plan: Plan, rank: int) -> NDArray[np.float32]:
    """Return the gradient of a rank: standard normal; its first elements do not depend on its length."""
    return np.random.default_rng([plan.seed, rank]).standard_normal(plan.elements, dtype=np.float32)


def memory_of_this() -> dict[str, int]:
    """Return the resident bytes of this process, now and at most."""
    return memory(os.getpid())
