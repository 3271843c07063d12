# SPDX-License-Identifier: Apache-2.0
"""Agents with side channels at the switch program in a process of its own, over UDP links with mishaps; one may stall.

agent 0..n-1 -- LossyLink -- UDP over loopback -- hopsum-switch --backend native
     '----------------------- TCP side channels -----------------------'
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import Agent, AllReduceResult
from hopsum.codec import Codec, CollectiveError, ErrorFeedback, job_tables
from hopsum.protocol.worker import Timing, Worker, WorkerStatistics
from hopsum.transport.link import DatagramLink
from hopsum.transport.udp_link import UdpLink
from hopsum_topologies.free_port import free_port
from hopsum_topologies.local_cluster import NATIVE_PORT, LocalCluster

from ...support.server import LOCALHOST
from ..transport.lossy import LossyLink, Mishaps, WrappedLink
from .laws import Books, Entry

WORKERS = 3
BRISK = Timing(
    retransmit_s=0.01, backoff=1.5, retransmit_max_s=0.1, deadline_s=60.0, retransmit_min_s=0.004
)  # fmt: skip
WAIT_S = 90.0

Given = Callable[[int, int], NDArray[np.float32]]
"""The vector of (all-reduce, rank)."""
Residuals = list[NDArray[np.float32]]
"""By rank, after an all-reduce."""


class Absence(WrappedLink):
    """Of a worker that was away: what was sent to it meanwhile is lost when it speaks again."""

    away = False

    def send(self, datagram: bytes | memoryview) -> None:
        if self.away:
            self.away = False
            while self._link.receive(0.0):
                pass
        self._link.send(datagram)


class Setting(NamedTuple):
    """Of one job."""

    quorum: int = WORKERS
    mishaps: Mishaps = Mishaps()
    seed: int = 0
    slots: int = 2
    min_quorum: int = 1
    timing: Timing = BRISK
    peers: bool = True
    switch_loss: float = 0.0
    """Each way at the switch's port, by the program's own simulator. The links are then plain ones."""
    wrap: Callable[[int, DatagramLink], DatagramLink] = lambda rank, link: link
    """Puts another link around a rank's, inside of the lossy one."""


@dataclass
class Team:
    """A job, its agents, and the books of what they sum; all is closed with the stack."""

    stack: ExitStack
    cluster: LocalCluster
    codecs: Sequence[Codec]
    """By rank."""
    elements: int
    setting: Setting = field(default_factory=Setting)
    agents: list[Agent] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    unproved: int = 0
    """The most results of submissions that any rank was found to keep for its peers."""

    def __post_init__(self) -> None:
        setting, switch = self.setting, self.cluster.switch
        links = {rank: UdpLink((LOCALHOST, 0), switch.service) for rank in range(WORKERS)}
        for link in links.values():
            self.stack.callback(link.close)
        job = self.cluster.create_job(
            "laws",
            [[link.local] for link in links.values()],
            job_tables(self.codecs[0]),
            slots=setting.slots,
            quorum=setting.quorum,
            min_quorum=setting.min_quorum,
            sides={rank: (LOCALHOST, free_port()) for rank in range(WORKERS)} if setting.peers else False,
        )
        self.stack.enter_context(job)
        self.membership = job.memberships[0]
        self.feedback = [ErrorFeedback(self.elements) for _ in range(WORKERS)]
        self.books = Books(self.codecs[0], self.elements)
        self._order = random.Random(setting.seed)  # so that it is not always the same rank that is the last
        self.stack.callback(self.close)
        if setting.switch_loss:
            self.stack.callback(switch.controller.clear_losses)
            switch.controller.set_loss(NATIVE_PORT, setting.switch_loss, setting.switch_loss)
        for rank, link in links.items():
            self.absences.append(Absence(link))
            self.agents.append(self._agent(rank, link if setting.switch_loss else self._wrapped(rank)))

    def _wrapped(self, rank: int) -> DatagramLink:
        setting = self.setting
        link = setting.wrap(rank, self.absences[rank])
        if setting.mishaps == Mishaps():
            return link
        return LossyLink(link, setting.mishaps, random.Random(f"{setting.seed} {rank}"))

    def _agent(self, rank: int, link: DatagramLink) -> Agent:
        setting, codec = self.setting, self.codecs[rank]
        return Agent(self.membership, rank, codec=codec, timing=setting.timing, link=link, seed=1)

    def run(
        self, given: Given, steps: int = 1, late: int | None = None, watch: Callable[[Residuals], None] = lambda _: None
    ) -> None:
        """Sum `steps` vectors. One that is late begins when the others have them, without what it was sent."""
        first = self.books.allreduces
        entries: dict[int, list[Entry]] = {}
        for ranks in [[r for r in range(WORKERS) if r != late], [r for r in range(WORKERS) if r == late]]:
            for rank in ranks:
                self.absences[rank].away = rank == late
            for step in range(first, first + steps):
                for rank, entry in zip(ranks, self._step(given, step, ranks), strict=True):
                    entries.setdefault(rank, []).append(entry)
        for done in zip(*(entries[rank] for rank in range(WORKERS)), strict=True):
            self.books.record(done)
            watch([entry.after for entry in done])

    def _step(self, given: Given, step: int, ranks: list[int]) -> list[Entry]:
        vectors = [given(step, rank) for rank in ranks]
        before = [self.feedback[rank].residual.copy() for rank in ranks]
        futures = {
            rank: self.agents[rank].submit(vectors[ranks.index(rank)], feedback=self.feedback[rank])
            for rank in self._order.sample(ranks, len(ranks))
        }
        outcomes = [_outcome(futures[rank]) for rank in ranks]
        after = [self.feedback[rank].residual.copy() for rank in ranks]
        self.unproved = max([self.unproved, *(_kept(self.agents[rank]) for rank in ranks)])
        return [Entry(*each) for each in zip(vectors, before, after, outcomes, strict=True)]

    @property
    def unproved_max(self) -> int:
        """What their policies allow."""
        policies = [repair.policy for agent in self.agents if (repair := _worker(agent).repair).has_peers]
        return max((policy.unproved_max for policy in policies), default=0)

    def statistics(self, rank: int) -> WorkerStatistics:
        return _worker(self.agents[rank]).statistics

    def close(self) -> None:
        """Close agents as ranks do: each serves the others until they need nothing more."""
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(Agent.close, self.agents))


def _outcome(future: Future[AllReduceResult]) -> AllReduceResult | CollectiveError:
    try:
        return future.result(WAIT_S)
    except CollectiveError as error:
        return error


def _kept(agent: Agent) -> int:
    return len(_worker(agent).repair.store)


def _worker(agent: Agent) -> Worker:
    return agent._transport.shards[0].worker


def own_things() -> tuple[set[str], int]:
    """Return what a closed agent must not leave behind: names of hopsum's threads, and how many files are open."""
    return {each.name for each in threading.enumerate() if "hopsum" in each.name}, len(os.listdir("/proc/self/fd"))
