# SPDX-License-Identifier: Apache-2.0
"""A description inside this process: an engine for every switch, and links in memory.

A link between switches hands the frames of one engine to the other. The frames of a host are those of calls of `send`
and `receive`, or those of an agent with the host's `link`. There is no clock, so links have neither rate nor delay
here. Losses are those of the program. It needs no root.
"""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event
from types import TracebackType

from hopsum.transport.link import LinkStatistics
from hopsum.transport.raw_frames import RawFrames
from hopsum_controlplane.addresses import mac_to_int
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.ports.memory import MemoryPort
from hopsum_switch.server import SwitchServer
from hopsum_topologies.description import MTU_BYTES, Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_wire import HOPSUM_UDP_PORT


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

    def __init__(self, port: _HostPort, frames: RawFrames) -> None:
        self.statistics = LinkStatistics()
        self._port, self._frames = port, frames

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram."""
        self._port.inject(self._frames.lower(len(datagram)) + bytes(datagram))
        self.statistics.datagrams_sent += 1
        self.statistics.bytes_sent += len(datagram)

    def receive(self, timeout_s: float) -> list[memoryview]:
        """Return the datagrams that have arrived. Wait up to `timeout_s` for any frame."""
        self._port.arrived.wait(timeout_s)
        self._port.arrived.clear()
        datagrams: list[memoryview] = []
        for frame in self._port.take():
            datagrams += self._frames.datagrams(memoryview(frame), mtu_bytes=MTU_BYTES, vouched=False)
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
        frames = RawFrames(
            mac_to_int(self.topology.mac(host)),
            (self.topology.ip(host), udp_port),
            (self.topology.ip(switch), HOPSUM_UDP_PORT),
            self.topology.ip(switch),
        )
        frames.hop_mac = mac_to_int(self.topology.mac(switch))
        return HostLink(self._hosts[host], frames)

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
