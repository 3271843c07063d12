# SPDX-License-Identifier: Apache-2.0
"""A running switch with the program, and seats for workers around it: one function for each target."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hopsum_controlplane import SwitchEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_switch.management import ManagementClient
from hopsum_topologies.bmv2_process import Bmv2Switch, bmv2_unavailable
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native_process import NativeSwitch
from hopsum_topologies.netns import Namespace
from hopsum_topologies.seat import Seat
from hopsum_topologies.star import Star
from hopsum_wire import HOPSUM_UDP_PORT

SWITCH = SwitchEndpoint(mac="02:00:00:00:00:fe", ip="10.0.0.254")
NATIVE_PORT = 1


class InterfaceCounters(NamedTuple):
    """Frames and their bytes, Ethernet headers included, at all switch ports together."""

    packets_up: int
    """Packets that workers sent."""
    bytes_up: int
    packets_down: int
    bytes_down: int

    def __sub__(self, earlier: InterfaceCounters) -> InterfaceCounters:
        return InterfaceCounters(*(now - then for now, then in zip(self, earlier, strict=True)))


@dataclass(frozen=True, slots=True)
class Testbed:
    """A switch and its seats."""

    device: Device
    seats: tuple[Seat, ...]
    where: str
    """A description of the running switch."""
    pid: int
    """The switch's process."""
    read_interfaces: Callable[[], InterfaceCounters]
    """A function that reads the counters of the interfaces, not those of the program."""


@contextmanager
def native_testbed(
    workers: int,
    *,
    star: Star | None = None,
    extra: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Testbed]:
    """Run the embedded switch on loopback, or in the middle of a star. All workers share its one UDP port.

    Args:
        star: links around the switch, with a host for each worker. None: loopback.
        extra: more arguments of the switch's command.
        environment: the switch's environment instead of ours.
    """
    json, p4info = compiled_program()
    with ExitStack() as stack:
        home, grpc, ip = (None, "127.0.0.1:0", "127.0.0.1") if star is None else (star.middle, "unix", star.middle_ip)
        switch = stack.enter_context(
            NativeSwitch(json, p4info, namespace=home, grpc=grpc, extra=extra, environment=environment)
        )
        device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
        device.set_pipeline_config(PipelineConfig.load(json, p4info))
        management = stack.enter_context(ManagementClient(switch.address))
        # Port 0: the kernel chooses a free one, so that testbeds can run side by side.
        bound = management.bind_udp(NATIVE_PORT, f"{ip}:0", f"{SWITCH.ip}:{HOPSUM_UDP_PORT}")
        service = ip, int(bound.rpartition(":")[2])
        mac = f"02:00:00:00:01:{NATIVE_PORT:02x}"
        places: list[tuple[str, str | None]] = [(ip, None)] * workers
        if star is not None:
            places = [(star.host_ip(rank), host.name) for rank, host in enumerate(star.hosts)]
        seats = tuple(
            Seat(rank, NATIVE_PORT, mac, own, service, namespace) for rank, (own, namespace) in enumerate(places)
        )
        where = f"embedded switch, process {switch.process.pid}, UDP {bound}"
        yield Testbed(device, seats, where, switch.process.pid, partial(_read_ports, management))


def _read_ports(management: ManagementClient) -> InterfaceCounters:
    ports = management.list_ports().values()
    names = ("received", "received_bytes", "sent", "sent_bytes")
    return InterfaceCounters(*(sum(int(port[name]) for port in ports) for name in names))


@contextmanager
def bmv2_testbed(workers: int, *, home: Namespace | None = None) -> Iterator[Testbed]:
    """Run simple_switch_grpc in a network namespace, every worker in its own, with a veth pair between.

    Args:
        home: the switch's namespace, in which the calling thread is and stays. By default one is made, and entered for
            the block.

    Raises TopologyError when bmv2 is not installed or namespaces cannot be made.
    """
    reason = bmv2_unavailable()
    if reason is not None:
        raise TopologyError(f"bmv2 cannot run here: {reason}; install p4lang-bmv2 and be root, or use --target native")
    with ExitStack() as stack:
        if home is None:
            home = stack.enter_context(Namespace())
            # gRPC's threads stay in the namespace of the thread that starts them, so the whole block runs inside.
            stack.enter_context(home.inside())
        # Interfaces before the switch, which opens them when it starts.
        interfaces = {rank + 1: f"s{rank + 1}" for rank in range(workers)}
        seats = tuple(_seat(stack, home, rank, interfaces[rank + 1]) for rank in range(workers))
        switch = stack.enter_context(Bmv2Switch(interfaces))
        device = stack.enter_context(Bmv2Device(switch.address, switch.device_id))
        device.set_pipeline_config(PipelineConfig.load(*compiled_program()))
        where = f"bmv2, process {switch.process.pid}, namespace {home.name}"
        yield Testbed(device, seats, where, switch.process.pid, partial(_read_veths, home, list(interfaces.values())))


def _read_veths(home: Namespace, names: list[str]) -> InterfaceCounters:
    links = [json_module.loads(home.ip("-s", "-j", "link", "show", "dev", name))[0]["stats64"] for name in names]
    fields = (("rx", "packets"), ("rx", "bytes"), ("tx", "packets"), ("tx", "bytes"))
    return InterfaceCounters(*(sum(int(link[way][what]) for link in links) for way, what in fields))


def _seat(stack: ExitStack, home: Namespace, rank: int, interface: str) -> Seat:
    port, mac, ip = rank + 1, f"02:00:00:00:02:{rank:02x}", f"10.0.0.{rank + 1}"
    away = stack.enter_context(Namespace())
    away.add_veth("eth0", interface, home)
    away.settle("eth0", mac, ip, (SWITCH.ip, SWITCH.mac))
    return Seat(rank, port, mac, ip, (SWITCH.ip, HOPSUM_UDP_PORT), away.name)


def open_testbed(target: str, workers: int) -> AbstractContextManager[Testbed]:
    """Open the testbed of a target, `native` or `bmv2`."""
    return bmv2_testbed(workers) if target == "bmv2" else native_testbed(workers)
