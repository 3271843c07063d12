# SPDX-License-Identifier: Apache-2.0
"""Lookup tables: code z stands for the value -t + 2 t T[z]/g of a coordinate with distribution N(0, 1).

A coordinate beyond t is truncated; one between two values of the table is rounded to one of them, without
bias. The best table minimises the integral of (q_hi(a) - a)(a - q_lo(a)) phi(a) over -t < a < t, where q_lo and
q_hi are a's neighbours; that is a shortest path over the integers 0..g with 15 steps, solved exactly.

Roundings of n workers are independent, so their error falls as 1/n; what truncation takes away is the same on
workers with the same input and does not fall. So the best t grows with n, while n g <= 2^lane_bits - 1 bounds g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CodecError
from hopsum.wire._layout import TABLE_ENTRIES

MAX_GRANULARITY: Final = 127
"""A table value plus the widest gap must fit in 8 bits where codes are counted."""
_SEARCH_GRANULARITY: Final = 63
"""Finer tables gain less than 1 % and cost most of the search's time."""
_TIE: Final = 1e-13
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A table and the fraction of coordinates that it truncates.

    Raises:
        CodecError: values that are no table, or a fraction outside 0..1.
    """

    values: tuple[int, ...]
    """[16], strictly increasing from 0 to the granularity."""
    truncated: float
    """p: expected fraction of N(0, 1) coordinates beyond the bound."""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise(self.values))
        if len(self.values) != TABLE_ENTRIES or self.values[0] != 0 or not rising:
            raise CodecError(f"a table has {TABLE_ENTRIES} strictly increasing integers from 0, not {self.values}")
        if self.granularity > MAX_GRANULARITY:
            raise CodecError(f"granularity {self.granularity} of a table: at most {MAX_GRANULARITY}")
        if not 0.0 < self.truncated < 1.0:
            raise CodecError(f"truncated fraction {self.truncated}: between 0 and 1")

    @property
    def granularity(self) -> int:
        """g: the last value."""
        return self.values[-1]

    @property
    def bound(self) -> float:
        """t: coordinates beyond it are truncated, in standard deviations."""
        return truncation_bound(self.truncated)


def truncation_bound(truncated: float) -> float:
    """Return t with Pr[|N(0, 1)| > t] = truncated: PhiInv(1 - truncated/2)."""
    return -_NORMAL.inv_cdf(truncated / 2)


def truncation_error(bound: float) -> float:
    """Return E[(|a| - t)^2; |a| > t] of a ~ N(0, 1): what truncation alone costs."""
    tail = math.erfc(bound / math.sqrt(2)) / 2
    return 2 * ((1 + bound * bound) * tail - bound * _NORMAL.pdf(bound))


def rounding_error(values: tuple[int, ...], bound: float) -> float:
    """Return the variance that unbiased rounding to these values adds to an N(0, 1) coordinate."""
    cells = _cell_errors(values[-1], bound)
    return float(sum(cells[low, high] for low, high in pairwise(values)))


def expected_nmse(table: LookupTable, workers: int) -> float:
    """Return E||mean' - mean||^2 / ||mean||^2 for workers with the same input, without error feedback."""
    return rounding_error(table.values, table.bound) / workers + truncation_error(table.bound)


def optimal_table(granularity: int, truncated: float, entries: int = TABLE_ENTRIES) -> tuple[int, ...]:
    """Return the table of least rounding error, by dynamic programming in O(entries g^2).

    Of tables that are equally good (a table and its mirror image) the first in lexical order from the end wins,
    so that all ranks find the same one.

    Raises:
        CodecError: fewer than entries - 1 steps.
    """
    if granularity < entries - 1:
        raise CodecError(f"granularity {granularity} for {entries} entries: at least {entries - 1}")
    cells = _cell_errors(granularity, truncation_bound(truncated))
    best = np.full(granularity + 1, np.inf)
    best[0] = 0.0
    before = np.zeros((entries, granularity + 1), np.intp)
    for entry in range(1, entries):
        paths = best[:, None] + cells
        best = paths.min(axis=0)
        before[entry] = (paths <= best + _TIE).argmax(axis=0)
    values = [granularity]
    for entry in range(entries - 1, 0, -1):
        values.append(int(before[entry, values[-1]]))
    return tuple(reversed(values))


@cache
def best_table(workers: int, lane_bits: int = 8) -> LookupTable:
    """Return the table for a job: least expected error of the mean of equal inputs, without error feedback.

    Raises:
        CodecError: so many workers that even the coarsest table overflows a lane.
    """
    finest = ((1 << lane_bits) - 1) // workers
    if finest < TABLE_ENTRIES - 1:
        most = ((1 << lane_bits) - 1) // (TABLE_ENTRIES - 1)
        raise CodecError(
            f"{workers} workers: a lane of {lane_bits} bits holds the sum of at most {most}; use codec fixed"
        )
    candidates = (
        _best_of_granularity(granularity, workers)
        for granularity in range(TABLE_ENTRIES - 1, min(finest, _SEARCH_GRANULARITY) + 1)
    )
    return min(candidates, key=lambda table: (expected_nmse(table, workers), table.granularity))


def _best_of_granularity(granularity: int, workers: int) -> LookupTable:
    """Search the truncated fraction among powers of 2^(1/4): whole powers of 2 first, then around the best."""

    def nmse(quarters: int) -> float:
        return expected_nmse(_table(granularity, quarters), workers)

    coarse = min(range(12, 65, 4), key=nmse)
    return _table(granularity, min(range(coarse - 3, coarse + 4), key=nmse))


@cache
def _table(granularity: int, quarters: int) -> LookupTable:
    truncated = 2.0 ** (-quarters / 4)
    return LookupTable(optimal_table(granularity, truncated), truncated)


@lru_cache(maxsize=4)
def _cell_errors(granularity: int, bound: float) -> NDArray[np.float64]:
    """Return the error of a gap from grid point l to grid point h as [l, h]; inf where h <= l.

    With m0, m1, m2 the moments of N(0, 1) over the gap it is (l + h) m1 - l h m0 - m2.
    """
    points = -bound + 2 * bound * np.arange(granularity + 1) / granularity
    density = np.array([_NORMAL.pdf(point) for point in points])
    below = np.array([math.erfc(-point / math.sqrt(2)) / 2 for point in points])
    low, high = points[:, None], points[None, :]
    m0 = below[None, :] - below[:, None]
    m1 = density[:, None] - density[None, :]
    m2 = m0 + low * density[:, None] - high * density[None, :]
    errors = (low + high) * m1 - low * high * m0 - m2
    return np.where(low < high, errors, np.inf)
