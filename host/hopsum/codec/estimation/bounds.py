# SPDX-License-Identifier: Apache-2.0
"""Theoretical upper bounds of the mean squared error E|mean' - mean|^2 and of bits.

They are those of Suresh et al. (ICML 2017), with natural logarithm in the one of `srk`.
Arguments: d elements, n workers, k levels, F the mean of |X_i|^2 over workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from hopsum.codec.estimation.quantizers import padded
from hopsum.codec.interface import Floats

SVK_EXTRA_BITS: Final = 160
"""The O(1) of `bits_bound_svk`: 96 bits of side information, and two words in which the range coder ends."""


def mean_energy(vectors: Sequence[Floats]) -> float:
    """Return F, the mean of |X_i|^2 over workers."""
    return sum(float(np.square(x, dtype=np.float64).sum()) for x in vectors) / len(vectors)


def mse_bound_sb(d: int, n: int, energy: float) -> float:
    """Return d / (2 n) F."""
    return d / (2 * n) * energy


def mse_bound_sk(d: int, n: int, energy: float, k: int) -> float:
    """Return d / (2 n (k - 1)^2) F, also the bound of `svk`."""
    return d / (2 * n * (k - 1) ** 2) * energy


def mse_bound_srk(d: int, n: int, energy: float, k: int) -> float:
    """Return (2 ln D + 2) / (n (k - 1)^2) F, D the power of two to which d is padded."""
    return (2 * math.log(padded(d)) + 2) / (n * (k - 1) ** 2) * energy


def bits_bound_svk(d: int, k: int) -> float:
    """Return d (2 + log2((k - 1)^2 / (2 d) + 5/4)) + k log2((d + k) e / k) + SVK_EXTRA_BITS, of one worker."""
    codes = d * (2 + math.log2((k - 1) ** 2 / (2 * d) + 1.25))
    histogram = k * math.log2((d + k) * math.e / k)
    return codes + histogram + SVK_EXTRA_BITS
