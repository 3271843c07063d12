# SPDX-License-Identifier: Apache-2.0
"""Lookup tables, their expected error, and the best one of given granularity and truncation.

Roundings of n workers are independent, so their error falls as 1/n. What truncation takes away is the same on
workers with the same input and does not fall. So the best t grows with n, while n g <= 2^lane_bits - 1 bounds g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CodecError
from hopsum.codec.table_solver import MAX_BITS, MAX_GRANULARITY, cell_errors_between, shortest_table
from hopsum_wire._layout import TABLE_ENTRIES

SWITCH_GRANULARITY: Final = 127
"""A table value plus the widest gap must fit in 8 bits where codes are counted."""
MAX_TRUNCATED: Final = 0.99
_BOUND_STEP: Final = 2.0**-40
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A table and the fraction of coordinates that it truncates.

    Raises:
        CodecError: values that are no table, or a fraction outside 0..0.99.
    """

    values: tuple[int, ...]
    """[2 to 256]: strictly increasing from 0 to the granularity."""
    truncated: float
    """p: expected fraction of N(0, 1) coordinates beyond the bound."""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise(self.values))
        if not 2 <= len(self.values) <= 1 << MAX_BITS or self.values[0] != 0 or not rising:
            raise CodecError(
                f"a table has 2 to {1 << MAX_BITS} strictly increasing integers from 0, "
                f"not the {len(self.values)} values {self.values}"
            )
        require_fraction(self.truncated)

    @property
    def bits(self) -> int:
        """Of a code."""
        return (len(self.values) - 1).bit_length()

    @property
    def granularity(self) -> int:
        """g: the last value."""
        return self.values[-1]

    @property
    def bound(self) -> float:
        """t: coordinates beyond it are truncated, in standard deviations."""
        return truncation_bound(self.truncated)

    @property
    def switch_values(self) -> tuple[int, ...]:
        """[16]: the table as the switch's 4-bit operations take it, the last value repeated for codes that it lacks.

        Raises:
            CodecError: see `require_switch_table`.
        """
        require_switch_table(self)
        return self.values + (self.granularity,) * (TABLE_ENTRIES - len(self.values))


def require_switch_table(table: LookupTable) -> None:
    """Raise CodecError unless the switch's 4-bit operations and the kernels of `thc` can use this table."""
    if len(table.values) > TABLE_ENTRIES:
        raise CodecError(
            f"a table of {len(table.values)} values ({table.bits} bits): the switch looks up 4-bit codes, "
            f"{TABLE_ENTRIES} values; take a table of at most 4 bits"
        )
    if table.granularity > SWITCH_GRANULARITY:
        raise CodecError(
            f"granularity {table.granularity} of a table for the switch: at most {SWITCH_GRANULARITY}; "
            "take a coarser one"
        )


def require_bits(bits: int) -> None:
    """Raise CodecError unless tables for codes of this many bits can be solved."""
    if not 1 <= bits <= MAX_BITS:
        raise CodecError(f"a table for codes of {bits} bits: 1 to {MAX_BITS} bits")


def require_fraction(truncated: float) -> None:
    """Raise CodecError unless this fraction of coordinates can be truncated."""
    if not 0.0 < truncated <= MAX_TRUNCATED:
        raise CodecError(f"truncated fraction {truncated}: above 0 and at most {MAX_TRUNCATED}")


def truncation_bound(truncated: float) -> float:
    """Return t with Pr[|N(0, 1)| > t] = truncated: PhiInv(1 - truncated/2), to 12 decimals.

    It is a multiple of 2^-40, so that ranks whose logarithms differ in the last bit encode with the same t.
    """
    return round(-_NORMAL.inv_cdf(truncated / 2) / _BOUND_STEP) * _BOUND_STEP


def truncation_error(bound: float) -> float:
    """Return E[(|a| - t)^2; |a| > t] of a ~ N(0, 1): what truncation alone costs."""
    tail = math.erfc(bound / math.sqrt(2)) / 2
    return 2 * ((1 + bound * bound) * tail - bound * _NORMAL.pdf(bound))


def rounding_error(values: tuple[int, ...], bound: float) -> float:
    """Return the variance that unbiased rounding to these values adds to an N(0, 1) coordinate within the bound."""
    return float(cell_errors(values, bound).sum())


def cell_errors(values: tuple[int, ...], bound: float) -> NDArray[np.float64]:
    """Return what each gap of a table contributes to its rounding error, float64[entries - 1]."""
    return cell_errors_between(-bound + 2 * bound * np.array(values) / values[-1])


def expected_nmse(table: LookupTable, workers: int) -> float:
    """Return E||mean' - mean||^2 / ||mean||^2 for workers with the same input, without error feedback."""
    return rounding_error(table.values, table.bound) / workers + truncation_error(table.bound)


def optimal_table(granularity: int, truncated: float, bits: int = 4) -> tuple[int, ...]:
    """Return the table of least rounding error among all tables of 2^bits values that end at the granularity.

    Of tables that are equally good (a table and its mirror image) the first in lexical order from the end wins,
    so that all ranks find the same one.

    Raises:
        CodecError: bits outside 1..8, a granularity outside 2^bits - 1..4095, or a fraction outside 0..0.99.
    """
    require_bits(bits)
    if not (1 << bits) - 1 <= granularity <= MAX_GRANULARITY:
        raise CodecError(
            f"granularity {granularity} for the {1 << bits} values of {bits} bits: at least {(1 << bits) - 1} "
            f"and at most {MAX_GRANULARITY}"
        )
    require_fraction(truncated)
    return shortest_table(granularity, truncation_bound(truncated), 1 << bits)
