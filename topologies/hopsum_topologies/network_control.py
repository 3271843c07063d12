# SPDX-License-Identifier: Apache-2.0
"""The control plane of a running network: forwarding and losses on every switch, jobs at one switch or over a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from hopsum_controlplane import (
    GenerationAllocator,
    JobSpec,
    LeafGroup,
    SwitchController,
    SwitchEndpoint,
    WorkerEndpoint,
    create_tree,
    delete_tree,
    job_membership,
)
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import Device, PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entries import Entity, Insert
from hopsum_controlplane.membership_file import SideChannels
from hopsum_controlplane.tables.forward import broadcast, l2
from hopsum_topologies.description import JobPlan, Topology
from hopsum_topologies.local_job import LocalJob
from hopsum_topologies.running_network import RunningNetwork, interfaces_of

# Outside the kernel's ephemeral range, 32768 to 60999.
WORKER_UDP_PORT: Final = 24700
"""The UDP port of rank 0. Rank r has the r-th port after it. No kernel assigns these ports by itself."""


Places = Mapping[int, tuple[str, int]]
"""The data sockets of workers by rank: IPv4 address and UDP port."""


class NetworkControl:
    """A controller for every switch of a network, with forwarding between all nodes. The context manager disconnects.

    Construction connects to every switch, loads the program where the switch lacks it, and writes the entries for
    forwarding, broadcasts and the losses of links. Construct and use it in the network's home (see
    `RunningNetwork.home`). Raises ControlPlaneError when a switch fails.
    """

    def __init__(self, network: RunningNetwork) -> None:
        self.topology = network.topology
        self.devices: dict[str, Device] = {}
        self.controllers: dict[str, SwitchController] = {}
        # One allocator for all switches, since the parts of a tree have the same generation.
        self._generations = GenerationAllocator()
        with ExitStack() as stack:
            for switch in self.topology.switches:
                self.controllers[switch] = self._take(stack, network.driver, switch, network.addresses[switch])
            self._stack = stack.pop_all()

    def create_job(
        self,
        plan: JobPlan,
        slots: int,
        tables: Mapping[str, Any],
        *,
        flat: str | None = None,
        quorum: int | None = None,
        places: Places | None = None,
        sides: SideChannels = "auto",
    ) -> LocalJob | None:
        """Create a job at the one switch of its workers, else at `flat`, else as a tree below a spine.

        Args:
            plan: the name of the job and its hosts.
            slots: at each switch.
            tables: of the codec (`hopsum.codec.job_tables`).
            flat: the one switch that sums for workers of several switches. None: a tree.
            quorum: workers that a sum waits for, of a job at one switch. None: all. A tree waits for all workers.
            places: sockets of all ranks, (IPv4 address, UDP port). None: each host's address, and a port by
                WORKER_UDP_PORT.
            sides: side channels, as in `job_membership`.

        Returns None, and creates nothing, where a tree is needed and no switch is its spine. Raises ControlPlaneError:
        it cannot be, or a switch fails.
        """
        around, spine = self.topology.switches_of(plan), self.topology.spine_of(plan)
        with ExitStack() as undo:
            # All workers at one switch need no tree, whatever the caller named.
            if len(around) == 1 or flat is not None:
                where = around[0] if len(around) == 1 else str(flat)
                workers = self._workers(plan, where, plan.workers, places)
                one = self.controllers[where]
                job = one.create_job(JobSpec(plan.name, workers, slots, tables=tables, quorum=quorum))
                undo.callback(one.delete_job, job)
                same = job_membership(job, None, sides)
                return LocalJob({one: job}, (same,) * len(workers), f"at {where}", undo.pop_all())
            if spine is None:
                return None
            racks = tuple(self._rack(plan, leaf, spine, places) for leaf in around)
            controllers = tuple(self.controllers[switch] for switch in (spine, *around))
            tree = create_tree(JobSpec(plan.name, slots=slots, tables=tables), racks, controllers)
            undo.callback(delete_tree, tree, controllers)
            made = {leaf: tree.membership(number, sides) for number, leaf in enumerate(around)}
            memberships = tuple(made[self.topology.switch_of(host)] for host in plan.workers)
            parts = dict(zip(controllers[1:], tree.leaves, strict=True))
            return LocalJob(parts, memberships, f"at {', '.join(around)}, then at {spine}", undo.pop_all())

    def read_simulated_losses(self) -> int:
        """Read from all switches the number of frames that their loss simulators dropped. Raises ControlPlaneError."""
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
        self.devices[switch] = device
        # A program that is on the switch already stays, with its entries and counters.
        ensure_pipeline(device, PipelineConfig.load(*compiled_program()))
        endpoint = SwitchEndpoint(self.topology.mac(switch), self.topology.ip(switch))
        controller = SwitchController(device, endpoint, generations=self._generations)
        entries: list[Entity] = [*l2(stations(self.topology, switch))]
        entries += broadcast(interfaces_of(self.topology, switch))
        device.write([Insert(entry) for entry in entries])
        for port, (ingress, egress) in port_losses(self.topology, switch).items():
            controller.set_loss(port, ingress, egress)
        return controller


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


def port_losses(topology: Topology, switch: str) -> dict[int, tuple[float, float]]:
    """Map ports to the shares of frames that `switch` drops for its links: of frames in, and of frames out.

    Ports of links without loss are absent. A direction is simulated once: by the switch that receives, and towards a
    host by the switch that sends.
    """
    found = {}
    for link in topology.links_of(switch):
        if link.loss:
            outwards = link.loss if link.other(switch) in topology.hosts else 0.0
            found[topology.port(switch, link)] = (link.loss, outwards)
    return found
