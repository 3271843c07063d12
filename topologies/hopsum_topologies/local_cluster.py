# SPDX-License-Identifier: Apache-2.0
"""Switches with the program on this machine, seats for workers at them, and their jobs.

    placement   switches
    loopback    one, at a UDP port of 127.0.0.1. It needs no root
    fabric      one in the middle, with a link of its own for every worker, as a top-of-rack switch has
    server      one on a host like the workers', behind one link of the same rate
    hosts       one on every worker's host, each a shard of every job; nothing has more than its host's one link

All but loopback are network namespaces, which need root. With target bmv2 there is one switch in the middle.

    with LocalCluster(4) as cluster, cluster.open_job("thc") as job:
        comms = job.connect()
        futures = [comm.submit(gradient) for comm, gradient in zip(comms, gradients)]
        means = [future.result().mean for future in futures]
"""

from __future__ import annotations

import json as json_module
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from hopsum.agent import Agent
from hopsum.codec import Codec, job_tables, make_codec
from hopsum.transport.udp_link import UdpLink
from hopsum_controlplane import Job, JobSpec, SwitchController, SwitchEndpoint, job_membership
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.membership_file import SideChannels, write_file
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_switch.management import ManagementClient
from hopsum_topologies.bmv2_process import Bmv2Switch, bmv2_unavailable
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native_process import NativeSwitch
from hopsum_topologies.netns import Namespace
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
_LOOPBACK: Final = "127.0.0.1"
_NATIVE_MAC: Final = f"02:00:00:00:01:{NATIVE_PORT:02x}"


class InterfaceCounters(NamedTuple):
    """Frames and their bytes, Ethernet headers included, at all switch ports together."""

    packets_up: int
    """Packets that workers sent."""
    bytes_up: int
    packets_down: int
    bytes_down: int

    def __sub__(self, earlier: InterfaceCounters) -> InterfaceCounters:
        return InterfaceCounters(*(now - then for now, then in zip(self, earlier, strict=True)))


@dataclass(slots=True, eq=False)
class LocalSwitch:
    """A switch process with the program."""

    device: Device
    endpoint: SwitchEndpoint
    service: Address
    """The IPv4 address and UDP port that workers send to."""
    pid: int
    where: str
    """A description of it."""
    read_interfaces: Callable[[], InterfaceCounters]
    """A function that reads the counters of its interfaces, not those of the program."""
    _generations: GenerationAllocator
    _controller: SwitchController | None = None

    @property
    def controller(self) -> SwitchController:
        """Return the switch's controller. The first call makes it: until then the switch is nobody's."""
        if self._controller is None:
            self._controller = SwitchController(self.device, self.endpoint, generations=self._generations)
        return self._controller


class OpenSockets(NamedTuple):
    """The sockets of one worker."""

    links: tuple[UdpLink, ...]
    """By switch."""
    side: socket.socket | None
    """The listener of its side channel."""

    def close(self) -> None:
        """Close all."""
        for link in self.links:
            link.close()
        if self.side is not None:
            self.side.close()


def links_unavailable() -> str | None:
    """Return why links between namespaces cannot be made on this machine, or None."""
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


def switches_of(placement: str, workers: int) -> int:
    """Count the switches of a placement."""
    return workers if placement == "hosts" else 1


class LocalCluster:
    """Switches on this machine and seats for workers. Jobs end before it. The context manager ends all of it.

    Args:
        workers: 1 or more.
        placement: see the module. Only with target native.
        round_trip_s: the delay between a host and the middle, there and back. Not with loopback.
        switches: hosts with a switch, in placement hosts. None: all.
        target: native, the embedded switch; or bmv2, each worker in a namespace of its own.
        extra: more arguments of each embedded switch's command.
        environment: of each embedded switch, instead of ours.
        home: bmv2's namespace, in which the calling thread is and stays. None: one is made, and entered.

    Raises:
        ValueError: there is no such placement.
        TopologyError: no root, no iproute2, no bmv2, or a switch that does not start. Nothing is left then.
        ControlPlaneError: a switch does not take the program.
    """

    def __init__(
        self,
        workers: int,
        *,
        placement: str = "loopback",
        round_trip_s: float = 0.0,
        switches: int | None = None,
        target: str = "native",
        extra: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        home: Namespace | None = None,
    ) -> None:
        self.workers = workers
        self.star: Star | None = None
        """The links, which `Star.shape` gives a rate. None with loopback and bmv2."""
        self.switches: tuple[LocalSwitch, ...] = ()
        self.seats: tuple[Seat, ...] = ()
        """By rank. Their switch is the first."""
        self._generations: Final = GenerationAllocator()
        with ExitStack() as stack:
            if target == "bmv2":
                self._start_bmv2(stack, home)
            else:
                start = partial(self._start_native, stack, extra, environment)
                self._place(stack, placement, round_trip_s, switches, start)
            self._stack = stack.pop_all()

    @property
    def switch(self) -> LocalSwitch:
        """Return the first switch, which is the only one but in placement hosts."""
        return self.switches[0]

    def create_job(
        self,
        name: str,
        sockets: Sequence[Sequence[Address]],
        tables: Mapping[str, Any],
        *,
        slots: int = SLOTS,
        quorum: int | None = None,
        sides: SideChannels = False,
    ) -> LocalJob:
        """Make a job, a shard of it at each switch. Raises ControlPlaneError: a switch refuses it.

        Args:
            sockets: by rank and switch, the (IPv4 address, UDP port) of a worker's sockets.
            tables: of the codec (`hopsum.codec.job_tables`).
            slots: of each shard.
            sides: side channels, as in `job_membership`.
        """
        # All shards of a job have one generation: a worker tells from it which job a RESULT is of.
        generation = self._generations.allot(time.time())
        parts, shards = list[Job](), list[JobMembership]()
        with ExitStack() as undo:
            for number, switch in enumerate(self.switches):
                own = (seat.endpoint(sockets[seat.rank][number]) for seat in self.seats)
                spec = JobSpec(name, tuple(own), slots, quorum=quorum, **tables)
                parts.append(switch.controller.create_job(spec, generation=generation))
                undo.callback(switch.controller.delete_job, parts[-1])
                shards.append(job_membership(parts[-1], {seat.rank: switch.service for seat in self.seats}, sides))
            undo.pop_all()
        first, *further = shards
        return LocalJob(self, parts, replace(first, further_shards=tuple(further)))

    def open_job(
        self, codec: str | Codec = "thc", *, name: str = "local", slots: int = SLOTS, quorum: int | None = None,
        peers: bool = False,
    ) -> LocalJob:  # fmt: skip
        """Make a job for a codec, with sockets for all of its workers, which `LocalJob.connect` takes.

        Args:
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
        """End the switches and remove the links."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_links(self, seat: Seat) -> tuple[UdpLink, ...]:
        return tuple(UdpLink((seat.ip, 0), switch.service) for switch in self.switches)

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
        homes: list[tuple[Namespace | None, str]] = [(None, _LOOPBACK)]
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
        grpc = f"{_LOOPBACK}:0" if home is None else "unix"
        switch = stack.enter_context(
            NativeSwitch(*program, namespace=home, grpc=grpc, extra=extra, environment=environment)
        )
        device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
        device.set_pipeline_config(PipelineConfig.load(*program))
        management = stack.enter_context(ManagementClient(switch.address))
        # Port 0: the kernel chooses a free one, so that clusters can run side by side.
        bound = management.bind_udp(NATIVE_PORT, f"{ip}:0", f"{endpoint.ip}:{HOPSUM_UDP_PORT}")
        service, where = (ip, int(bound.rpartition(":")[2])), f"embedded switch, process {switch.process.pid}"
        reads = partial(_read_ports, management)
        pid = switch.process.pid
        return LocalSwitch(device, endpoint, service, pid, f"{where}, UDP {bound}", reads, self._generations)

    def _start_bmv2(self, stack: ExitStack, home: Namespace | None) -> None:
        """Run simple_switch_grpc in a network namespace, every worker in its own, with a veth pair between."""
        reason = bmv2_unavailable()
        if reason is not None:
            raise TopologyError(
                f"bmv2 cannot run here: {reason}; install p4lang-bmv2 and be root, or use --target native"
            )
        if home is None:
            home = stack.enter_context(Namespace())
            # gRPC's threads stay in the namespace of the thread that starts them, so the whole block runs inside.
            stack.enter_context(home.inside())
        # Interfaces before the switch, which opens them when it starts.
        interfaces = {rank + 1: f"s{rank + 1}" for rank in range(self.workers)}
        self.seats = tuple(_bmv2_seat(stack, home, rank, interfaces[rank + 1]) for rank in range(self.workers))
        switch = stack.enter_context(Bmv2Switch(interfaces))
        device = stack.enter_context(Bmv2Device(switch.address, switch.device_id))
        device.set_pipeline_config(PipelineConfig.load(*compiled_program()))
        where = f"bmv2, process {switch.process.pid}, namespace {home.name}"
        reads = partial(_read_veths, home, list(interfaces.values()))
        service = SWITCH.ip, HOPSUM_UDP_PORT
        pid = switch.process.pid
        self.switches = (LocalSwitch(device, SWITCH, service, pid, where, reads, self._generations),)


@dataclass(slots=True, eq=False)
class LocalJob:
    """A job at all switches of a cluster. The context manager closes its communicators and removes it."""

    cluster: LocalCluster
    parts: list[Job]
    """By switch."""
    membership: JobMembership
    """What a worker needs to know, for `connect` or for a file."""
    codec: Codec | None = None
    """Of a job of `open_job`."""
    opened: tuple[OpenSockets, ...] = ()
    """By rank, the sockets of `open_job` that no communicator has."""
    _comms: tuple[Agent, ...] = ()

    def connect(self, **options: Any) -> list[Agent]:
        """Connect all workers of a job of `open_job`, in this process, once. Return their communicators by rank.

        The communicators are the job's, which closes them. Options are those of `Agent`.
        """
        assert self.codec is not None, "a job of create_job has the sockets of its caller"
        while self.opened:
            rank, (own, *others) = len(self._comms), self.opened
            agent = Agent(self.membership, rank, codec=self.codec, link=own.links, side=own.side, **options)
            self._comms, self.opened = (*self._comms, agent), tuple(others)
        return list(self._comms)

    def write(self, path: Path) -> Path:
        """Write the membership into a file, for workers in other processes. Raises ControlPlaneError."""
        write_file(self.membership, path)
        return path

    def counters(self) -> dict[str, int]:
        """Read what the programs of all switches did with the job's packets, by event. Raises ControlPlaneError."""
        total = Counter[str]()
        for part, switch in zip(self.parts, self.cluster.switches, strict=True):
            total.update(switch.controller.job_counters(part))
        return dict(total)

    def close(self) -> None:
        """Close the communicators and sockets, and remove the job. Raises ControlPlaneError."""
        with ExitStack() as stack:
            # None of them once it is closed.
            for part, switch in zip(self.parts, self.cluster.switches, strict=False):
                stack.callback(switch.controller.delete_job, part)
            self.parts = []
            for each in self.opened:
                stack.callback(each.close)
            self.opened = ()
            # Workers leave before their switch forgets the job, and together: each waits for the others' leave.
            comms, self._comms = self._comms, ()
            if comms:
                pool = stack.enter_context(ThreadPoolExecutor(len(comms)))
                stack.callback(lambda: [future.result() for future in [pool.submit(comm.close) for comm in comms]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_ports(management: ManagementClient) -> InterfaceCounters:
    ports = management.list_ports().values()
    names = ("received", "received_bytes", "sent", "sent_bytes")
    return InterfaceCounters(*(sum(int(port[name]) for port in ports) for name in names))


def _read_veths(home: Namespace, names: list[str]) -> InterfaceCounters:
    links = [json_module.loads(home.ip("-s", "-j", "link", "show", "dev", name))[0]["stats64"] for name in names]
    fields = (("rx", "packets"), ("rx", "bytes"), ("tx", "packets"), ("tx", "bytes"))
    return InterfaceCounters(*(sum(int(link[way][what]) for link in links) for way, what in fields))


def _bmv2_seat(stack: ExitStack, home: Namespace, rank: int, interface: str) -> Seat:
    port, mac, ip = rank + 1, f"02:00:00:00:02:{rank:02x}", f"10.0.0.{rank + 1}"
    away = stack.enter_context(Namespace())
    away.add_veth("eth0", interface, home)
    away.settle("eth0", mac, ip, (SWITCH.ip, SWITCH.mac))
    return Seat(rank, port, mac, ip, (SWITCH.ip, HOPSUM_UDP_PORT), away.name)
