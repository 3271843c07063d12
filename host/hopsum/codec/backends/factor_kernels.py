# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of factors of low rank: the definition, and its reference in numpy. `hopsum.codec.low_rank` uses it.

gram          products of float32 in float64, which are exact. 16 running sums over the length, then the upper half
              onto the lower
fill_weights  Cholesky's factor of the cosines, and its inverse, float64, element after element
combine       float64, in the order of the columns, rounded once
reconstruct   float32, in the order of the columns: one multiplication, one addition
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np

from hopsum.codec.interface import Doubles, Floats

LANES: Final = 16
"""The running sums of a product of two columns. The length is padded with zeros to a multiple."""
LEAST_SINE_SQUARED: Final = 1e-9
"""Below it a column lies in the span of those before it: what is left is the rounding of float32."""


class FactorKernels:
    """The reference, in numpy. Backends agree bit for bit."""

    name = "numpy"

    def gram(self, columns: Floats) -> Doubles:
        """Return the scalar products of all pairs of columns, float64[r, r].

        Args:
            columns: float32[r, length]. The length is a multiple of LANES.
        """
        rank = len(columns)
        doubles = columns.astype(np.float64).reshape(rank, -1, LANES)
        sums = np.zeros((rank, rank, LANES))
        for run in range(doubles.shape[1]):
            sums += doubles[:, None, run] * doubles[None, :, run]
        for half in (8, 4, 2, 1):
            sums = sums[:, :, :half] + sums[:, :, half : 2 * half]
        return np.ascontiguousarray(sums[:, :, 0])

    def fill_weights(self, gram: Doubles, weights: Doubles) -> int:
        """Fill weights, float64[r, r], by which `combine` makes columns orthonormal. Return how many are dependent.

        A dependent column lies in the span of those before it. Its weights are zero.

        Args:
            gram: the columns' Gram matrix, float64[r, r].
        """
        rank, dependent = len(gram), 0
        norms = [sqrt(each) if each > 0 else 0.0 for each in np.diag(gram)]
        inverse = [1.0 / each if each > 0 else 0.0 for each in norms]
        lower, pivots = [[0.0] * rank for _ in range(rank)], [0.0] * rank
        for a in range(rank):
            for b in range(a):
                rest = float(gram[a, b]) * inverse[a] * inverse[b]
                for k in range(b):
                    rest -= lower[a][k] * lower[b][k]
                lower[a][b] = rest * pivots[b]
            rest = 1.0
            for k in range(a):
                rest -= lower[a][k] * lower[a][k]
            # The square of the sine of the angle between the column and the span of those before it.
            if inverse[a] > 0 and rest > LEAST_SINE_SQUARED:
                pivots[a] = 1.0 / sqrt(rest)
            else:
                dependent += 1
        made = [[0.0] * rank for _ in range(rank)]
        for a in range(rank):
            made[a][a] = pivots[a]
            for b in range(a):
                rest = 0.0
                for k in range(b, a):
                    rest += lower[a][k] * made[k][b]
                made[a][b] = -(pivots[a] * rest)
        for a in range(rank):
            for b in range(rank):
                weights[a, b] = made[a][b] * inverse[b]
        return dependent

    def combine(self, columns: Floats, weights: Doubles) -> Floats:
        """Return weights, a lower triangle, times columns: float32[r, length], a new array."""
        made = np.empty_like(columns)
        for a in range(len(columns)):
            total = np.zeros(columns.shape[1])
            for b in range(a + 1):
                total += weights[a, b] * columns[b].astype(np.float64)
            made[a] = total.astype(np.float32)
        return made

    def reconstruct(self, left: Floats, mean: Floats, own: Floats, rest: Floats, out: Floats) -> None:
        """Fill out, float32[m, c], with P Q^T, and subtract P q^T from rest, float32[m, c].

        Args:
            left: P, float32[r, m].
            mean: Q, float32[r, c], the same on all ranks.
            own: q, float32[r, c], this rank's contribution to Q.
        """
        for right, subtracts in ((mean, False), (own, True)):
            total = np.zeros_like(out)
            for column, row in zip(left, right, strict=True):
                total += column[:, None] * row
            if subtracts:
                rest -= total
            else:
                out[:] = total
