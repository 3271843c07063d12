# SPDX-License-Identifier: Apache-2.0
"""The hopsum header as a scapy layer: the human form, for building and reading single packets.

    Ether() / IP(src=..., dst=...) / UDP(sport=..., chksum=0) / Hopsum(op="ADD32", slot=3, ...) / Raw(...)

Bound to the service's UDP port in both directions. A `length` left out is the payload's.
"""

from __future__ import annotations

from typing import Any, Final

from scapy.fields import ByteEnumField, ByteField, Field, FlagsField, IntField, ShortField, XLongField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

from hopsum_wire._layout import HOPSUM_BYTES, HOPSUM_FIELDS, HOPSUM_UDP_PORT, WIRE_VERSION, Flag, Kind, Op
from hopsum_wire.frames import IPV4_DO_NOT_FRAGMENT, FramePath
from hopsum_wire.header import Header

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
    """The 32-byte header in front of a payload; fields as in p4/shared/headers.p4."""

    name = "hopsum"
    fields_desc = [_scapy_field(field.name, field.bits) for field in HOPSUM_FIELDS]  # noqa: RUF012 (scapy's form)

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in a `length` that was left out: the last field of the header."""
        if self.length is None:
            pkt = pkt[: HOPSUM_BYTES - 2] + len(pay).to_bytes(2, "big")
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Split what follows the header into the payload and bytes that do not belong to it."""
        return s[: self.length], s[self.length :]

    def mysummary(self) -> str:
        """Return one line: kind, op, who, where."""
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
    return (
        Ether(src=_mac_text(path.src_mac), dst=_mac_text(path.dst_mac))
        / IP(src=_ip_text(path.src_ip), dst=_ip_text(path.dst_ip), id=0, flags=IPV4_DO_NOT_FRAGMENT)
        / UDP(sport=path.src_port, dport=path.dst_port, chksum=0)
        / Hopsum(**fields)
        / Raw(payload)
    )


def _mac_text(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":")


def _ip_text(address: int) -> str:
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))
