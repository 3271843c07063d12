# SPDX-License-Identifier: Apache-2.0
"""Header fields of many frames at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum_wire._layout import Field

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Where = Field | tuple[Ints, Ints]
"""A field, or offset and width in bits, for each frame its own. No field crosses eight bytes from its first one."""
_WINDOW = np.arange(8)


def read(rows: NDArray[np.uint8], at: Ints, start: int | Ints, where: Where) -> Words:
    """Return a field of the rows `at`, of headers that start at these bytes: uint64[len(at)]."""
    first, shift, mask = _place(start, where, len(at))
    return _windows(rows, at, first) >> shift & mask


def write(rows: NDArray[np.uint8], at: Ints, start: int | Ints, where: Where, values: Words) -> None:
    """Set a field of the rows `at`, in place, to the low bits of `values`."""
    first, shift, mask = _place(start, where, len(at))
    window = _windows(rows, at, first)
    window = window & ~(mask << shift) | (values & mask) << shift
    rows[at[:, None], first[:, None] + _WINDOW] = window.astype(">u8").view(np.uint8).reshape(-1, 8)


def _windows(rows: NDArray[np.uint8], at: Ints, first: Ints) -> Words:
    return rows[at[:, None], first[:, None] + _WINDOW].view(">u8")[:, 0].astype(np.uint64)


def _place(start: int | Ints, where: Where, count: int) -> tuple[Ints, Words, Words]:
    """Return the first byte, and shift and mask within the eight bytes from there."""
    offset, bits = (where.offset_bits, where.bits) if isinstance(where, Field) else where
    first = np.broadcast_to(np.asarray(start + offset // 8, np.int64), count)
    shift = np.broadcast_to(np.asarray(64 - offset % 8 - bits, np.uint64), count)
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.broadcast_to(np.asarray(64 - np.asarray(bits), np.uint64), count)
    return first, shift, mask
