# SPDX-License-Identifier: Apache-2.0
"""Codec `fixed`: 32-bit fixed point, added exactly by the switch. Nothing is compressed: it is the yardstick.

Each block of 256 elements, one chunk, shares the largest magnitude M over all workers. Elements are multiplied
by 2^s and rounded to the nearest integer, with s = 31 - ceil(log2 n) - e where M < 2^e: then |x 2^s| is at most
2^(31-b) - 2^(7-b) with b = ceil(log2 n), since a float32 has 24 significant bits, and the sum of n <= 2^b such
integers is at most 2^31 - 128. s stops at 126, where 2^s is still a normal float32: blocks below 2^-101 lose
resolution, no more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import FIXED_BLOCK, Kernels
from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    Doubles,
    Flags,
    Floats,
    Ints,
    ReductionContext,
    Words,
    blocks_of,
    contributor_counts,
    padded_rows,
    require_rows,
    require_vector,
    require_workers,
)
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.vector_reduction import INFINITE, SharedRanges, require_finite, require_ranges, require_usable
from hopsum_wire import LANE_GROUP_CODES, Op
from hopsum_wire.payload import SHAPES

_SHAPE: Final = SHAPES[Op.ADD32]
_FINEST_EXPONENT: Final = 126


def fixed_exponents(ranges: Floats, workers: int) -> Ints:
    """Return the exponents s, int32[blocks], with which the sum of `workers` integers x 2^s fits 32 bits.

    Args:
        ranges: float32[blocks], the largest magnitude of each block, finite.
    """
    # Powers of two scale exactly, so that rounding to an integer is the only error.
    magnitude = np.frexp(ranges)[1]
    finest = 31 - (workers - 1).bit_length() - magnitude
    exponents: Ints = np.minimum(finest, _FINEST_EXPONENT).astype(np.int32)
    return exponents


class Fixed(RangeCodec):
    """Codec `fixed`: elements as 32-bit integers, one power of two per block. Contexts are not used.

    Args:
        workers: of the job, 1 to 64. Integers leave room for the sum of so many.
        kernels: of a backend; "auto" on one thread if left out.

    Raises:
        CodecError: a number of workers that no job has.
    """

    name = "fixed"
    op = Op.ADD32
    block_elements = FIXED_BLOCK
    lookup: tuple[int, ...] | None = None
    code_group = LANE_GROUP_CODES

    def __init__(self, workers: int, *, kernels: Kernels | None = None) -> None:
        require_workers(workers)
        self.workers = workers
        self.use_kernels(kernels or load_kernels("auto"))
        # The sum of n <= 2^b integers needs b bits more than one of them.
        worker_bits = (workers - 1).bit_length()
        self._limit = np.float32(2.0 ** (31 - worker_bits) - 2.0 ** (7 - worker_bits))

    def ranges(self, x: Floats) -> Words:
        """Return the bits of each block's largest magnitude. See `RangeCodec`."""
        require_vector(x)
        bits = np.concatenate([self.kernels.peak_bits(part) for part in padded_rows(x, FIXED_BLOCK)])
        return np.asarray(np.minimum(bits, np.uint32(INFINITE)))

    def encode(
        self, x: Floats, own: Words, shared: SharedRanges, context: ReductionContext, *, out: Bytes | None = None
    ) -> Bytes:
        """Return big-endian integers. See `RangeCodec`. Elements beyond a shared range are clamped."""
        require_vector(x)
        blocks = blocks_of(x.size, FIXED_BLOCK)
        require_ranges(own, blocks, "own")
        require_finite(own)
        # Integers are scaled by the shared range: all ranks need the same power of two.
        scales = np.ldexp(np.float32(1), self.exponents(shared, blocks)).astype(np.float32)
        lanes = np.empty((blocks, FIXED_BLOCK), np.uint32)
        first = 0
        for part in padded_rows(x, FIXED_BLOCK):
            rows = slice(first, first + len(part))
            self.kernels.fixed_encode(part, scales[rows], self._limit, lanes[rows])
            first += len(part)
        return lanes.view(np.uint8)

    def decode(
        self,
        results: Bytes,
        contributors: Bitmaps,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        out: Floats | None = None,
    ) -> Floats:
        """Return the mean in a new array: the exact sum, divided and rounded to float32 once. See `RangeCodec`."""
        blocks = blocks_of(elements, FIXED_BLOCK)
        require_rows(results, blocks, _SHAPE.down_bytes, f"results of {elements} elements")
        require_ranges(contributors, blocks, "contributors instead of")
        counts = contributor_counts(contributors, self.workers).astype(np.float64)
        return self._divide(results, counts, shared, elements)

    def dequantize_own(
        self,
        payloads: Bytes,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        included: Flags | None = None,
    ) -> Floats:
        """Return the values of these integers, float32[elements], a new array. See `RangeCodec`."""
        blocks = blocks_of(elements, FIXED_BLOCK)
        require_rows(payloads, blocks, _SHAPE.up_bytes, f"payloads of {elements} elements")
        counts = np.ones(blocks)
        if included is not None:
            require_ranges(included, blocks, "included blocks instead of")
            # Divided by infinity is 0: an excluded block adds nothing.
            counts[~included] = np.inf
        return self._divide(payloads, counts, shared, elements)

    def exponents(self, shared: SharedRanges, blocks: int) -> Ints:
        """Return s of each block, int32[blocks]: its integers are x 2^s.

        Raises:
            CodecError: ranges of another number of blocks, or of a bucket that must be skipped.
        """
        require_ranges(shared.values, blocks, "shared")
        require_usable(shared)
        return fixed_exponents(shared.values, self.workers)

    def _divide(self, payloads: Bytes, counts: Doubles, shared: SharedRanges, elements: int) -> Floats:
        # One division by count times scale, and not two: it rounds once.
        divisors = np.ldexp(counts, self.exponents(shared, len(payloads)))
        lanes = np.require(payloads.view(np.uint32), requirements="A")
        out = np.empty((len(payloads), FIXED_BLOCK), np.float32)
        self.kernels.fixed_decode(lanes, divisors, out)
        return out.reshape(-1)[:elements]
