# SPDX-License-Identifier: Apache-2.0
"""A running switch with the program on it, and seats for workers around it: one function per target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from hopsum.cli.demo.worker import Seat
from hopsum.wire import HOPSUM_UDP_PORT
from hopsum_controlplane import SwitchEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.base import Device, Pipeline
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_switch.management import ManagementClient
from hopsum_topologies.bmv2 import Bmv2Switch, bmv2_unavailable
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native import NativeSwitch
from hopsum_topologies.netns import Namespace

SWITCH = SwitchEndpoint(mac="02:00:00:00:00:fe", ip="10.0.0.254")
NATIVE_PORT = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A switch and its seats. `where` says in words what runs."""

    device: Device
    seats: tuple[Seat, ...]
    where: str


@contextmanager
def native_stage(workers: int) -> Iterator[Stage]:
    """Run the embedded switch; all workers share its one UDP port on loopback."""
    json, p4info = compiled_program()
    with ExitStack() as stack:
        switch = stack.enter_context(NativeSwitch(json, p4info))
        device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
        device.push(Pipeline.load(json, p4info))
        management = stack.enter_context(ManagementClient(switch.address))
        bound = management.bind_udp(NATIVE_PORT, "127.0.0.1:0", f"{SWITCH.ip}:{HOPSUM_UDP_PORT}")
        host, _, port = bound.rpartition(":")
        seats = tuple(
            Seat(rank, NATIVE_PORT, f"02:00:00:00:01:{NATIVE_PORT:02x}", "127.0.0.1", (host, int(port)))
            for rank in range(workers)
        )
        yield Stage(device, seats, f"embedded switch, process {switch.process.pid}, UDP {bound}")


@contextmanager
def bmv2_stage(workers: int) -> Iterator[Stage]:
    """Run simple_switch_grpc in a network namespace, every worker in its own, with a veth pair between.

    Raises TopologyError when bmv2 is not installed or namespaces cannot be made.
    """
    reason = bmv2_unavailable()
    if reason is not None:
        raise TopologyError(f"bmv2 cannot run here: {reason}; install p4lang-bmv2 and be root, or use --target native")
    with ExitStack() as stack:
        home = stack.enter_context(Namespace())
        seats = tuple(_seat(stack, home, rank) for rank in range(workers))
        # gRPC's threads live where the thread that starts them does: so all of it happens inside.
        stack.enter_context(home.inside())
        switch = stack.enter_context(Bmv2Switch({seat.port: f"s{seat.port}" for seat in seats}))
        device = stack.enter_context(Bmv2Device(switch.address, switch.device_id))
        device.push(Pipeline.load(*compiled_program()))
        yield Stage(device, seats, f"bmv2, process {switch.process.pid}, namespace {home.name}")


def _seat(stack: ExitStack, home: Namespace, rank: int) -> Seat:
    port, mac, ip = rank + 1, f"02:00:00:00:02:{rank:02x}", f"10.0.0.{rank + 1}"
    away = stack.enter_context(Namespace())
    away.add_veth("eth0", f"s{port}", home)
    away.ip("link", "set", "dev", "eth0", "address", mac)
    away.ip("addr", "add", f"{ip}/24", "dev", "eth0")
    away.ip("neigh", "add", SWITCH.ip, "lladdr", SWITCH.mac, "dev", "eth0", "nud", "permanent")
    return Seat(rank, port, mac, ip, (SWITCH.ip, HOPSUM_UDP_PORT), away.name)


def stage(target: str, workers: int) -> AbstractContextManager[Stage]:
    """Return the stage of a target, `native` or `bmv2`."""
    return {"native": native_stage, "bmv2": bmv2_stage}[target](workers)
