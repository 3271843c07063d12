# SPDX-License-Identifier: Apache-2.0
"""The hopsum header as a scapy layer: the human form, for building and reading single packets.

    Ether() / IP(src=..., dst=...) / UDP(sport=..., chksum=0) / Hopsum(op="ADD32", slot=3, ...) / Raw(...)

Bound to the service's UDP port in both directions. A `length` left out is the payload's.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from scapy.config import conf
from scapy.fields import ByteEnumField, ByteField, Field, FlagsField, IntField, ShortField, XLongField
from scapy.layers.inet import ICMP, IP, UDP, IPerror, UDPerror
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers
from scapy.utils import PcapWriter

from hopsum_wire._layout import HOPSUM_BYTES, HOPSUM_FIELDS, HOPSUM_UDP_PORT, WIRE_VERSION, Flag, Kind, Op
from hopsum_wire.fields import unpack_fields
from hopsum_wire.frames import IPV4_DO_NOT_FRAGMENT, FramePath
from hopsum_wire.header import Header

__all__ = [
    "IP",
    "UDP",
    "Hopsum",
    "ask_mac",
    "decode_hopsum",
    "open_layer2",
    "open_pcap",
    "packet_of",
    "scapy_frame",
    "unreachable_ends",
]

_BY_WIDTH: Final[dict[int, type[Field[Any, Any]]]] = {
    8: ByteField,
    16: ShortField,
    32: IntField,
    64: XLongField,
}


def _scapy_field(name: str, bits: int) -> Field[Any, Any]:
    if name == "kind":
        return ByteEnumField(name, Kind.UPDATE.value, {kind.value: kind.name for kind in Kind})
    if name == "op":
        return ByteEnumField(name, Op.ADD32.value, {op.value: op.name for op in Op})
    if name == "flags":
        return FlagsField(name, 0, bits, {flag.value: flag.name for flag in Flag})
    default = {"version": WIRE_VERSION, "length": None}.get(name, 0)
    return _BY_WIDTH[bits](name, default)


class Hopsum(Packet):
    """The 32-byte header in front of a payload. Its fields are as in p4/shared/headers.p4."""

    name = "hopsum"
    fields_desc = [_scapy_field(field.name, field.bits) for field in HOPSUM_FIELDS]  # noqa: RUF012 (scapy's form)

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in a `length` that was left out: the last field of the header."""
        if self.length is None:
            pkt = pkt[: HOPSUM_BYTES - 2] + len(pay).to_bytes(2, "big")
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Split the bytes behind the header into the payload and bytes that do not belong to it."""
        return s[: self.length], s[self.length :]

    def mysummary(self) -> str:
        """Return the packet on one line: kind, op, worker, generation, slot and round."""
        summary: str = self.sprintf(
            "hopsum %Hopsum.kind% %Hopsum.op% worker %Hopsum.worker% generation %Hopsum.generation% "
            "slot %Hopsum.slot% round %Hopsum.round%"
        )
        return summary


bind_bottom_up(UDP, Hopsum, sport=HOPSUM_UDP_PORT)
bind_layers(UDP, Hopsum, dport=HOPSUM_UDP_PORT)


def scapy_frame(path: FramePath, header: Header, payload: bytes = b"") -> Packet:
    """Return the frame that `hopsum_wire.frames.build_frame` builds, as scapy layers."""
    fields = {field.name: getattr(header, field.name) for field in HOPSUM_FIELDS}
    return _below(path) / Hopsum(**fields) / Raw(payload)


def packet_of(path: FramePath, datagram: bytes) -> Packet:
    """Return the packet around a datagram. One that is shorter than the header stays raw."""
    if len(datagram) < HOPSUM_BYTES:
        return _below(path) / Raw(datagram)
    fields = unpack_fields(HOPSUM_FIELDS, datagram[:HOPSUM_BYTES])
    return _below(path) / Hopsum(**fields) / Raw(datagram[HOPSUM_BYTES:])


def decode_hopsum(udp: Packet) -> None:
    """Decode the payload of a UDP layer in place as a hopsum packet, whatever the port. A short one stays as it is."""
    if not isinstance(udp.payload, Hopsum) and len(udp.payload) >= HOPSUM_BYTES:
        udp.decode_payload_as(Hopsum)


def ask_mac(opened: Any, own_mac: int, own_ip: str, ip: str) -> int | None:
    """Send up to five ARP requests for an IPv4 address, and return the MAC address that answers; None after 1.5 s.

    Args:
        opened: a socket of `open_layer2`.
        own_mac, own_ip: of the interface.
    """
    own = _mac_text(own_mac)
    request = Ether(src=own, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=own, psrc=own_ip, pdst=ip)
    # Five requests in 1.5 s: a switch may be starting.
    answer = opened.sr1(request, timeout=0.3, retry=4, verbose=False)
    return None if answer is None else int(answer[ARP].hwsrc.replace(":", ""), 16)


def unreachable_ends(packet: Packet) -> tuple[str, int, str, int] | None:
    """Return source and destination, IP and port, of the datagram that an ICMP packet reports as not delivered.

    None for a packet that is no such report.
    """
    about, udp = packet.getlayer(IPerror), packet.getlayer(UDPerror)
    if about is None or udp is None or packet[ICMP].type != 3:
        return None
    return about.src, udp.sport, about.dst, udp.dport


def open_layer2(interface: str) -> Any:
    """Open scapy's layer-2 socket on an interface of the calling thread's network namespace. Raises OSError."""
    conf.ifaces.reload()
    try:
        return conf.L2socket(iface=interface, promisc=False)
    except ValueError as error:
        known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        words = f"no interface {interface!r} in this network namespace; there are: {known}"
        raise OSError(errno.ENODEV, words) from error


def open_pcap(path: str) -> PcapWriter:
    """Open a capture file of Ethernet frames; one that exists is overwritten. `write` returns with the packet in it."""
    return PcapWriter(path, sync=True, linktype=1)


def _below(path: FramePath) -> Packet:
    return (
        Ether(src=_mac_text(path.src_mac), dst=_mac_text(path.dst_mac))
        / IP(src=_ip_text(path.src_ip), dst=_ip_text(path.dst_ip), id=0, flags=IPV4_DO_NOT_FRAGMENT)
        / UDP(sport=path.src_port, dport=path.dst_port, chksum=0)
    )


def _mac_text(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":")


def _ip_text(address: int) -> str:
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))
