# SPDX-License-Identifier: Apache-2.0
"""What the workers sum, and what numpy says the sum is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum.wire import Op, pack_codes
from hopsum.wire.payload import SHAPES, lanes

TABLE = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17)
"""The optimal table of granularity 17 for normally distributed values: 15 workers fit an 8-bit lane."""
PIECE_CHUNKS = 32
"""Chunks per all-reduce: progress is shown between all-reduces."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One kind of sum."""

    op: Op
    title: str
    shown_as: str
    """numpy dtype, of 32 bits, in which people read the lanes."""

    def values(self, rank: int, elements: int, seed: int) -> NDArray[np.uint32]:
        """Return this rank's vector, uint32[elements]: lanes for ADD32 and MAX32, codes for LOOKUP_ADD8."""
        rng = np.random.default_rng([seed, rank, self.op])
        if self.op == Op.LOOKUP_ADD8:
            return rng.integers(0, 16, elements, dtype=np.uint32)
        if self.op == Op.MAX32:  # the bits of non-negative floats order like the floats
            return np.abs(rng.standard_normal(elements, dtype=np.float32)).view(np.uint32)
        return rng.integers(-100_000, 100_000, elements, dtype=np.int32).view(np.uint32)

    def payloads(self, values: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Return the UPDATE payloads of a vector, uint8[chunks, bytes], the last chunk padded with zeros."""
        shape = SHAPES[self.op]
        chunks = -(-len(values) // shape.elements)
        padded = np.zeros(chunks * shape.elements, np.uint32)
        padded[: len(values)] = values
        if self.op == Op.LOOKUP_ADD8:
            return pack_codes(padded.astype(np.uint8).reshape(chunks, shape.elements))
        return padded.astype(">u4").view(np.uint8).reshape(chunks, shape.up_bytes)

    def sums(self, results: NDArray[np.uint8], elements: int) -> NDArray[np.uint32]:
        """Return the lanes of RESULT payloads, uint32[elements]."""
        return lanes(self.op, results).reshape(-1)[:elements].astype(np.uint32)

    def expected(self, vectors: list[NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return what numpy makes of all ranks' vectors."""
        stacked = np.stack(vectors)
        if self.op == Op.MAX32:
            return np.asarray(stacked.max(axis=0), np.uint32)
        if self.op == Op.LOOKUP_ADD8:
            stacked = np.asarray(TABLE, np.uint32)[stacked]
        return np.asarray(stacked.sum(axis=0, dtype=np.uint32), np.uint32)


EXERCISES = (
    Exercise(Op.ADD32, "32-bit integers, added", "int32"),
    Exercise(Op.LOOKUP_ADD8, "4-bit codes, looked up in a table and added", "uint32"),
    Exercise(Op.MAX32, "non-negative floats, maximum", "float32"),
)
