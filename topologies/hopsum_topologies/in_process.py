# SPDX-License-Identifier: Apache-2.0
"""A description inside this process: an engine for every switch, and links in memory.

A link between switches hands the frames of one engine to the other. A host is whoever calls `send` and `receive` for
it, or sends datagrams to the address that `listen` returns: an ordinary UDP socket then is the host's link. There is no
clock, so links have neither rate nor delay here; losses are the program's, as everywhere.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from hopsum.wire import HOPSUM_UDP_PORT
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.ports.memory import MemoryPort
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.server import SwitchServer
from hopsum_topologies.description import Link, Topology
from hopsum_topologies.errors import TopologyError

_HERE = "127.0.0.1"


class _CableEnd(MemoryPort):
    """One end of a link between switches: what the engine sends enters the engine at the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.other: _CableEnd | None = None

    def send(self, frame: bytes) -> None:
        """Hand `frame` over."""
        self.counters.count_sent(frame)
        if self.other is not None:
            self.other.inject(frame)


class InProcessNetwork:
    """Switch servers in threads of this process; a context manager that ends them. Nothing is loaded on them yet.

    `addresses` are their P4Runtime servers, for drivers of `native`. Raises TopologyError for links with rate or delay:
    `without_timing` is the same network without them.
    """

    driver = "native"

    def __init__(self, topology: Topology, *, backend: Backend = Backend.AUTO) -> None:
        timed = [link for link in topology.links if link.rate_bps is not None or link.delay_s]
        if timed:
            raise TopologyError(
                f"topology {topology.name!r}: links {', '.join(map(str, timed))} have a rate or a delay, and frames in "
                "memory take no time; describe them without, or use network namespaces"
            )
        self.topology = topology
        self._hosts = {host: MemoryPort() for host in topology.hosts}
        with ExitStack() as stack:
            self.switches: dict[str, SwitchServer] = {}
            for number, switch in enumerate(topology.switches):
                server = SwitchServer(
                    device_id=topology.device_id(switch), make_engine=engine_maker(backend, seed=number)
                )
                self.switches[switch] = stack.enter_context(server)
            for link in topology.links:
                self._connect(link)
            self.addresses = {switch: server.grpc_address for switch, server in self.switches.items()}
            self._stack = stack.pop_all()

    def send(self, host: str, frame: bytes) -> None:
        """Let a host send a frame. Any thread may call it."""
        self._hosts[host].inject(frame)

    def receive(self, host: str) -> list[bytes]:
        """Return the frames that have come to a host since the last call, oldest first."""
        return self._hosts[host].take()

    def listen(self, host: str) -> tuple[str, int]:
        """Replace a host's link by a UDP socket; return the address to which datagrams go that shall enter there.

        A frame that leaves there becomes a datagram to the IPv4 address and UDP port that are written in it.
        """
        server, port = self._place(host)
        shown_as = UdpAddress(self.topology.ip(self.topology.switch_of(host)), HOPSUM_UDP_PORT)
        udp = UdpPort.bind(port, UdpAddress(_HERE, 0), shown_as)
        server.dataplane.unbind(port)
        server.dataplane.bind(port, udp)
        return udp.address.ip, udp.address.port

    def counters(self, host: str) -> dict[str, Any]:
        """Return what the switch has counted at a host's port."""
        server, port = self._place(host)
        return server.dataplane.ports()[port]

    def __enter__(self) -> InProcessNetwork:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the switches."""
        self._stack.close()

    def _place(self, host: str) -> tuple[SwitchServer, int]:
        switch = self.topology.switch_of(host)
        return self.switches[switch], self.topology.port(switch, self.topology.links_of(host)[0])

    def _connect(self, link: Link) -> None:
        ends = [end for end in link.ends if end in self.switches]
        ports: list[MemoryPort] = [self._hosts[link.other(ends[0])]] if len(ends) == 1 else [*_cable()]
        for end, port in zip(ends, ports, strict=True):
            self.switches[end].dataplane.bind(self.topology.port(end, link), port)


def _cable() -> tuple[_CableEnd, _CableEnd]:
    left, right = _CableEnd(), _CableEnd()
    left.other, right.other = right, left
    return left, right
