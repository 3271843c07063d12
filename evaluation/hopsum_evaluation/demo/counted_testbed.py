# SPDX-License-Identifier: Apache-2.0
"""Testbeds of the demo, and their counts of frames on the way from workers to switches and back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hopsum_base.owned_folder import OwnedFolder
from hopsum_evaluation.demo.demo_worker import DemoPlan
from hopsum_topologies.description import DescriptionError, JobPlan, Link, Topology, find_topology
from hopsum_topologies.local_cluster import SLOTS, InterfaceCounters, LocalCluster, LocalJob
from hopsum_topologies.mininet_network import MininetNetwork, bring_up
from hopsum_topologies.network_control import NetworkControl, Placed, TreePart, write_job
from hopsum_topologies.running_network import LinkTraffic, RunningNetwork, traffic
from hopsum_topologies.seat import Seat
from hopsum_wire import HOPSUM_UDP_PORT

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
        """Subtract the counts of an earlier moment. Reasons of drops that did not occur are left out."""
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


def read_quiet(read_counts: Callable[[], DemoCounts], quiet_s: float = QUIET_S) -> DemoCounts:
    """Read until two looks are equal, or for `quiet_s` seconds.

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
Tables = Mapping[str, Any]


@contextmanager
def network_testbed(target: str, network: Topology) -> Iterator[NetworkTestbed]:
    """Bring up a network for the block. Raises TopologyError, ControlPlaneError."""
    with (
        OwnedFolder("topology") as folder,
        bring_up(network, target, folder) as made,
        # gRPC's threads stay in the namespace in which they were started, and must reach the switches there.
        made.home.inside(),
        NetworkControl(made) as control,
    ):
        yield NetworkTestbed(made, control)


def network_of(name: str, workers: int | None) -> Topology:
    """Find a network of the catalogue for so many workers, or read a file's. Raises DescriptionError: not one job."""
    described = find_topology(name, workers)
    if len(described.jobs) != 1:
        raise DescriptionError(f"topology {name!r} has {len(described.jobs)} jobs: the demo is one")
    return described


class OneSwitchTestbed:
    """All workers at one switch."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.seats, self.where = cluster.seats, cluster.switch.where
        self._cluster = cluster
        self._job: LocalJob | None = None

    def make_job(self, plan: DemoPlan, bound: Sequence[tuple[Address, Address | None]], tables: Tables) -> list[str]:
        """Make the job, and begin to lose frames. Return each rank's membership file."""
        self._job = self._cluster.create_job(
            "demo",
            [[address] for address, _ in bound],
            tables,
            slots=SLOTS if self._cluster.star is None else SHAPED_SLOTS,
            quorum=plan.quorum,
            sides=_sides(bound) if plan.peers else False,
        )
        path = self._job.write(plan.folder / "membership.json")
        for port in {seat.port for seat in self.seats}:
            self._cluster.switch.controller.set_loss(port, plan.loss, plan.loss)
        return [str(path)] * len(self.seats)

    def read_counts(self) -> DemoCounts:
        """Read the switch's ports, then the program's counters."""
        assert self._job is not None
        switch = self._cluster.switch
        interfaces, events = switch.read_interfaces(), self._job.counters()
        lost = sum(each.egress for each in switch.controller.loss_counters().values())
        replies = _replies(events, len(self.seats)) - lost
        return DemoCounts(interfaces, {}, events, replies, switch.controller.drop_counters())

    def remove_job(self) -> None:
        """End the job."""
        assert self._job is not None
        self._job.close()


class NetworkTestbed:
    """Workers at the hosts of a network, whose links lose what they are described to lose."""

    def __init__(self, network: RunningNetwork, control: NetworkControl) -> None:
        described = network.topology
        where = "in Mininet" if isinstance(network, MininetNetwork) else "in namespaces"
        self.where = f"{described.name}: {len(described.switches)} {network.driver} switches {where}"
        self._network, self._control = network, control
        self._plan = described.jobs[0]
        self.seats = tuple(_seat(network, self._plan, rank) for rank in range(len(self._plan.workers)))
        self._placed: Placed | None = None

    def make_job(self, plan: DemoPlan, bound: Sequence[tuple[Address, Address | None]], tables: Tables) -> list[str]:
        """Make the job: a tree where there is a spine, else at the one switch. Return each rank's membership file."""
        described, places = self._network.topology, {rank: address for rank, (address, _) in enumerate(bound)}
        placed = self._control.place(self._plan, SLOTS, tables, quorum=plan.quorum, places=places)
        if placed is None:
            switches = " and ".join(described.switches_of(self._plan))
            raise DescriptionError(f"topology {described.name!r}: no switch is next to {switches}")
        self._placed = placed
        sides = _sides(bound) if plan.peers else False
        files = {switch: write_job(part, plan.folder, sides) for switch, part in placed.parts.items()}
        return [str(files[described.switch_of(host)]) for host in self._plan.workers]

    def read_counts(self) -> DemoCounts:
        """Read all links, then the programs of the switches with workers. Of the events, `completed` are rounds."""
        carried = traffic(self._network)
        events, drops, replies = self._read_programs()
        return DemoCounts(self._at_hosts(carried), self._upwards(carried), events, replies, drops)

    def _at_hosts(self, carried: Mapping[Link, LinkTraffic]) -> InterfaceCounters:
        hosts, total = self._network.topology.hosts, [0, 0, 0, 0]
        for link, counts in carried.items():
            if (ends := [end in hosts for end in link.ends]) != [False, False]:
                there, back = tuple(counts[:2]), tuple(counts[2:])
                values = (*there, *back) if ends[0] else (*back, *there)
                total = [before + value for before, value in zip(total, values, strict=True)]
        return InterfaceCounters(*total)

    def _upwards(self, carried: Mapping[Link, LinkTraffic]) -> dict[str, int]:
        """Count the frames that leaves have sent up, by link."""
        described = self._network.topology
        spine = described.spine_of(self._plan)
        leaves = described.switches_of(self._plan) if spine is not None else ()
        links = [(leaf, described.link_between(leaf, str(spine))) for leaf in leaves]
        return {str(link): carried[link].sent_from(leaf, link) for leaf, link in links}

    def _read_programs(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Return events, drops and replies of all switches with workers. A tree's first leaf counts its rounds."""
        assert self._placed is not None
        described, events, drops, replies = self._network.topology, Counter[str](), Counter[str](), 0
        for switch, part in self._placed.parts.items():
            counts, controller = self._control.counters(switch, part), self._control.controllers[switch]
            hosts = [host for host in self._plan.workers if described.switch_of(host) == switch]
            ports = {described.port(switch, described.link_between(host, switch)) for host in hosts}
            lost = sum(each.egress for port, each in controller.loss_counters().items() if port in ports)
            replies += _replies(counts, len(hosts)) - lost
            drops.update(controller.drop_counters())
            events.update(counts)
            if isinstance(part, TreePart) and part.rack == 0:
                events["completed"] += counts["taken"]
        return dict(events), dict(drops), replies

    def remove_job(self) -> None:
        """End the job, on all switches."""
        assert self._placed is not None
        self._placed.end()


def _replies(events: Mapping[str, int], workers: int) -> int:
    """Count the frames that a program sent to the workers at its switch, from its events.

    A completed round is sent to all of them, an answer to one.
    """
    to_all = sum(events[name] for name in ("completed", "taken", "relayed"))
    return workers * to_all + sum(events[name] for name in ("answered", "stale", "probed"))


def _sides(bound: Sequence[tuple[Address, Address | None]]) -> dict[int, Address]:
    return {rank: side for rank, (_, side) in enumerate(bound) if side is not None}


def _seat(network: RunningNetwork, plan: JobPlan, rank: int) -> Seat:
    described, host = network.topology, plan.workers[rank]
    switch = described.switch_of(host)
    port = described.port(switch, described.link_between(host, switch))
    send_to, away = (described.ip(switch), HOPSUM_UDP_PORT), network.hosts[host].name
    return Seat(rank, port, described.mac(host), described.ip(host), send_to, away)
