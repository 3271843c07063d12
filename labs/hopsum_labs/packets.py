# SPDX-License-Identifier: Apache-2.0
"""The packets of the course as scapy layers, and the addresses of its network."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from scapy.fields import BitField, ByteEnumField, ByteField, ConditionalField, FieldListField, IntField, ShortField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

TYPE_AGGREGATION = 0x88B5
TYPE_QUANTISED = 0x88B6
AGGREGATION_PORT = 5555
VALUES = 8
"""Values in a packet."""
MODULUS = 1 << 32
CHUNK = 0xC0FFEE42
"""A chunk's number that needs all of its 32 bits."""
SWITCH_MAC = "02:00:00:00:00:fe"
SWITCH_IP = "10.0.0.254"
BROADCAST = "ff:ff:ff:ff:ff:ff"


class Kind(IntEnum):
    """The kinds of aggregation packets."""

    CONTRIBUTION = 1
    RESULT = 2


def _header() -> list[Any]:
    """Return the fields that both kinds of header begin with."""
    return [
        ByteEnumField("kind", Kind.CONTRIBUTION, {int(kind): kind.name for kind in Kind}),
        ByteField("rank", 0),
        ByteField("slot", 0),
        ByteField("version", 0),
        IntField("chunk", 0),
    ]


class Aggregation(Packet):
    """The header `aggregation_t` and the values after it."""

    name = "Aggregation"
    fields_desc = (
        *_header(),
        FieldListField("values", [0] * VALUES, IntField("value", 0), count_from=lambda _: VALUES),
    )


CODE_VALUES = (0, 25, 46, 64, 80, 94, 107, 120, 135, 148, 161, 175, 191, 209, 230, 255)
"""The lookup table of level floats: the value of each code, 0 for -1.0 and GRANULARITY for 1.0."""
GRANULARITY = CODE_VALUES[-1]


def _is_contribution(packet: Any) -> bool:
    return bool(packet.kind == Kind.CONTRIBUTION)


class Quantised(Packet):
    """The header `aggregation_t` of level floats, and after it a worker's codes or the switch's sums."""

    name = "Quantised"
    fields_desc = (
        *_header(),
        ConditionalField(
            FieldListField("codes", [0] * VALUES, BitField("code", 0, 4), count_from=lambda _: VALUES), _is_contribution
        ),
        ConditionalField(
            FieldListField("sums", [0] * VALUES, ShortField("sum", 0), count_from=lambda _: VALUES),
            lambda packet: not _is_contribution(packet),
        ),
    )


bind_layers(Ether, Aggregation, type=TYPE_AGGREGATION)
bind_layers(Ether, Quantised, type=TYPE_QUANTISED)
# By destination only: the source port of a contribution is the worker's own choice.
bind_layers(UDP, Aggregation, dport=AGGREGATION_PORT)


def worker_mac(rank: int) -> str:
    """Return the Ethernet address of a worker."""
    return f"02:00:00:00:00:{rank + 1:02x}"


def worker_ip(rank: int) -> str:
    """Return the IPv4 address of a worker."""
    return f"10.0.0.{rank + 1}"


# No rank's port is its rank + 1: a program that computes ports from ranks, or ranks from ports, must not pass.
_PORTS = (6, 3, 8, 1, 7, 2, 4, 5)


def worker_port(rank: int) -> int:
    """Return the grader's switch port of a worker. Raises IndexError for a rank from 8 on."""
    return _PORTS[rank]


def rank_at(port: int) -> int | None:
    """Return the rank of the grader's worker at a switch port, None where no worker can be."""
    return _PORTS.index(port) if port in _PORTS else None


def network_port(rank: int) -> int:
    """Return the switch port of a worker of `hopsum topology`'s network with one switch."""
    return rank + 1


def ethernet_contribution(rank: int, values: Sequence[int], **fields: int) -> Packet:
    """Return a worker's contribution as level 1 has it. `fields` are those of `Aggregation`: chunk, kind and others."""
    header = Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=TYPE_AGGREGATION)
    return header / Aggregation(rank=rank, values=list(values), **fields)


def quantised_contribution(rank: int, codes: Sequence[int], **fields: int) -> Packet:
    """Return a worker's contribution as level floats has it. `fields` are those of `Quantised`: chunk and others."""
    header = Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=TYPE_QUANTISED)
    return header / Quantised(rank=rank, codes=list(codes), **fields)


def udp_contribution(rank: int, values: Sequence[int], ip: str = SWITCH_IP, **fields: int) -> Packet:
    """Return a worker's contribution to a switch at `ip` as levels 2 and 3 have it. See `ethernet_contribution`."""
    # No field that a RESULT needs has its value already: a program that leaves the field alone must not pass.
    header = Ether(src=worker_mac(rank), dst=SWITCH_MAC) / IP(src=worker_ip(rank), dst=ip, ttl=17)
    header /= UDP(sport=40000 + rank, dport=AGGREGATION_PORT)
    return header / Aggregation(rank=rank, values=list(values), **fields)


SHORTEST_FRAME = 60
"""The bytes of Ethernet's shortest frame, without its checksum."""


def pad_frame(frame: bytes) -> bytes:
    """Return the frame as a network card sends it: one that is too short is filled with zeros."""
    return frame.ljust(SHORTEST_FRAME, b"\0")


def total(vectors: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum that the switch has to send, value by value, modulo 2**32."""
    return [sum(column) % MODULUS for column in zip(*vectors, strict=True)]


def differences(wanted: bytes, got: bytes) -> str:
    """Return the header fields in which two frames differ, or say that they differ in length or payload alone."""
    found, first, second = [], Ether(wanted), Ether(got)
    while first and second and type(first) is type(second):
        pairs = (
            (field.name, first.getfieldval(field.name), second.getfieldval(field.name)) for field in first.fields_desc
        )
        found += [f"{first.name} {name} {now!r} in place of {was!r}" for name, was, now in pairs if was != now]
        first, second = first.payload, second.payload
    return ", ".join(found) or f"{len(got)} bytes in place of {len(wanted)}, or another payload"


def summary(packet: Any) -> str:
    """Return a line that shows a packet to a student."""
    if Aggregation not in packet and Quantised not in packet:
        return str(packet.summary())
    part = packet[Aggregation if Aggregation in packet else Quantised]
    kind = Kind(part.kind).name if part.kind in list(Kind) else f"kind {part.kind}"
    shown = f"{kind} rank={part.rank} slot={part.slot} version={part.version} chunk={part.chunk}"
    if Aggregation in packet:
        return f"{shown} values={[int(value) for value in part.values]}"
    what = "codes" if _is_contribution(part) else "sums"
    return f"{shown} {what}={[int(value) for value in getattr(part, what)]}"
