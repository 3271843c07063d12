# SPDX-License-Identifier: Apache-2.0
"""The demo's job at a cluster, and counts of frames on the way from workers to switches and back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hopsum_evaluation.demo.demo_worker import DemoPlan
from hopsum_topologies.description import DescriptionError, Topology, find_topology
from hopsum_topologies.local_cluster import SLOTS, InterfaceCounters, LocalCluster
from hopsum_topologies.local_job import LocalJob
from hopsum_topologies.running_network import read_traffic

ARRIVED: Final = ("added", "duplicate", "answered", "stale", "probed", "resent")
"""Events of the program that are one frame of a worker each, which it did not drop."""
QUIET_S: Final = 10.0
_PAUSE_S: Final = 0.05
"""Time between two looks at the counters."""


@dataclass(frozen=True, slots=True)
class DemoCounts:
    """Counts of the switches' interfaces and programs at one moment."""

    interfaces: InterfaceCounters
    """The counts at the links of workers."""
    uplinks: dict[str, int]
    """Frames that went up between switches of a tree, by link."""
    events: dict[str, int]
    """The fate of the workers' frames."""
    replies: int
    """Frames that programs sent to workers."""
    drops: dict[str, int]
    """Frames that programs dropped, by reason."""

    def since(self, earlier: DemoCounts) -> DemoCounts:
        """Return the counts since an earlier moment. Reasons of drops that did not occur since then are left out."""
        drops = {name: count - earlier.drops.get(name, 0) for name, count in self.drops.items()}
        return DemoCounts(
            self.interfaces - earlier.interfaces,
            {link: count - earlier.uplinks[link] for link, count in self.uplinks.items()},
            {name: count - earlier.events[name] for name, count in self.events.items()},
            self.replies - earlier.replies,
            {name: count for name, count in drops.items() if count},
        )

    @property
    def arrived(self) -> int:
        """Number of frames of workers that the programs processed or dropped."""
        return sum(self.events[name] for name in ARRIVED) + sum(self.drops.values())


def read_until_stable(read_counts: Callable[[], DemoCounts], quiet_s: float = QUIET_S) -> DemoCounts:
    """Call `read_counts` until two results are equal, or for `quiet_s` seconds. Return the last result.

    Counters of several places are read one after the other, so a frame that is under way at the first look is counted
    only by the places that are read last.
    """
    give_up_s, found = time.monotonic() + quiet_s, read_counts()
    while time.monotonic() < give_up_s:
        time.sleep(_PAUSE_S)
        last, found = found, read_counts()
        if found == last:
            break
    return found


SHAPED_SLOTS = 256
"""Slots over shaped links: 256 frames fill a link of 200 Mbit/s for 11 ms, longer than a busy machine takes for the way
to the switch and back."""

Address = tuple[str, int]


def demo_network(name: str, workers: int | None) -> Topology:
    """Return a network of the catalogue with `workers` workers, or the network of a .json file.

    `workers` None: the catalogue's own number. For a file it has to be None.

    Raises:
        DescriptionError: the network is unknown or unreadable, cannot have this number of workers, or does not have
            exactly one job.
    """
    described = find_topology(name, workers)
    if len(described.jobs) != 1:
        raise DescriptionError(f"topology {name!r} has {len(described.jobs)} jobs: the demo is one")
    return described


def make_job(
    cluster: LocalCluster, plan: DemoPlan, bound: Sequence[tuple[Address, Address | None]], tables: Mapping[str, Any]
) -> LocalJob:
    """Make the job for workers' sockets and side channels, and let the first switch lose frames as the plan says.

    bound: by rank, the address of the data socket, and that of the side channel or None.

    Raises ControlPlaneError, DescriptionError.
    """
    sides = {rank: side for rank, (_, side) in enumerate(bound) if side is not None}
    slots = SLOTS if cluster.star is None else SHAPED_SLOTS
    sockets = [[address] for address, _ in bound]
    job = cluster.create_job(
        "demo", sockets, tables, slots=slots, quorum=plan.quorum, sides=sides if plan.peers else False
    )
    if plan.loss:
        for port in {seat.port for seat in cluster.seats}:
            cluster.switch.controller.set_loss(port, plan.loss, plan.loss)
    return job


def read_counts(cluster: LocalCluster, job: LocalJob) -> DemoCounts:
    """Read the counts of the switches' interfaces, then of the programs of those with workers, since the start.

    Raises ControlPlaneError or TopologyError.
    """
    uplinks, interfaces = _read_uplinks(cluster), cluster.read_interfaces()
    events, drops, replies = Counter[str](), Counter[str](), 0
    for number, (controller, part) in enumerate(job.parts.items()):
        counts, workers = controller.job_counters(part), part.spec.workers
        ports = {worker.port for worker in workers}
        lost = sum(each.egress for port, each in controller.loss_counters().items() if port in ports)
        replies += _replies(counts, len(workers)) - lost
        drops.update(controller.drop_counters())
        events.update(counts)
        # Every leaf of a tree takes every round, and none completes one: the first counts them.
        if number == 0:
            events["completed"] += counts["taken"]
    return DemoCounts(interfaces, uplinks, dict(events), replies, dict(drops))


def _read_uplinks(cluster: LocalCluster) -> dict[str, int]:
    """Count the frames that the leaves of a tree have sent up, by link."""
    if cluster.network is None:
        return {}
    network = cluster.network.topology
    plan = network.jobs[0]
    spine = network.spine_of(plan)
    if spine is None:
        return {}
    carried = read_traffic(cluster.network)
    links = [(leaf, network.link_between(leaf, spine)) for leaf in network.switches_of(plan)]
    return {str(link): carried[link].sent_from(leaf, link) for leaf, link in links}


def _replies(events: Mapping[str, int], workers: int) -> int:
    """Count the frames that a program sent to the workers at its switch, from its events.

    A completed round is sent to all of them, an answer to one.
    """
    to_all = sum(events[name] for name in ("completed", "taken", "relayed"))
    return workers * to_all + sum(events[name] for name in ("answered", "stale", "probed"))
