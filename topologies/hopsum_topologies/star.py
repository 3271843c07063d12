# SPDX-License-Identifier: Apache-2.0
"""Hosts around one bridge, each in a network namespace of its own, on links of a given rate: for measurements.

The middle has the bridge, an address on it, and whatever serves there through ordinary sockets. Offloads stay on: the
kernel makes and takes all frames, and the queues count each segment of a train as a frame.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hopsum_topologies.delay_link import DelayLink
from hopsum_topologies.description import MTU_BYTES
from hopsum_topologies.netns import Namespace
from hopsum_topologies.shaping import BURST_BYTES, QUEUE_BYTES, tc

_BRIDGE: Final = "br0"
_OUTSIDE: Final = "eth0"


class LinkCounts(NamedTuple):
    """The counts of one host's link since it was shaped, by the queues: bytes are those of whole frames."""

    wire_bytes_up: int
    """Bytes of whole frames that the host sent."""
    wire_bytes_down: int
    """Bytes of whole frames that were sent to the host."""
    dropped: int
    """Frames that were dropped at a full queue, in both directions."""

    def since(self, earlier: LinkCounts) -> LinkCounts:
        """Return the counts after `earlier`: these minus those."""
        return LinkCounts(*(now - then for now, then in zip(self, earlier, strict=True)))


class Star:
    """The namespaces of `hosts` hosts and the middle. The context manager removes all. Programs inside must end before.

    Host k has address 10.0.0.(k + 1), the middle `middle_ip`, all in one /24.

    Raises:
        TopologyError: not root, no iproute2, or a kernel without bridges. Nothing is left then.
    """

    middle_ip: Final = "10.0.0.254"

    def __init__(self, hosts: int, round_trip_s: float = 0.0) -> None:
        """Make the namespaces and links.

        Args:
            round_trip_s: the delay between a host and the middle, there and back, by a process of `delay_link`. Frames
                between two hosts have it twice. Zero: only what the kernel needs.
        """
        self.middle = Namespace()
        self.hosts: list[Namespace] = []
        self.delay: DelayLink | None = None
        self._between = Namespace() if round_trip_s else None
        try:
            # A bridge of the kernel, not our switch: sockets in the middle are reached with all offloads.
            self.middle.ip("link", "add", "name", _BRIDGE, "type", "bridge")
            self.middle.ip("link", "set", "dev", _BRIDGE, "mtu", str(MTU_BYTES), "up")
            self.middle.ip("addr", "add", f"{self.middle_ip}/24", "dev", _BRIDGE)
            for number in range(hosts):
                self._add_host(number)
            if self._between is not None:
                pairs = [(_near(number), _far(number)) for number in range(hosts)]
                self.delay = DelayLink(self._between.name, pairs, round_trip_s / 2)
        except BaseException:
            self.close()
            raise

    def host_ip(self, number: int) -> str:
        """Return the IPv4 address of a host. The first host has number 0."""
        return f"10.0.0.{number + 1}"

    def shape(self, rate: str | None) -> None:
        """Give both directions of every link a rate in tc's notation ("200mbit"), None for no limit. Counts begin at 0.

        May be repeated. Raises TopologyError.
        """
        for namespace, interface in self._ends():
            # bfifo and tbf count bytes alike, so that both kinds of run are counted in the same way.
            queue: tuple[str, ...] = ("bfifo", "limit", str(QUEUE_BYTES))
            if rate is not None:
                queue = ("tbf", "rate", rate, "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))
            tc(namespace, "qdisc", "replace", "dev", interface, "root", *queue)

    def rate_bits_per_s(self) -> float | None:
        """Read the rate of the links from the kernel, in bits per second. None without one. Raises TopologyError."""
        namespace, interface = next(iter(self._ends()))
        options = _queue_of(namespace, interface)["options"]
        return float(options["rate"]) * 8 if "rate" in options else None

    def read_counts(self) -> list[LinkCounts]:
        """Read from the kernel the traffic of each host's link since `shape`, by host. Raises TopologyError."""
        found = []
        for number, host in enumerate(self.hosts):
            up, down = _queue_of(host, _OUTSIDE), _queue_of(self.middle, _inside(number))
            found.append(LinkCounts(int(up["bytes"]), int(down["bytes"]), int(up["drops"]) + int(down["drops"])))
        return found

    def close(self) -> None:
        """Remove all namespaces with their links, and end the process of the delay."""
        if self.delay is not None:
            self.delay.close()
        for namespace in (*self.hosts, self.middle, *((self._between,) if self._between else ())):
            namespace.close()

    def __enter__(self) -> Star:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_host(self, number: int) -> None:
        host = Namespace()
        self.hosts.append(host)
        if self._between is None:
            host.add_veth(_OUTSIDE, _inside(number), self.middle, mtu_bytes=MTU_BYTES, offloads=True)
        else:
            host.add_veth(_OUTSIDE, _near(number), self._between, mtu_bytes=MTU_BYTES, offloads=True)
            self._between.add_veth(_far(number), _inside(number), self.middle, mtu_bytes=MTU_BYTES, offloads=True)
        self.middle.ip("link", "set", "dev", _inside(number), "master", _BRIDGE)
        host.ip("addr", "add", f"{self.host_ip(number)}/24", "dev", _OUTSIDE)

    def _ends(self) -> Sequence[tuple[Namespace, str]]:
        ends = [(host, _OUTSIDE) for host in self.hosts]
        return ends + [(self.middle, _inside(number)) for number in range(len(self.hosts))]


def _inside(number: int) -> str:
    return f"s{number + 1}"


def _near(number: int) -> str:
    """Return the end of a host's link at the delay process."""
    return f"n{number + 1}"


def _far(number: int) -> str:
    return f"f{number + 1}"


def _queue_of(namespace: Namespace, interface: str) -> dict[str, Any]:
    queues = json.loads(tc(namespace, "-s", "-j", "qdisc", "show", "dev", interface, "root"))
    found: dict[str, Any] = queues[0]
    return found
