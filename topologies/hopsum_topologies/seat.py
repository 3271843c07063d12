# SPDX-License-Identifier: Apache-2.0
"""A seat: the place at a switch where a worker runs, and its way to the switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Literal, TypeVar

from hopsum.transport.scapy_link import PacketView, ScapyLink
from hopsum.transport.udp_link import UdpLink
from hopsum_base.interfaces import interface_of
from hopsum_controlplane import WorkerEndpoint
from hopsum_topologies.netns import enter_namespace

T = TypeVar("T")
LinkKind = Literal["udp", "scapy"]


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place at a switch."""

    rank: int
    port: int
    """Switch port."""
    mac: str
    ip: str
    switch: tuple[str, int]
    """The IPv4 address and UDP port of the switch's service."""
    namespace: str | None = None
    """The namespace of the data socket only. The process and its other sockets stay in the namespace of its parent."""

    def endpoint(self, address: tuple[str, int]) -> WorkerEndpoint:
        """Return the entry of this worker for a `JobSpec`. `address` is the (IPv4, UDP port) of its data socket."""
        return WorkerEndpoint(self.rank, self.port, self.mac, *address)


def open_seat_link(seat: Seat, kind: LinkKind, view: PacketView | None = None) -> UdpLink | ScapyLink:
    """Open a worker's link to its switch, a UDP socket or scapy packets, in the seat's namespace, at any free port.

    "scapy" takes the interface with the seat's address, or a UDP socket where the seat has no namespace of its own.
    Only "scapy" uses `view`.
    Raises OSError, TopologyError, or ScapyMissingError when that fails.
    """
    if kind == "udp":
        return at_seat(seat, lambda: UdpLink((seat.ip, 0), seat.switch))

    def make() -> ScapyLink:
        found = None if seat.namespace is None else interface_of(seat.ip)
        return ScapyLink((seat.ip, 0), seat.switch, interface=found and found.name, view=view)

    return at_seat(seat, make)


def open_batch_link(seat: Seat) -> UdpLink:
    """Open a UDP socket that sends many datagrams in one call, or a plain one for a seat with a namespace.

    Raises OSError or TopologyError when that fails.
    """
    # Segments that a veth hands to a raw socket are not cut: a switch on veths would see one long frame.
    return at_seat(seat, lambda: UdpLink((seat.ip, 0), seat.switch, gso="auto" if seat.namespace is None else "off"))


def at_seat(seat: Seat, make: Callable[[], T]) -> T:
    """Call `make` in the seat's namespace, in a thread of its own, and return its result. Its errors are raised here.

    Without a namespace `make` runs in this thread. Raises TopologyError when there is no such namespace.
    """
    if seat.namespace is None:
        return make()
    namespace, made, failed = seat.namespace, list[T](), list[BaseException]()

    # A thread of its own enters the namespace and ends. The caller's thread, and gRPC's, stay where they are.
    def enter_and_make() -> None:
        try:
            enter_namespace(namespace)
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
