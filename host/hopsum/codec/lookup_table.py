# SPDX-License-Identifier: Apache-2.0
"""Lookup tables: code z stands for the value -t + 2 t T[z]/g of a coordinate with distribution N(0, 1).

A coordinate beyond t is truncated. One between two values of the table is rounded to one of them, without bias. The
best table minimises the integral of (q_hi(a) - a)(a - q_lo(a)) phi(a) over -t < a < t, where q_lo and q_hi are a's
neighbours (Li et al., "THC", NSDI 2024).

The table of a job has the granularity g and the truncated fraction p of least expected error. Workers n and lane bound
g: n g <= 2^lane_bits - 1. A coarser table leaves room for more workers, a finer one errs less, though not always: the
Pareto front holds the tables that no other one beats in both. The error to minimise depends on the fate of truncated
parts. Q: variance of rounding; P: error of truncation.

    without error feedback   Q/n + P: the error of the mean of equal inputs; roundings are independent, truncated
                             parts are the same on all workers and lost
    with error feedback      Q + P, whatever n: truncated parts are sent later, so what counts is how large the
                             residual grows. A compressor with E||C(x) - x||^2 <= (1 - d) ||x||^2 keeps
                             E||residual||^2 below 4 (1 - d)/d^2 times the squared step (Karimireddy et al., "Error
                             feedback fixes SignSGD", ICML 2019, assumption A and lemma 3), which rises with
                             1 - d = Q + P of one worker alone

The fraction p is a power of 2^(1/8). Every rank must find the same table, although exp and log may differ in the last
bit from machine to machine: an error counts as smaller only if it is so by 1e-9 of itself, and of equal ones the
first wins, in the order of ascending g, then descending p (and of bits, where they are to be chosen).

For given g and p the best table is a shortest path over the integers 0..g with 2^bits - 1 steps, solved exactly. A step
from l to h costs C(l, h), the integral of (h - a)(a - l) phi(a) over the gap. Everything that is added up is positive,
so a cost is right to about 1e-14 of itself however fine the grid is. Closed forms by Phi and phi would cancel.

C satisfies the quadrangle inequality C(a,c) + C(b,d) <= C(a,d) + C(b,c) for a <= b <= c <= d, point by point of
the integral: right minus left is (d-c)(b-a) for a point in [b,c], (d-c)(x-a) in [a,b] and (b-a)(d-x) in [c,d], and
none is negative. So the best step into j starts no lower than the best step into j - 1, and half of all targets
narrow down the other half: O(g log g) a step instead of O(g^2), worth its overhead on fine grids (the same
structure as in Ben Basat et al., "Optimal and approximate adaptive stochastic quantization", NeurIPS 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np

from hopsum.codec.interface import CodecError, Doubles
from hopsum.codec.solved_tables import SOLVED
from hopsum_wire._layout import TABLE_ENTRIES

SWITCH_BITS: Final = TABLE_ENTRIES.bit_length() - 1
MAX_LANE_BITS: Final = 32
_EQUAL: Final = 1e-9
_EIGHTHS: Final = range(1, 161)
"""p = 2^(-eighths/8): from 0.92 to 2^-20."""
_STEP_GROWTH: Final = 8
"""Granularities above 127 are searched in steps of 1/8 of themselves: in between little is gained."""
MAX_BITS: Final = 8
MAX_GRANULARITY: Final = 4095
"""The costs of all steps are held at once: some 800 MB at this size."""
TIE: Final = 1e-12
"""Paths that differ by less than this, relatively, are equally good: mirror images, on every machine."""
_NODES: Final = 64
"""The nodes of Gauss and Legendre, exact to the last bits for a gap of 10 standard deviations."""
_FINE_NODES: Final = 16
"""Nodes that suffice for gaps below one standard deviation."""
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
        """Bits of a code."""
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
    # Logarithms differ in the last bit from machine to machine. Ranks need the same bound to the bit.
    return round(-_NORMAL.inv_cdf(truncated / 2) / _BOUND_STEP) * _BOUND_STEP


def truncation_error(bound: float) -> float:
    """Return the error of truncation alone, E[(|a| - t)^2; |a| > t] of a ~ N(0, 1), t the bound."""
    tail = math.erfc(bound / math.sqrt(2)) / 2
    return 2 * ((1 + bound * bound) * tail - bound * _NORMAL.pdf(bound))


def rounding_error(values: tuple[int, ...], bound: float) -> float:
    """Return E[(rounded - a)^2; |a| <= bound] of a ~ N(0, 1) that is rounded without bias to a table's values.

    `values` ascend from 0 to the granularity. They are scaled linearly to -bound..bound.
    """
    return float(cell_errors(values, bound).sum())


def cell_errors(values: tuple[int, ...], bound: float) -> Doubles:
    """Return the rounding error in each gap of a table, float64[entries - 1]. Their sum is `rounding_error`."""
    return cell_errors_between(-bound + 2 * bound * np.array(values) / values[-1])


def expected_nmse(table: LookupTable, workers: int) -> float:
    """Return the expected error of the mean where all workers have the same N(0, 1) input and no error feedback.

    It is E||mean' - mean||^2 / ||mean||^2.
    """
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


# ---- the table of a job ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TablePoint:
    """A table of the Pareto front."""

    table: LookupTable
    expected_nmse: float
    """The objective of the search: Q/n + P, or with error feedback Q + P."""
    workers_per_lane: int
    """The most workers whose sum a lane holds."""


@cache
def best_table(
    workers: int, lane_bits: int = 8, bits: int | None = SWITCH_BITS, error_feedback: bool = False
) -> LookupTable:
    """Return the table of least expected error for a job, the same on every rank.

    The search takes seconds of processor time where lanes have room. The tables of small jobs come from
    `solved_tables` instead, which has the results of `search_table`.

    Args:
        workers: of the job, at least 1.
        lane_bits: of a lane in which the switch adds table values, 1 to 32.
        bits: of a code, 1 to 8. None takes the best of 1 to 4 that fit.
        error_feedback: whether the workers keep the truncated part and send it later.

    Raises:
        CodecError: arguments outside their range, or so many workers that the coarsest table overflows a lane.
    """
    # Solved beforehand: a search takes seconds, and every process of a job would do it.
    solved = None if error_feedback else SOLVED.get((lane_bits, workers))
    if solved is not None:
        values, eighths = solved
        table = LookupTable(values, _truncated(eighths))
        if bits in (None, table.bits):
            return table
    return search_table(workers, lane_bits, bits, error_feedback)


def best_truncated_fraction(error: Callable[[float], float]) -> float:
    """Return the truncated fraction, a power of 2^(1/8), at whose bound the function `error` of the bound is least."""
    fractions = [_truncated(eighths) for eighths in _EIGHTHS]
    return fractions[_first_of_least([error(truncation_bound(each)) for each in fractions])]


def search_table(workers: int, lane_bits: int, bits: int | None, error_feedback: bool) -> LookupTable:
    """Search for the table of least expected error, and return it. Solved tables are not used, so it may take seconds.

    Arguments and errors are those of `best_table`.
    """
    if bits is not None:
        return pareto_front(bits, workers, lane_bits, error_feedback)[-1].table
    _require_room(1, workers, lane_bits)
    fitting = [some for some in range(1, SWITCH_BITS + 1) if most_workers(some, lane_bits) >= workers]
    points = [pareto_front(some, workers, lane_bits, error_feedback)[-1] for some in fitting]
    return points[_first_of_least([point.expected_nmse for point in points])].table


@cache
def pareto_front(bits: int, workers: int, lane_bits: int = 8, error_feedback: bool = False) -> tuple[TablePoint, ...]:
    """Return the tables that no other beats in expected error and in workers per lane, by ascending granularity.

    Arguments and errors are those of `best_table`, but `bits` is a number. The last point has the table of least error.
    """
    require_bits(bits)
    _require_room(bits, workers, lane_bits)
    counted = 1 if error_feedback else workers
    front: list[TablePoint] = []
    for granularity in _granularities(bits, _lane_max(lane_bits) // workers):
        table = _best_of_granularity(granularity, bits, counted)
        point = TablePoint(table, expected_nmse(table, counted), _lane_max(lane_bits) // granularity)
        # A finer table that errs as much is beaten: it leaves room for fewer workers.
        if front and _first_of_least((front[-1].expected_nmse, point.expected_nmse)) == 0:
            continue
        if front and front[-1].workers_per_lane == point.workers_per_lane:
            front.pop()
        front.append(point)
    return tuple(front)


def most_workers(bits: int, lane_bits: int) -> int:
    """Return how many workers' values a lane holds with the coarsest table of 2^bits values."""
    return _lane_max(lane_bits) // ((1 << bits) - 1)


def _lane_max(lane_bits: int) -> int:
    return (1 << lane_bits) - 1


def _require_room(bits: int, workers: int, lane_bits: int) -> None:
    if workers < 1:
        raise CodecError(f"{workers} workers: a job has at least 1")
    if not 1 <= lane_bits <= MAX_LANE_BITS:
        raise CodecError(f"lanes of {lane_bits} bits: 1 to {MAX_LANE_BITS}")
    most = most_workers(bits, lane_bits)
    if workers <= most:
        return
    ways = [
        f"bits={fewer} (up to {most_workers(fewer, lane_bits)} workers)"
        for fewer in range(bits - 1, 0, -1)
        if most_workers(fewer, lane_bits) >= workers
    ]
    ways += [f"lane_bits={wider}" for wider in (8, 16, 32) if most_workers(bits, wider) >= workers][:1]
    raise CodecError(
        f"{workers} workers: a lane of {lane_bits} bits holds the sum of at most {most} with codes of {bits} bits "
        f"(values up to {(1 << bits) - 1} at least); take {', '.join(ways)} or codec fixed"
    )


def _granularities(bits: int, finest: int) -> Iterator[int]:
    """Yield what is searched: everything up to 127, then ever larger steps up to four times the coarsest.

    Tables of at most 16 values end at 127 where the switch's kernels do.
    """
    coarsest = (1 << bits) - 1
    granularity = coarsest
    while granularity <= min(finest, max(SWITCH_GRANULARITY, 4 * coarsest)):
        yield granularity
        # Every value up to the switch's limit. Above it the error falls as 1/g^2, and steps of 1/8 lose little.
        granularity += 1 if granularity < SWITCH_GRANULARITY else granularity // _STEP_GROWTH


def _best_of_granularity(granularity: int, bits: int, workers: int) -> LookupTable:
    """Search p: all whole powers of 2, then downhill from the best in steps that halve to one eighth.

    The error has several local minima, of different tables. Compared with the whole grid, what this leaves is below
    0.3 % for some granularities, and nothing for those on the fronts of 2 to 4 bits in 8-bit lanes.
    """
    near, step = list(_EIGHTHS[7::8]), 8
    while step:
        errors = [expected_nmse(_table(granularity, eighths, bits), workers) for eighths in near]
        best = near[_first_of_least(errors)]
        step = step if len(near) == 3 and best != near[1] else step // 2
        near = [eighths for eighths in (best - step, best, best + step) if eighths in _EIGHTHS]
    return _table(granularity, best, bits)


def _first_of_least(errors: Sequence[float]) -> int:
    """Return the index of the least error. Of equal ones it is the first."""
    # exp and log may differ in the last bit between machines: what differs less than 1e-9 counts as equal.
    limit = min(errors) * (1 + _EQUAL)
    return next(index for index, error in enumerate(errors) if error <= limit)


@cache
def _table(granularity: int, eighths: int, bits: int) -> LookupTable:
    truncated = _truncated(eighths)
    return LookupTable(optimal_table(granularity, truncated, bits), truncated)


def _truncated(eighths: int) -> float:
    return float(2.0 ** (-eighths / 8))


# ---- the exact solution ----------------------------------------------------------------------------------


def shortest_table(granularity: int, bound: float, entries: int) -> tuple[int, ...]:
    """Return the best table of `entries` values. Of equal ones it is the table whose values, from the end, are least.

    Args:
        granularity: entries - 1 to MAX_GRANULARITY. There are at least 2 entries.
        bound: t, positive.
    """
    costs = grid_costs(granularity, bound)
    start = np.full(granularity + 1, np.inf)
    start[0] = 0.0
    layers = [start]
    for _ in range(entries - 2):
        # The least cost of every grid point after one more step, from all pairs.
        layers.append((layers[-1][:, None] + costs).min(axis=0))
    values = [granularity]
    for layer in reversed(layers):
        paths = layer + costs[:, values[-1]]
        # The first of equal paths, so that a table and its mirror image are decided alike everywhere.
        values.append(int(np.argmax(paths <= paths.min() * (1 + TIE))))
    return tuple(reversed(values))


@lru_cache(maxsize=2)
def grid_costs(granularity: int, bound: float) -> Doubles:
    """Return the rounding error C(l, h) of the gaps between all grid points, float64[g + 1, g + 1]; inf where h <= l.

    The array is read-only, and later calls with the same arguments return it again.
    """
    width = 2 * bound / granularity
    # A wide step needs more nodes of Gauss's rule to be exact to the last bits.
    nodes, weights = _rule(_NODES if width > 1 else _FINE_NODES)
    density = _density(-bound + width * (np.arange(granularity)[:, None] + nodes)) * weights * width
    mass, first, inner = density.sum(axis=1), density @ nodes, density @ (nodes * (1 - nodes))
    steps = np.arange(granularity)[None, :] - np.arange(granularity)[:, None]
    inside = steps >= 0
    # Moments of the density inside one grid step suffice: a wider gap is a sum over its steps, made by cumsum. With h
    # one grid step further, every point of the gap costs its distance to l more, times the step.
    distance = np.where(inside, steps * mass + first, 0.0)
    grown = np.cumsum(distance, axis=1) - distance
    costs = np.full((granularity + 1, granularity + 1), np.inf)
    costs[:-1, 1:] = np.cumsum(np.where(inside, grown + steps * (mass - first) + inner, 0.0), axis=1) * width**2
    costs[:-1, 1:][~inside] = np.inf
    costs.setflags(write=False)
    return costs


def cell_errors_between(points: Doubles) -> Doubles:
    """Return the rounding error in each gap between ascending points, float64[points - 1].

    It is the integral of (h - a)(a - l) phi(a) over the gap from l to h.
    """
    nodes, weights = _rule(_NODES)
    widths = np.diff(points)[:, None]
    errors: Doubles = _density(points[:-1, None] + widths * nodes) @ (nodes * (1 - nodes) * weights)
    return errors * widths[:, 0] ** 3


def _density(a: Doubles) -> Doubles:
    density: Doubles = np.exp(-a * a / 2) / np.sqrt(2 * np.pi)
    return density


@lru_cache(maxsize=2)
def _rule(nodes: int) -> tuple[Doubles, Doubles]:
    """Return nodes and weights of Gauss and Legendre's rule over 0..1."""
    at, weights = np.polynomial.legendre.leggauss(nodes)
    return (at + 1) / 2, weights / 2
