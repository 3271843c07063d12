# SPDX-License-Identifier: Apache-2.0
"""Oracles over a seeded network that loses, duplicates, delays and reorders. Simulated time.

    workers --- switch            workers --- leaf 0 ---.
                                  workers --- leaf 1 ---+--- spine

Each direction of each link has mishaps of its own, and so has each copy of a multicast.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hopsum_oracle.aggregator import Aggregator, AggregatorConfig, JobConfig, LeafConfig, OutputPacket, ParentConfig
from hopsum_oracle.switch_config import WorkerConfig
from hopsum_wire import Event

from .jobs import TABLE, TABLE4, TABLE16, worker

SPINE = 0
UPLINK = 1
"""Port of a leaf towards the spine."""
Racks = tuple[tuple[int, ...], ...]
"""The ranks below each leaf."""


class Network:
    """Delivers in the order of simulated arrival.

    Of every datagram: probabilities of loss, of a second copy, and of a delay of up to a second, which is beyond many
    retransmissions; else it is delayed by up to `delay_s`.
    """

    def __init__(self, rng: random.Random, loss: float, duplicate: float, straggle: float, delay_s: float) -> None:
        self.rng, self.loss, self.duplicate, self.straggle, self.delay_s = rng, loss, duplicate, straggle, delay_s
        self.now = 0.0
        self._in_flight: list[tuple[float, int, Callable[[], None]]] = []
        self._sent = 0

    def send(self, deliver: Callable[[], None]) -> None:
        """Let `deliver` happen never, once or twice, some time later."""
        rng = self.rng
        if rng.random() < self.loss:
            return
        for _ in range(2 if rng.random() < self.duplicate else 1):
            delay = rng.uniform(0, 1.0 if rng.random() < self.straggle else self.delay_s)
            self.later(self.now + delay, deliver)

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


def switch(node: int) -> AggregatorConfig:
    """Return the addresses of a switch."""
    return AggregatorConfig(mac=0x020000000001 + node, ip=0x0A0000F0 + node)


def leaf(node: int, below: tuple[int, ...]) -> LeafConfig:
    """Return a leaf as the spine sees it."""
    members, own = sum(1 << rank for rank in below), switch(node)
    return LeafConfig(below[0], 100 + node, own.mac, own.ip, members=members)


def parent(below: tuple[int, ...]) -> ParentConfig:
    """Return the spine as a leaf sees it."""
    return ParentConfig(below[0], UPLINK, switch(SPINE).mac, switch(SPINE).ip)


def jobs_of(
    generation: int, below: Racks, *, slots: int = 4, quorum: int = 0, leaf_quorum: int = 0, min_quorum: int = 1
) -> list[JobConfig]:
    """Return the job of the spine, then that of each leaf; a quorum of 0 is all, none is more than there are."""
    common = {"job_index": 0, "slot_base": 0, "slots": slots}
    leaves = tuple(leaf(1 + number, ranks) for number, ranks in enumerate(below))
    spine_quorum = quorum or len(leaves)
    settings: dict[str, Any] = {**common, "workers": (), "quorum": spine_quorum, "min_quorum": 1, "table4": TABLE4}
    jobs = [JobConfig(generation, **settings, leaves=leaves)]
    for ranks in below:
        needed = min(leaf_quorum or len(ranks), len(ranks))
        jobs.append(
            JobConfig(
                generation, **common, workers=tuple(map(worker, ranks)), quorum=needed,
                min_quorum=min(min_quorum, needed),
                table=TABLE, table16=TABLE16, table4=TABLE4, parent=parent(ranks),
            )  # type: ignore[arg-type]
        )  # fmt: skip
    return jobs


class Fabric:
    """A switch, or a spine and its leaves, with the network between all of them and the workers.

    `make` makes a switch, `at_worker` takes a datagram that arrives at a rank.
    """

    def __init__(
        self,
        network: Network,
        racks: Racks,
        at_worker: Callable[[int, bytes], None],
        make: Callable[[AggregatorConfig], Aggregator] = Aggregator,
    ) -> None:
        self.network, self.racks, self.make = network, racks, make
        self._at_worker = at_worker
        self.restart()
        self.hops: Counter[tuple[int, int]] = Counter()
        """Packets sent by a switch to a switch, before the network loses any."""

    def restart(self) -> None:
        """Let all switches forget everything."""
        self.switches = [self.make(switch(node)) for node in range(1 + len(self.racks))]

    def remove(self) -> None:
        """End what runs on all switches. Their registers stay."""
        for each in self.switches:
            for old in list(each.jobs):
                each.remove_job(old)

    def admit(self, jobs: Sequence[JobConfig]) -> None:
        """Start a generation on all switches (T7)."""
        for each, job in zip(self.switches, jobs, strict=True):
            each.add_job(job)

    def from_worker(self, rank: int, data: bytes) -> None:
        """Deliver a worker's datagram to its switch, and what follows from it to the network."""
        self._deliver(next((1 + at for at, ranks in enumerate(self.racks) if rank in ranks), SPINE), worker(rank), data)

    def _deliver(self, node: int, source: WorkerConfig, data: bytes) -> None:
        for output in self.switches[node].receive(source.port, source.ip, source.udp_port, data).outputs:
            self.network.send(partial(self._arrives, node, output))

    def _arrives(self, node: int, output: OutputPacket) -> None:
        data, to = output.header.pack() + output.payload, output.worker
        if isinstance(to, ParentConfig):
            self.hops[node, SPINE] += 1
            self._deliver(SPINE, leaf(node, self.racks[node - 1]), data)
        elif isinstance(to, LeafConfig):
            child = next(1 + number for number, ranks in enumerate(self.racks) if ranks[0] == to.rank)
            self.hops[SPINE, child] += 1
            self._deliver(child, parent(self.racks[child - 1]), data)
        else:
            self._at_worker(to.rank, data)

    def events(self) -> Counter[tuple[bool, Event]]:
        """Return what was counted, by (below the top, event)."""
        counted: Counter[tuple[bool, Event]] = Counter()
        for node, each in enumerate(self.switches):
            for (_, event), count in each.job_events.items():
                counted[node != SPINE, event] += count
        return counted
