# SPDX-License-Identifier: Apache-2.0
"""The payloads of a soak's workers and the sums of any set of them: made once, looked up for every round.

A position of the stream has pattern number position mod PATTERNS. PATTERNS is a prime above the number of rounds that
can be confused, so rounds that share a slot's copy never carry the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum_wire import Op, pack_codes
from hopsum_wire.payload import pack_sums, shape_of

PATTERNS = 61
TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 30)
TABLE16 = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
TABLE6 = tuple(range(16))
_TABLES = {Op.LOOKUP_ADD8: TABLE, Op.LOOKUP_ADD16: TABLE16, Op.LOOKUP_ADD6: TABLE6}

Payload = NDArray[np.uint8]


class Payloads:
    """The payloads of `workers` ranks for every op, and their sums over every set of ranks."""

    def __init__(self, workers: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._sent: dict[Op, Payload] = {}
        """uint8[rank, pattern, up_bytes]."""
        self._sums: dict[Op, Payload] = {}
        """uint8[contributors, pattern, down_bytes]."""
        for op in Op:
            self._sent[op], values = _draw(rng, op, workers)
            self._sums[op] = _sums(op, values)

    def sent(self, op: Op, rank: int, first: int, count: int) -> Payload:
        """Return what a rank sends for consecutive positions: uint8[count, up_bytes]."""
        return self._sent[op][rank, np.arange(first, first + count) % PATTERNS]

    def summed(self, op: Op, contributors: NDArray[np.uint64], first: int) -> Payload:
        """Return the sums of consecutive positions over these sets of ranks: uint8[count, down_bytes]."""
        return self._sums[op][contributors, np.arange(first, first + len(contributors)) % PATTERNS]


def _draw(rng: np.random.Generator, op: Op, workers: int) -> tuple[Payload, NDArray[np.uint64]]:
    """Return payloads, and the values that they stand for: uint64[rank, pattern, lane]."""
    shape = shape_of(op)
    lane = np.dtype(shape.lane_dtype)
    if shape.has_codes:
        codes = rng.integers(0, 16, (workers, PATTERNS, shape.elements), dtype=np.uint8)
        return pack_codes(codes, 8 * lane.itemsize), np.asarray(_TABLES[op], np.uint64)[codes]
    limit = 1 << (31 if op is Op.MAX32 else 8 * lane.itemsize)
    values = rng.integers(0, limit, (workers, PATTERNS, shape.down_bytes // lane.itemsize), dtype=np.uint64)
    return values.astype(lane).view(np.uint8), values


def _sums(op: Op, values: NDArray[np.uint64]) -> Payload:
    lane = np.dtype(shape_of(op).lane_dtype)
    join = {Op.MAX32: np.maximum, Op.OR: np.bitwise_or}.get(op, np.add)
    wide = np.zeros((1 << len(values), *values.shape[1:]), np.uint64)
    for ranks in range(1, len(wide)):
        highest = ranks.bit_length() - 1
        wide[ranks] = join(wide[ranks ^ 1 << highest], values[highest])
    sums = (wide % np.uint64(1 << 8 * lane.itemsize)).astype(lane).view(np.uint8)
    return pack_sums(sums) if op is Op.LOOKUP_ADD6 else sums
