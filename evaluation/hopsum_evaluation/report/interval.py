# SPDX-License-Identifier: Apache-2.0
"""Student's interval for the mean of a few samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, lgamma, pi, sqrt
from typing import Final, NamedTuple

import numpy as np

CONFIDENCE: Final = 0.95
_STEPS: Final = 20_001
_FAR: Final = 1000.0


class Interval(NamedTuple):
    """Where the mean of what was sampled lies, with CONFIDENCE."""

    mean: float
    low: float
    high: float


def interval(samples: Sequence[float]) -> Interval:
    """Return the interval of at least two finite samples, by Student's t. For equal samples it is a point.

    Raises:
        ValueError: fewer samples, or one that is not finite.
    """
    values = np.asarray(samples, np.float64)
    if values.size < 2 or not np.isfinite(values).all():
        raise ValueError(f"{values.size} samples, {int(np.isfinite(values).sum())} finite: an interval needs two")
    if (values == values[0]).all():  # whose mean need not be equal to them
        return Interval(*[float(values[0])] * 3)
    mean = float(values.mean())
    reach = t_quantile(values.size - 1) * float(values.std(ddof=1)) / sqrt(values.size)
    return Interval(mean, mean - reach, mean + reach)


@cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return t for which a variable with so many degrees of freedom lies in -t to t with this probability."""
    low, high = 0.0, _FAR
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return P(|T| < t): the density integrated over the angle, where its tail does not matter."""
    angle = np.linspace(0.0, np.arctan(t / sqrt(freedom)), _STEPS)
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    return float(2 * scale * np.trapezoid(np.cos(angle) ** (freedom - 1), angle))
