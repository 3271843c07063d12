# SPDX-License-Identifier: Apache-2.0
"""The networks of drills: the places of switch, controller and workers, and their ways to each other.

Loopback: everybody on 127.0.0.1, the switch's port 1 is a UDP socket. Needs no root.

Veths: a middle with switches and controller, and a network namespace for each worker, with links to the middle. By
eth0 a worker reaches one port of the switch and nothing else, and so by a further link each further switch. By eth1 it
reaches the controller, and through the middle its peers, by the same addresses that the switches know. All links go
down and up together.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from hopsum_topologies.bmv2_process import has_notifications
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.free_port import free_port
from hopsum_topologies.netns import Namespace
from hopsum_wire import HOPSUM_UDP_PORT

SERVICE_MAC: Final = "02:00:00:00:00:fe"
SERVICE_IP: Final = "10.0.0.254"
WAYS: Final = ("down", "unreachable", "prohibit")
"""The ways to have no way to the switch: interfaces that are down, and routes of these types."""
_OWN: Final = ("eth0", "eth1")
_LOCALHOST: Final = "127.0.0.1"
_GRPC_PORT, _CONTROLLER_PORT, _THRIFT_PORT = 9559, 4700, 9090


class FurtherSwitch(NamedTuple):
    """A switch in addition to the first one, for another shard: its P4Runtime server and its service."""

    grpc_address: str
    service_address: str | None
    mac: str
    ip: str


class LoopbackNetwork:
    """Everybody on loopback, at ports that were free. A switch for each of `shards`."""

    grpc_address: str
    """The P4Runtime server of the first switch."""
    controller_address: str
    service_address: str | None
    """The address that workers send to, None for SERVICE_IP."""
    ports: list[tuple[int, str]]
    """Switch ports, and the networks of the workers behind them."""
    further: list[FurtherSwitch]
    """The switches of shards 1 and up."""

    def __init__(self, shards: int = 1) -> None:
        grpc, controller = free_port(), free_port()
        self.grpc_address = f"{_LOCALHOST}:{grpc}"
        self.controller_address = f"{_LOCALHOST}:{controller}"
        self.service_address = f"{_LOCALHOST}:{free_port(socket.SOCK_DGRAM)}"
        self.ports = [(1, "127.0.0.0/8")]
        self.further = [
            FurtherSwitch(
                f"{_LOCALHOST}:{free_port()}",
                f"{_LOCALHOST}:{free_port(socket.SOCK_DGRAM)}",
                f"02:00:00:00:01:{shard:02x}",
                f"10.0.1.{shard}",
            )
            for shard in range(1, shards)
        ]

    def switch_command(self, driver: str, python: str, shard: int = 0) -> list[str]:
        """Return the command that starts the switch of a shard."""
        grpc, service, ip = self.grpc_address, self.service_address, SERVICE_IP
        if shard:
            grpc, service, _, ip = self.further[shard - 1]
        return [python, "-m", "hopsum_switch", "--grpc", grpc, "--udp", f"1={service},as={ip}:{HOPSUM_UDP_PORT}"]

    def namespace_of(self, seat: int) -> str | None:
        """Return the namespace of the worker at a seat, None for the drill's own."""
        return None

    def close(self) -> None:
        """Remove the network. Every process in it must have ended."""


class VethNetwork(LoopbackNetwork):
    """Network namespaces and veths. The calling thread is in the middle until `close`.

    Raises TopologyError without root or iproute2. Nothing is left then.
    """

    def __init__(self, seats: int, shards: int = 1) -> None:
        self._stack = ExitStack()
        self._seats: list[Namespace] = []
        self.grpc_address = f"{_LOCALHOST}:{_GRPC_PORT}"
        self.controller_address = f"10.9.0.1:{_CONTROLLER_PORT}"
        self.service_address = None
        self.ports = [(seat + 1, f"{_address(seat)}/32") for seat in range(seats)]
        self.further = [
            FurtherSwitch(f"{_LOCALHOST}:{_GRPC_PORT + shard}", None, f"02:00:00:00:01:{shard:02x}", f"10.0.1.{shard}")
            for shard in range(1, shards)
        ]
        try:
            self.middle = self._stack.enter_context(Namespace())
            self.middle.ip("addr", "add", "10.9.0.1/32", "dev", "lo")
            # gRPC's threads stay in the namespace of the thread that started them, so the whole drill runs inside.
            self._stack.enter_context(self.middle.inside())
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            for seat in range(seats):
                self._add_seat(seat)
        except BaseException:
            self.close()
            raise

    def switch_command(self, driver: str, python: str, shard: int = 0) -> list[str]:
        interfaces = [word for port, _ in self.ports for word in ("-i", f"{port}@{_near(port, shard)}")]
        grpc = self.further[shard - 1].grpc_address if shard else self.grpc_address
        if driver == "native":
            return [python, "-m", "hopsum_switch", "--grpc", grpc, *interfaces]
        options = ["--no-p4", "--device-id", "0", "--thrift-port", str(_THRIFT_PORT + shard), "--log-console"]
        options += ["--log-level", "warn"]
        if has_notifications():
            options += ["--notifications-addr", f"ipc:///tmp/{self.middle.name}-{shard}.ipc"]
        return ["simple_switch_grpc", *options, *interfaces, "--", "--grpc-server-addr", grpc]

    def namespace_of(self, seat: int) -> str | None:
        return self._seats[seat].name

    def cut(self, seat: int) -> None:
        """Take down the far ends of all links of a seat."""
        for interface in self._interfaces(seat):
            self.middle.ip("link", "set", "dev", interface, "down")

    def mend(self, seat: int) -> None:
        for interface in self._interfaces(seat):
            self.middle.ip("link", "set", "dev", interface, "up")
        self._route(seat)  # which went with the link

    def leave_network(self, seat: int, way: str) -> None:
        """Break a seat's own way to everybody else. `way` is one of WAYS."""
        away = self._seats[seat]
        if way == "down":
            for interface in self._own():
                away.ip("link", "set", "dev", interface, "down")
        else:
            for ip, _, _ in self._services():
                away.ip("route", "replace", way, f"{ip}/32")

    def enter_network(self, seat: int) -> None:
        """Mend a seat's own way again, as a DHCP client or an operator does."""
        for interface in self._own():
            self._seats[seat].ip("link", "set", "dev", interface, "up")
        self._routes(seat)

    def close(self) -> None:
        self._stack.close()

    def _add_seat(self, seat: int) -> None:
        away = self._stack.enter_context(Namespace())
        self._seats.append(away)
        away.add_veth("eth0", f"s{seat + 1}", self.middle)
        away.ip("link", "set", "dev", "eth0", "address", f"02:00:00:00:02:{seat:02x}")
        away.ip("addr", "add", f"{_address(seat)}/32", "dev", "eth0")
        for shard in range(1, 1 + len(self.further)):
            away.add_veth(f"eth{shard + 1}", _near(seat + 1, shard), self.middle)
            away.ip("link", "set", "dev", f"eth{shard + 1}", "address", f"02:00:00:00:02:{seat:02x}")
        away.add_veth("eth1", f"m{seat + 1}", self.middle)
        near, far = f"10.1.{seat}.1", f"10.1.{seat}.2"
        away.ip("addr", "add", f"{far}/24", "dev", "eth1")
        self._routes(seat)
        self.middle.ip("addr", "add", f"{near}/24", "dev", f"m{seat + 1}")
        self._route(seat)

    def _routes(self, seat: int) -> None:
        """Write the routes of a seat, which go with its interfaces."""
        away, own = self._seats[seat], _address(seat)
        for ip, mac, interface in self._services():
            for kind in WAYS[1:]:
                with suppress(TopologyError):  # it is not there
                    away.ip("route", "del", kind, f"{ip}/32")
            away.ip("route", "replace", f"{ip}/32", "dev", interface, "src", own)
            away.ip("neigh", "replace", ip, "lladdr", mac, "dev", interface, "nud", "permanent")
        away.ip("route", "replace", "default", "via", f"10.1.{seat}.1", "src", own)

    def _services(self) -> list[tuple[str, str, str]]:
        """Return the IP and MAC addresses of the service at each switch, and a seat's interface towards it."""
        further = [(each.ip, each.mac, f"eth{shard + 1}") for shard, each in enumerate(self.further, 1)]
        return [(SERVICE_IP, SERVICE_MAC, "eth0"), *further]

    def _own(self) -> list[str]:
        return [*_OWN, *(interface for _, _, interface in self._services()[1:])]

    def _interfaces(self, seat: int) -> list[str]:
        return [f"m{seat + 1}", *(_near(seat + 1, shard) for shard in range(1 + len(self.further)))]

    def _route(self, seat: int) -> None:
        self.middle.ip("route", "replace", f"{_address(seat)}/32", "via", f"10.1.{seat}.2")


def _address(seat: int) -> str:
    return f"10.0.0.{seat + 1}"


def _near(port: int, shard: int) -> str:
    return f"s{port}" if shard == 0 else f"s{port}x{shard}"
