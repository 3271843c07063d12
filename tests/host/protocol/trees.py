# SPDX-License-Identifier: Apache-2.0
"""Oracles as a tree over the seeded network: every link loses, duplicates and delays, each direction by itself.

workers --- leaf 0 ---.
workers --- leaf 1 ---+--- spine
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hopsum_oracle.aggregator import (
    Aggregator,
    AggregatorConfig,
    JobConfig,
    LeafConfig,
    OutputPacket,
    ParentConfig,
    Registers,
    WorkerConfig,
)
from hopsum_wire import HOPSUM_UDP_PORT, Event

from .jobs import TABLE, TABLE4, TABLE16, worker
from .network import Network

SPINE = 0
UPLINK = 1
"""Port of a leaf towards the spine."""
AtWorker = Callable[[int, bytes], None]


def switch(node: int) -> AggregatorConfig:
    """Return the addresses of a switch."""
    return AggregatorConfig(mac=0x020000000001 + node, ip=0x0A0000F0 + node)


def leaf(node: int, below: tuple[int, ...], port: int = 0) -> LeafConfig:
    """Return a leaf as the spine sees it."""
    members, own = sum(1 << rank for rank in below), switch(node)
    return LeafConfig(below[0], port or 100 + node, own.mac, own.ip, members=members)


def parent(below: tuple[int, ...]) -> ParentConfig:
    """Return the spine as a leaf sees it."""
    return ParentConfig(below[0], UPLINK, switch(SPINE).mac, switch(SPINE).ip)


def jobs_of(
    generation: int,
    below: tuple[tuple[int, ...], ...],
    *,
    slots: int = 4,
    quorum: int = 0,
    leaf_quorum: int = 0,
    min_quorum: int = 1,
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


class Tree:
    """A spine and its leaves, with the network between all of them and the workers."""

    def __init__(self, network: Network, leaves: int) -> None:
        self.network = network
        self.switches = [Aggregator(switch(node), registers=Registers()) for node in range(1 + leaves)]
        self.below: tuple[tuple[int, ...], ...] = ()
        self.hops: Counter[tuple[int, int]] = Counter()
        """Packets sent by a switch to a switch, before the network loses any."""

    def admit(self, jobs: list[JobConfig]) -> None:
        """End what runs on all switches, then start the new generation on all (T7)."""
        for each in self.switches:
            for old in list(each.jobs):
                each.remove_job(old)
        for each, job in zip(self.switches, jobs, strict=True):
            each.add_job(job)
        self.below = tuple(tuple(one.rank for one in job.workers) for job in jobs[1:])

    def from_worker(self, rank: int, data: bytes, at_worker: AtWorker) -> None:
        """Deliver a worker's datagram to its leaf, and what follows from it to the network."""
        node = next(1 + number for number, ranks in enumerate(self.below) if rank in ranks)
        self.deliver(node, worker(rank), data, at_worker)

    def deliver(self, node: int, source: WorkerConfig, data: bytes, at_worker: AtWorker) -> None:
        """Deliver a datagram to a switch."""
        for output in self.switches[node].receive(source.port, source.ip, source.udp_port, data).outputs:
            self.network.send(partial(self._arrives, node, output, at_worker))

    def _arrives(self, node: int, output: OutputPacket, at_worker: AtWorker) -> None:
        data, to = output.header.pack() + output.payload, output.worker
        if isinstance(to, ParentConfig):
            self.hops[node, SPINE] += 1
            below = self.below[node - 1]
            self.deliver(SPINE, leaf(node, below), data, at_worker)
        elif isinstance(to, LeafConfig):
            child = next(1 + number for number, ranks in enumerate(self.below) if ranks[0] == to.rank)
            self.hops[SPINE, child] += 1
            self.deliver(child, parent(self.below[child - 1]), data, at_worker)
        else:
            assert to.udp_port != HOPSUM_UDP_PORT
            at_worker(to.rank, data)

    def events(self) -> Counter[tuple[bool, Event]]:
        """Return what was counted, by (at a leaf, event)."""
        counted: Counter[tuple[bool, Event]] = Counter()
        for node, each in enumerate(self.switches):
            for (_, event), count in each.job_events.items():
                counted[node != SPINE, event] += count
        return counted
