# SPDX-License-Identifier: Apache-2.0
"""`srk`: `sk` after a random rotation of the whole vector (Suresh et al. 2017, pi_srk).

The vector, padded with zeros to D elements, a power of two, is rotated by R = H diag(signs) / sqrt(D), H the
Hadamard matrix, signs shared by all ranks. The receiver rotates back. A worker sends, besides the codes, the
smallest and largest coordinate as float32 and an exponent of 16 bits.

Error: a coordinate of R X is a sum of X_j with random signs / sqrt(D), so P(it exceeds t) <= exp(-t^2 D / 2 |X|^2),
and by the union bound the expected square of the positive part of the largest is at most (2 ln D + 2) |X|^2 / D.
The same holds for the smallest. Hence E (max - min)^2 <= 4 (2 ln D + 2) |X|^2 / D, and with the error of `sk` on D
coordinates MSE <= (2 ln D + 2) / (n (k - 1)^2) F. Dropping the padding makes it no larger.

The rotation is float32, left unnormalised and made in a fixed order of additions, hence equal on all machines.
Before it the vector is divided by a power of two, so that nothing overflows and subnormal numbers keep their bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import RUN, Message, finite_float32, require_finite_vector, require_payload, runs
from hopsum.codec.estimation.levels import (
    Levels,
    code_bits,
    pack_rounded,
    packed_bytes,
    require_levels,
    unpack_values,
)
from hopsum.codec.estimation.rng import rotation_key, rounding_key, signs
from hopsum.codec.interface import CodecError, ReductionContext

_SIDE: Final = struct.Struct("<hff")
_EXPONENTS: Final = range(-148, 129)
"""The exponents of float32: the largest element is below 2^exponent, and not below half of it."""


class Srk:
    """See the module. The contract is `hopsum.codec.estimation.base.Estimator`."""

    name = "srk"
    unbiased = True

    def __init__(self, levels: int = 16) -> None:
        """Make the estimator with 2 to 65536 levels.

        Raises:
            CodecError: another number of levels.
        """
        require_levels(levels)
        self.levels = levels

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return exponent, smallest, largest and packed codes of the rotated vector. See `Estimator`."""
        require_finite_vector(x)
        exponent = int(np.frexp(max(x.max(), -x.min()))[1])
        v = np.zeros(padded(x.size), np.float32)
        key = rotation_key(context)
        for run in runs(x.size):
            v[run] = np.ldexp(x[run], -exponent) * signs(key, run)
        hadamard(v)
        side = _SIDE.pack(exponent, v.min(), v.max())
        codes = pack_rounded(v, self._grid(side), rounding_key(context))
        return Message(side + codes, _SIDE.size * 8 + v.size * code_bits(self.levels))

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the levels of the codes, rotated back. See `Estimator`."""
        coordinates = padded(elements)
        size = _SIDE.size + packed_bytes(coordinates, code_bits(self.levels))
        require_payload(message.payload, size, self.name, elements)
        grid = self._grid(message.payload)
        codes = message.payload[_SIDE.size :]
        v = np.empty(coordinates, np.float32)
        for run in runs(coordinates):
            v[run] = unpack_values(codes, grid, run)
        hadamard(v)
        scale = 2.0 ** _SIDE.unpack_from(message.payload)[0] / coordinates
        out = np.empty(elements, np.float32)
        key = rotation_key(context)
        for run in runs(elements):
            out[run] = finite_float32(v[run].astype(np.float64) * (signs(key, run) * scale))
        return out

    def _grid(self, payload: bytes) -> Levels:
        """Both sides make the levels from the bytes that are sent."""
        exponent, low, high = _SIDE.unpack_from(payload)
        if exponent not in _EXPONENTS or not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise CodecError(f"{self.name}: levels from {low} to {high} times 2^{exponent}")
        return Levels(low, (high - low) / (self.levels - 1), self.levels)


def padded(elements: int) -> int:
    """Return the smallest power of two that is not below `elements`."""
    return 1 << max(elements - 1, 0).bit_length()


def hadamard(v: NDArray[np.float32]) -> None:
    """Replace v, float32[power of two], by H v in the natural (Sylvester) order. Needs a run of memory besides."""
    stride = 1
    while stride < v.size:
        pairs = v.reshape(-1, 2, stride)
        for rows, columns in _tiles(len(pairs), stride):
            first, second = pairs[rows, 0, columns], pairs[rows, 1, columns]
            difference = first - second
            first += second
            second[...] = difference
        stride *= 2


def _tiles(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Cut a matrix into tiles of at most RUN elements. Powers of two fit without a rest."""
    height, width = max(RUN // columns, 1), min(columns, RUN)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, row + height), slice(column, column + width)
