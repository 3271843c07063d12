# SPDX-License-Identifier: Apache-2.0
"""Payloads: sizes per op, the order of codes, and lanes as arrays.

Lanes are in element order. Codes travel in groups of 512 (`LANE_GROUP_CODES`): byte j of a group holds code j
in its high nibble and code j + 256 in its low nibble.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.wire._layout import CODES_BYTES, LANE_GROUP_CODES, LANES_BYTES, Drop, Op
from hopsum.wire.errors import WireError


class Shape(NamedTuple):
    """What an op carries: bytes and elements of a full chunk."""

    up_bytes: int
    down_bytes: int
    elements: int
    lane_dtype: str


SHAPES: Final[dict[int, Shape]] = {
    Op.LOOKUP_ADD8: Shape(CODES_BYTES, LANES_BYTES, 1024, ">u1"),
    Op.ADD32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
    Op.MAX32: Shape(LANES_BYTES, LANES_BYTES, 256, ">u4"),
}
"""The ops that the switch program implements."""

_HALF: Final = LANE_GROUP_CODES // 2


def shape_of(op: int) -> Shape:
    """Return sizes and lane type of an op.

    Raises:
        WireError: the op is unknown or only reserved; reason BAD_OP.
    """
    shape = SHAPES.get(op)
    if shape is None:
        names = ", ".join(Op(known).name for known in SHAPES)
        raise WireError(Drop.BAD_OP, f"op {op} is not implemented by the switch program; it has {names}")
    return shape


def up_bytes(op: int) -> int:
    """Return the payload bytes of an UPDATE. Raises WireError (BAD_OP)."""
    return shape_of(op).up_bytes


def down_bytes(op: int) -> int:
    """Return the payload bytes of a RESULT. Raises WireError (BAD_OP)."""
    return shape_of(op).down_bytes


def pack_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack 4-bit codes into payload bytes.

    Args:
        codes: uint8[..., 1024], values 0..15; any multiple of 512 in the last axis is accepted.

    Returns:
        uint8[..., 512], a new array; half as many bytes as codes.

    Raises:
        WireError: a code above 15, or a last axis that is no multiple of 512; reason BAD_VALUE or BAD_LENGTH.
    """
    groups = _grouped(codes, (2, _HALF), LANE_GROUP_CODES, "codes")
    if codes.size and int(codes.max()) > 15:
        raise WireError(Drop.BAD_VALUE, f"code {int(codes.max())} does not fit in 4 bits")
    packed: NDArray[np.uint8] = np.bitwise_or(groups[..., 0, :] << np.uint8(4), groups[..., 1, :])
    return packed.reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack_codes(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `pack_codes`: uint8[..., 512] to uint8[..., 1024], a new array.

    Raises:
        WireError: a last axis that is no multiple of 256; reason BAD_LENGTH.
    """
    groups = _grouped(packed, (_HALF,), _HALF, "code bytes")
    codes = np.stack((groups >> np.uint8(4), groups & np.uint8(15)), axis=-2)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def _grouped(array: NDArray[np.uint8], inner: tuple[int, ...], group: int, what: str) -> NDArray[np.uint8]:
    if array.dtype != np.uint8:
        raise WireError(Drop.BAD_VALUE, f"{what} must be uint8, not {array.dtype}")
    if array.ndim == 0 or array.shape[-1] % group:
        raise WireError(Drop.BAD_LENGTH, f"{what} of shape {array.shape}: last axis must be a multiple of {group}")
    return array.reshape(*array.shape[:-1], array.shape[-1] // group, *inner)


def lanes(op: int, payload: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the lanes of RESULT payloads (or of ADD32 and MAX32 UPDATE payloads), a view in element order.

    Args:
        op: decides the lane type: uint8 for LOOKUP_ADD8, big-endian uint32 for ADD32 and MAX32.
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
