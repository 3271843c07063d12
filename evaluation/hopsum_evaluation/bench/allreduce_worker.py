# SPDX-License-Identifier: Apache-2.0
"""Worker processes of hopsum in `hopsum bench allreduce`, each in a network namespace of its own.

Messages to the parent: ("bound", [(ip, port) for each switch]) from hopsum's · ("ready", resident bytes) · ("done",
*Measured) after each all-reduce. From the parent: the membership file's path to hopsum's · the name of a subject for
each all-reduce · None at the end.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import Agent
from hopsum.codec import ErrorFeedback
from hopsum.communicator import AllReduceResult, Span
from hopsum.transport.offload import Gso
from hopsum.transport.udp_link import UdpLink
from hopsum_evaluation.bench.timing import CpuTime, memory
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat


@dataclass(frozen=True, slots=True)
class AllReducePlan:
    """Settings that all workers of one pool have in common."""

    workers: int
    elements: int
    buckets: int
    seed: int
    checked: int
    """First elements of the mean that the parent compares with numpy's."""
    interface: str
    folder: Path
    codec: str = "thc"
    """The codec of hopsum's workers."""
    overlap: bool = True
    gso: Gso = "auto"
    """The mode of hopsum's sockets."""
    services: tuple[tuple[str, int], ...] = ()
    """The addresses that hopsum's workers send to, by shard."""
    error_feedback: bool = False
    """True where hopsum's workers have error feedback, one for each vector."""


class Measured(NamedTuple):
    """Figures of one all-reduce on one rank, as they pass through the pipe."""

    seconds: float
    cpu: CpuTime
    """The processor time of all threads meanwhile."""
    mean: NDArray[np.float32]
    """First elements of the mean, `checked` of the plan."""
    peak_rss_bytes: int
    """The peak since the process began."""
    spans: list[Span]
    retransmits: int


class Clock:
    """Measures seconds, and processor time of all threads of this process, from its making on."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), self._used()

    def read(self) -> tuple[float, CpuTime]:
        """Read both."""
        seconds, (user_s, system_s) = time.perf_counter() - self._start, self._used()
        return seconds, CpuTime(user_s - self._cpu.user_s, system_s - self._cpu.system_s)

    @staticmethod
    def _used() -> CpuTime:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return CpuTime(used.ru_utime, used.ru_stime)


def work(seat: Seat, plan: AllReducePlan, pipe: Connection) -> None:
    """Be one worker of hopsum's, in the network namespace of its seat."""
    # Before any socket or thread: both stay in the namespace in which they were made.
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    links = [UdpLink((seat.ip, 0), service, gso=plan.gso) for service in plan.services]
    pipe.send(("bound", [link.local for link in links]))
    spans: list[Span] = []
    membership: str = pipe.recv()
    with Agent(
        membership, seat.rank, codec=plan.codec, link=links, seed=plan.seed, overlap=plan.overlap, trace=spans.append
    ) as agent:
        agent.allreduce(np.ones(1024, np.float32))
        vector = vector_of(plan, seat.rank)
        feedback = feedback_of(plan)
        pipe.send(("ready", memory_of_this()["rss"]))
        while pipe.recv() is not None:
            spans.clear()
            before = agent.statistics.traffic
            clock = Clock()
            reduce_in_place(agent, np.array_split(vector, plan.buckets), feedback)
            seconds, cpu = clock.read()
            retransmits = (agent.statistics.traffic - before).retransmits
            peak = memory_of_this()["peak"]
            mean = vector[: plan.checked].copy()
            # Before "done": after it the next subject has the processors.
            vector_of(plan, seat.rank, out=vector)
            pipe.send(("done", *Measured(seconds, cpu, mean, peak, list(spans), retransmits)))


def feedback_of(plan: AllReducePlan) -> list[ErrorFeedback | None]:
    """Make the error feedback of each bucket, or None for each."""
    sizes = [len(each) for each in np.array_split(np.empty(plan.elements, np.bool_), plan.buckets)]
    return [ErrorFeedback(size) if plan.error_feedback else None for size in sizes]


def reduce_in_place(
    agent: Agent, buckets: Sequence[NDArray[np.float32]], feedback: Sequence[ErrorFeedback | None]
) -> None:
    """Replace the vectors by their means, as DDP does with its buckets."""
    with agent.group():
        futures: deque[Future[AllReduceResult]] = deque(
            agent.submit(bucket, feedback=kept, out=bucket) for bucket, kept in zip(buckets, feedback, strict=True)
        )
    while futures:
        futures.popleft().result()


def vector_of(plan: AllReducePlan, rank: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Draw the gradient of a rank: standard normal. Its first elements do not depend on its length."""
    rng = np.random.default_rng([plan.seed, rank])
    return rng.standard_normal(plan.elements, dtype=np.float32, out=out)


def memory_of_this() -> dict[str, int]:
    """Read the resident bytes of this process, `rss` now and `peak`."""
    return memory(os.getpid())
