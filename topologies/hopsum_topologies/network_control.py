# SPDX-License-Identifier: Apache-2.0
"""The control plane of a running network: forwarding and losses on every switch, jobs at one switch or over a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hopsum_controlplane import (
    GenerationAllocator,
    Job,
    JobSpec,
    LeafGroup,
    SwitchController,
    SwitchEndpoint,
    TreeJob,
    TreeSpec,
    WorkerEndpoint,
    create_tree,
    delete_tree,
    write_membership,
)
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entries import Entity, Insert
from hopsum_controlplane.membership_file import SideChannels, write_file
from hopsum_controlplane.tables.forward import broadcast, l2
from hopsum_topologies.description import JobPlan, Topology
from hopsum_topologies.running_network import RunningNetwork, interfaces_of

# Outside the kernel's ephemeral range, 32768 to 60999.
WORKER_UDP_PORT: Final = 24700
"""The UDP port of rank 0. Rank r has the r-th port after it. No kernel assigns these ports by itself."""


Places = Mapping[int, tuple[str, int]]
"""The data sockets of workers by rank: IPv4 address and UDP port."""


class TreePart(NamedTuple):
    """One rack's share of a job over a tree."""

    job: TreeJob
    rack: int
    controllers: tuple[SwitchController, ...]


class Placed(NamedTuple):
    """A job that was made: its view at each switch, a text that says where it is summed, and its end function."""

    parts: Mapping[str, Job | TreePart]
    where: str
    end: Callable[[], None]


class NetworkControl:
    """A controller for every switch of a network, with forwarding between all nodes. The context manager disconnects.

    Call it in the network's home (see `RunningNetwork.home`). Raises ControlPlaneError when a switch fails.
    """

    def __init__(self, network: RunningNetwork) -> None:
        self.topology = network.topology
        self.controllers: dict[str, SwitchController] = {}
        # One allocator for all switches, since the parts of a tree have the same generation.
        self._generations = GenerationAllocator()
        with ExitStack() as stack:
            for switch in self.topology.switches:
                self.controllers[switch] = self._take(stack, network.driver, switch, network.addresses[switch])
            self._stack = stack.pop_all()

    def install(
        self,
        plan: JobPlan,
        switch: str,
        slots: int,
        tables: Mapping[str, Any],
        quorum: int | None = None,
        places: Places | None = None,
    ) -> Job:
        """Make a job at one switch, for workers anywhere. Raises ControlPlaneError: it cannot be, or the switch fails.

        Args:
            tables: JobSpec's table, table16, table4, table3 and table2.
            places: sockets by rank, (IPv4 address, UDP port), where they are others than WORKER_UDP_PORT says.
        """
        workers = self._workers(plan, switch, plan.workers, places)
        spec = JobSpec(plan.name, workers, slots, quorum=quorum, **tables)
        return self.controllers[switch].create_job(spec)

    def install_tree(
        self,
        plan: JobPlan,
        spine: str,
        slots: int,
        tables: Mapping[str, Any],
        places: Places | None = None,
    ) -> dict[str, TreePart]:
        """Make a job over its workers' switches and `spine`, which is connected to all of them.

        Returns the job's view at each of these switches, without the spine. Raises ControlPlaneError as `install`.
        """
        leaves = self.topology.switches_of(plan)
        racks = tuple(self._rack(plan, leaf, spine, places) for leaf in leaves)
        spec = TreeSpec(plan.name, racks, slots, **tables)
        controllers = tuple(self.controllers[switch] for switch in (spine, *leaves))
        job = create_tree(spec, controllers)
        return {leaf: TreePart(job, number, controllers) for number, leaf in enumerate(leaves)}

    def place(
        self,
        plan: JobPlan,
        slots: int,
        tables: Mapping[str, Any],
        *,
        flat: str | None = None,
        quorum: int | None = None,
        places: Places | None = None,
    ) -> Placed | None:
        """Create a job at the one switch of its workers, else at `flat`, else as a tree below a spine.

        Returns None where there is no such switch. `quorum` applies to a job at one switch. The other arguments and the
        errors are those of `install`.
        """
        around = self.topology.switches_of(plan)
        spine = self.topology.spine_of(plan)
        # All workers at one switch need no tree, whatever the caller named.
        if len(around) == 1 or flat is not None:
            where = around[0] if len(around) == 1 else str(flat)
            job = self.install(plan, where, slots, tables, quorum, places)
            return Placed(dict.fromkeys(around, job), f"at {where}", partial(self.controllers[where].delete_job, job))
        if spine is None:
            return None
        parts = self.install_tree(plan, spine, slots, tables, places)
        tree = parts[around[0]]
        return Placed(
            parts, f"at {', '.join(around)}, then at {spine}", partial(delete_tree, tree.job, tree.controllers)
        )

    def counters(self, switch: str, part: Job | TreePart) -> dict[str, int]:
        """Read a switch's packet counts, by event, of a job of `install` or `install_tree`."""
        job = part if isinstance(part, Job) else part.job.leaves[part.rack]
        return self.controllers[switch].job_counters(job)

    def lost(self) -> int:
        """Read how many frames all loss simulators have dropped. Raises ControlPlaneError."""
        counters = (controller.loss_counters().values() for controller in self.controllers.values())
        return sum(each.ingress + each.egress for ports in counters for each in ports)

    def __enter__(self) -> NetworkControl:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _rack(self, plan: JobPlan, leaf: str, spine: str, places: Places | None) -> LeafGroup:
        link = self.topology.link_between(leaf, spine)
        hosts = [host for host in plan.workers if self.topology.switch_of(host) == leaf]
        ports = self.topology.port(leaf, link), self.topology.port(spine, link)
        return LeafGroup(self._workers(plan, leaf, hosts, places), *ports)

    def _workers(
        self, plan: JobPlan, switch: str, hosts: Sequence[str], places: Places | None
    ) -> tuple[WorkerEndpoint, ...]:
        """Build the endpoints of `hosts`, each with the port of `switch` that leads to it."""
        ports, topology = routes(self.topology, switch), self.topology
        places = places or {rank: (topology.ip(host), WORKER_UDP_PORT + rank) for rank, host in enumerate(plan.workers)}
        return tuple(
            WorkerEndpoint(rank, ports[host], topology.mac(host), *places[rank])
            for rank, host in enumerate(plan.workers)
            if host in hosts
        )

    def _take(self, stack: ExitStack, driver: str, switch: str, address: str) -> SwitchController:
        device = open_device(driver, address, self.topology.device_id(switch))
        stack.callback(device.close)
        # A program that is on the switch already stays, with its entries and counters.
        ensure_pipeline(device, PipelineConfig.load(*compiled_program()))
        endpoint = SwitchEndpoint(self.topology.mac(switch), self.topology.ip(switch))
        controller = SwitchController(device, endpoint, generations=self._generations)
        entries: list[Entity] = [*l2(stations(self.topology, switch))]
        entries += broadcast(interfaces_of(self.topology, switch))
        device.write([Insert(entry) for entry in entries])
        for port, (ingress, egress) in losses(self.topology, switch).items():
            controller.set_loss(port, ingress, egress)
        return controller


def write_job(job: Job | TreePart, folder: Path, side_channels: SideChannels = "auto") -> Path:
    """Write a job's membership into a folder, for workers to read. Return its path. Raises ControlPlaneError."""
    if isinstance(job, Job):
        path = folder / f"{job.generation}.json"
        write_membership(job, path, side_channels=side_channels)
    else:
        path = folder / f"{job.job.generation}-{job.rack}.json"
        write_file(job.job.membership(job.rack, side_channels), path)
    return path


def routes(topology: Topology, switch: str) -> dict[str, int]:
    """Map the name of every other node to the port of `switch` that leads to it. A tree has one such port."""
    found: dict[str, int] = {}
    for link in topology.links_of(switch):
        port = topology.port(switch, link)
        # Everything on the far side of a link is reached by this port, since the network is a tree.
        waiting = [link.other(switch)]
        while waiting:
            node = waiting.pop()
            found[node] = port
            around = (other.other(node) for other in topology.links_of(node))
            waiting += [near for near in around if near != switch and near not in found]
    return found


def stations(topology: Topology, switch: str) -> dict[str, int]:
    """Map the MAC address of every host, and of every other switch's service, to the port of `switch` towards it."""
    return {topology.mac(node): port for node, port in routes(topology, switch).items()}


def losses(topology: Topology, switch: str) -> dict[int, tuple[float, float]]:
    """Map ports to the shares of frames that `switch` drops for its links: of frames in, and of frames out.

    A direction is simulated once: by the switch that receives, and towards a host by the switch that sends.
    """
    found = {}
    for link in topology.links_of(switch):
        if link.loss:
            outwards = link.loss if link.other(switch) in topology.hosts else 0.0
            found[topology.port(switch, link)] = (link.loss, outwards)
    return found
