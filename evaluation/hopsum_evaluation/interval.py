# SPDX-License-Identifier: Apache-2.0
"""The interval of the mean of some samples, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

import numpy as np

CONFIDENCE: Final = 0.95
LEAST: Final = 3
"""The fewest samples for an interval. By two samples Student's t is so wide that it tells nothing."""


class Interval(NamedTuple):
    """Mean of some samples, and the interval in which the mean of the whole population lies with CONFIDENCE."""

    mean: float
    low: float
    high: float


def interval(samples: Sequence[float]) -> Interval:
    """Compute the interval of at least LEAST finite samples, by Student's t. For equal samples it is a point.

    Raises:
        ValueError: fewer samples, or one that is not finite.
    """
    from scipy.special import stdtrit

    values = np.asarray(samples, np.float64)
    if values.size < LEAST or not np.isfinite(values).all():
        raise ValueError(f"{values.size} samples, {int(np.isfinite(values).sum())} finite: an interval needs {LEAST}")
    # The mean of equal samples may differ from them by rounding, and a claim of exactly 0 would fail.
    if (values == values[0]).all():
        return Interval(*[float(values[0])] * 3)
    mean = float(values.mean())
    reach = stdtrit(values.size - 1, (1 + CONFIDENCE) / 2) * float(values.std(ddof=1)) / sqrt(values.size)
    return Interval(mean, mean - reach, mean + reach)
