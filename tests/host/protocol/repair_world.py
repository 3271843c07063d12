# SPDX-License-Identifier: Apache-2.0
"""Workers with peers over a seeded bad network, quorum n - 1, while one of them stands still for whole rounds.

What `network.py` simulates between workers and switch, and beside it a channel between workers: in order, delayed, and
now and then a connection breaks and takes with it what was on the way. A worker that stands still does not run its
timers, and what the switch sends it is lost; what peers send it waits. In a second generation, what peers said in the
first comes again, late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, RepairPolicy, Timing, Worker
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op

from .jobs import job
from .network import Network, Weather

TIMING = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=600.0, retransmit_min_s=0.01)
POLICY = RepairPolicy(ask_after=2, unproved_max=2, straggler_s=500.0)
# DONE is told seldom: after half of so many all-reduces, or of so many bytes.
SELDOM = RepairPolicy(ask_after=2, unproved_max=12, unproved_bytes=24 << 10, straggler_s=500.0)
STEPS_MAX = 60_000
UNION = {Op.ADD32: np.add, Op.MAX32: np.maximum, Op.OR: np.bitwise_or}
PEER_DELAY_S = 0.01
LEAVE_EVERY_S = 0.1


@dataclass(frozen=True)
class Plan:
    """Mishaps of a generation."""

    loss: float
    workers: int = 3
    slots: int = 2
    breaks: float = 0.02
    """Probability that a message between peers is lost with its connection."""
    stall_s: float = 1.0
    """How long one worker stands still."""
    timing: Timing = TIMING
    policy: RepairPolicy | None = POLICY
    quorum_below: int = 1


@dataclass(frozen=True)
class Sums:
    """One all-reduce: op, uint32[rank, chunk, 256] as lanes are."""

    op: int
    given: NDArray[np.uint32]

    def expected(self, chunk: int, contributors: int) -> NDArray[np.uint32]:
        inside = [rank for rank in range(len(self.given)) if contributors >> rank & 1]
        union: NDArray[np.uint32] = UNION[Op(self.op)].reduce(self.given[inside, chunk], axis=0, dtype=np.uint32)
        return union


def make_sums(rng: random.Random, workers: int) -> Sums:
    source = np.random.default_rng(rng.getrandbits(64))
    given = source.integers(0, 1 << 31, (workers, rng.randint(1, 12), 256), dtype=np.uint32)
    return Sums(rng.choice(list(UNION)), given)


@dataclass
class RepairGeneration:
    """One generation; `run` ends when each worker has delivered every all-reduce and all have said LEAVE."""

    network: Network
    switch: Aggregator
    plan: Plan
    generation: int
    tasks: list[Sums]
    workers: list[Worker] = field(init=False)
    done: list[list[AllReduceDone]] = field(init=False)
    submitted: list[int] = field(init=False)
    said: list[tuple[int, PeerMessage]] = field(default_factory=list)
    """Every message between peers, with its receiver."""

    def __post_init__(self) -> None:
        plan, rng = self.plan, self.network.rng
        self.workers = [
            Worker(Membership(self.generation, rank, plan.workers, plan.slots), plan.timing, repair=plan.policy)
            for rank in range(plan.workers)
        ]
        self.done = [[] for _ in self.workers]
        self.submitted = [0] * plan.workers
        self.stalled = rng.randrange(plan.workers)
        self.stall_from = self.network.now + rng.uniform(0, 0.05)
        self.stall_to = self.stall_from + plan.stall_s
        self._leaves_at = [0.0] * plan.workers
        self._arrives_at: dict[tuple[int, int], float] = {}
        self.network.hosts = dict(enumerate(self.workers))

    @property
    def goes_on(self) -> bool:
        """Some worker has not delivered all, or does not know that all others have."""
        if any(len(done) < len(self.tasks) for done in self.done):
            return True
        return any(each.repair.has_peers and not each.repair.everybody_left for each in self.workers)

    def stands(self, rank: int) -> bool:
        """A worker stands still now."""
        return rank == self.stalled and self.stall_from <= self.network.now < self.stall_to

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            timers = [timer for rank in range(len(self.workers)) for timer in self._serve(rank)]
            if not self.goes_on:
                return
            self.network.step(min(timers, default=None))
            for rank, each in enumerate(self.workers):
                if not self.stands(rank):
                    each.handle_timer(self.network.now)
        raise AssertionError(f"not done after {STEPS_MAX} steps: {[len(done) for done in self.done]}")

    def _serve(self, rank: int) -> list[float]:
        """Take the events of one worker, submit what comes next, send what it wants; return when to come back."""
        each, now, rng = self.workers[rank], self.network.now, self.network.rng
        if self.stands(rank):
            return [self.stall_to]
        while (event := each.next_event()) is not None:
            assert not isinstance(event, AllReduceFailed), f"rank {rank}: {event.error}"
            self.done[rank].append(event)
        while self.submitted[rank] < min(len(self.tasks), len(self.done[rank]) + 2):
            task = self.tasks[self.submitted[rank]]
            each.submit(task.op, task.given[rank].astype(">u4").view(np.uint8), now=now)
            self.submitted[rank] += 1
        leaves = len(self.done[rank]) == len(self.tasks)
        if leaves and each.repair.has_peers and now >= self._leaves_at[rank]:
            each.repair.leave(finished=True)
            self._leaves_at[rank] = now + LEAVE_EVERY_S
        for datagram in each.datagrams_to_send(now):
            self.network.send(partial(self.network.through, self.switch, rank, bytes(datagram), self._at_host))
        for to, message in each.messages_to_peers():
            self._say(to, message)
        # What may be told later has half a chance only: then the next DONE takes its place, or a question brings it.
        if (done := each.done_for_peers()) is not None and rng.random() < 0.5:
            for to in range(len(self.workers)):
                if to != rank:
                    self._say(to, done)
        timer = each.get_timer()
        return [*([] if timer is None else [timer]), *([self._leaves_at[rank]] if leaves else [])]

    def _at_host(self, rank: int, reply: bytes) -> None:
        if not self.stands(rank):
            self.network.hosts[rank].receive_datagram(reply, self.network.now)

    def _say(self, to: int, message: PeerMessage) -> None:
        rng, way = self.network.rng, (message.sender, to)
        self.said.append((to, message))
        if rng.random() < self.plan.breaks:
            return
        arrival = max(self._arrives_at.get(way, 0.0), self.network.now + rng.uniform(0, PEER_DELAY_S))
        self._arrives_at[way] = arrival
        self.network.later(arrival, partial(self.hear, to, message))

    def hear(self, to: int, message: PeerMessage) -> None:
        """Let a message arrive, or wait while its receiver stands still."""
        if self.stands(to):
            self.network.later(self.stall_to, partial(self.hear, to, message))
        else:
            again = PeerMessage.unpack(message.pack())
            self.network.hosts[to].receive_peer(again, self.network.now)

    def check(self) -> None:
        """Every worker has the same bytes and contributors, and they are the sum of just those."""
        for index, task in enumerate(self.tasks):
            events = [sorted(done, key=lambda event: event.handle)[index] for done in self.done]
            for rank, event in enumerate(events):
                assert np.array_equal(event.contributors, events[0].contributors), f"rank {rank}, all-reduce {index}"
                assert np.array_equal(event.results, events[0].results), f"rank {rank}, all-reduce {index}"
            lanes = events[0].results.view(">u4").astype(np.uint32)
            for chunk, contributors in enumerate(events[0].contributors):
                assert np.array_equal(lanes[chunk], task.expected(chunk, int(contributors))), f"all-reduce {index}"


def repair_scenario(seed: int, plan: Plan) -> list[RepairGeneration]:
    """Run two generations; in the second, results that peers sent in the first come again at any time."""
    rng = random.Random(seed)
    network = Network(rng, Weather(drop=plan.loss, duplicate=0.1))
    switch, generations = Aggregator(), list[RepairGeneration]()
    for number in (7, 8):
        for old in list(switch.jobs):
            switch.remove_job(old)
        switch.add_job(job(number, plan.workers, slots=plan.slots, quorum=plan.workers - plan.quorum_below))
        tasks = [make_sums(rng, plan.workers) for _ in range(4)]
        generation = RepairGeneration(network, switch, plan, number, tasks)
        for to, message in generations[0].said if generations else []:
            if message.kind is PeerKind.FOUND:
                network.later(network.now + rng.uniform(0, 1), partial(generation.hear, to, message))
        generation.run()
        generation.check()
        generations.append(generation)
    return generations
