# SPDX-License-Identifier: Apache-2.0
"""Payloads: sizes per op, the order of codes, and lanes as arrays.

Lanes are in element order. Codes travel in groups, as big-endian words of the lane's width; word j of a group of W
words holds, from its highest nibble down, the codes j, j + W, j + 2 W, ... How many codes a group has is a property of
the switch program: 512 (`LANE_GROUP_CODES`) in v1model's; a job's membership says what its switch wants (`code_group`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_wire._layout import CODES8_BYTES, CODES16_BYTES, LANE_GROUP_CODES, LANES_BYTES, Drop, Op
from hopsum_wire.errors import WireError


class Shape(NamedTuple):
    """What an op carries: bytes and elements of a full chunk."""

    up_bytes: int
    down_bytes: int
    elements: int
    lane_dtype: str
    has_codes: bool = False
    """Whether an UPDATE carries 4-bit codes in place of lanes."""


SHAPES: Final[dict[int, Shape]] = {
    Op.LOOKUP_ADD8: Shape(CODES8_BYTES, LANES_BYTES, 1024, ">u1", has_codes=True),
    Op.LOOKUP_ADD16: Shape(CODES16_BYTES, LANES_BYTES, 512, ">u2", has_codes=True),
    Op.ADD8: Shape(LANES_BYTES, LANES_BYTES, 1024, ">u1"),
    Op.ADD16: Shape(LANES_BYTES, LANES_BYTES, 512, ">u2"),
    Op.ADD32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
    Op.OR: Shape(LANES_BYTES, LANES_BYTES, 8192, ">u1"),
    Op.MAX32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
}
"""The ops of the switch program. An element of OR is one bit; its lanes are bytes, the first bit the highest."""

_CODE_BITS: Final = 4

CODE_GROUPS: Final = (4, 8, 16, 32, 64, 128, 256, 512)
"""Codes that a group may have: whole groups fill a chunk of any op, whole words a group."""


def shape_of(op: int) -> Shape:
    """Return sizes and lane type of an op.

    Raises:
        WireError: the op is unknown; reason BAD_OP.
    """
    shape = SHAPES.get(op)
    if shape is None:
        names = ", ".join(Op(known).name for known in SHAPES)
        raise WireError(Drop.BAD_OP, f"op {op} is none of the switch program's, which are {names}")
    return shape


def up_bytes(op: int) -> int:
    """Return the payload bytes of an UPDATE. Raises WireError (BAD_OP)."""
    return shape_of(op).up_bytes


def down_bytes(op: int) -> int:
    """Return the payload bytes of a RESULT. Raises WireError (BAD_OP)."""
    return shape_of(op).down_bytes


def pack_codes(codes: NDArray[np.uint8], lane_bits: int = 8, group: int = LANE_GROUP_CODES) -> NDArray[np.uint8]:
    """Pack 4-bit codes into payload bytes.

    Args:
        codes: uint8[..., n], values 0..15, n a multiple of `group`.
        lane_bits: 8 for LOOKUP_ADD8, 16 for LOOKUP_ADD16.
        group: codes of a group, one of CODE_GROUPS.

    Returns:
        uint8[..., n / 2], a new array.

    Raises:
        WireError: a code above 15, or a last axis that is no multiple of `group`; reason BAD_VALUE or BAD_LENGTH.
    """
    nibbles = lane_bits // _CODE_BITS
    groups = _grouped(codes, (nibbles, group // nibbles), group, "codes")
    if codes.size and int(codes.max()) > 15:
        raise WireError(Drop.BAD_VALUE, f"code {int(codes.max())} does not fit in 4 bits")
    dtype = np.dtype(f">u{lane_bits // 8}")
    words = np.zeros((*groups.shape[:-2], groups.shape[-1]), dtype)
    for nibble in range(nibbles):
        words |= groups[..., nibble, :].astype(dtype) << dtype.type(lane_bits - _CODE_BITS * (nibble + 1))
    return words.view(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack_codes(packed: NDArray[np.uint8], lane_bits: int = 8, group: int = LANE_GROUP_CODES) -> NDArray[np.uint8]:
    """Undo `pack_codes`: uint8[..., n] to uint8[..., 2 n], a new array.

    Raises:
        WireError: a last axis that is no multiple of `group` / 2; reason BAD_LENGTH.
    """
    group_bytes = group * _CODE_BITS // 8
    groups = _grouped(packed, (group_bytes,), group_bytes, "code bytes")
    words = np.ascontiguousarray(groups).view(f">u{lane_bits // 8}")
    shifts = range(lane_bits - _CODE_BITS, -1, -_CODE_BITS)
    nibbles = [(words >> words.dtype.type(shift)).astype(np.uint8) & np.uint8(15) for shift in shifts]
    codes = np.stack(nibbles, axis=-2)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def _grouped(array: NDArray[np.uint8], inner: tuple[int, ...], group: int, what: str) -> NDArray[np.uint8]:
    if array.dtype != np.uint8:
        raise WireError(Drop.BAD_VALUE, f"{what} must be uint8, not {array.dtype}")
    if array.ndim == 0 or array.shape[-1] % group:
        raise WireError(Drop.BAD_LENGTH, f"{what} of shape {array.shape}: last axis must be a multiple of {group}")
    return array.reshape(*array.shape[:-1], array.shape[-1] // group, *inner)


def lanes(op: int, payload: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the lanes of RESULT payloads (or of UPDATE payloads without codes), a view in element order.

    Args:
        op: decides the lane type: uint8 or big-endian uint16 or uint32, as `SHAPES` says.
        payload: uint8[..., bytes], contiguous in its last axis.

    Raises:
        WireError: unknown op (BAD_OP), or a last axis that is no multiple of the lane (BAD_LENGTH).
    """
    dtype = np.dtype(shape_of(op).lane_dtype)
    if payload.ndim == 0 or payload.shape[-1] % dtype.itemsize:
        raise WireError(
            Drop.BAD_LENGTH,
            f"payload of shape {payload.shape} holds no whole lanes of {dtype.itemsize} bytes",
        )
    return payload.view(dtype)
