# SPDX-License-Identifier: Apache-2.0
"""A description inside this process: an engine for every switch, and links in memory.

A link between switches hands the frames of one engine to the other. The frames of a host are those of calls of `send`
and `receive`, or those of an agent with the host's `link`. There is no clock, so links have neither rate nor delay
here. Losses are those of the program. It needs no root.
"""

from __future__ import annotations

from contextlib import ExitStack
from ipaddress import IPv4Address
from threading import Event
from types import TracebackType
from typing import Final

from hopsum.transport.link import LinkStatistics
from hopsum_controlplane.addresses import mac_to_int
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.ports.memory import MemoryPort
from hopsum_switch.server import SwitchServer
from hopsum_topologies.description import Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_wire._layout import ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES
from hopsum_wire.frames import FramePath, lower_headers

_UDP_AT: Final = ETHERNET_BYTES + IPV4_BYTES
_LOWER_BYTES: Final = _UDP_AT + UDP_BYTES
_ADDRESSES: Final = slice(_UDP_AT - 8, _UDP_AT + 4)
_UDP_LENGTH: Final = slice(_UDP_AT + 4, _UDP_AT + 6)


class _CableEnd(MemoryPort):
    """One end of a link between switches. A frame that the engine sends enters the engine at the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.other: _CableEnd | None = None

    def send(self, frame: bytes) -> None:
        """Hand `frame` over."""
        self.counters.count_sent(frame)
        if self.other is not None:
            self.other.inject(frame)


class _HostPort(MemoryPort):
    """A switch port with a host, which can wait for frames."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = Event()

    def send(self, frame: bytes) -> None:
        """Keep `frame` for the host."""
        super().send(frame)
        self.arrived.set()


class HostLink:
    """A `hopsum.transport.link.Link` whose frames never leave this process. Only `wake` is thread-safe."""

    def __init__(self, port: _HostPort, path: FramePath) -> None:
        self.statistics = LinkStatistics()
        self._port, self._path = port, path
        back = FramePath(path.dst_mac, path.src_mac, path.dst_ip, path.src_ip, path.dst_port, path.src_port)
        # addresses and ports of a frame from the switch, as they follow each other in a frame without IPv4 options
        self._from_switch = lower_headers(back, 0)[_ADDRESSES]

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram."""
        self._port.inject(lower_headers(self._path, len(datagram)) + bytes(datagram))
        self.statistics.datagrams_sent += 1
        self.statistics.bytes_sent += len(datagram)

    def receive(self, timeout_s: float) -> list[memoryview]:
        """Return the datagrams that have arrived. Wait up to `timeout_s` for any frame."""
        self._port.arrived.wait(timeout_s)
        self._port.arrived.clear()
        datagrams: list[memoryview] = []
        for frame in self._port.take():
            if frame[_ADDRESSES] == self._from_switch:
                datagrams.append(memoryview(frame)[_LOWER_BYTES : _UDP_AT + int.from_bytes(frame[_UDP_LENGTH], "big")])
        self.statistics.datagrams_received += len(datagrams)
        self.statistics.bytes_received += sum(map(len, datagrams))
        return datagrams

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one."""
        self._port.arrived.set()

    def close(self) -> None:
        """Do nothing: the network goes when it goes."""


class InProcessNetwork:
    """Switch servers in threads of this process. The context manager ends them. They have no program yet.

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
        self._hosts = {host: _HostPort() for host in topology.hosts}
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

    def link(self, host: str, switch: str, udp_port: int) -> HostLink:
        """Return the link of an agent on a host: datagrams between `udp_port` and a switch's service."""
        topology = self.topology
        src_mac, dst_mac = (mac_to_int(topology.mac(end)) for end in (host, switch))
        src_ip, dst_ip = (int(IPv4Address(topology.ip(end))) for end in (host, switch))
        return HostLink(self._hosts[host], FramePath(src_mac, dst_mac, src_ip, dst_ip, udp_port))

    def __enter__(self) -> InProcessNetwork:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the switches."""
        self._stack.close()

    def _connect(self, link: Link) -> None:
        ends = [end for end in link.ends if end in self.switches]
        ports: list[MemoryPort] = [self._hosts[link.other(ends[0])]] if len(ends) == 1 else [*_cable()]
        for end, port in zip(ends, ports, strict=True):
            self.switches[end].dataplane.bind(self.topology.port(end, link), port)


def _cable() -> tuple[_CableEnd, _CableEnd]:
    left, right = _CableEnd(), _CableEnd()
    left.other, right.other = right, left
    return left, right
