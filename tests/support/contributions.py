# SPDX-License-Identifier: Apache-2.0
"""Random contributions to sums of any op, and the results of any of them, by numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum_wire import Op, pack_codes
from hopsum_wire.payload import shape_of

from .jobs import TABLES

Values = NDArray[np.uint32]


def draw(op: Op, count: int, source: np.random.Generator) -> tuple[Values, NDArray[np.uint8]]:
    """Draw full chunks of UPDATEs: their lanes or codes uint32[count, elements], and payloads uint8[count, bytes]."""
    shape = shape_of(op)
    lane = np.dtype(shape.lane_dtype)
    if shape.has_codes:
        codes = source.integers(0, 1 << shape.code_bits, (count, shape.elements), dtype=np.uint8)
        return codes.astype(np.uint32), pack_codes(codes, shape.lane_bits, bits=shape.code_bits)
    limit = 1 << (31 if op is Op.MAX32 else 8 * lane.itemsize)
    values = source.integers(0, limit, (count, 1024 // lane.itemsize), dtype=np.uint32)
    return values, values.astype(lane).view(np.uint8)


def result_of(op: Op, values: Values) -> Values:
    """Return the lanes or codes of a RESULT, uint32[...], of contributions uint32[contributor, ...]."""
    shape = shape_of(op)
    if not shape.has_codes:
        union = {Op.MAX32: np.maximum, Op.OR: np.bitwise_or}.get(op, np.add)
        return np.asarray(union.reduce(values, axis=0, dtype=np.uint64) % (1 << shape.lane_bits), np.uint32)
    count = 1 << shape.code_bits
    sums = np.take(TABLES[op][:count], values).sum(axis=0)
    if shape.down_codes:
        return np.searchsorted(TABLES[op][count:], sums + 128 >> 1, side="right").astype(np.uint32)
    return np.asarray(sums % (1 << shape.lane_bits), np.uint32)
