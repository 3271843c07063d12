# SPDX-License-Identifier: Apache-2.0
"""`svk`: levels as wide as the norm, codes entropy coded by their frequencies (Suresh et al. 2017, pi_svk).

The levels go from the smallest element X_min to X_min + s with s = sqrt(2) |X|, which is at least max - min. A
worker sends X_min as float32, s as float64, and the stream of `entropy`.

Error: as for `sk`, of which only s^2 <= 2 |X|^2 was used: MSE <= d / (2 n (k - 1)^2) F.

Bits: the entropy of the frequencies is at most sum_j -log2 p(code_j) / d for any distribution p. With h = s / (k - 1)
the distance of levels and Y_j the level of element j, take p proportional to 1 / (1 + (level / h)^2): the sum of these
over all levels is at most pi coth(pi) < 4, so a code costs at most 2 + log2(1 + (Y_j / h)^2). The logarithm is concave,
so the mean over elements is at most that of the mean square of Y, whose expectation is at most
|X|^2 / d + h^2 / 4. Together E bits <= d (2 + log2((k - 1)^2 / (2 d) + 5/4)), and the histogram besides. The range
coder's own loss, below 0.01 bits an element, is less than what 4 instead of pi coth(pi) leaves: 0.34 bits.

With k = sqrt(d) + 1 levels that is less than 2.81 bits an element, and MSE <= F / (2 n).
"""

from __future__ import annotations

import math
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import Message, finite_float32, require_finite_vector, runs
from hopsum.codec.estimation.entropy import EntropyCoder
from hopsum.codec.estimation.levels import Levels, require_levels
from hopsum.codec.estimation.rng import rounding_key, uniforms
from hopsum.codec.interface import CodecError, ReductionContext

_SIDE: Final = struct.Struct("<fd")


class Svk:
    """See the module. The contract is `hopsum.codec.estimation.base.Estimator`."""

    name = "svk"
    unbiased = True

    def __init__(self, levels: int | None = None) -> None:
        """Make the estimator with 2 to 65536 levels. None takes ceil(sqrt(elements)) + 1 for each vector.

        Raises:
            CodecError: another number of levels, or constriction is not installed.
        """
        if levels is not None:
            require_levels(levels)
        self.levels = levels
        self._coder = EntropyCoder()

    def levels_of(self, elements: int) -> int:
        """Return the levels for a vector of so many elements.

        Raises:
            CodecError: more elements than the square of the largest number of levels.
        """
        levels = self.levels or math.isqrt(elements - 1) + 2
        require_levels(levels)
        return levels

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return smallest element, width, and the stream of codes. See `Estimator`."""
        require_finite_vector(x)
        levels = self.levels_of(x.size)
        low, high = float(x.min()), float(x.max())
        energy = sum(float(np.square(x[run], dtype=np.float64).sum()) for run in runs(x.size))
        side = _SIDE.pack(low, max(math.sqrt(2 * energy), high - low))
        grid = self._grid(side, levels)
        codes = np.empty(x.size, np.uint16)
        key = rounding_key(context)
        for run in runs(x.size):
            codes[run] = grid.round(x[run], uniforms(key, run))
        payload = side + self._coder.compress(codes, levels)
        return Message(payload, len(payload) * 8)

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the levels of the codes. See `Estimator`. The context is not needed."""
        if elements < 1 or len(message.payload) < _SIDE.size:
            raise CodecError(f"{self.name}: {len(message.payload)} bytes for {elements} elements")
        levels = self.levels_of(elements)
        grid = self._grid(message.payload, levels)
        codes = self._coder.expand(message.payload[_SIDE.size :], elements, levels)
        out = np.empty(elements, np.float32)
        for run in runs(elements):
            out[run] = finite_float32(grid.values(codes[run]))
        return out

    def _grid(self, payload: bytes, levels: int) -> Levels:
        """Both sides make the levels from the bytes that are sent."""
        low, width = _SIDE.unpack_from(payload)
        if not (math.isfinite(low) and math.isfinite(width) and width >= 0):
            raise CodecError(f"{self.name}: levels of width {width} from {low}")
        return Levels(low, width / (levels - 1), levels)
