# SPDX-License-Identifier: Apache-2.0
"""Payloads: sizes per op, the order of codes, and lanes as arrays.

Lanes are in element order. Codes travel in groups, as big-endian words of the lane's width. Word j of a group of W
words holds, from its highest nibble down, the codes j, j + W, j + 2 W, ... How many codes a group has is a property of
the switch program: 512 (`LANE_GROUP_CODES`) in v1model's. A job's membership says what its switch wants (`code_group`).

RESULT of LOOKUP_ADD6 packs 1024 lanes of 6 bits into 768 bytes. Lanes 0 to 767 are the low 6 bits of the bytes 0 to
767. Lane 768 + j lies in the high 2 bits of the bytes j, 256 + j and 512 + j, its lowest bits first.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_wire._layout import (
    CODES8_BYTES,
    CODES16_BYTES,
    HOPSUM_BYTES,
    IPV4_BYTES,
    LANE_GROUP_CODES,
    LANES_BYTES,
    PACKED_BYTES,
    PACKED_LANE_BITS,
    UDP_BYTES,
    Drop,
    Op,
)
from hopsum_wire.errors import WireError


class Shape(NamedTuple):
    """The payload of an op of the switch program: bytes and elements of a full chunk."""

    up_bytes: int
    down_bytes: int
    elements: int
    lane_dtype: str
    """The dtype of a lane in a slot."""
    has_codes: bool = False
    """True where an UPDATE carries 4-bit codes in place of lanes."""

    @property
    def lane_bits(self) -> int:
        """Bits of a lane in a slot, codes travel as words of this width."""
        return np.dtype(self.lane_dtype).itemsize * 8

    @property
    def sum_bits(self) -> int:
        """Bits of a sum in a RESULT: those of the lane, or fewer where results are packed."""
        return self.lane_bits if self.down_bytes == LANES_BYTES else PACKED_LANE_BITS


SHAPES: Final[dict[int, Shape]] = {
    Op.LOOKUP_ADD8: Shape(CODES8_BYTES, LANES_BYTES, 1024, ">u1", has_codes=True),
    Op.LOOKUP_ADD16: Shape(CODES16_BYTES, LANES_BYTES, 512, ">u2", has_codes=True),
    Op.ADD8: Shape(LANES_BYTES, LANES_BYTES, 1024, ">u1"),
    Op.ADD16: Shape(LANES_BYTES, LANES_BYTES, 512, ">u2"),
    Op.ADD32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
    Op.OR: Shape(LANES_BYTES, LANES_BYTES, 8192, ">u1"),
    Op.MAX32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
    Op.LOOKUP_ADD6: Shape(CODES8_BYTES, PACKED_BYTES, 1024, ">u1", has_codes=True),
}
"""The ops of the switch program. An element of OR is one bit. Its lanes are bytes, the first bit the highest."""
LONGEST_BYTES: Final = HOPSUM_BYTES + max(max(shape.up_bytes, shape.down_bytes) for shape in SHAPES.values())
"""The longest datagram of any op, up or down."""
PACKET_BYTES: Final = IPV4_BYTES + UDP_BYTES + LONGEST_BYTES
"""Its packet: an MTU that carries any job in one piece."""

_CODE_BITS: Final = 4
_TOP_BITS: Final = 8 - PACKED_LANE_BITS
_TOP_MASK: Final = 0xFF << PACKED_LANE_BITS & 0xFF
"""Bits of a byte of a packed RESULT that belong to a lane of the last quarter."""

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


def pack_codes(codes: NDArray[np.uint8], lane_bits: int = 8, group: int = LANE_GROUP_CODES) -> NDArray[np.uint8]:
    """Pack 4-bit codes into payload bytes.

    Args:
        codes: uint8[..., n], values 0..15, n a multiple of `group`.
        lane_bits: 8 for LOOKUP_ADD8, 16 for LOOKUP_ADD16.
        group: codes of a group, one of CODE_GROUPS.

    Returns:
        uint8[..., n / 2], a new array.

    Raises:
        WireError: a code above 15, or a last axis that is no multiple of `group`, with reason BAD_VALUE or BAD_LENGTH.
    """
    nibbles = lane_bits // _CODE_BITS
    # Code i of a group goes into nibble i // (group / nibbles) of word i % (group / nibbles): a program shifts all
    # words of a group at once.
    groups = _grouped(codes, (nibbles, group // nibbles), group, "codes")
    # A larger code would spill into its neighbour's bits.
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
        WireError: a last axis that is no multiple of `group` / 2, with reason BAD_LENGTH.
    """
    group_bytes = group * _CODE_BITS // 8
    groups = _grouped(packed, (group_bytes,), group_bytes, "code bytes")
    words = np.ascontiguousarray(groups).view(f">u{lane_bits // 8}")
    # The first codes of a group are in the highest nibbles.
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


def pack_sums(sums: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return RESULT payloads of LOOKUP_ADD6, uint8[..., 768], a new array, for lanes of up to 63, uint8[..., 1024].

    What a lane has above 63 spoils its neighbours, as in the switch: the controller proves that no lane has.
    """
    # 768 lanes keep their low 6 bits in bytes of their own. The 6 bits of each of the last 256 lanes are spread over
    # the two high bits of three such bytes.
    last = sums[..., PACKED_BYTES:]
    shifts = range(PACKED_LANE_BITS, 0, -_TOP_BITS)
    tops = [(last << np.uint8(shift)) & np.uint8(_TOP_MASK) for shift in shifts]
    return sums[..., :PACKED_BYTES] | np.concatenate(tops, axis=-1)


def unpack_sums(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `pack_sums`: uint8[..., 768] to uint8[..., 1024], a new array."""
    sums = np.empty((*packed.shape[:-1], LANES_BYTES), np.uint8)
    # Every operation writes into `sums`: this runs for each RESULT, and a temporary array costs more than the
    # arithmetic.
    np.bitwise_and(packed, np.uint8(~_TOP_MASK & 0xFF), out=sums[..., :PACKED_BYTES])
    last, each = sums[..., PACKED_BYTES:], PACKED_BYTES // 3
    np.right_shift(packed[..., :each], np.uint8(PACKED_LANE_BITS), out=last)
    for part in (1, 2):
        top = packed[..., part * each : (part + 1) * each] & np.uint8(_TOP_MASK)
        last |= top >> np.uint8(PACKED_LANE_BITS - _TOP_BITS * part)
    return sums


def lanes(op: int, payload: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the lanes of RESULT payloads (or of UPDATE payloads without codes, or of PARTIAL) in element order.

    Args:
        op: decides the lane type: uint8 or big-endian uint16 or uint32, as `SHAPES` says.
        payload: uint8[..., bytes], contiguous in its last axis.

    Returns:
        A view, or a new array for packed results.

    Raises:
        WireError: unknown op (BAD_OP), or a last axis that is no multiple of the lane (BAD_LENGTH).
    """
    shape = shape_of(op)
    if payload.ndim and payload.shape[-1] == shape.down_bytes == PACKED_BYTES:
        return unpack_sums(payload)
    dtype = np.dtype(shape.lane_dtype)
    if payload.ndim == 0 or payload.shape[-1] % dtype.itemsize:
        raise WireError(
            Drop.BAD_LENGTH,
            f"payload of shape {payload.shape} holds no whole lanes of {dtype.itemsize} bytes",
        )
    # A view of network byte order: numpy swaps bytes where it computes.
    return payload.view(dtype)
