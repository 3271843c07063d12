# SPDX-License-Identifier: Apache-2.0
"""Where a worker runs and how it reaches the switch."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread

from hopsum.transport.link import UdpLink
from hopsum_controlplane import WorkerEndpoint
from hopsum_topologies.netns import enter_namespace


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place. `switch` is where it sends to: IPv4 address and UDP port."""

    rank: int
    port: int
    """Switch port."""
    mac: str
    ip: str
    switch: tuple[str, int]
    namespace: str | None = None
    """Of its data socket only: the process stays where its parent is, and so does what else it opens."""

    def endpoint(self, address: tuple[str, int]) -> WorkerEndpoint:
        """Return what the controller has to know of a worker here whose data socket has this address."""
        return WorkerEndpoint(self.rank, self.port, self.mac, *address)


def open_link(seat: Seat) -> UdpLink:
    """Open the worker's data socket where it belongs. Raises OSError or TopologyError when that fails."""
    if seat.namespace is None:
        return UdpLink((seat.ip, 0), seat.switch)
    opened: list[UdpLink | BaseException] = []

    def enter_and_open(namespace: str) -> None:
        try:
            enter_namespace(namespace)  # of this thread, which ends with it
            opened.append(UdpLink((seat.ip, 0), seat.switch))
        except BaseException as error:
            opened.append(error)

    thread = Thread(target=enter_and_open, args=(seat.namespace,))
    thread.start()
    thread.join()
    if isinstance(opened[0], BaseException):
        raise opened[0]
    return opened[0]
