# SPDX-License-Identifier: Apache-2.0
"""`sb` and `sk`: levels from the smallest to the largest element (Suresh et al. 2017, pi_sb and pi_sk).

A worker sends its smallest and largest element as float32, and ceil(log2 levels) bits for each element.

Error: an element between two levels h apart has variance (upper - x)(x - lower) <= h^2 / 4, and workers are
independent, so the mean has MSE <= 1/n^2 sum_i d s_i^2 / (4 (k - 1)^2) with s = max - min. Two different elements
give s^2 <= 2 max^2 + 2 min^2 <= 2 |X|^2: MSE <= d / (2 n (k - 1)^2) F. `sb` is k = 2, where the first step is
exact: MSE = 1/n^2 sum_i sum_j (max - X_j)(X_j - min).
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import Message, finite_float32, require_finite_vector, require_payload, runs
from hopsum.codec.estimation.levels import (
    Levels,
    code_bits,
    pack_rounded,
    packed_bytes,
    require_levels,
    unpack_values,
)
from hopsum.codec.estimation.rng import rounding_key
from hopsum.codec.interface import CodecError, ReductionContext

_SIDE: Final = struct.Struct("<ff")


class Sk:
    """See the module. The contract is `hopsum.codec.estimation.base.Estimator`."""

    name = "sk"
    unbiased = True

    def __init__(self, levels: int = 16) -> None:
        """Make the estimator with 2 to 65536 levels.

        Raises:
            CodecError: another number of levels.
        """
        require_levels(levels)
        self.levels = levels

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return smallest, largest and packed codes. See `Estimator`."""
        require_finite_vector(x)
        side = _SIDE.pack(x.min(), x.max())
        codes = pack_rounded(x, self._grid(side), rounding_key(context))
        return Message(side + codes, _SIDE.size * 8 + x.size * code_bits(self.levels))

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the levels of the codes. See `Estimator`. The context is not needed."""
        size = _SIDE.size + packed_bytes(elements, code_bits(self.levels))
        require_payload(message.payload, size, self.name, elements)
        grid = self._grid(message.payload)
        codes = message.payload[_SIDE.size :]
        out = np.empty(elements, np.float32)
        for run in runs(elements):
            out[run] = finite_float32(unpack_values(codes, grid, run))
        return out

    def _grid(self, payload: bytes) -> Levels:
        """Both sides make the levels from the bytes that are sent."""
        low, high = _SIDE.unpack_from(payload)
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise CodecError(f"{self.name}: levels from {low} to {high}")
        return Levels(low, (high - low) / (self.levels - 1), self.levels)


class Sb(Sk):
    """`Sk` with two levels, one bit for each element: each is rounded to the smallest or to the largest."""

    name = "sb"

    def __init__(self) -> None:
        super().__init__(2)
