# SPDX-License-Identifier: Apache-2.0
"""The interface of a backend of `lossless`. Backends make the same bytes: all sums are integers modulo 2^32.

Words used here: `members` are element numbers in ascending order, the support that all ranks know. An edge is a
place in that list. Elements have the integer rint(x * scale), scale that of their run of 1024 elements
(`RANGE_BLOCK`). Scale 0 means 0, whatever x is. A bitmap is uint8, element 0 the highest bit of byte 0.

Peeling: an element that is alone in one of its cells is known from it, and leaves the other two. What peels in the
end does not depend on the order. `order` is a backend's own record of it, of use to the same backend's `solve`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.lossless.layout import SketchLayout

RANGE_BLOCK: Final = 1024
EDGE_SHIFT: Final = 3
"""The place of the edge in an entry of `order`: edge << 3 | starts a round << 2 | third of the cell that it was alone
in."""
MAX_EDGES: Final = 1 << 24
"""The most edges of one sketch."""


class Bloom(NamedTuple):
    """A Bloom filter.

    Probe i of an element e: (low + i * (high | 1)) mod 2^32 * bits / 2^32, rounded down, where low and high are the
    halves of splitmix64(key + e). Bit 0 is the highest of byte 0.
    """

    bits: int
    """1 to 2^32."""
    hashes: int
    key: int


class SketchKernels(Protocol):
    """A backend. Arrays are contiguous. `out` is filled, everything else only read, unless said otherwise."""

    name: str

    def scan(self, x: NDArray[np.float32], peaks: NDArray[np.uint32]) -> int:
        """Fill the bits of the largest magnitude of each run, uint32[runs]. Return how many elements are not zero."""

    def mark(self, x: NDArray[np.float32], scales: NDArray[np.float32], bits: NDArray[np.uint8]) -> None:
        """Fill the bitmap of the elements whose integer is not zero, uint8[ceil(elements / 8)]."""

    def select(self, bits: NDArray[np.uint8], first: int, out: NDArray[np.uint32]) -> None:
        """Fill `first` + the numbers of the set bits, as many as `out` has."""

    def bloom_add(self, members: NDArray[np.uint32], bloom: Bloom, bits: NDArray[np.uint8]) -> None:
        """Set the bits of elements in a filter."""

    def bloom_query(
        self, first: int, count: int, bloom: Bloom, bits: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None:
        """Fill the bitmap of those of `count` elements from `first` on that a filter holds."""

    def quantise(
        self,
        x: NDArray[np.float32],
        scales: NDArray[np.float32],
        members: NDArray[np.uint32],
        out: NDArray[np.int32],
    ) -> None:
        """Fill the integers of members."""

    def peel(self, members: NDArray[np.uint32], layout: SketchLayout, order: NDArray[np.uint32]) -> int:
        """Return how many edges peel. `order` then has these first, then the others, ascending."""

    def add(
        self, values: NDArray[np.int32], members: NDArray[np.uint32], layout: SketchLayout, cells: NDArray[np.uint32]
    ) -> None:
        """Add values to their three cells each, uint32[layout.cells]."""

    def solve(
        self,
        cells: NDArray[np.uint32],
        members: NDArray[np.uint32],
        layout: SketchLayout,
        order: NDArray[np.uint32],
        out: NDArray[np.int32],
    ) -> None:
        """Fill `out` at the edges of `order`, all of which peel, and take them from the cells, which are changed."""

    def spread(
        self,
        values: NDArray[np.int32],
        members: NDArray[np.uint32],
        divisors: NDArray[np.float64],
        out: NDArray[np.float32],
    ) -> None:
        """Set members of `out` to float32(value / divisor). Divisors are those of runs of 1024 elements."""
