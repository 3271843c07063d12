# SPDX-License-Identifier: Apache-2.0
"""A link of scapy packets, for looking: each datagram is built and read as Ether()/IP()/UDP()/Hopsum()/Raw().

On an interface the packets pass a layer-2 socket of scapy. Without an interface a UDP socket carries `Hopsum()/Raw()`
of each packet, and the layers below, which the kernel makes, are shown with MAC addresses of 0. scapy is imported when
a link is made. `hopsum_wire.frames` builds the same bytes without scapy, and a test compares them.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from hopsum.errors import HopsumError
from hopsum.transport.link import BATCH_DATAGRAMS, RECEIVE_BUFFER_BYTES, LinkStatistics, Waker
from hopsum.transport.outage import Outage
from hopsum.transport.udp_link import UdpLink
from hopsum_wire import HOPSUM_BYTES, Header
from hopsum_wire._layout import IPV4_BYTES, UDP_BYTES
from hopsum_wire.frames import FramePath

# linux/sockios.h, linux/if_arp.h
_SIOCGIFMTU: Final = 0x8921
_ARPHRD_ETHER: Final = 1


class ScapyMissingError(HopsumError):
    """The environment has no scapy."""


class PacketView(NamedTuple):
    """The outputs of a link's packets, which may be combined: a file, a callback, stderr."""

    pcap: str | os.PathLike[str] | None = None
    """File for both directions, with times; written anew."""
    on_packet: Callable[[Any, bool], None] | None = None
    """Called with every scapy packet, and with whether this worker sent it, in the thread that uses the link."""
    show: bool = False
    """Print one line a packet on stderr."""


class ScapyLink:
    """A `DatagramLink` whose packets scapy builds and reads, and a `PacketView` shows. Only `wake` is thread-safe.

    Args:
        local: (IPv4 address, port) to send from. The switch knows the worker by it. Port 0: any.
        switch: (IPv4 address, port) of the service.
        interface: name, of the network namespace of the calling thread; needs root. None: a UDP socket.
        via: with an interface, IPv4 address of the router in front of the switch. None: the switch is on this link.
        view: the file, callback and output for packets. None: packets are not shown.

    Raises:
        ScapyMissingError: scapy is not installed.
        OSError: not root, no such interface, one that is no Ethernet, a taken port, no answer to ARP, or the pcap file
            cannot be written.
    """

    def __init__(
        self,
        local: tuple[str, int],
        switch: tuple[str, int],
        *,
        interface: str | None = None,
        via: str | None = None,
        view: PacketView | None = None,
    ) -> None:
        self._layers = _load_layers()
        self._view, self._pcap = view or PacketView(), None
        self._carrier: _UdpCarrier | _Layer2Carrier
        with ExitStack() as opened:
            if self._view.pcap is not None:
                self._pcap = opened.enter_context(self._layers.open_pcap(os.fspath(self._view.pcap)))
            if interface is None:
                self._carrier = _UdpCarrier(self._layers, local, switch)
            else:
                self._carrier = _Layer2Carrier(self._layers, interface, local, switch, via or switch[0])
            opened.callback(self._carrier.close)
            self._opened = opened.pop_all()
        self.local = self._carrier.local
        """The address that datagrams are sent from."""
        self.statistics = self._carrier.statistics

    def send(self, datagram: bytes | memoryview) -> None:
        packet = self._layers.packet_of(self._carrier.path, bytes(datagram))
        self._show(packet, sent=True)
        self._carrier.send_packet(packet)

    def receive(self, timeout_s: float) -> list[memoryview]:
        datagrams = []
        for packet, inside in self._carrier.receive_packets(timeout_s):
            self._show(packet, sent=False)
            datagrams += inside
        return datagrams

    def wake(self) -> None:
        self._carrier.wake()

    def close(self) -> None:
        self._opened.close()

    def _show(self, packet: Any, *, sent: bool) -> None:
        if self._pcap is not None:
            self._pcap.write(packet)
        if self._view.show:
            print(f"{float(packet.time):.6f} {'->' if sent else '<-'} {packet.summary()}", file=sys.stderr)
        if self._view.on_packet is not None:
            self._view.on_packet(packet, sent)


def _load_layers() -> Any:
    """Return the module of layers. Raises ScapyMissingError."""
    try:
        from hopsum_wire import scapy
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "scapy":
            raise
        raise ScapyMissingError("link scapy: scapy is not installed; pip install 'hopsum[scapy]'") from error
    return scapy


class _UdpCarrier(UdpLink):
    """A UDP socket, which carries the hopsum layer of each packet and its payload."""

    def __init__(self, layers: Any, local: tuple[str, int], switch: tuple[str, int]) -> None:
        super().__init__(local, switch, gso="off")
        self._layers = layers
        own_ip, own_port = self.local
        self.path = FramePath(0, 0, _number(own_ip), _number(switch[0]), own_port, switch[1])
        self._back = FramePath(0, 0, _number(switch[0]), _number(own_ip), switch[1], own_port)

    def send_packet(self, packet: Any) -> None:
        self.send(bytes(packet[self._layers.UDP].payload))

    def receive_packets(self, timeout_s: float) -> list[tuple[Any, list[memoryview]]]:
        packets = [self._layers.packet_of(self._back, bytes(each)) for each in self.receive(timeout_s)]
        return [(packet, [memoryview(bytes(packet[self._layers.UDP].payload))]) for packet in packets]


class _Layer2Carrier:
    """A layer-2 socket of scapy on one interface. UDP checksums are not verified: a veth's sender leaves them open."""

    def __init__(self, layers: Any, interface: str, local: tuple[str, int], switch: tuple[str, int], hop: str) -> None:
        self._layers, self._switch = layers, switch
        self.statistics = LinkStatistics()
        try:
            self._socket = layers.open_layer2(interface)
        except PermissionError as error:
            raise PermissionError(error.errno, f"packets on {interface} need root: {error.strerror}") from None
        with ExitStack() as opened:
            opened.callback(self._socket.close)
            self._waker = Waker()
            opened.callback(self._waker.close)
            own_mac, self._mtu_bytes = inspect_interface(self._socket.ins)
            self._socket.ins.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            # Keeps the port, so that the kernel neither gives it away nor answers "port unreachable". The kernel drops
            # what does not fit: the packet socket has the datagrams.
            holder = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
            holder.bind(local)
            self.local = holder.getsockname()
            mac = layers.ask_mac(self._socket, own_mac, self.local[0], hop)
            if mac is None:
                raise OSError(
                    errno.EHOSTUNREACH,
                    f"no host on {interface} answers ARP for {hop}: the switch, or a router named by via, has to be on "
                    "this link",
                )
            self.path = FramePath(own_mac, mac, _number(self.local[0]), _number(switch[0]), self.local[1], switch[1])
            self.close = opened.pop_all().close
        where = f"{self.local[0]}:{self.local[1]} on {interface} to {switch[0]}:{switch[1]}"
        self._outage = Outage(where, self.statistics.failures)
        self._poll = select.poll()
        self._poll.register(self._socket.ins, select.POLLIN)
        self._poll.register(self._waker.fd, select.POLLIN)

    def send_packet(self, packet: Any) -> None:
        payload_bytes = len(packet[self._layers.UDP].payload)
        try:
            self._socket.send(packet)
        except OSError as error:
            self._outage.note(error)
            return
        self._outage.note_sent()
        self.statistics.datagrams_sent += 1
        self.statistics.bytes_sent += payload_bytes

    def receive_packets(self, timeout_s: float) -> list[tuple[Any, list[memoryview]]]:
        until, unreachable = time.monotonic() + max(timeout_s, 0.0), self.statistics.unreachable
        while True:
            ready = dict(self._poll.poll(max(until - time.monotonic(), 0.0) * 1000))
            woken = self._waker.fd in ready
            if woken:
                self._waker.clear()
            found = self._take() if ready.keys() - {self._waker.fd} else []
            # ICMP's word that nobody listens ends the wait, as an error does that of a UDP socket.
            if found or woken or self.statistics.unreachable > unreachable or time.monotonic() >= until:
                return found

    def wake(self) -> None:
        self._waker.wake()

    def _take(self) -> list[tuple[Any, list[memoryview]]]:
        """Read the packets that wait. Return those with datagrams for the worker."""
        taken: list[tuple[Any, list[memoryview]]] = []
        # IPv4 addresses of sender and receiver in an Ethernet frame, behind its type 0x0800.
        ends = socket.inet_aton(self._switch[0]) + socket.inet_aton(self.local[0])
        for _ in range(BATCH_DATAGRAMS):
            if not select.select([self._socket.ins], [], [], 0)[0]:
                break
            try:
                make, frame, at = self._socket.recv_raw()
            except OSError as error:  # once, when the interface goes down
                self._outage.note(error, 0)
                break
            # Looked at before scapy dissects it, which takes a hundred times as long.
            if not frame or (frame[12:14], frame[26:34]) != (b"\x08\x00", ends):
                continue
            packet = make(frame)
            packet.time = at
            if datagrams := self._datagrams(packet):
                taken.append((packet, datagrams))
                self.statistics.datagrams_received += len(datagrams)
                self.statistics.bytes_received += sum(map(len, datagrams))
            elif self._layers.unreachable_ends(packet) == (*self.local, *self._switch):
                self.statistics.unreachable += 1
        return taken

    def _datagrams(self, packet: Any) -> list[memoryview]:
        """Return the datagrams of a packet from the switch to this worker; none for all others."""
        layers = self._layers
        ip, udp = packet.getlayer(layers.IP), packet.getlayer(layers.UDP)
        if ip is None or udp is None or ip.payload is not udp or packet.payload is not ip or ip.frag or ip.flags.MF:
            return []
        if (udp.sport, udp.dport) != (self._switch[1], self.local[1]):
            return []
        payload = bytes(udp.payload)[: udp.len - UDP_BYTES]
        if ip.len != IPV4_BYTES + udp.len or len(payload) != udp.len - UDP_BYTES:
            return []
        layers.decode_hopsum(udp)
        datagram = memoryview(payload)
        return list(split_segments(datagram)) if ip.len > self._mtu_bytes else [datagram]


def _number(ip: str) -> int:
    return int.from_bytes(socket.inet_aton(ip), "big")


def inspect_interface(sock: socket.socket) -> tuple[int, int]:
    """Return MAC address (as a number) and MTU (bytes) of the Ethernet interface of a bound packet socket.

    Raises OSError for an interface that is not Ethernet.
    """
    interface, _, _, kind, mac = sock.getsockname()
    if kind != _ARPHRD_ETHER:
        raise OSError(errno.EINVAL, f"interface {interface} is not Ethernet (its hardware type is {kind}): use file://")
    import fcntl  # which Windows does not have

    answer = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16s24x", interface.encode()))
    return int.from_bytes(mac, "big"), int(struct.unpack_from("=i", answer, 16)[0])


def split_segments(buffer: memoryview) -> list[memoryview]:
    """Return the datagrams of a GSO buffer, views into it.

    All segments but the last have the same size (UDP_SEGMENT and UDP_GRO make them so), and the header of the first
    one holds that size. A buffer that holds no whole hopsum packet stays in one piece, for its receiver to refuse.
    """
    if len(buffer) <= HOPSUM_BYTES:
        return [buffer]
    each = HOPSUM_BYTES + Header.unpack(buffer).length
    return [buffer[at : at + each] for at in range(0, len(buffer), each)]
