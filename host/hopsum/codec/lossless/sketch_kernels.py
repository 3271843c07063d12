# SPDX-License-Identifier: Apache-2.0
"""The kernels of `lossless`: where an element lies in a sketch, the interface of a backend, and the numpy reference.

Layout. An element has three cells, each with a sign. A sketch has three thirds of `third` cells each. All elements of a
block of 2^block_shift consecutive elements share one hash, 64 bits h = splitmix64(key + block). In third j the block
lies from cell start_j on, around its end:

    start_j = (bits 20 j to 20 j + 19 of h) * third / 2^20, rounded down
    cell_j  = j * third + (start_j + column) mod third           column: place of the element in its block
    sign_j  = -1 where bit 60 + j of h is set

The publication (Li et al., arXiv 2402.07529, and its code) hashes a block to three whole rows of the sketch, so that
every column is a small hypergraph of its own: a column with more elements than the average fails alone, and rows are
too coarse for small vectors. Shifted blocks make one large hypergraph instead, which peels from 1.23 cells per
element on, whatever the block size (tests/host/codec/lossless/test_sketch_plan.py compares the two).

A block must be much shorter than a third: two dense blocks overlap in runs, and few runs make a small hypergraph
again. `SketchLayout.with_blocks` shortens blocks to at most a thirty-second of a third.

Kernels. Backends make the same bytes: all sums are integers modulo 2^32.

Words used here: `members` are element numbers in ascending order, the support that all ranks know. An edge is a
place in that list. Elements have the integer rint(x * scale), scale that of their run of 1024 elements
(`RANGE_BLOCK`). Scale 0 means 0, whatever x is. A bitmap is uint8, element 0 the highest bit of byte 0.

Peeling: an element that is alone in one of its cells is known from it, and leaves the other two. What peels in the
end does not depend on the order. `order` is a backend's own record of it, of use to the same backend's `solve`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.hashing import mix_keys
from hopsum.codec.interface import Bytes, Doubles, Floats, Ints, Words

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
    def with_blocks(cls, third: int, block_elements: int, key: int) -> SketchLayout:
        """Return a layout with blocks of at most `block_elements`, a power of two, and of at most 1/32 of a third."""
        # At least 32 blocks to a third: fewer make a hypergraph that peels badly.
        longest = max(0, third.bit_length() - 1 - _BLOCKS_PER_THIRD_BITS)
        return cls(third, min(block_elements.bit_length() - 1, longest), key)

    @property
    def cells(self) -> int:
        """Return the cells of all three thirds."""
        return 3 * self.third


def cells_and_signs(members: Words, layout: SketchLayout) -> tuple[NDArray[np.int64], Words]:
    """Return the cells of elements, int64[3, members], and the signs, uint32[3, members]: 1 or 2^32 - 1."""
    numbers = members.astype(np.uint64)
    hashes = mix_keys(layout.key, numbers >> np.uint64(layout.block_shift))
    columns = (numbers & np.uint64((1 << layout.block_shift) - 1)).astype(np.int64)
    cells = np.empty((3, members.size), np.int64)
    signs = np.empty((3, members.size), np.uint32)
    for j in range(3):
        bits = (hashes >> np.uint64(START_BITS * j) & np.uint64((1 << START_BITS) - 1)).astype(np.int64)
        # Multiply and shift in place of modulo: 20 bits times a third of up to 2^24 cells stay within 64 bits.
        start = bits * layout.third >> START_BITS
        cells[j] = j * layout.third + (start + columns) % layout.third
        negative = (hashes >> np.uint64(SIGN_BIT + j) & np.uint64(1)).astype(np.bool_)
        signs[j] = np.where(negative, np.uint32(0xFFFF_FFFF), np.uint32(1))
    return cells, signs


# ---- the interface -----------------------------------------------------------------------------------------

RANGE_BLOCK: Final = 1024
EDGE_SHIFT: Final = 3
"""The place of the edge in an entry of `order`: edge << 3 | starts a round << 2 | third of the cell that it was alone
in."""


class Bloom(NamedTuple):
    """A Bloom filter.

    Probe i of an element e: (low + i * (high | 1)) mod 2^32 * bits / 2^32, rounded down, where low and high are the
    halves of splitmix64(key + e). Bit 0 is the highest of byte 0.
    """

    bits: int
    """1 to 2^32."""
    hashes: int
    key: int


# ---- the kernels, in numpy: peeling in parallel rounds, all cells at once ----------------------------------

_RUN = 1 << 20


class SketchKernels:
    """The kernels of a backend. This class is the reference, in numpy, written for reading, and the base of the others.

    Arrays are contiguous. `out` is filled, everything else only read, unless said otherwise.
    """

    name = "numpy"

    def scan(self, x: Floats, peaks: Words) -> int:
        """Fill the bits of the largest magnitude of each run, uint32[runs]. Return how many elements are not zero."""
        # Compare magnitudes as unsigned integers, which have the same order.
        bits = x.view(np.uint32) & np.uint32(0x7FFF_FFFF)
        # One pass for all runs of 1024, the last one shorter.
        np.maximum.reduceat(bits, np.arange(0, x.size, RANGE_BLOCK), out=peaks)
        return int(np.count_nonzero(bits))

    def mark(self, x: Floats, scales: Floats, bits: Bytes) -> None:
        """Fill `bits`, uint8[ceil(elements / 8)], with the bitmap of elements whose rounded integer is not 0."""
        for start in range(0, x.size, _RUN):
            run = slice(start, start + _RUN)
            runs = scales[start // RANGE_BLOCK : (start + _RUN) // RANGE_BLOCK]
            scale = runs.repeat(RANGE_BLOCK)[: x[run].size]
            with np.errstate(invalid="ignore", under="ignore"):
                # More than a half rounds to an integer that is not 0. A half itself rounds to the even neighbour, 0.
                marked = np.packbits(np.abs(x[run] * scale) > np.float32(0.5))
            bits[start // 8 : start // 8 + marked.size] = marked

    def select(self, bits: Bytes, first: int, out: Words) -> None:
        """Fill `out` with the indices of the set bits, in increasing order, plus `first`."""
        out[:] = np.flatnonzero(np.unpackbits(bits)) + first

    def bloom_add(self, members: Words, bloom: Bloom, bits: Bytes) -> None:
        """Set in `bits`, those of a filter, the bits of members. Others stay as they are."""
        for place in _probes(members.astype(np.uint64), bloom):
            np.bitwise_or.at(bits, place >> 3, (0x80 >> (place & 7)).astype(np.uint8))

    def bloom_query(self, first: int, count: int, bloom: Bloom, bits: Bytes, out: Bytes) -> None:
        """Fill `out` with the bitmap of those of `count` elements from `first` on that a filter's `bits` hold."""
        for start in range(0, count, _RUN):
            numbers = np.arange(first + start, first + min(start + _RUN, count), dtype=np.uint64)
            held = np.ones(numbers.size, np.bool_)
            for place in _probes(numbers, bloom):
                held &= (bits[place >> 3] << (place & 7).astype(np.uint8) & np.uint8(0x80)).astype(np.bool_)
            packed = np.packbits(held)
            out[start // 8 : start // 8 + packed.size] = packed

    def quantise(self, x: Floats, scales: Floats, members: Words, out: Ints) -> None:
        """Fill `out` with the integers rint(x * scale) of members. Scales are those of runs of 1024 elements."""
        # Scale by a power of two, which is exact, and round.
        scale = scales[members // np.uint32(RANGE_BLOCK)]
        with np.errstate(under="ignore"):
            out[:] = np.rint(np.where(scale != 0, x[members], np.float32(0)) * scale).astype(np.int32)

    def peel(self, members: Words, layout: SketchLayout, order: Words) -> int:
        """Fill `order` with the edges that peel, then with the others, ascending. Return how many peel."""
        # Per round: cells of one edge, from the number of edges of each cell and the sum of their numbers.
        cells, _ = cells_and_signs(members, layout)
        edges = np.arange(members.size)
        # The number of edges of each cell, and the sum of their numbers: the sum names the edge where the number is 1.
        degrees = np.bincount(cells.reshape(-1), minlength=layout.cells)
        sums = np.bincount(cells.reshape(-1), np.tile(edges, 3), layout.cells).astype(np.int64)
        left = np.ones(members.size, np.bool_)
        peeled = 0
        while (alone := np.flatnonzero(degrees == 1)).size:
            # An edge may be alone in two of its cells: it peels once.
            found, place = np.unique(sums[alone], return_index=True)
            entries = found << EDGE_SHIFT | alone[place] // layout.third
            # Marks the first edge of a round: `solve` may do the edges of a round at once, rounds only in order.
            entries[0] |= 4
            order[peeled : peeled + found.size] = entries
            peeled += found.size
            left[found] = False
            gone = cells[:, found].reshape(-1)
            # `at`, since two edges of a round may share a cell.
            np.subtract.at(degrees, gone, 1)
            np.subtract.at(sums, gone, np.tile(found, 3))
        # Edges that did not peel follow, so that the caller can pack them.
        order[peeled:] = np.flatnonzero(left) << EDGE_SHIFT
        return peeled

    def add(self, values: Ints, members: Words, layout: SketchLayout, cells: Words) -> None:
        """Add each value, with a sign by the hash of its index, to its three of `cells`, uint32[layout.cells]."""
        # Modulo 2^32, so that the sign is a factor.
        where, signs = cells_and_signs(members, layout)
        # Unsigned: sums wrap modulo 2^32, as the switch's do.
        np.add.at(cells, where, signs * values.view(np.uint32))

    def solve(self, cells: Words, members: Words, layout: SketchLayout, order: Words, out: Ints) -> None:
        """Fill `out` at the edges of `order`, all of which peel, and take them from the cells, which are changed."""
        # Edges of one round do not share the cells that they are alone in.
        where, signs = cells_and_signs(members, layout)
        values = out.view(np.uint32)
        # Round by round: an edge can be solved once all edges before it have left its cells.
        for entries in np.split(order, np.flatnonzero(order & np.uint32(4))[1:]):
            edges, third = entries >> EDGE_SHIFT, entries & np.uint32(3)
            values[edges] = cells[where[third, edges]] * signs[third, edges]
            np.subtract.at(cells, where[:, edges], signs[:, edges] * values[edges])

    def spread(self, values: Ints, members: Words, divisors: Doubles, out: Floats) -> None:
        """Set members of `out` to float32(value / divisor). Divisors are those of runs of 1024 elements."""
        # Divide in float64, which holds every int32.
        out[members] = values / divisors[members // np.uint32(RANGE_BLOCK)]


def _probes(numbers: NDArray[np.uint64], bloom: Bloom) -> Iterator[NDArray[np.int64]]:
    hashes = mix_keys(bloom.key, numbers)
    low, step = hashes & np.uint64(0xFFFF_FFFF), hashes >> np.uint64(32) | np.uint64(1)
    for probe in range(bloom.hashes):
        bits = low + np.uint64(probe) * step & np.uint64(0xFFFF_FFFF)
        yield (bits * np.uint64(bloom.bits) >> np.uint64(32)).astype(np.int64)
