# SPDX-License-Identifier: Apache-2.0
"""Workers and the oracle over a seeded network that loses, duplicates, delays and reorders. Simulated time.

worker 0 --.                     .-- loses, duplicates, delays: each direction, each datagram,
worker 1 ---+--- network --- switch      a copy of a multicast on its own
worker n --'
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Timing, Worker
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op, pack_codes
from hopsum_wire.payload import lanes, shape_of

from .jobs import TABLES, job, worker

TIMING = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0)
STEPS_MAX = 200_000


@dataclass(frozen=True)
class Weather:
    """Of every datagram: probabilities of loss and of a second copy; delays in seconds."""

    drop: float = 0.1
    duplicate: float = 0.1
    delay_s: float = 0.01
    straggle: float = 0.03
    """Probability of a delay of up to a second: beyond many retransmissions."""


class Network:
    """Delivers in the order of simulated arrival."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.rng, self.weather = rng, weather
        self.now = 0.0
        self.hosts: dict[int, Worker] = {}
        """Workers by the address of their rank: late replies to an earlier generation's worker reach this one."""
        self._in_flight: list[tuple[float, int, Callable[[], None]]] = []
        self._sent = 0

    def send(self, deliver: Callable[[], None]) -> None:
        """Let `deliver` happen never, once or twice, some time later."""
        weather, rng = self.weather, self.rng
        if rng.random() < weather.drop:
            return
        for _ in range(2 if rng.random() < weather.duplicate else 1):
            delay = rng.uniform(0, 1.0 if rng.random() < weather.straggle else weather.delay_s)
            self.later(self.now + delay, deliver)

    def through(self, switch: Aggregator, rank: int, data: bytes, at_host: Callable[[int, bytes], None]) -> None:
        """Hand a worker's datagram to a switch, and send its replies."""
        where = worker(rank)
        for output in switch.receive(where.port, where.ip, where.udp_port, data).outputs:
            self.send(partial(at_host, output.worker.rank, output.header.pack() + output.payload))

    def later(self, time: float, deliver: Callable[[], None]) -> None:
        """Let `deliver` happen at a time, for certain."""
        heapq.heappush(self._in_flight, (time, self._sent, deliver))
        self._sent += 1

    def step(self, until: float | None) -> None:
        """Move to the next arrival, or to `until` if that comes first, and deliver what is due."""
        arrival = self._in_flight[0][0] if self._in_flight else None
        due = [time for time in (arrival, until) if time is not None]
        assert due, "nothing in flight and no timer: the workers wait for ever"
        self.now = max(self.now, min(due))
        while self._in_flight and self._in_flight[0][0] <= self.now:
            heapq.heappop(self._in_flight)[2]()


@dataclass(frozen=True)
class Task:
    """One all-reduce: every rank's payloads uint8[rank, chunk, bytes], and the lanes or codes that numpy says."""

    op: int
    payloads: NDArray[np.uint8]
    expected: NDArray[np.uint32]


def make_task(rng: random.Random, workers: int, ops: Collection[Op] = tuple(Op)) -> Task:
    """Draw an all-reduce of any of these ops."""
    op, chunks = rng.choice(sorted(ops)), rng.randint(1, 9)
    return task_of(op, chunks, np.random.default_rng(rng.getrandbits(64)), workers)


def task_of(op: Op, chunks: int, source: np.random.Generator, workers: int) -> Task:
    """Draw the payloads of an all-reduce."""
    shape = shape_of(op)
    lane = np.dtype(shape.lane_dtype)
    if shape.has_codes:
        count = 1 << shape.code_bits
        codes = source.integers(0, count, (workers, chunks, shape.elements), dtype=np.uint8)
        sums = np.take(TABLES[op][:count], codes).sum(axis=0)
        if shape.down_codes:
            sums = np.searchsorted(TABLES[op][count:], sums + 128 >> 1, side="right")
        expected = sums % (1 << shape.lane_bits)
        return Task(op, pack_codes(codes, shape.lane_bits, bits=shape.code_bits), expected.astype(np.uint32))
    limit = 1 << (31 if op is Op.MAX32 else 8 * lane.itemsize)
    given = source.integers(0, limit, (workers, chunks, 1024 // lane.itemsize), dtype=np.uint64)
    union = {Op.MAX32: np.maximum, Op.OR: np.bitwise_or}.get(op, np.add)
    expected = union.reduce(given, axis=0) % (1 << 8 * lane.itemsize)
    return Task(op, given.astype(lane).view(np.uint8), expected.astype(np.uint32))


@dataclass
class Generation:
    """Workers of one generation on a switch: `run` ends when each has delivered every task."""

    network: Network
    switch: Aggregator
    tasks: list[Task]
    workers: list[Worker]
    ahead: int = 1
    """All-reduces that a worker has submitted at a time."""
    done: list[list[AllReduceDone]] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)

    def run(self) -> None:
        self.done = [[] for _ in self.workers]
        self.submitted = [0] * len(self.workers)
        for _ in range(STEPS_MAX):
            timers = [timer for timer in map(self._serve, range(len(self.workers))) if timer is not None]
            if all(len(done) == len(self.tasks) for done in self.done):
                return
            self.network.step(min(timers, default=None))
            for each in self.workers:
                each.handle_timer(self.network.now)
        raise AssertionError(f"not done after {STEPS_MAX} steps")

    def _serve(self, rank: int) -> float | None:
        """Take the events of one worker, submit what it may, send what it wants; return its timer."""
        each, now = self.workers[rank], self.network.now
        while (event := each.next_event()) is not None:
            assert not isinstance(event, AllReduceFailed), f"rank {rank}: {event.error}"
            self.done[rank].append(event)
        while self.submitted[rank] < min(len(self.tasks), len(self.done[rank]) + self.ahead):
            task = self.tasks[self.submitted[rank]]
            each.submit(task.op, task.payloads[rank], now=now)
            self.submitted[rank] += 1
        for datagram in each.datagrams_to_send(now):
            self.network.send(partial(self._at_switch, rank, bytes(datagram)))
        return each.get_timer()

    def _at_switch(self, rank: int, data: bytes) -> None:
        self.network.through(self.switch, rank, data, self._at_host)

    def _at_host(self, rank: int, reply: bytes) -> None:
        self.network.hosts[rank].receive_datagram(reply, self.network.now)

    def check(self) -> None:
        """Every worker has the same bytes, and they are numpy's."""
        everybody = (1 << len(self.workers)) - 1
        for index, task in enumerate(self.tasks):
            for rank, done in enumerate(self.done):
                event = sorted(done, key=lambda event: event.handle)[index]
                got = lanes(task.op, event.results).astype(np.uint32)
                assert np.array_equal(got, task.expected), f"rank {rank}, all-reduce {index}"
                assert (event.contributors == everybody).all()


def scenario(seed: int, weather: Weather | None = None, switch: Aggregator | None = None) -> list[Generation]:
    """Run two generations of the same job on the same slots, the second into the leftovers of the first."""
    rng = random.Random(seed)
    network = Network(rng, weather or Weather())
    workers, slots, switch = rng.randint(2, 4), rng.randint(1, 3), switch or Aggregator()
    generations: list[Generation] = []
    for number in (7, 8):
        for old in list(switch.jobs):
            switch.remove_job(old)
        switch.add_job(job(number, workers, slots=slots))
        members = [Worker(Membership(number, rank, workers, slots), TIMING) for rank in range(workers)]
        network.hosts = dict(enumerate(members))
        tasks = [make_task(rng, workers) for _ in range(rng.randint(3, 5) if number == 7 else 2)]
        generation = Generation(network, switch, tasks, members, ahead=rng.randint(1, 3))
        generation.run()
        generation.check()
        generations.append(generation)
    return generations
