# SPDX-License-Identifier: Apache-2.0
"""Payloads: sizes per op, the order of codes, and lanes as arrays.

Lanes are in element order. Codes travel in groups, as big-endian words of the lane's width. Word j of a group of W
words holds, from its highest nibble down, the codes j, j + W, j + 2 W, ... How many codes a group has is a property of
the switch program: 512 (`LANE_GROUP_CODES`) in v1model's. A job's membership says what its switch wants (`code_group`).

Codes of 3 and of 2 bits have no groups. 1024 codes of 2 bits are 256 bytes. Byte j holds, from its highest bits down,
the codes j, 256 + j, 512 + j and 768 + j. 1024 codes of 3 bits are 256 bytes A and 128 bytes B:

    bits    7 and 6              5 to 3           2 to 0
    A[j]    768 + j, low bits    256 + j          j
    B[j]    896 + j, 768 + j     640 + j          512 + j
            (their high bits)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_wire._layout import (
    CODES2_BYTES,
    CODES3_BYTES,
    CODES8_BYTES,
    CODES16_BYTES,
    HOPSUM_BYTES,
    IPV4_BYTES,
    LANE_GROUP_CODES,
    LANES_BYTES,
    UDP_BYTES,
    Drop,
    Op,
)
from hopsum_wire.errors import WireError


class Shape(NamedTuple):
    """An op of the switch program: bytes and elements of a full chunk, and the name of its table.

    Messages, memberships, entries, and checks of the ops that a switch has, follow from these rows.
    """

    up_bytes: int
    down_bytes: int
    elements: int
    lane_dtype: str
    """The dtype of a lane in a slot."""
    code_bits: int = 0
    """Bits of a code where an UPDATE carries codes in place of lanes, else 0."""
    down_codes: bool = False
    """True where a RESULT carries codes in place of lanes: the switch looks sums up again."""
    table: str = ""
    """The job's lookup table of the op, by its name in memberships, specifications and requests, or empty."""

    @property
    def has_codes(self) -> bool:
        """Return whether an UPDATE carries codes in place of lanes."""
        return self.code_bits > 0

    @property
    def lane_bits(self) -> int:
        """Bits of a lane in a slot. Codes of 4 bits travel as words of this width."""
        return np.dtype(self.lane_dtype).itemsize * 8

    @property
    def down_bits(self) -> int:
        """Bits of an element in a RESULT: those of a lane, or of a code."""
        return self.code_bits if self.down_codes else self.lane_bits


SHAPES: Final[dict[int, Shape]] = {
    Op.LOOKUP_ADD8: Shape(CODES8_BYTES, LANES_BYTES, 1024, ">u1", 4, table="table"),
    Op.LOOKUP_ADD16: Shape(CODES16_BYTES, LANES_BYTES, 512, ">u2", 4, table="table16"),
    Op.ADD8: Shape(LANES_BYTES, LANES_BYTES, 1024, ">u1"),
    Op.ADD16: Shape(LANES_BYTES, LANES_BYTES, 512, ">u2"),
    Op.ADD32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
    Op.OR: Shape(LANES_BYTES, LANES_BYTES, 8192, ">u1"),
    Op.MAX32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
    Op.LOOKUP_ADD_LOOKUP4: Shape(CODES8_BYTES, CODES8_BYTES, 1024, ">u1", 4, down_codes=True, table="table4"),
    Op.LOOKUP_ADD_LOOKUP3: Shape(CODES3_BYTES, CODES3_BYTES, 1024, ">u1", 3, down_codes=True, table="table3"),
    Op.LOOKUP_ADD_LOOKUP2: Shape(CODES2_BYTES, CODES2_BYTES, 1024, ">u1", 2, down_codes=True, table="table2"),
}
"""The ops of the switch program. An element of OR is one bit. Its lanes are bytes, the first bit the highest."""
TABLE_NAMES: Final = {Op(op): shape.table for op, shape in SHAPES.items() if shape.table}
"""The names of the lookup tables, by operation."""
LONGEST_BYTES: Final = HOPSUM_BYTES + max(max(shape.up_bytes, shape.down_bytes) for shape in SHAPES.values())
"""The longest datagram of any op, up or down."""
PACKET_BYTES: Final = IPV4_BYTES + UDP_BYTES + LONGEST_BYTES
"""Its packet: an MTU that carries any job in one piece."""

_CODE_BITS: Final = 4
"""Bits of a code of LOOKUP_ADD8, LOOKUP_ADD16 and LOOKUP_ADD_LOOKUP4: only these travel in groups."""
_CHUNK_CODES: Final = 1024
_QUARTER: Final = _CHUNK_CODES // 4
"""Codes of 3 and of 2 bits are packed a chunk at a time, in quarters."""

CODE_GROUPS: Final = (4, 8, 16, 32, 64, 128, 256, 512)
"""Codes that a group may have: whole groups fill a chunk of any op, whole words a group."""


def shape_of(op: int) -> Shape:
    """Return sizes and lane type of an op.

    Raises:
        WireError: the op is unknown, with reason BAD_OP.
    """
    shape = SHAPES.get(op)
    if shape is None:
        names = ", ".join(Op(known).name for known in SHAPES)
        raise WireError(Drop.BAD_OP, f"op {op} is none of the switch program's, which are {names}")
    return shape


def up_bytes(op: int) -> int:
    """Return the payload bytes of an UPDATE. Raises WireError (BAD_OP)."""
    return shape_of(op).up_bytes


@cache
def down_bytes(op: int) -> int:
    """Return the payload bytes of a RESULT. Raises WireError (BAD_OP)."""
    return shape_of(op).down_bytes


def pack_codes(
    codes: NDArray[np.uint8], lane_bits: int = 8, group: int = LANE_GROUP_CODES, *, bits: int = _CODE_BITS
) -> NDArray[np.uint8]:
    """Pack codes into payload bytes.

    Args:
        codes: uint8[..., n], values below 2^bits. n is a multiple of `group`, with 3 or 2 bits of 1024.
        lane_bits: 8 for LOOKUP_ADD8 and LOOKUP_ADD_LOOKUP4, 16 for LOOKUP_ADD16. Only with 4 bits.
        group: codes of a group, one of CODE_GROUPS. Only with 4 bits.
        bits: bits of a code: 4, 3 or 2.

    Returns:
        uint8[..., n * bits / 8], a new array.

    Raises:
        WireError: a code that is too large, or a last axis that is no such multiple, with reason BAD_VALUE or
            BAD_LENGTH.
    """
    if bits != _CODE_BITS:
        return _pack_chunks(codes, bits)
    nibbles = lane_bits // _CODE_BITS
    # Code i of a group goes into nibble i // (group / nibbles) of word i % (group / nibbles): a program shifts all
    # words of a group at once.
    groups = _grouped(codes, (nibbles, group // nibbles), group, "codes")
    _require_codes(codes, bits)
    dtype = np.dtype(f">u{lane_bits // 8}")
    words = np.zeros((*groups.shape[:-2], groups.shape[-1]), dtype)
    for nibble in range(nibbles):
        words |= groups[..., nibble, :].astype(dtype) << dtype.type(lane_bits - _CODE_BITS * (nibble + 1))
    return words.view(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack_codes(
    packed: NDArray[np.uint8], lane_bits: int = 8, group: int = LANE_GROUP_CODES, *, bits: int = _CODE_BITS
) -> NDArray[np.uint8]:
    """Undo `pack_codes`: uint8[..., n] to uint8[..., n * 8 / bits], a new array.

    Raises:
        WireError: a last axis that is no multiple of the bytes of a group, or with 3 or 2 bits of a chunk, with reason
            BAD_LENGTH.
    """
    if bits != _CODE_BITS:
        return _unpack_chunks(packed, bits)
    group_bytes = group * _CODE_BITS // 8
    groups = _grouped(packed, (group_bytes,), group_bytes, "code bytes")
    words = np.ascontiguousarray(groups).view(f">u{lane_bits // 8}")
    # The first codes of a group are in the highest nibbles.
    shifts = range(lane_bits - _CODE_BITS, -1, -_CODE_BITS)
    nibbles = [(words >> words.dtype.type(shift)).astype(np.uint8) & np.uint8(15) for shift in shifts]
    codes = np.stack(nibbles, axis=-2)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def _pack_chunks(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes of 3 or 2 bits, a chunk at a time."""
    chunks = _grouped(codes, (_CHUNK_CODES,), _CHUNK_CODES, f"codes of {bits} bits")
    _require_codes(codes, bits)
    first, second, third, last = np.split(chunks, 4, axis=-1)
    if bits == 2:
        parts = [first << 6 | second << 4 | third << 2 | last]
    else:
        # Two codes of 3 bits leave 2 bits of a byte, which the codes of the last quarter fill: their low bits go above
        # the first two quarters, and their high bits above the halves of the third.
        low, high = last & 3, last >> 2
        left, right = (slice(0, _QUARTER // 2), slice(_QUARTER // 2, _QUARTER))
        parts = [
            first | second << 3 | low << 6,
            third[..., left] | third[..., right] << 3 | high[..., left] << 6 | high[..., right] << 7,
        ]
    return np.concatenate(parts, axis=-1).reshape(*codes.shape[:-1], codes.shape[-1] * bits // 8)


def _unpack_chunks(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    chunk_bytes = _CHUNK_CODES * bits // 8
    chunks = _grouped(packed, (chunk_bytes,), chunk_bytes, f"bytes of codes of {bits} bits")
    if bits == 2:
        quarters = [chunks >> shift & 3 for shift in (6, 4, 2, 0)]
    else:
        a, b = chunks[..., :_QUARTER], chunks[..., _QUARTER:]
        high = np.concatenate([b >> 6 & 1, b >> 7], axis=-1)
        quarters = [a & 7, a >> 3 & 7, b & 7, b >> 3 & 7, a >> 6 | high << 2]
    return np.concatenate(quarters, axis=-1).reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def _require_codes(codes: NDArray[np.uint8], bits: int) -> None:
    # A larger code would spill into its neighbour's bits.
    if codes.size and int(codes.max()) >= 1 << bits:
        raise WireError(Drop.BAD_VALUE, f"code {int(codes.max())} does not fit in {bits} bits")


def _grouped(array: NDArray[np.uint8], inner: tuple[int, ...], group: int, what: str) -> NDArray[np.uint8]:
    if array.dtype != np.uint8:
        raise WireError(Drop.BAD_VALUE, f"{what} must be uint8, not {array.dtype}")
    if array.ndim == 0 or array.shape[-1] % group:
        raise WireError(Drop.BAD_LENGTH, f"{what} of shape {array.shape}: last axis must be a multiple of {group}")
    return array.reshape(*array.shape[:-1], array.shape[-1] // group, *inner)


def requantize(sums: NDArray[Any], thresholds: Sequence[int]) -> NDArray[np.uint8]:
    """Look sums up again, as the switch does: return the codes of lanes, uint8 of the same shape, a new array.

    The code of a sum is the number of thresholds that are at most (sum + 128) >> 1: the upper seven bits of the biased
    sum.

    Args:
        sums: lanes as a slot has them, uint8: sums of -128..127 in two's complement. int8 is the same.
        thresholds: 15, 7 or 3 integers of 1..127 that do not fall, for codes of 4, 3 or 2 bits.
    """
    # Position i of this table is for the lane i.
    biased = np.arange(256, dtype=np.uint8) ^ np.uint8(128)
    codes = np.searchsorted(np.asarray(thresholds), biased >> 1, side="right").astype(np.uint8)
    return codes[sums.view(np.uint8)]


def lanes(op: int, payload: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the lanes of RESULT payloads (or of UPDATE payloads without codes, or of PARTIAL) in element order.

    Codes of a RESULT are lanes of a code each, as a leaf of a tree keeps them.

    Args:
        op: decides the lane type: uint8 or big-endian uint16 or uint32, as `SHAPES` says.
        payload: uint8[..., bytes], contiguous in its last axis.

    Returns:
        A view, or a new array for codes.

    Raises:
        WireError: unknown op (BAD_OP), or a last axis that is no multiple of the lane (BAD_LENGTH).
    """
    shape = shape_of(op)
    if shape.down_codes and payload.ndim and payload.shape[-1] == shape.down_bytes:
        return unpack_codes(payload, shape.lane_bits, bits=shape.code_bits)
    dtype = np.dtype(shape.lane_dtype)
    if payload.ndim == 0 or payload.shape[-1] % dtype.itemsize:
        raise WireError(
            Drop.BAD_LENGTH,
            f"payload of shape {payload.shape} holds no whole lanes of {dtype.itemsize} bytes",
        )
    # A view of network byte order: numpy swaps bytes where it computes.
    return payload.view(dtype)
