# SPDX-License-Identifier: Apache-2.0
"""The packet that key=value arguments describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from hopsum.errors import HopsumError
from hopsum_wire import Header, Kind, Op
from hopsum_wire._layout import HOPSUM_FIELDS, LANES_BYTES, Flag
from hopsum_wire.errors import WireError
from hopsum_wire.payload import SHAPES, pack_codes, pack_sums

PATH_KEYS: Final = ("src_mac", "dst_mac", "src_ip", "dst_ip", "src_port", "dst_port")
"""Keys of the headers below hopsum's, for whole frames only."""
PAYLOAD_KEYS: Final = ("lanes", "codes", "payload")
_FIELDS: Final = tuple(field.name for field in HOPSUM_FIELDS)
_ENUMS: Final[dict[str, type[IntEnum]]] = {"kind": Kind, "op": Op, "flags": Flag}
_WITH_LANES: Final = (Kind.UPDATE, Kind.RESULT, Kind.PARTIAL)


class PacketError(HopsumError):
    """A packet cannot be built, sent or read as asked. The message says what to change."""


class PacketArguments(NamedTuple):
    """A packet, as the arguments describe it."""

    header: Header
    payload: bytes
    path: dict[str, str]
    """Values of PATH_KEYS that were given."""


def parse_arguments(words: Sequence[str]) -> PacketArguments:
    """Return the packet of arguments such as kind=UPDATE, slot=3, lanes=1,2,3.

    Fields left out: kind UPDATE, op ADD32 (PROBE: 0), round 1, count and length those of the payload, all others 0.
    An UPDATE, RESULT or PARTIAL has a whole payload of zeros. Nothing is checked against the protocol: a packet that a
    switch must drop can be built.

    Raises PacketError: an unknown key, a key given twice, or a value that no field has.
    """
    values = _split(words)
    numbers = {name: _number(name, values[name]) for name in _FIELDS if name in values}
    kind = numbers.setdefault("kind", Kind.UPDATE)
    op = numbers.setdefault("op", Op.ADD32 if kind != Kind.PROBE else 0)
    payload = _payload(kind, op, {key: values[key] for key in PAYLOAD_KEYS if key in values})
    numbers.setdefault("round", 1)
    numbers.setdefault("length", len(payload))
    if payload and op in SHAPES:
        numbers.setdefault("count", SHAPES[op].elements)
    header = Header(**numbers)
    try:
        header.pack()
    except WireError as error:
        raise PacketError(str(error)) from error
    return PacketArguments(header, payload, {key: values[key] for key in PATH_KEYS if key in values})


def _split(words: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise PacketError(f"{word!r} is not KEY=VALUE, as in slot=3")
        if key not in (*_FIELDS, *PAYLOAD_KEYS, *PATH_KEYS):
            raise PacketError(
                f"{key!r} is no key of a packet; header fields: {', '.join(_FIELDS)}; payload:"
                f" {', '.join(PAYLOAD_KEYS)}; with --interface also {', '.join(PATH_KEYS)}"
            )
        if key in values:
            raise PacketError(f"{key} is given twice, as {values[key]!r} and as {value!r}: leave one out")
        values[key] = value
    return values


def _number(name: str, text: str) -> int:
    members = {str(member.name): int(member) for member in _ENUMS.get(name, ())}
    if text.upper() in members:
        return members[text.upper()]
    try:
        return int(text, 0)
    except ValueError:
        names = f" or one of {', '.join(members)}" if members else ""
        raise PacketError(f"{name}={text}: {text!r} is not a number (decimal, 0x..., 0b...){names}") from None


def _payload(kind: int, op: int, given: Mapping[str, str]) -> bytes:
    if len(given) > 1:
        raise PacketError(f"{' and '.join(given)} both say what the payload is: leave one out")
    if "payload" in given:
        try:
            return bytes.fromhex(given["payload"])
        except ValueError as error:
            raise PacketError(
                f"payload={given['payload']}: it must be hexadecimal bytes, as in payload=00ff"
            ) from error
    if not given and kind not in _WITH_LANES:
        return b""
    if op not in SHAPES:
        if not given:
            return b""
        raise PacketError(f"op {op} has no lanes or codes; give the bytes themselves, as in payload=00ff")
    key = next(iter(given), "codes" if kind == Kind.UPDATE and SHAPES[op].has_codes else "lanes")
    numbers = [_number(key, text) for text in given.get(key, "").split(",") if text]
    return _codes(op, numbers) if key == "codes" else _lanes(kind, op, numbers)


def _lanes(kind: int, op: int, numbers: Sequence[int]) -> bytes:
    """Return a whole payload of lanes: `numbers`, then zeros."""
    shape, packed = SHAPES[op], kind == Kind.RESULT and op == Op.LOOKUP_ADD6
    dtype = np.dtype(shape.lane_dtype)
    lanes = np.zeros(LANES_BYTES // dtype.itemsize, dtype)
    _check(f"lanes of {Op(op).name}", numbers, len(lanes), shape.sum_bits if packed else shape.lane_bits)
    lanes[: len(numbers)] = numbers
    return (pack_sums(lanes) if packed else lanes).tobytes()


def _codes(op: int, numbers: Sequence[int]) -> bytes:
    """Return a whole payload of codes: `numbers`, then zeros."""
    if not SHAPES[op].has_codes:
        raise PacketError(f"{Op(op).name} carries lanes and no codes: give lanes=...")
    codes = np.zeros(SHAPES[op].elements, np.uint8)
    _check(f"codes of {Op(op).name}", numbers, len(codes), 4)
    codes[: len(numbers)] = numbers
    return pack_codes(codes, SHAPES[op].lane_bits).tobytes()


def _check(what: str, numbers: Sequence[int], most: int, bits: int) -> None:
    if len(numbers) > most:
        raise PacketError(f"{what}: {len(numbers)} are given, a payload has {most}")
    wrong = next((number for number in numbers if not 0 <= number < 1 << bits), None)
    if wrong is not None:
        raise PacketError(f"{what}: {wrong} does not fit in {bits} bits")
