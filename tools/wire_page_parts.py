# SPDX-License-Identifier: Apache-2.0
"""Pieces of the wire page: diagrams of headers, tables, and example packets in hex."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hopsum_wire import Flag, Header, Kind, Op, State, pack_codes
from hopsum_wire._layout import HOPSUM_BYTES, HOPSUM_FIELDS
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame
from p4_subset import Constant, HeaderField, SubsetError

ROW_BITS = 32
EXAMPLE_PATH = FramePath(
    src_mac=0x020000000101, dst_mac=0x020000000001, src_ip=0x0A000001, dst_ip=0x0A0000FE, src_port=5001
)
SHOWN_PAYLOAD_BYTES = 16


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a Markdown table, one line each."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def diagram(fields: Sequence[HeaderField]) -> list[str]:
    """Return a header as boxes, 32 bits a row, two characters a bit.

    Raises:
        SubsetError: a name does not fit its box.
    """
    rows = _rows(fields)
    tens = "".join(f"{bit // 10 if bit % 10 == 0 else '':<2}" for bit in range(ROW_BITS)).rstrip()
    lines = [f" {tens}", " " + " ".join(str(bit % 10) for bit in range(ROW_BITS))]
    above = 0
    for row in rows:
        width = sum(bits for _, bits in row)
        lines.append(_rule(max(above, width)))
        lines.append("|" + "|".join(_box(name, bits) for name, bits in row) + "|")
        above = width
    return [*lines, _rule(above)]


def _rows(fields: Sequence[HeaderField]) -> list[list[tuple[str, int]]]:
    """Cut fields at the ends of rows. The rest of a field has an empty name."""
    rows: list[list[tuple[str, int]]] = [[]]
    for field in fields:
        name, left = field.name, field.bits
        while left:
            room = ROW_BITS - sum(bits for _, bits in rows[-1])
            if not room:
                rows.append([])
                continue
            rows[-1].append((name, min(room, left)))
            name, left = "", left - min(room, left)
    return rows


def _rule(bits: int) -> str:
    return "+" + "-+" * bits


def _box(name: str, bits: int) -> str:
    width = 2 * bits - 1
    if len(name) > width:
        raise SubsetError(f"{name} does not fit into a box of {bits} bits")
    return name.center(width)


def field_rows(fields: Sequence[HeaderField]) -> list[tuple[object, ...]]:
    """Return offset (bytes, or bytes.bits), bits, name and comment of each field."""
    rows: list[tuple[object, ...]] = []
    offset = 0
    for field in fields:
        at = str(offset // 8) if offset % 8 == 0 else f"{offset // 8}.{offset % 8}"
        rows.append((at, field.bits, f"`{field.name}`", _plain(field.comment)))
        offset += field.bits
    return rows


def constant_rows(constants: Iterable[Constant]) -> list[tuple[object, ...]]:
    """Return name, value and comment of each constant."""
    return [(f"`{constant.name}`", constant.text, _plain(constant.comment)) for constant in constants]


def _plain(comment: str) -> str:
    """Return a comment whose asterisks are no emphasis."""
    return comment.replace("*", r"\*")


def examples() -> list[tuple[str, bytes, int]]:
    """Return title, bytes and number of bytes before the hopsum header of each example."""
    codes = (np.arange(1024) % 16).astype(np.uint8)
    small = pack_codes(codes).tobytes()
    wide = pack_codes(codes[:512], 16).tobytes()
    place = {"slot": 3, "generation": 0x65A1B2C3, "round": 5}
    update8 = Header(kind=Kind.UPDATE, op=Op.LOOKUP_ADD8, worker=1, count=1024, length=len(small), **place)
    update16 = Header(kind=Kind.UPDATE, op=Op.LOOKUP_ADD16, worker=1, count=512, length=len(wide), **place)
    lanes = np.arange(256, dtype=">u4").tobytes()
    result = Header(kind=Kind.RESULT, op=Op.ADD32, worker=1, contributors=0b111, count=256, length=1024, **place)
    flush = Header(kind=Kind.UPDATE, op=Op.ADD32, flags=Flag.FLUSH, worker=1, count=256, length=1024, **place)
    stale = Header(kind=Kind.STALE, op=Op.ADD32, worker=1, held=7, contributors=0b101, count=256, **place)
    probe = Header(kind=Kind.PROBE, worker=1, **place)
    held = {"op": Op.ADD32, "held": 5, "contributors": 0b011, "count": State.COLLECTING}
    state = Header(kind=Kind.STATE, worker=1, **place, **held)
    frame = build_frame(EXAMPLE_PATH, update8, small)
    codes_are = "code *i* is *i* mod 16"
    return [
        (f"A whole frame: UPDATE, LOOKUP_ADD8, {codes_are}", frame, FRAME_OVERHEAD_BYTES - HOPSUM_BYTES),
        (f"UPDATE, LOOKUP_ADD16, {codes_are} (from here on UDP payloads)", update16.pack() + wide, 0),
        ("UPDATE, ADD32, lane *i* is *i*, with FLUSH", flush.pack() + lanes, 0),
        ("RESULT of three workers, ADD32", result.pack() + lanes, 0),
        ("STALE: round 5 was asked for, the copy holds round 7 with workers 0 and 2", stale.pack(), 0),
        ("PROBE about the copy of slot 3 that holds odd rounds", probe.pack(), 0),
        ("STATE: it collects round 5 of an ADD32; workers 0 and 1 are in", state.pack(), 0),
    ]


def dump(data: bytes, header_at: int) -> list[str]:
    """Return a packet in hex: the lower layers, the hopsum header by field, the start of the payload."""
    lines = []
    for name, start, end in (("Ethernet", 0, 14), ("IPv4", 14, 34), ("UDP", 34, 42)):
        if header_at:
            lines.append(f"{name:<13} {data[start:end].hex(' ', 2)}")
    at = header_at
    for field in HOPSUM_FIELDS:
        size = field.bits // 8
        lines.append(f"{field.name:<13} {data[at : at + size].hex(' ', 2)}")
        at += size
    payload = data[at:]
    if payload:
        more = f" ... ({len(payload)} bytes)" if len(payload) > SHOWN_PAYLOAD_BYTES else ""
        lines.append(f"{'payload':<13} {payload[:SHOWN_PAYLOAD_BYTES].hex(' ', 2)}{more}")
    return lines
