# SPDX-License-Identifier: Apache-2.0
"""One packet to a switch, and the answers: over a UDP socket, or as a whole frame on a network interface."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scapy.arch import get_if_addr, get_if_hwaddr
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.sendrecv import srp1

from hopsum_cli.packet.fields import PacketArguments, PacketError
from hopsum_wire import HOPSUM_BYTES, HOPSUM_UDP_PORT
from hopsum_wire._layout import HOPSUM_FIELDS
from hopsum_wire.frames import IPV4_DO_NOT_FRAGMENT
from hopsum_wire.scapy import Hopsum

_MAX_DATAGRAM_BYTES = 65535
_ARP_WAIT_S = 2.0
Address = tuple[str, int]


class PacketAnswer(NamedTuple):
    """A packet that came back, `after_s` seconds after the first one had left."""

    packet: Packet
    after_s: float


class AnswerLimits(NamedTuple):
    """End of the collection of answers: after `wait_s` seconds, or once there are `answers` of them."""

    wait_s: float
    answers: int | None = None


class PacketExchange(NamedTuple):
    """The packet that was sent, its way in words, and the answers in order of arrival."""

    sent: Packet
    way: str
    answers: tuple[PacketAnswer, ...]


def over_udp(arguments: PacketArguments, to: Address, source: Address, patience: AnswerLimits) -> PacketExchange:
    """Send the packet as a datagram, and collect answers from `to`.

    Args:
        to: IPv4 address and UDP port of the switch.
        source: address to send from. UDP port 0 is any free one.

    Raises PacketError: keys that only a whole frame has, an address that cannot be used, or no process listens there.
    """
    if arguments.path:
        raise PacketError(
            f"{', '.join(arguments.path)}: the kernel writes these headers; --from says where to send from"
        )
    packet = _hopsum(arguments)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(source)
            sock.connect(to)
            sock.send(bytes(packet))
            own_ip, own_port = sock.getsockname()
            way = f"UDP {own_ip}:{own_port} -> {to[0]}:{to[1]}"
            answers = tuple(_collect(patience, lambda left: _from_socket(sock, left)))
        except ConnectionRefusedError as error:
            what = f"no process listens at UDP {to[0]}:{to[1]}: is the switch's port bound there?"
            raise PacketError(what) from error
        except OSError as error:
            raise PacketError(f"UDP {source[0]}:{source[1]} -> {to[0]}:{to[1]}: {error.strerror or error}") from error
    return PacketExchange(packet, way, answers)


def over_interface(arguments: PacketArguments, interface: str, patience: AnswerLimits) -> PacketExchange:
    """Send the packet as a frame on an interface, and collect hopsum packets that arrive there.

    Raises PacketError: no such interface, no root, or an address that has to be given and was not.
    """
    try:
        conf.ifaces.reload()  # scapy knows the interfaces of the namespace in which it was imported
        packet = _frame(arguments, interface)
        with conf.L2socket(iface=interface) as sock:
            sock.send(packet)
            answers = tuple(_collect(patience, lambda left: _from_interface(sock, left)))
    except PermissionError as error:
        raise PacketError(f"interface {interface}: {error.strerror}: whole frames need root (CAP_NET_RAW)") from error
    except (OSError, ValueError) as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise PacketError(f"interface {interface}: {error}; this network namespace has {names}") from error
    return PacketExchange(packet, f"interface {interface}", answers)


def _hopsum(arguments: PacketArguments) -> Packet:
    values = {field.name: getattr(arguments.header, field.name) for field in HOPSUM_FIELDS}
    return Hopsum(**values) / Raw(arguments.payload) if arguments.payload else Hopsum(**values)


def _frame(arguments: PacketArguments, interface: str) -> Packet:
    path = arguments.path
    source, own_mac = path.get("src_ip") or get_if_addr(interface), path.get("src_mac") or get_if_hwaddr(interface)
    if "dst_ip" not in path:
        raise PacketError("--interface needs dst_ip=..., the switch's address")
    if source == "0.0.0.0":
        raise PacketError(f"interface {interface} has no IPv4 address: give src_ip=..., the worker's address")
    mac = path.get("dst_mac") or _ask_for_mac(interface, own_mac, source, path["dst_ip"])
    ports = {"sport": _port(path, "src_port", 5001), "dport": _port(path, "dst_port", HOPSUM_UDP_PORT)}
    lower = IP(src=source, dst=path["dst_ip"], id=0, flags=IPV4_DO_NOT_FRAGMENT) / UDP(**ports, chksum=0)
    return Ether(src=own_mac, dst=mac) / lower / _hopsum(arguments)


def _port(path: dict[str, str], key: str, default: int) -> int:
    text = path.get(key, str(default))
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise PacketError(f"{key}={text}: a UDP port is 1..65535")
    return int(text)


def _ask_for_mac(interface: str, own_mac: str, source: str, wanted: str) -> str:
    request = Ether(src=own_mac, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=own_mac, psrc=source, pdst=wanted)
    answer = srp1(request, iface=interface, timeout=_ARP_WAIT_S, verbose=False)
    if answer is None:
        raise PacketError(
            f"no host on {interface} answers ARP for {wanted} within {_ARP_WAIT_S:g} s: is it the switch's address?"
            " dst_mac=... names the MAC address without asking"
        )
    return str(answer[ARP].hwsrc)


def _collect(patience: AnswerLimits, receive: Callable[[float], Packet | None]) -> Iterator[PacketAnswer]:
    """Yield what `receive(seconds left)` returns, as long as there is patience. None is nothing yet."""
    started, count = time.monotonic(), 0
    while count != patience.answers and (left := started + patience.wait_s - time.monotonic()) > 0:
        packet = receive(left)
        if packet is not None:
            count += 1
            yield PacketAnswer(packet, time.monotonic() - started)


def _from_socket(sock: socket.socket, left_s: float) -> Packet | None:
    sock.settimeout(left_s)
    try:
        data = sock.recv(_MAX_DATAGRAM_BYTES)
    except TimeoutError:
        return None
    return Hopsum(data) if len(data) >= HOPSUM_BYTES else None


def _from_interface(sock: Any, left_s: float) -> Packet | None:
    if not sock.select([sock], left_s):
        return None
    packet = sock.recv()
    return packet if packet is not None and Hopsum in packet else None
