# SPDX-License-Identifier: Apache-2.0
"""Full rotation: signs and a Hadamard transform across the blocks of a slice, before every block is rotated by itself.

A slice has S blocks: 2^13 (2^23 elements in blocks of 1024, as in the published code), or the largest power of two
that the vector has. Slices follow each other from the first block on. Where the last one would not be whole, it is
the last S blocks of the vector, so that it overlaps the one before. Each slice in turn becomes H D x / sqrt(S), where
H acts across its blocks, on each column by itself, and the signs D are its own.

Overlap takes the place of padding: no block is added to the wire, and the energy of any block ends up spread over
all of a slice. All sums are float32 in a fixed order, so that every rank and backend makes the same bytes. The
inverse takes the slices in reverse. It is exact up to float32 rounding.

A slice is worked on in panels of 32 columns, which fit in the second-level cache.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.hashing import block_keys, derive_key, lane_bits

SLICE_BLOCKS: Final = 1 << 13
_COLUMNS: Final = 32
"""The columns of a panel: as many as a block has lanes with sign bits."""


def rotate_blocks(rows: NDArray[np.float32], key: int) -> None:
    """Rotate float32[blocks, B] in place, B a multiple of 32 up to 1024. The rotation follows from key and shape."""
    for number, rows_of_slice in enumerate(_slices(rows)):
        _transform(rows_of_slice, derive_key(key, number), inverse=False)


def rotate_blocks_back(rows: NDArray[np.float32], key: int) -> None:
    """Undo `rotate_blocks` in place."""
    for number, rows_of_slice in reversed(list(enumerate(_slices(rows)))):
        _transform(rows_of_slice, derive_key(key, number), inverse=True)


def _slices(rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return views of equally many blocks, a power of two. The last may overlap the one before."""
    blocks = len(rows)
    size = min(SLICE_BLOCKS, 1 << blocks.bit_length() - 1)
    starts = [*range(0, blocks - size + 1, size), *([blocks - size] if blocks % size else [])]
    return [rows[start : start + size] for start in starts]


def _transform(rows: NDArray[np.float32], key: int, *, inverse: bool) -> None:
    """Apply H D / sqrt(blocks), or its inverse D H / sqrt(blocks), to every column."""
    blocks, elements = rows.shape
    lanes = lane_bits(block_keys(key, 0, blocks), _COLUMNS)
    factor = np.float32(1 / math.sqrt(blocks))
    panel, spare = np.empty((blocks, _COLUMNS), np.float32), np.empty((blocks, _COLUMNS), np.float32)
    for place in range(elements // _COLUMNS):
        columns = slice(place * _COLUMNS, (place + 1) * _COLUMNS)
        signs = lanes << np.uint32(31 - place) & np.uint32(1 << 31)  # bit `place`, at the sign of a float
        np.multiply(rows[:, columns], factor, out=panel)
        if not inverse:
            np.bitwise_xor(panel.view(np.uint32), signs, out=panel.view(np.uint32))
        done = _across(panel, spare)
        if inverse:
            np.bitwise_xor(done.view(np.uint32), signs, out=done.view(np.uint32))
        rows[:, columns] = done


def _across(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the unscaled Hadamard transform of the rows of a, in a or b. Both are overwritten."""
    stride = len(a) // 2
    while stride:
        shape = (-1, 2, stride, a.shape[1])
        source, target = a.reshape(shape), b.reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(source[:, 0], source[:, 1], out=target[:, 0])
            np.subtract(source[:, 0], source[:, 1], out=target[:, 1])
        a, b = b, a
        stride //= 2
    return a
