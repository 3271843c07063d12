# SPDX-License-Identifier: Apache-2.0
"""The vectors that the workers sum, and numpy's sum of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum_wire import Op, pack_codes
from hopsum_wire._layout import LANES_BYTES
from hopsum_wire.payload import SHAPES, lanes

TABLE = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17)
"""The optimal table of granularity 17 for normally distributed values: 15 workers fit an 8-bit lane."""
TABLE16 = tuple(range(0, 16 * 273, 273))
"""Steps of 273 up to 4095: 15 workers fit a 16-bit lane."""
TABLE6 = (0, 1, 2, 3, *12 * (4,))
"""Codes of 4 and above stand for 4: 15 workers fit a packed result."""
TABLES = {Op.LOOKUP_ADD8: TABLE, Op.LOOKUP_ADD16: TABLE16, Op.LOOKUP_ADD6: TABLE6}
PIECE_CHUNKS = 32
"""Chunks per all-reduce: progress is shown between all-reduces."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One kind of sum. An element is a code or a lane; of OR it is a byte."""

    op: Op
    title: str
    shown_as: str = "uint32"
    """numpy dtype, of 32 bits, in which people read the lanes."""

    @property
    def lane_bits(self) -> int:
        """Return the width of a lane of the sum."""
        return SHAPES[self.op].lane_bits

    @property
    def chunk_elements(self) -> int:
        """Return how many elements one packet carries: one for each lane of its sum."""
        return LANES_BYTES * 8 // self.lane_bits

    def values(self, rank: int, elements: int, seed: int) -> NDArray[np.uint32]:
        """Return this rank's vector, uint32[elements]: lanes, or codes for the lookups."""
        rng = np.random.default_rng([seed, rank, self.op])
        if SHAPES[self.op].has_codes:
            return rng.integers(0, 16, elements, dtype=np.uint32)
        if self.op == Op.MAX32:  # the bits of non-negative floats order like the floats
            return np.abs(rng.standard_normal(elements, dtype=np.float32)).view(np.uint32)
        if self.op == Op.OR:  # few bits, so that a union shows
            return np.left_shift(np.uint32(1), rng.integers(0, 8, elements, dtype=np.uint32))
        if self.op == Op.ADD32:
            return rng.integers(-100_000, 100_000, elements, dtype=np.int32).view(np.uint32)
        return rng.integers(0, 1 << self.lane_bits, elements, dtype=np.uint32)

    def payloads(self, values: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Return the UPDATE payloads of a vector, uint8[chunks, bytes], the last chunk padded with zeros."""
        shape = SHAPES[self.op]
        chunks = -(-len(values) // self.chunk_elements)
        padded = np.zeros(chunks * self.chunk_elements, np.uint32)
        padded[: len(values)] = values
        if shape.has_codes:
            return pack_codes(padded.astype(np.uint8).reshape(chunks, self.chunk_elements), self.lane_bits)
        return padded.astype(shape.lane_dtype).view(np.uint8).reshape(chunks, shape.up_bytes)

    def sums(self, results: NDArray[np.uint8], elements: int) -> NDArray[np.uint32]:
        """Return the lanes of RESULT payloads, uint32[elements]."""
        return lanes(self.op, results).reshape(-1)[:elements].astype(np.uint32)

    def expected(self, vectors: list[NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return what numpy makes of all ranks' vectors."""
        stacked = np.stack(vectors)
        if self.op == Op.MAX32:
            return np.asarray(stacked.max(axis=0), np.uint32)
        if self.op == Op.OR:
            return np.asarray(np.bitwise_or.reduce(stacked), np.uint32)
        if SHAPES[self.op].has_codes:
            stacked = np.asarray(TABLES[self.op], np.uint32)[stacked]
        return np.asarray(stacked.sum(axis=0, dtype=np.uint32) & np.uint32((1 << self.lane_bits) - 1), np.uint32)


EXERCISES = (
    Exercise(Op.ADD32, "32-bit integers, added", "int32"),
    Exercise(Op.ADD16, "16-bit integers, added modulo 2^16"),
    Exercise(Op.ADD8, "8-bit integers, added modulo 2^8"),
    Exercise(Op.LOOKUP_ADD8, "4-bit codes, looked up in a table and added in 8-bit lanes"),
    Exercise(Op.LOOKUP_ADD16, "4-bit codes, looked up in a finer table and added in 16-bit lanes"),
    Exercise(Op.LOOKUP_ADD6, "4-bit codes, looked up and added; 6 bits of each sum come back"),
    Exercise(Op.OR, "bitmaps, or-ed; shown as bytes"),
    Exercise(Op.MAX32, "non-negative floats, maximum", "float32"),
)


def exercises_for(max_growth_bytes: int | None) -> tuple[Exercise, ...]:
    """Return the exercises of a switch in which frames grow by at most so many bytes (None: by any number)."""
    growth = {exercise: SHAPES[exercise.op].down_bytes - SHAPES[exercise.op].up_bytes for exercise in EXERCISES}
    return tuple(e for e, more in growth.items() if max_growth_bytes is None or more <= max_growth_bytes)
