# SPDX-License-Identifier: Apache-2.0
"""Where the demo runs: at one switch, or over a network of the catalogue, as a tree of switches where it is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from hopsum.cli.demo.worker import Plan
from hopsum.cli.stage.seat import Seat
from hopsum.cli.stage.targets import SWITCH, InterfaceCounters, Stage, stage
from hopsum.wire import HOPSUM_UDP_PORT
from hopsum_controlplane import Controller, Job, JobSpec, write_membership
from hopsum_topologies.catalogue import topology as network_named
from hopsum_topologies.control import Control, Placed, TreePart, write_job
from hopsum_topologies.description import DescriptionError, JobPlan, Topology
from hopsum_topologies.mininet_network import MininetNetwork, bring_up
from hopsum_topologies.network import Network, traffic
from hopsum_topologies.scratch import scratch_folder

SLOTS = 32

Address = tuple[str, int]
Tables = Mapping[str, tuple[int, ...]]


class Ground(Protocol):
    """Switches with the program on them, and seats for workers around them."""

    seats: tuple[Seat, ...]
    where: str
    """In words, what runs."""

    def make_job(self, plan: Plan, bound: Sequence[tuple[Address, Address | None]], tables: Tables) -> list[str]:
        """Make the job for data sockets and side channels that are `bound`; return each rank's membership file."""
        ...

    def read_interfaces(self) -> InterfaceCounters:
        """Read the interfaces of the workers' links, not the program's counters."""
        ...

    def read_uplinks(self) -> dict[str, int]:
        """Read the frames that links between switches have carried towards the spine, by link."""
        ...

    def events(self) -> dict[str, int]:
        """Return what became of the workers' packets; `completed` are rounds."""
        ...

    def drops(self) -> dict[str, int]:
        """Return what all switches have dropped, by reason."""
        ...

    def remove_job(self) -> None:
        """End the job."""
        ...


@contextmanager
def ground_of(target: str, plan: Plan, network: str | None) -> Iterator[Ground]:
    """Bring it up for the block: one switch, or a network of the catalogue. Raises TopologyError, ControlPlaneError."""
    if network is None:
        with stage(target, plan.workers) as scene:
            yield OneSwitch(scene)
        return
    described = network_of(network, plan.workers)
    with (
        scratch_folder() as folder,
        bring_up(described, target, folder) as made,
        made.home.inside(),  # a controller's threads live where they are started
        Control.of(made) as control,
    ):
        yield OverNetwork(made, control)


def network_of(name: str, workers: int) -> Topology:
    """Return the network of the catalogue for so many workers. Raises DescriptionError: it has not one job for them."""
    described = network_named(name, workers)
    if len(described.jobs) != 1:
        raise DescriptionError(f"topology {name!r} has {len(described.jobs)} jobs: the demo is one")
    return described


class OneSwitch:
    """All workers at one switch."""

    def __init__(self, scene: Stage) -> None:
        self.seats, self.where = scene.seats, scene.where
        self._controller = Controller(scene.device, SWITCH)
        self.read_interfaces, self.drops = scene.read_interfaces, self._controller.drop_counters
        self._job: Job | None = None

    def make_job(self, plan: Plan, bound: Sequence[tuple[Address, Address | None]], tables: Tables) -> list[str]:
        """Make the job, and begin to lose frames."""
        endpoints = tuple(seat.endpoint(address) for seat, (address, _) in zip(self.seats, bound, strict=True))
        spec = JobSpec("demo", endpoints, SLOTS, tables.get("table"), plan.quorum, table16=tables.get("table16"))
        self._job = self._controller.create_job(spec)
        path = plan.folder / "membership.json"
        sides = _sides(bound) if plan.peers else False
        write_membership(self._job, path, {seat.rank: seat.switch for seat in self.seats}, sides)
        for port in {seat.port for seat in self.seats}:
            self._controller.set_loss(port, plan.loss, plan.loss)
        return [str(path)] * len(self.seats)

    def read_uplinks(self) -> dict[str, int]:
        """Return none."""
        return {}

    def events(self) -> dict[str, int]:
        """Return the job's counters."""
        assert self._job is not None
        return self._controller.job_counters(self._job)

    def remove_job(self) -> None:
        """End the job."""
        assert self._job is not None
        self._controller.delete_job(self._job)


class OverNetwork:
    """Workers at the hosts of a network, whose links lose what they are described to lose."""

    def __init__(self, network: Network, control: Control) -> None:
        described = network.topology
        where = "in Mininet" if isinstance(network, MininetNetwork) else "in namespaces"
        self.where = f"{described.name}: {len(described.switches)} {network.driver} switches {where}"
        self._network, self._control = network, control
        self._plan = described.jobs[0]
        self.seats = tuple(_seat(network, self._plan, rank) for rank in range(len(self._plan.workers)))
        self._placed: Placed | None = None

    def make_job(self, plan: Plan, bound: Sequence[tuple[Address, Address | None]], tables: Tables) -> list[str]:
        """Make the job: a tree where there is a spine, else at the one switch."""
        described, places = self._network.topology, {rank: address for rank, (address, _) in enumerate(bound)}
        placed = self._control.place(self._plan, SLOTS, tables, quorum=plan.quorum, places=places)
        if placed is None:
            switches = " and ".join(described.switches_of(self._plan))
            raise DescriptionError(f"topology {described.name!r}: no switch is next to {switches}")
        self._placed = placed
        sides = _sides(bound) if plan.peers else False
        files = {switch: write_job(part, plan.folder, sides) for switch, part in placed.parts.items()}
        return [str(files[described.switch_of(host)]) for host in self._plan.workers]

    def read_interfaces(self) -> InterfaceCounters:
        """Read the links of hosts."""
        hosts, total = self._network.topology.hosts, [0, 0, 0, 0]
        for link, counts in traffic(self._network).items():
            if (ends := [end in hosts for end in link.ends]) != [False, False]:
                there, back = tuple(counts[:2]), tuple(counts[2:])
                values = (*there, *back) if ends[0] else (*back, *there)
                total = [before + value for before, value in zip(total, values, strict=True)]
        return InterfaceCounters(*total)

    def read_uplinks(self) -> dict[str, int]:
        """Read what leaves have sent up."""
        described, carried = self._network.topology, traffic(self._network)
        spine = described.spine_of(self._plan)
        leaves = described.switches_of(self._plan) if spine is not None else ()
        links = [(leaf, described.link_between(leaf, str(spine))) for leaf in leaves]
        return {str(link): carried[link].sent_from(leaf, link) for leaf, link in links}

    def events(self) -> dict[str, int]:
        """Return the counters of all switches with workers; a leaf answers a packet of a closed round by PARTIAL."""
        assert self._placed is not None
        found: Counter[str] = Counter()
        for switch, part in self._placed.parts.items():
            counts = self._control.counters(switch, part)
            found.update(counts)
            if isinstance(part, TreePart):
                found["answered"] += counts["resent"]
                found["completed"] += counts["taken"] if part.rack == 0 else 0
        return dict(found)

    def drops(self) -> dict[str, int]:
        """Return what all switches have dropped."""
        found: Counter[str] = Counter()
        for controller in self._control.controllers.values():
            found.update(controller.drop_counters())
        return dict(found)

    def remove_job(self) -> None:
        """End the job, on all switches."""
        assert self._placed is not None
        self._placed.end()


def _sides(bound: Sequence[tuple[Address, Address | None]]) -> dict[int, Address]:
    return {rank: side for rank, (_, side) in enumerate(bound) if side is not None}


def _seat(network: Network, plan: JobPlan, rank: int) -> Seat:
    described, host = network.topology, plan.workers[rank]
    switch = described.switch_of(host)
    port = described.port(switch, described.link_between(host, switch))
    send_to, away = (described.ip(switch), HOPSUM_UDP_PORT), network.hosts[host].name
    return Seat(rank, port, described.mac(host), described.ip(host), send_to, away)
