# SPDX-License-Identifier: Apache-2.0
"""The numpy backend: peeling in parallel rounds, all cells at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.hashing import mix_keys
from hopsum.codec.lossless.kernels import EDGE_SHIFT, RANGE_BLOCK, Bloom
from hopsum.codec.lossless.layout import SketchLayout, places

_RUN = 1 << 20


class NumpySketch:
    """`SketchKernels` in numpy, written for reading: the reference of the compiled ones."""

    name = "numpy"

    def scan(self, x: NDArray[np.float32], peaks: NDArray[np.uint32]) -> int:
        """Compare magnitudes as unsigned integers, which have the same order."""
        bits = x.view(np.uint32) & np.uint32(0x7FFF_FFFF)
        np.maximum.reduceat(bits, np.arange(0, x.size, RANGE_BLOCK), out=peaks)
        return int(np.count_nonzero(bits))

    def mark(self, x: NDArray[np.float32], scales: NDArray[np.float32], bits: NDArray[np.uint8]) -> None:
        """A half rounds to the even neighbour, which is 0."""
        for start in range(0, x.size, _RUN):
            run = slice(start, start + _RUN)
            runs = scales[start // RANGE_BLOCK : (start + _RUN) // RANGE_BLOCK]
            scale = runs.repeat(RANGE_BLOCK)[: x[run].size]
            with np.errstate(invalid="ignore", under="ignore"):
                marked = np.packbits(np.abs(x[run] * scale) > np.float32(0.5))
            bits[start // 8 : start // 8 + marked.size] = marked

    def select(self, bits: NDArray[np.uint8], first: int, out: NDArray[np.uint32]) -> None:
        """Unpack."""
        out[:] = np.flatnonzero(np.unpackbits(bits)) + first

    def bloom_add(self, members: NDArray[np.uint32], bloom: Bloom, bits: NDArray[np.uint8]) -> None:
        """One probe of all elements after the other."""
        for place in _probes(members.astype(np.uint64), bloom):
            np.bitwise_or.at(bits, place >> 3, (0x80 >> (place & 7)).astype(np.uint8))

    def bloom_query(
        self, first: int, count: int, bloom: Bloom, bits: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None:
        """One probe of all elements after the other, a run at a time."""
        for start in range(0, count, _RUN):
            numbers = np.arange(first + start, first + min(start + _RUN, count), dtype=np.uint64)
            held = np.ones(numbers.size, np.bool_)
            for place in _probes(numbers, bloom):
                held &= (bits[place >> 3] << (place & 7).astype(np.uint8) & np.uint8(0x80)).astype(np.bool_)
            packed = np.packbits(held)
            out[start // 8 : start // 8 + packed.size] = packed

    def quantise(
        self,
        x: NDArray[np.float32],
        scales: NDArray[np.float32],
        members: NDArray[np.uint32],
        out: NDArray[np.int32],
    ) -> None:
        """Scale by a power of two, which is exact, and round."""
        scale = scales[members // np.uint32(RANGE_BLOCK)]
        with np.errstate(under="ignore"):
            out[:] = np.rint(np.where(scale != 0, x[members], np.float32(0)) * scale).astype(np.int32)

    def peel(self, members: NDArray[np.uint32], layout: SketchLayout, order: NDArray[np.uint32]) -> int:
        """Per round: cells of one edge, from the number of edges of each cell and the sum of their numbers."""
        cells, _ = places(members, layout)
        edges = np.arange(members.size)
        degrees = np.bincount(cells.reshape(-1), minlength=layout.cells)
        sums = np.bincount(cells.reshape(-1), np.tile(edges, 3), layout.cells).astype(np.int64)
        left = np.ones(members.size, np.bool_)
        peeled = 0
        while (alone := np.flatnonzero(degrees == 1)).size:
            found, place = np.unique(sums[alone], return_index=True)
            entries = found << EDGE_SHIFT | alone[place] // layout.third
            entries[0] |= 4
            order[peeled : peeled + found.size] = entries
            peeled += found.size
            left[found] = False
            gone = cells[:, found].reshape(-1)
            np.subtract.at(degrees, gone, 1)
            np.subtract.at(sums, gone, np.tile(found, 3))
        order[peeled:] = np.flatnonzero(left) << EDGE_SHIFT
        return peeled

    def add(
        self, values: NDArray[np.int32], members: NDArray[np.uint32], layout: SketchLayout, cells: NDArray[np.uint32]
    ) -> None:
        """Modulo 2^32, so that the sign is a factor."""
        where, signs = places(members, layout)
        np.add.at(cells, where, signs * values.view(np.uint32))

    def solve(
        self,
        cells: NDArray[np.uint32],
        members: NDArray[np.uint32],
        layout: SketchLayout,
        order: NDArray[np.uint32],
        out: NDArray[np.int32],
    ) -> None:
        """Edges of one round do not share the cells that they are alone in."""
        where, signs = places(members, layout)
        values = out.view(np.uint32)
        for entries in np.split(order, np.flatnonzero(order & np.uint32(4))[1:]):
            edges, third = entries >> EDGE_SHIFT, entries & np.uint32(3)
            values[edges] = cells[where[third, edges]] * signs[third, edges]
            np.subtract.at(cells, where[:, edges], signs[:, edges] * values[edges])

    def spread(
        self,
        values: NDArray[np.int32],
        members: NDArray[np.uint32],
        divisors: NDArray[np.float64],
        out: NDArray[np.float32],
    ) -> None:
        """Divide in float64, which holds every int32."""
        out[members] = values / divisors[members // np.uint32(RANGE_BLOCK)]


def make_kernels() -> NumpySketch:
    """Return the backend."""
    return NumpySketch()


def _probes(numbers: NDArray[np.uint64], bloom: Bloom) -> Iterator[NDArray[np.int64]]:
    hashes = mix_keys(bloom.key, numbers)
    low, step = hashes & np.uint64(0xFFFF_FFFF), hashes >> np.uint64(32) | np.uint64(1)
    for probe in range(bloom.hashes):
        bits = low + np.uint64(probe) * step & np.uint64(0xFFFF_FFFF)
        yield (bits * np.uint64(bloom.bits) >> np.uint64(32)).astype(np.int64)
