# SPDX-License-Identifier: Apache-2.0
"""The cells of an element in a sketch: three of them, each with a sign.

A sketch has three thirds of `third` cells each. All elements of a block of 2^block_shift consecutive elements share
one hash, 64 bits h = splitmix64(key + block). In third j the block lies from cell start_j on, around its end:

    start_j = (bits 20 j to 20 j + 19 of h) * third / 2^20, rounded down
    cell_j  = j * third + (start_j + column) mod third           column: place of the element in its block
    sign_j  = -1 where bit 60 + j of h is set

The publication (Li et al., arXiv 2402.07529, and its code) hashes a block to three whole rows of the sketch, so that
every column is a small hypergraph of its own: a column with more elements than the average fails alone, and rows are
too coarse for small vectors. Shifted blocks make one large hypergraph instead, which peels from 1.23 cells per
element on, whatever the block size (tests/host/codec/lossless/test_layout.py compares the two).

A block must be much shorter than a third: two dense blocks overlap in runs, and few runs make a small hypergraph
again. `SketchLayout.of` shortens blocks to at most a thirty-second of a third.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.hashing import mix_keys

START_BITS: Final = 20
SIGN_BIT: Final = 3 * START_BITS
_BLOCKS_PER_THIRD_BITS: Final = 5


class SketchLayout(NamedTuple):
    """A sketch: its size and its hash functions."""

    third: int
    """Cells of a third, at least 1."""
    block_shift: int
    """log2 of the elements that share their hashes. 2^block_shift <= third."""
    key: int

    @classmethod
    def of(cls, third: int, block_elements: int, key: int) -> SketchLayout:
        """Make a layout with blocks of at most `block_elements`, a power of two."""
        longest = max(0, third.bit_length() - 1 - _BLOCKS_PER_THIRD_BITS)
        return cls(third, min(block_elements.bit_length() - 1, longest), key)

    @property
    def cells(self) -> int:
        """Of the sketch."""
        return 3 * self.third


def places(members: NDArray[np.uint32], layout: SketchLayout) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the cells of elements, int64[3, members], and the signs, uint32[3, members]: 1 or 2^32 - 1."""
    numbers = members.astype(np.uint64)
    hashes = mix_keys(layout.key, numbers >> np.uint64(layout.block_shift))
    columns = (numbers & np.uint64((1 << layout.block_shift) - 1)).astype(np.int64)
    cells = np.empty((3, members.size), np.int64)
    signs = np.empty((3, members.size), np.uint32)
    for j in range(3):
        bits = (hashes >> np.uint64(START_BITS * j) & np.uint64((1 << START_BITS) - 1)).astype(np.int64)
        start = bits * layout.third >> START_BITS
        cells[j] = j * layout.third + (start + columns) % layout.third
        negative = (hashes >> np.uint64(SIGN_BIT + j) & np.uint64(1)).astype(np.bool_)
        signs[j] = np.where(negative, np.uint32(0xFFFF_FFFF), np.uint32(1))
    return cells, signs
