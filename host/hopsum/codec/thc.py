# SPDX-License-Identifier: Apache-2.0
"""Codec `thc`: 4-bit codes of a randomly rotated vector, looked up and added by the switch (Li et al., NSDI 2024).

Each block of 1024 elements, one chunk, is rotated by H D / 32 (Hadamard matrix, random signs), which makes its
coordinates nearly N(0, r^2) whatever the block was; divided by the range, truncated at +-t, and rounded without
bias to the table's values. The inverse rotation turns the sum of looked-up values into the mean.

The range r is the largest root mean square over the workers, one per block rather than one per tensor: layers of
a network differ by orders of magnitude, and a block whose coordinates are small against the range has only a few
values left of the table. It costs one 32-bit lane per 1024 codes, 0.8 % of the bytes up.

Below TINY a block counts as zero (all of it is quantisation error), above HUGE as not finite: between them no
float32 operation here overflows or loses precision to subnormal numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import INPUT_BITS, THC_BLOCK, BlockKeys, Kernels, Steps
from hopsum.codec.base import (
    CodecError,
    Context,
    blocks_of,
    contributor_counts,
    padded_rows,
    require_rows,
    require_vector,
    require_workers,
)
from hopsum.codec.hashing import ROTATION, ROUNDING, derive_key
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.ranges import INFINITE, SharedRanges, require_finite, require_ranges, require_usable
from hopsum.codec.table import LookupTable, best_table
from hopsum.wire import Op
from hopsum.wire.payload import SHAPES

TINY: Final = 2.0**-100
HUGE: Final = 2.0**120
_SHAPE: Final = SHAPES[Op.LOOKUP_ADD8]
_LANE_MAX: Final = 255


class Thc(RangeCodec):
    """See the module; the contract is `RangeCodec`. The switch needs `table.switch_values` in the job."""

    name = "thc"
    op = Op.LOOKUP_ADD8
    block_elements = THC_BLOCK

    def __init__(self, workers: int, *, table: LookupTable | None = None, kernels: Kernels | None = None) -> None:
        """Make the codec of a job; all ranks with the same table.

        Raises:
            CodecError: the sum of `workers` table values may overflow a lane; take fewer workers or a coarser table.
        """
        require_workers(workers)
        self.workers = workers
        self.table = table or best_table(workers)
        if workers * self.table.granularity > _LANE_MAX:
            raise CodecError(
                f"{workers} workers * granularity {self.table.granularity} = {workers * self.table.granularity} "
                f"overflows a lane, whose maximum is {_LANE_MAX}; leave `table` out to get one that fits"
            )
        self._kernels = kernels or load_kernels("auto")
        self.backend = self._kernels.name
        self.lookup: tuple[int, ...] | None = self.table.switch_values
        self._steps = Steps.of(self.table.switch_values)

    def ranges(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the root mean square of each block; see `RangeCodec`."""
        require_vector(x)
        values = np.concatenate([self._kernels.root_mean_square(part) for part in padded_rows(x, THC_BLOCK)])
        bits = values.view(np.uint32)
        bits[~(values <= HUGE)] = INFINITE
        return bits

    def encode(
        self, x: NDArray[np.float32], own: NDArray[np.uint32], shared: SharedRanges, context: Context
    ) -> NDArray[np.uint8]:
        """Return packed codes; see `RangeCodec`. A block whose own range exceeds the shared one is shrunk to it."""
        require_vector(x)
        blocks = blocks_of(x.size, THC_BLOCK)
        require_ranges(own, blocks, "own")
        require_finite(own)
        require_ranges(shared.values, blocks, "shared")
        require_usable(shared)
        scales = self._scales(np.maximum(own.view(np.float32), shared.values), shared.values)
        payloads = np.empty((blocks, _SHAPE.up_bytes), np.uint8)
        for first, part in _numbered(padded_rows(x, THC_BLOCK)):
            rows = slice(first, first + len(part))
            self._kernels.thc_encode(part, scales[rows], self._steps, _keys(context, first), payloads[rows])
        return payloads

    def decode(
        self,
        results: NDArray[np.uint8],
        contributors: NDArray[np.uint64],
        shared: SharedRanges,
        elements: int,
        context: Context,
    ) -> NDArray[np.float32]:
        """Return the mean; see `RangeCodec`."""
        blocks = blocks_of(elements, THC_BLOCK)
        require_rows(results, blocks, _SHAPE.down_bytes, f"results of {elements} elements")
        require_ranges(contributors, blocks, "contributors instead of")
        counts = contributor_counts(contributors, self.workers)
        self._require_sums(results, counts)
        return self._rotate_back(results, counts, self._factors(shared, counts), elements, context)

    def contribution(
        self,
        payloads: NDArray[np.uint8],
        shared: SharedRanges,
        elements: int,
        context: Context,
        included: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:
        """Return what codes add to a sum; see `RangeCodec`."""
        blocks = blocks_of(elements, THC_BLOCK)
        require_rows(payloads, blocks, _SHAPE.up_bytes, f"payloads of {elements} elements")
        lanes = np.empty((blocks, _SHAPE.down_bytes), np.uint8)
        self._kernels.thc_lookup(payloads, self._steps, lanes)
        counts = np.ones(blocks, np.int32)
        factors = self._factors(shared, counts)
        if included is not None:
            require_ranges(included, blocks, "included blocks instead of")
            factors[~included] = 0
        return self._rotate_back(lanes, counts, factors, elements, context)

    def _require_sums(self, sums: NDArray[np.uint8], counts: NDArray[np.int32]) -> None:
        """Refuse sums that this table cannot make: 16-bit arithmetic relies on it, and ranks would diverge."""
        beyond = np.flatnonzero(sums.max(axis=1) > counts * self.table.granularity)
        if beyond.size:
            chunk = int(beyond[0])
            raise CodecError(
                f"chunk {chunk}: a lane of {int(sums[chunk].max())} from {int(counts[chunk])} workers, but the table "
                f"ends at {self.table.granularity}: the switch has another table than this codec"
            )

    def _rotate_back(
        self,
        lanes: NDArray[np.uint8],
        counts: NDArray[np.int32],
        factors: NDArray[np.float32],
        elements: int,
        context: Context,
    ) -> NDArray[np.float32]:
        granularity = self.table.granularity
        out = np.empty(elements, np.float32)
        whole = elements // THC_BLOCK
        rows = out[: whole * THC_BLOCK].reshape(whole, THC_BLOCK)
        keys = _keys(context, 0)
        self._kernels.thc_decode(lanes[:whole], counts[:whole], factors[:whole], granularity, keys, rows)
        if elements % THC_BLOCK:
            tail = np.empty((1, THC_BLOCK), np.float32)
            keys = _keys(context, whole)
            self._kernels.thc_decode(lanes[whole:], counts[whole:], factors[whole:], granularity, keys, tail)
            out[whole * THC_BLOCK :] = tail[0, : elements % THC_BLOCK]
        return out

    def _scales(self, ranges: NDArray[np.float32], shared: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what elements are multiplied with before the rotation; 0 where the shared block is zero."""
        unit = self.table.granularity / (2 * self.table.bound) * 2.0**INPUT_BITS
        used = np.where(shared < TINY, np.inf, ranges.astype(np.float64))
        return (unit / used).astype(np.float32)

    def _factors(self, shared: SharedRanges, counts: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return what rotated-back integers are multiplied with; 0 where the shared block is zero."""
        require_ranges(shared.values, len(counts), "shared")
        require_usable(shared)
        unit = self.table.bound / (32 * self.table.granularity)
        used = np.where(shared.values < TINY, 0.0, shared.values.astype(np.float64))
        return (used * unit / counts).astype(np.float32)


def _keys(context: Context, first: int) -> BlockKeys:
    rotation = derive_key(context.seed, context.step, ROTATION)
    return BlockKeys(rotation, derive_key(context.seed, context.step, ROUNDING, context.rank), first)


def _numbered(parts: list[NDArray[np.float32]]) -> list[tuple[int, NDArray[np.float32]]]:
    """Pair each part of a vector with the number of its first block; parts without blocks are left out."""
    firsts = np.cumsum([0, *(len(part) for part in parts)])
    return [(int(first), part) for first, part in zip(firsts, parts, strict=False) if len(part)]
