# SPDX-License-Identifier: Apache-2.0
"""A packet for people, as scapy shows its layers, and for programs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scapy.packet import Packet, Padding

from hopsum_wire import HOPSUM_BYTES, Header, Kind
from hopsum_wire._layout import HOPSUM_FIELDS, LANES_BYTES, Flag, Op
from hopsum_wire.payload import SHAPES, lanes, unpack_codes
from hopsum_wire.scapy import Hopsum

_SHOWN: Final = 16
"""Elements of a payload that are shown. What follows is counted."""


def text_of(packet: Packet) -> str:
    """Return the layers of a packet whose last layer is Hopsum, a field a line, and the payload in one line."""
    whole = packet.__class__(bytes(packet))
    payload = payload_of(whole)
    whole[Hopsum].remove_payload()
    layers = "\n".join(line.rstrip() for line in whole.show(dump=True).rstrip().splitlines())
    return f"{layers}\n{payload_text(whole[Hopsum], payload)}"


def payload_of(packet: Packet) -> bytes:
    """Return the bytes behind the hopsum header, without what pads the frame."""
    behind = bytes(packet[Hopsum].payload)
    padding = len(packet[Padding].load) if Padding in packet else 0
    return behind[: len(behind) - padding]


def payload_text(header: Packet, payload: bytes) -> str:
    """Return one line: how many bytes, and the first codes or lanes."""
    if not payload:
        return "  no payload"
    name, elements = _elements(header.kind, header.op, payload)
    more = f" ... ({len(elements)})" if len(elements) > _SHOWN else ""
    return f"  payload: {len(payload)} bytes, {name} {' '.join(map(str, elements[:_SHOWN]))}{more}"


def values_of(packet: Packet) -> dict[str, Any]:
    """Return the fields of the hopsum header by name, and the payload as codes, lanes or bytes, all of them."""
    whole = packet.__class__(bytes(packet))
    payload = payload_of(whole)
    raw = Header.unpack(bytes(whole[Hopsum])[:HOPSUM_BYTES])
    values: dict[str, Any] = {field.name: getattr(raw, field.name) for field in HOPSUM_FIELDS}
    values["kind"] = _name(Kind, raw.kind)
    values["op"] = _name(Op, raw.op)
    values["flags"] = [flag.name for flag in Flag if raw.flags & flag]
    if payload:
        name, elements = _elements(raw.kind, raw.op, payload)
        values[name] = payload.hex() if name == "bytes" else elements
    return values


def _elements(kind: int, op: int, payload: bytes) -> tuple[str, list[Any]]:
    """Return the word for the elements of a payload, and the elements, or bytes where op and length do not fit."""
    shape, data = SHAPES.get(op), np.frombuffer(payload, np.uint8)
    if shape is not None and kind == Kind.UPDATE and shape.has_codes and len(payload) == shape.up_bytes:
        return "codes", unpack_codes(data, shape.lane_bits).tolist()
    if shape is not None and len(payload) == (LANES_BYTES if kind == Kind.PARTIAL else shape.down_bytes):
        return "lanes", lanes(op, data).tolist()
    return "bytes", [f"{byte:02x}" for byte in payload]


def _name(enum: type[Kind] | type[Op], value: int) -> str | int:
    return enum(value).name if value in list(enum) else value
