# SPDX-License-Identifier: Apache-2.0
"""A codec from outside hopsum: 16-bit integers, scaled by the largest magnitude of each block of 512 elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import ReductionContext, contributor_counts, padded_rows, require_workers
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.vector_reduction import INFINITE, SharedRanges
from hopsum_wire import LANE_GROUP_CODES, Op


class Int16(RangeCodec):
    """Rounds to the nearest level; the switch adds levels. Each lane holds the sum of all workers' largest levels."""

    name, backend, op, block_elements = "int16", "numpy", Op.ADD16, 512
    lookup, code_group = None, LANE_GROUP_CODES

    def __init__(self, workers: int, *, kernels: Any = None) -> None:
        """Make the codec of a job of so many workers; it has no kernels of its own."""
        require_workers(workers)
        self.workers = workers
        # A lane has 16 bits for the levels 0 .. 2 * limit of each worker.
        self._limit = 0xFFFF // workers // 2

    def ranges(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the bits of each block's largest magnitude; the switch takes the maximum over the workers."""
        peaks = np.abs(np.concatenate(padded_rows(x, 512))).max(axis=1)
        return np.minimum(peaks.view(np.uint32), np.uint32(INFINITE))

    def encode(
        self, x: NDArray[np.float32], own: NDArray[np.uint32], shared: SharedRanges, context: ReductionContext
    ) -> NDArray[np.uint8]:
        """Return levels as big-endian 16-bit lanes, a row for each block."""
        levels = np.rint(np.concatenate(padded_rows(x, 512)) / self._units(shared)) + self._limit
        return np.clip(levels, 0, 2 * self._limit).astype(">u2").view(np.uint8)

    def decode(
        self, results: NDArray[np.uint8], contributors: NDArray[np.uint64], shared: SharedRanges, elements: int,
        context: ReductionContext, out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Return the mean of the workers that are in each block's sum."""
        counts = contributor_counts(contributors, self.workers).astype(np.float32)[:, None]
        means = (results.view(">u2") - self._limit * counts) * self._units(shared) / counts
        return means.astype(np.float32).ravel()[:elements]

    def dequantize_own(
        self, payloads: NDArray[np.uint8], shared: SharedRanges, elements: int, context: ReductionContext,
        included: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Return what was sent of the vector; the rest of it stays in the error feedback."""
        values = (payloads.view(">u2").astype(np.float32) - self._limit) * self._units(shared)
        if included is not None:
            values[~included] = 0
        return values.ravel()[:elements]

    def _units(self, shared: SharedRanges) -> NDArray[np.float32]:
        """Return the distance between two levels of each block, a column."""
        return (np.maximum(shared.values, np.float32(2.0**-100)) / np.float32(self._limit))[:, None]
