# SPDX-License-Identifier: Apache-2.0
"""Codec `thc-published`: THC as published (Li et al., NSDI 2024), for comparisons. It registers itself when imported.

It has one range for the whole vector, its root mean square, and the published default table whatever the number of
workers. Codec `thc` differs in both: a range per block, and a table for the job. Where few blocks hold the energy of a
vector, one range truncates their coordinates. Everything else is `thc`: blocks of 1024 are rotated, rounded and added.

Codes are those of `thc` for shared ranges that are all the same, so that blocks which exceed the range are clipped to
it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import LookupTable, ReductionContext, SharedRanges, register_codec
from hopsum.codec.backends.kernels import Kernels
from hopsum.codec.interface import blocks_of
from hopsum.codec.thc import HUGE, LookupTableCodec
from hopsum.codec.vector_reduction import INFINITE, require_ranges

NAME: Final = "thc-published"
PUBLISHED: Final = LookupTable((0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30), 1 / 32)
"""The published default: g = 30, p = 1/32."""


class ThcPublished(LookupTableCodec):
    """THC with one range for the vector. The contract is `hopsum.codec.range_codec.RangeCodec`.

    Args:
        workers: of the job. Their values of up to 30 need to fit in a lane.
        lane_bits: of a lane of the switch, 8 or 16.
        kernels: of a backend; "auto" on one thread if left out.

    Raises:
        CodecError: the sum of `workers` values may overflow a lane.
    """

    name = NAME
    # A part of a vector has no range of its own.
    streams = False

    def __init__(self, workers: int, *, lane_bits: int = 8, kernels: Kernels | None = None) -> None:
        super().__init__(workers, PUBLISHED, lane_bits=lane_bits, kernels=kernels)

    def ranges(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the bits of the vector's root mean square, uint32[1]: of infinity where it is NaN or above `HUGE`."""
        blocks = super().ranges(x).view(np.float32)
        # A block's root mean square counts padding as zeros: times the elements of a block, it is the energy of real
        # elements.
        energy = np.square(blocks, dtype=np.float64).sum() * self.block_elements
        shared = np.array([math.sqrt(energy / x.size)]).astype(np.float32)
        # Written so that not-a-number is refused too.
        if not shared[0] <= HUGE:
            return np.array([INFINITE], np.uint32)
        return shared.view(np.uint32)

    def ranges_of_sum(self, x: NDArray[np.float32], residual: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return `ranges` of x + residual."""
        return self.ranges(x + residual)

    def encode(
        self, x: NDArray[np.float32], own: NDArray[np.uint32], shared: SharedRanges, context: ReductionContext,
        **options: Any,
    ) -> NDArray[np.uint8]:  # fmt: skip
        """Encode with the one range for all blocks, see `RangeCodec.encode`."""
        return super().encode(x, super().ranges(x), self._of_blocks_alike(shared, x.size), context, **options)

    def decode(
        self, results: NDArray[np.uint8], contributors: NDArray[np.uint64], shared: SharedRanges, elements: int,
        context: ReductionContext, out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Decode with the one range for all blocks, see `RangeCodec.decode`."""
        alike = self._of_blocks_alike(shared, elements)
        return super().decode(results, contributors, alike, elements, context, out)

    def dequantize_own(
        self, payloads: NDArray[np.uint8], shared: SharedRanges, elements: int, context: ReductionContext,
        included: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Decode a worker's own codes with the one range, see `RangeCodec.dequantize_own`."""
        alike = self._of_blocks_alike(shared, elements)
        return super().dequantize_own(payloads, alike, elements, context, included)

    def subtract_dequantized(
        self, x: NDArray[np.float32], payloads: NDArray[np.uint8], shared: SharedRanges, context: ReductionContext,
        included: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Subtract a worker's own decoded codes, see `RangeCodec.subtract_dequantized`."""
        alike = self._of_blocks_alike(shared, x.size)
        super().subtract_dequantized(x, payloads, alike, context, included)

    def _of_blocks_alike(self, shared: SharedRanges, elements: int) -> SharedRanges:
        # Kernels know ranges by block only: the one range is repeated for each.
        require_ranges(shared.values, 1, "shared")
        return SharedRanges(np.full(blocks_of(elements, self.block_elements), shared.values[0]))


register_codec(NAME, ThcPublished)
