# SPDX-License-Identifier: Apache-2.0
"""Worker processes of `hopsum bench allreduce`: the turns that all subjects take, and hopsum's workers.

Messages to the parent: ("bound", [((ip, port), TCP port of the side channel) for each switch]) from hopsum's ·
("ready",) · ("done", *TurnFigures) after each turn. From the parent: the membership file's path to hopsum's · a Turn ·
None at the end.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import TIMING, Agent, AllReduceResult
from hopsum.codec import ErrorFeedback
from hopsum.codec.interface import feeds_back
from hopsum.protocol.worker import Timing
from hopsum.transport.udp_link import UdpLink
from hopsum_evaluation.bench.timing import memory
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat

GLOO: Final = ("gloo-fp32", "gloo-fp16")
"""Subjects that are rings of gloo. Any other one is spelled as its codec."""
Address = tuple[str, int]
Bound = list[tuple[Address, int]]
"""By switch: the address of the worker's UDP socket, and the TCP port of its side channel at the same IP."""


@dataclass(frozen=True, slots=True)
class AllReducePlan:
    """Settings that all workers of one pool have in common."""

    workers: int
    buckets: int
    seed: int
    checked: int
    """The most first elements of the mean that the parent compares with numpy's."""
    interface: str
    folder: Path
    codec: str = "thc"
    """The codec of hopsum's workers."""
    services: tuple[Address, ...] = ()
    """The addresses that hopsum's workers send to, by shard."""
    timing: Timing = TIMING
    """The timing of hopsum's workers."""


class Turn(NamedTuple):
    """Message of the parent: all-reduce the gradient in place once, then `calls` times without a pause.

    subject: one of GLOO, or the spelling of a codec. calls: at least 1. The later all-reduces are of the mean.
    """

    subject: str
    elements: int
    calls: int


class TurnFigures(NamedTuple):
    """Figures of one turn on one rank, as they pass through the pipe."""

    first_s: float
    """Seconds of the first all-reduce. Ranks begin it when their message has come, each with cold caches."""
    calls_s: list[float]
    """Seconds of the other all-reduces: each begins when the one before has ended."""
    cpu_s: float
    """Processor time of all threads in one of these, as the mean."""
    first_mean: NDArray[np.float32]
    """First elements of the first mean."""
    last_mean: NDArray[np.float32]
    """First elements of the last mean: of means, so not to be compared with numpy's."""
    ready_rss_bytes: int
    """The resident bytes with all imports and the gradient, before the first all-reduce of this size."""
    peak_rss_bytes: int
    """The most resident bytes since the first turn of this size."""
    retransmits: int

    def undilated(self, factor: float) -> TurnFigures:
        """Return the figures with times divided by a factor of time dilation. Processor time is the same."""
        return self._replace(first_s=self.first_s / factor, calls_s=[call_s / factor for call_s in self.calls_s])


class Reducer(Protocol):
    """The all-reduces of one rank, by the method that a turn's subject names."""

    def prepare(self, elements: int) -> None:
        """Make new error feedback for gradients of this size, where the codec has one."""

    def reduce(self, subject: str, gradient: NDArray[np.float32]) -> None:
        """Replace the gradient by its mean over the ranks, as a hook of DDP does."""

    @property
    def retransmits(self) -> int:
        """The number of datagrams that were sent again so far."""


def take_turns(plan: AllReducePlan, rank: int, reducer: Reducer, pipe: Connection) -> None:
    """Run a worker whose sockets are open: send ("ready",), and take the turn of each message until None comes.

    Each turn is answered by ("done", *TurnFigures). With another size than before, a new gradient is drawn, and the
    process's peak of resident memory is counted anew.
    """
    gradient, ready_rss_bytes = np.empty(0, np.float32), 0
    pipe.send(("ready",))
    while (message := pipe.recv()) is not None:
        turn = Turn(*message)
        if turn.elements != gradient.size:
            gradient = gradient_of(plan.seed, rank, turn.elements)
            reducer.prepare(turn.elements)
            # The kernel counts the peak anew from here on.
            Path("/proc/self/clear_refs").write_text("5")
            ready_rss_bytes = memory(os.getpid())["rss"]
        sent_again = reducer.retransmits
        first_s = _timed(reducer, turn.subject, gradient)
        first_mean = gradient[: plan.checked].copy()
        calls_s, began_s = [], time.process_time()
        # No barrier: no rank's all-reduce ends before all ranks have begun it, so the first one was a barrier.
        for _ in range(turn.calls):
            calls_s.append(_timed(reducer, turn.subject, gradient))
        measured = TurnFigures(
            first_s,
            calls_s,
            (time.process_time() - began_s) / turn.calls,
            first_mean,
            gradient[: plan.checked].copy(),
            ready_rss_bytes,
            # The kernel's counts are of several processors, and the peak may lag a little.
            max(ready_rss_bytes, memory(os.getpid())["peak"]),
            reducer.retransmits - sent_again,
        )
        # Before "done": after it the next subject has the processors.
        gradient_of(plan.seed, rank, turn.elements, out=gradient)
        pipe.send(("done", *measured))


def _timed(reducer: Reducer, subject: str, gradient: NDArray[np.float32]) -> float:
    start_s = time.perf_counter()
    reducer.reduce(subject, gradient)
    return time.perf_counter() - start_s


def gradient_of(seed: int, rank: int, elements: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Draw the gradient of a rank: standard normal, float32[elements]. Its first elements do not depend on its length.

    With `out` the numbers are written into `out`, which is returned.
    """
    return np.random.default_rng([seed, rank]).standard_normal(elements, dtype=np.float32, out=out)


# ---- hopsum's workers ---------------------------------------------------------------------------------------


def work(seat: Seat, plan: AllReducePlan, pipe: Connection) -> None:
    """Run one worker of hopsum's in a process, whose thread enters the network namespace of its seat for good.

    The messages on the pipe are those of the module.
    """
    # Before any socket or thread: both stay in the namespace in which they were made.
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    membership, links, side = bind_sockets(seat, plan.services, pipe)
    with Agent(
        membership, seat.rank, codec=plan.codec, link=links, side=side, seed=plan.seed, timing=plan.timing
    ) as agent:
        agent.allreduce(np.ones(1024, np.float32))
        take_turns(plan, seat.rank, _Hopsum(agent, plan), pipe)


def bind_sockets(seat: Seat, services: Sequence[Address], pipe: Connection) -> tuple[str, list[UdpLink], socket.socket]:
    """Open a worker's data sockets and the listener of its side channel, and wait until the parent has made the job.

    Sends ("bound", ...) to the parent. Returns the membership file's path, the
    data sockets by shard, and the listener of the side channel.
    """
    links = [UdpLink((seat.ip, 0), service, gso="auto") for service in services]
    side = socket.create_server((seat.ip, 0))
    pipe.send(("bound", [(link.local, side.getsockname()[1]) for link in links]))
    membership: str = pipe.recv()
    return membership, links, side


class _Hopsum:
    """hopsum as the reducer of a rank."""

    def __init__(self, agent: Agent, plan: AllReducePlan) -> None:
        self._agent, self._plan = agent, plan
        self._feedback: list[ErrorFeedback | None] = []

    def prepare(self, elements: int) -> None:
        # Buckets as np.array_split cuts them: the first ones have the elements that are left over.
        each, over = divmod(elements, self._plan.buckets)
        sizes = [each + (number < over) for number in range(self._plan.buckets)]
        keeps = feeds_back(self._agent.codec)
        self._feedback = [ErrorFeedback(size) if keeps else None for size in sizes]

    def reduce(self, subject: str, gradient: NDArray[np.float32]) -> None:
        del subject
        buckets = np.array_split(gradient, self._plan.buckets)
        with self._agent.group():
            futures: deque[Future[AllReduceResult]] = deque(
                self._agent.submit(bucket, feedback=kept, out=bucket)
                for bucket, kept in zip(buckets, self._feedback, strict=True)
            )
        while futures:
            futures.popleft().result()

    @property
    def retransmits(self) -> int:
        return self._agent.statistics.traffic.retransmits
