# SPDX-License-Identifier: Apache-2.0
"""Switches with the program on this machine, seats for workers at them, and their jobs.

    placement   switches
    loopback    one, or several shards, at UDP ports of 127.0.0.1. It needs no root
    fabric      one in the middle, with a link of its own for every worker, as a top-of-rack switch has
    server      one on a host like the workers', behind one link of the same rate
    hosts       one on every worker's host, each a shard of every job; nothing has more than its host's one link

All but loopback are network namespaces, which need root. With target bmv2 there is one switch in the middle. In place
of a placement, a description (`hopsum_topologies.topology`) is a network of any switches, hosts and links.

    with LocalCluster(4) as cluster, cluster.open_job("thc") as job:
        comms = job.connect()
        futures = [comm.submit(gradient) for comm, gradient in zip(comms, gradients)]
        means = [future.result().mean for future in futures]
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Self

from hopsum.codec import Codec, job_tables, make_codec
from hopsum.transport.udp_link import UdpLink
from hopsum_base.owned_folder import OwnedFolder
from hopsum_controlplane import JobSpec, SwitchController, SwitchEndpoint, job_membership
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.membership_file import SideChannels
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_switch.management import ManagementClient, ManagementError
from hopsum_topologies.description import DescriptionError, JobPlan, Topology, topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_job import LocalJob, OpenSockets
from hopsum_topologies.mininet_network import start_network
from hopsum_topologies.native_process import NativeSwitch
from hopsum_topologies.netns import Namespace
from hopsum_topologies.network_control import NetworkControl
from hopsum_topologies.running_network import RunningNetwork
from hopsum_topologies.seat import Seat, at_seat
from hopsum_topologies.star import Star
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire.membership import JobMembership

Address = tuple[str, int]
SWITCH: Final = SwitchEndpoint(mac="02:00:00:00:00:fe", ip="10.0.0.254")
"""The service of a cluster's first switch."""
NATIVE_PORT: Final = 1
"""The port of an embedded switch, at which all workers are."""
SLOTS: Final = 32
PLACEMENTS: Final = ("fabric", "server", "hosts")
"""Those with links."""
_TARGETS: Final = ("native", "bmv2", "mininet")
_LOOPBACK: Final = "127.0.0.1"
_NATIVE_MAC: Final = f"02:00:00:00:01:{NATIVE_PORT:02x}"


class InterfaceCounters(NamedTuple):
    """Frames and their bytes, Ethernet headers included, at switch ports with workers. `-` gives the difference."""

    packets_up: int
    """Packets that workers sent."""
    bytes_up: int
    packets_down: int
    """Packets that the switch sent to workers."""
    bytes_down: int

    def __sub__(self, earlier: InterfaceCounters) -> InterfaceCounters:
        return InterfaceCounters(*(now - then for now, then in zip(self, earlier, strict=True)))


@dataclass(slots=True, eq=False)
class LocalSwitch:
    """A running switch that has the aggregation program, with its P4Runtime connection (`device`)."""

    device: Device
    endpoint: SwitchEndpoint
    service: Address
    """The IPv4 address and UDP port that workers send to."""
    pid: int
    where: str
    """A text for people: the kind of switch, its process and its address or namespace."""
    read_interfaces: Callable[[], InterfaceCounters]
    """A function that reads the counters of its interfaces, not those of the program."""
    _generations: GenerationAllocator
    _controller: SwitchController | None = None

    @property
    def controller(self) -> SwitchController:
        """Return the switch's controller, always the same one. Unless a network has made it, the first call makes it.

        Making it writes the address of the service into the switch. Raises ControlPlaneError then.
        """
        if self._controller is None:
            self._controller = SwitchController(self.device, self.endpoint, generations=self._generations)
        return self._controller


def links_unavailable() -> str | None:
    """Return the reason why links between namespaces cannot be made on this machine, None if they can. Makes none.

    It is the lack of root, or of the commands `ip` and `tc`.
    """
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


def default_switch_count(placement: str, workers: int) -> int:
    """Return the number of switches that a placement has by default: one a worker with hosts, else one."""
    return workers if placement == "hosts" else 1


class LocalCluster:
    """Switches on this machine and seats for workers. Jobs end before it. The context manager ends all of it.

    Args:
        workers: 1 or more. Ignored with a network.
        placement: see the module. Only with target native, and without a network.
        network: switches, hosts and links in place of workers and placement. The workers of its first job have seats.
        round_trip_s: the delay between a host and the middle, there and back, in seconds. Ignored with loopback.
        switches: shards of every job. Loopback has one by default, placement hosts one on each host. Other placements
            ignore it.
        target: native, the embedded switch; bmv2, each worker in a namespace of its own; mininet, for a `network`.
        extra: more arguments of each embedded switch's command in a placement.
        environment: of each embedded switch in a placement, instead of ours.
        home: the namespace of a network's or bmv2's switches, in which the calling thread is and stays. None: one is
            made, and entered.

    Raises:
        ValueError: there is no such placement or target, or target mininet has no network.
        DescriptionError: the network has no job.
        TopologyError: no root, no iproute2, no bmv2, a switch that does not start, or one that cannot bind its UDP
            port. Nothing is left then.
        ControlPlaneError: a switch does not take the program.
    """

    def __init__(
        self,
        workers: int = 4,
        *,
        placement: str = "loopback",
        network: Topology | None = None,
        round_trip_s: float = 0.0,
        switches: int | None = None,
        target: str = "native",
        extra: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        home: Namespace | None = None,
    ) -> None:
        self.workers = workers
        self.star: Star | None = None
        """The links, which `Star.shape` gives a rate. None with loopback and networks."""
        self.network: RunningNetwork | None = None
        """The network, where there is one. bmv2 is always in one."""
        self.switches: tuple[LocalSwitch, ...] = ()
        self.seats: tuple[Seat, ...] = ()
        """By rank. In a placement, their switch is the first."""
        self._control: NetworkControl | None = None
        self._generations: Final = GenerationAllocator()
        if target not in _TARGETS:
            raise ValueError(f"target={target!r}: one of {', '.join(_TARGETS)}")
        if target == "mininet" and network is None:
            raise ValueError("target='mininet': a Mininet is made of a description; give network=topology(\"star\")")
        with ExitStack() as stack:
            if network is not None or target == "bmv2":
                self._join(stack, topology("star", workers) if network is None else network, target, home)
            else:
                start = partial(self._start_native, stack, extra, environment)
                self._place(stack, placement, round_trip_s, switches, start)
            self._stack = stack.pop_all()

    @property
    def switch(self) -> LocalSwitch:
        """Return the first switch, often the only one."""
        return self.switches[0]

    def read_interfaces(self) -> InterfaceCounters:
        """Read the counters of the ports with workers since the start, and return their sums over all switches.

        Raises TopologyError when a switch or the kernel does not tell them.
        """
        return InterfaceCounters(*map(sum, zip(*(switch.read_interfaces() for switch in self.switches), strict=True)))

    def create_job(
        self,
        name: str,
        sockets: Sequence[Sequence[Address]],
        tables: Mapping[str, Any],
        *,
        slots: int = SLOTS,
        quorum: int | None = None,
        min_quorum: int = 1,
        sides: SideChannels = False,
    ) -> LocalJob:
        """Make a job: a shard of it at each switch, or in a network as `NetworkControl.create_job` does.

        Args:
            sockets: by rank, the (IPv4 address, UDP port) of a worker's sockets, one for each shard.
            tables: of the codec (`hopsum.codec.job_tables`).
            slots: of each shard.
            quorum: workers that a sum waits for. None: all.
            min_quorum: as in `JobSpec`. Ignored in a network.
            sides: side channels, as in `job_membership`.

        Raises:
            ControlPlaneError: a switch refuses it. The shards at other switches are removed then.
            DescriptionError: no switch of the network is next to all switches with workers.
        """
        if self._control is not None:
            return self._place_job(self._control, name, sockets, tables, slots, quorum, sides)
        # All shards of a job have one generation: a worker tells from it which job a RESULT is of.
        generation = self._generations.allot(time.time())
        parts, shards = {}, list[JobMembership]()
        with ExitStack() as undo:
            for number, switch in enumerate(self.switches):
                own = (seat.endpoint(sockets[seat.rank][number]) for seat in self.seats)
                spec = JobSpec(name, tuple(own), slots, tables, quorum, min_quorum)
                part = parts[switch.controller] = switch.controller.create_job(spec, generation=generation)
                undo.callback(switch.controller.delete_job, part)
                shards.append(job_membership(part, {seat.rank: switch.service for seat in self.seats}, sides))
            first, *further = shards
            same = replace(first, further_shards=tuple(further))
            where = ", ".join(switch.where for switch in self.switches)
            return LocalJob(parts, (same,) * self.workers, where, undo.pop_all())

    def open_job(
        self, codec: str | Codec = "thc", *, name: str = "local", slots: int = SLOTS, quorum: int | None = None,
        peers: bool = False,
    ) -> LocalJob:  # fmt: skip
        """Make a job for a codec, with sockets for all of its workers, which `LocalJob.connect` takes.

        Args:
            codec: a codec, or its description for `make_codec`.
            slots: of each shard.
            quorum: workers that a sum waits for. None: all.
            peers: workers have side channels, and repair lost results from each other. Needed with a quorum.

        Raises ControlPlaneError, CodecError, OSError.
        """
        made = make_codec(codec, workers=self.workers) if isinstance(codec, str) else codec
        with ExitStack() as stack:
            opened: list[OpenSockets] = []
            for seat in self.seats:
                links = at_seat(seat, partial(self._open_links, seat))
                # Workers of one process reach each other where the process is, wherever their data sockets are.
                opened.append(OpenSockets(links, socket.create_server((_LOOPBACK, 0)) if peers else None))
                stack.callback(opened[-1].close)
            sockets = [[link.local for link in links] for links, _ in opened]
            sides = {rank: side.getsockname() for rank, (_, side) in enumerate(opened) if side is not None}
            job = self.create_job(name, sockets, job_tables(made), slots=slots, quorum=quorum, sides=sides or False)
            # From here on the job closes them.
            stack.pop_all()
        job.codec, job.opened = made, tuple(opened)
        return job

    def close(self) -> None:
        """End the switches and remove the links. May be repeated. Jobs stay open: their owners close them before."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_links(self, seat: Seat) -> tuple[UdpLink, ...]:
        # In a network a worker has one switch, and elsewhere a shard at each.
        services = [switch.service for switch in self.switches] if self.network is None else [seat.switch]
        return tuple(UdpLink((seat.ip, 0), service) for service in services)

    def _place(
        self,
        stack: ExitStack,
        placement: str,
        round_trip_s: float,
        switches: int | None,
        start: Callable[[Namespace | None, str, int], LocalSwitch],
    ) -> None:
        """Start embedded switches at their places."""
        workers = self.workers
        seats: list[tuple[str, str | None]] = [(_LOOPBACK, None)] * workers
        homes: list[tuple[Namespace | None, str]] = [(None, _LOOPBACK)] * (switches or 1)
        if placement not in ("loopback", *PLACEMENTS):
            raise ValueError(f"placement={placement!r}: one of loopback, {', '.join(PLACEMENTS)}")
        if placement != "loopback":
            if (reason := links_unavailable()) is not None:
                raise TopologyError(f"placement {placement}: {reason}")
            # In placement server the switch has a host of its own.
            self.star = star = stack.enter_context(Star(workers + (placement == "server"), round_trip_s))
            seats = [(star.host_ip(rank), star.hosts[rank].name) for rank in range(workers)]
            places: dict[str, list[tuple[Namespace | None, str]]] = {
                "fabric": [(star.middle, star.middle_ip)],
                "server": [(star.hosts[-1], star.host_ip(workers))],
                "hosts": [(star.hosts[rank], star.host_ip(rank)) for rank in range(switches or workers)],
            }
            homes = places[placement]
        self.switches = tuple(start(home, ip, number) for number, (home, ip) in enumerate(homes))
        service = self.switch.service
        self.seats = tuple(
            Seat(rank, NATIVE_PORT, _NATIVE_MAC, own, service, namespace) for rank, (own, namespace) in enumerate(seats)
        )

    def _start_native(
        self,
        stack: ExitStack,
        extra: Sequence[str],
        environment: Mapping[str, str] | None,
        home: Namespace | None,
        ip: str,
        number: int,
    ) -> LocalSwitch:
        program = compiled_program()
        endpoint = SWITCH if number == 0 else SwitchEndpoint(f"02:00:00:00:00:{0xFE - number:02x}", f"192.0.2.{number}")
        switch = stack.enter_context(
            NativeSwitch(*program, namespace=home, grpc="unix", extra=extra, environment=environment)
        )
        device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
        device.set_pipeline_config(PipelineConfig.load(*program))
        management = stack.enter_context(ManagementClient(switch.address))
        # Port 0: the kernel chooses a free one, so that clusters can run side by side.
        try:
            bound = management.bind_udp(NATIVE_PORT, f"{ip}:0", f"{endpoint.ip}:{HOPSUM_UDP_PORT}")
        except ManagementError as error:
            raise TopologyError(f"the embedded switch did not bind its UDP port: {error}") from error
        service, where = (ip, int(bound.rpartition(":")[2])), f"embedded switch, process {switch.process.pid}"
        reads = partial(_read_ports, management)
        pid = switch.process.pid
        return LocalSwitch(device, endpoint, service, pid, f"{where}, UDP {bound}", reads, self._generations)

    def _join(self, stack: ExitStack, network: Topology, target: str, home: Namespace | None) -> None:
        """Start a network and the controllers of its switches."""
        if not network.jobs:
            raise DescriptionError(f"topology {network.name!r} has no job, whose workers would have seats")
        folder = stack.enter_context(OwnedFolder("topology"))
        self.network = running = stack.enter_context(start_network(network, target, folder, home))
        if home is None:
            # gRPC's threads stay in the namespace of the thread that starts them, so the whole block runs inside.
            stack.enter_context(running.home.inside())
        self._control = stack.enter_context(NetworkControl(running))
        self.switches = tuple(self._found(running, self._control, switch) for switch in network.switches)
        hosts = network.jobs[0].workers
        self.workers = len(hosts)
        self.seats = tuple(_network_seat(running, rank, host) for rank, host in enumerate(hosts))

    def _found(self, running: RunningNetwork, control: NetworkControl, name: str) -> LocalSwitch:
        """Return a switch of a network."""
        network, controller, pid = running.topology, control.controllers[name], running.pids[name]
        to_hosts = [link for link in network.links_of(name) if link.other(name) in network.hosts]
        reads = partial(_read_veths, running.home, [network.interface(name, link) for link in to_hosts])
        service = controller.switch.ip, HOPSUM_UDP_PORT
        where = f"{running.driver}, process {pid}, namespace {running.home.name}"
        device = control.devices[name]
        return LocalSwitch(device, controller.switch, service, pid, where, reads, self._generations, controller)

    def _place_job(
        self,
        control: NetworkControl,
        name: str,
        sockets: Sequence[Sequence[Address]],
        tables: Mapping[str, Any],
        slots: int,
        quorum: int | None,
        sides: SideChannels,
    ) -> LocalJob:
        plan = JobPlan(name, control.topology.jobs[0].workers)
        places = {rank: address for rank, (address,) in enumerate(sockets)}
        job = control.create_job(plan, slots, tables, quorum=quorum, places=places, sides=sides)
        if job is None:
            around = " and ".join(control.topology.switches_of(plan))
            raise DescriptionError(f"topology {control.topology.name!r}: no switch is next to {around}")
        return job


def _read_ports(management: ManagementClient) -> InterfaceCounters:
    try:
        ports = management.list_ports().values()
    except ManagementError as error:
        raise TopologyError(f"the embedded switch did not tell its counters: {error}") from error
    names = ("received", "received_bytes", "sent", "sent_bytes")
    return InterfaceCounters(*(sum(int(port[name]) for port in ports) for name in names))


def _read_veths(home: Namespace, names: Sequence[str]) -> InterfaceCounters:
    shown = json.loads(home.ip("-s", "-j", "link", "show"))
    links = [each["stats64"] for each in shown if each["ifname"] in names]
    fields = (("rx", "packets"), ("rx", "bytes"), ("tx", "packets"), ("tx", "bytes"))
    return InterfaceCounters(*(sum(int(link[way][what]) for link in links) for way, what in fields))


def _network_seat(running: RunningNetwork, rank: int, host: str) -> Seat:
    network = running.topology
    switch = network.switch_of(host)
    port = network.port(switch, network.link_between(host, switch))
    send_to = network.ip(switch), HOPSUM_UDP_PORT
    return Seat(rank, port, network.mac(host), network.ip(host), send_to, running.hosts[host].name)
