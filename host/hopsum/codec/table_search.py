# SPDX-License-Identifier: Apache-2.0
"""The choice of a job's table: the granularity g and the truncated fraction p with the least expected error.

Workers n and lane bound g: n g <= 2^lane_bits - 1. A coarser table leaves room for more workers, a finer one errs
less, though not always: the Pareto front holds what no other table beats in both.

The error to minimise depends on what happens to truncated parts. Q: variance of rounding; P: error of truncation.

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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from hopsum.codec.base import CodecError
from hopsum.codec.lookup_table import SWITCH_GRANULARITY, LookupTable, expected_nmse, optimal_table, require_bits
from hopsum.codec.solved_tables import SOLVED
from hopsum_wire._layout import TABLE_ENTRIES

SWITCH_BITS: Final = TABLE_ENTRIES.bit_length() - 1
MAX_LANE_BITS: Final = 32
PAIRED_BITS: Final = 2
"""The bits of a paired code, see pairs.py."""
PAIRED_SUM_BITS: Final = 4
"""The bits of a sum of values of paired codes: half a lane of 8 bits."""
_THREE_G: Final = 2
"""The granularity of a table of 3 values."""
_EQUAL: Final = 1e-9
_EIGHTHS: Final = range(1, 161)
"""p = 2^(-eighths/8): from 0.92 to 2^-20."""
_STEP_GROWTH: Final = 8
"""Granularities above 127 are searched in steps of 1/8 of themselves: in between little is gained."""


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
    """Return the table for a job, the same on every rank: least expected error. See the module.

    The search takes seconds of processor time where lanes have room. The tables of small jobs come from
    `solved_tables` instead, which has what `search_table` found.

    Args:
        workers: of the job, at least 1.
        lane_bits: of a lane in which the switch adds table values, 1 to 32.
        bits: of a code, 1 to 8. None takes the best of 1 to 4 that fit.
        error_feedback: whether the workers keep what truncation takes away and send it later.

    Raises:
        CodecError: arguments outside their range, or so many workers that the coarsest table overflows a lane.
    """
    solved = None if error_feedback else SOLVED.get((lane_bits, workers))
    if solved is not None:
        values, eighths = solved
        table = LookupTable(values, _truncated(eighths))
        if bits in (None, table.bits):
            return table
    return search_table(workers, lane_bits, bits, error_feedback)


def paired_table(workers: int, error_feedback: bool = True) -> LookupTable:
    """Return the table of a job with paired codes (pairs.py): 4 values where n g <= 15 allows them, else 3.

    Raises:
        CodecError: so many workers that 3 values overflow half a lane.
    """
    if workers <= most_workers(PAIRED_BITS, PAIRED_SUM_BITS):
        return best_table(workers, PAIRED_SUM_BITS, PAIRED_BITS, error_feedback)
    most = _lane_max(PAIRED_SUM_BITS) // _THREE_G
    if workers > most:
        raise CodecError(
            f"{workers} workers with bits={PAIRED_BITS}: half a lane holds the sum of at most {most} with codes of 3 "
            f"values, of {most_workers(PAIRED_BITS, PAIRED_SUM_BITS)} with codes of 4; take bits=4"
        )
    return even_table(_THREE_G, 1 if error_feedback else workers)


@cache
def even_table(granularity: int, counted: int) -> LookupTable:
    """Return the table of all integers up to a granularity, with the truncation of least `expected_nmse`."""
    tables = [LookupTable(tuple(range(granularity + 1)), _truncated(eighths)) for eighths in _EIGHTHS]
    return tables[_first_of_least([expected_nmse(table, counted) for table in tables])]


def search_table(workers: int, lane_bits: int, bits: int | None, error_feedback: bool) -> LookupTable:
    """Return what `best_table` does, by searching. Arguments and errors are those of `best_table`."""
    if bits is not None:
        return pareto_front(bits, workers, lane_bits, error_feedback)[-1].table
    _require_room(1, workers, lane_bits)
    fitting = [some for some in range(1, SWITCH_BITS + 1) if most_workers(some, lane_bits) >= workers]
    points = [pareto_front(some, workers, lane_bits, error_feedback)[-1] for some in fitting]
    return points[_first_of_least([point.expected_nmse for point in points])].table


@cache
def pareto_front(bits: int, workers: int, lane_bits: int = 8, error_feedback: bool = False) -> tuple[TablePoint, ...]:
    """Return the tables that no other beats in expected error and in workers per lane, by ascending granularity.

    Arguments and errors are those of `best_table`. The last point is what it returns.
    """
    require_bits(bits)
    _require_room(bits, workers, lane_bits)
    counted = 1 if error_feedback else workers
    front: list[TablePoint] = []
    for granularity in _granularities(bits, _lane_max(lane_bits) // workers):
        table = _best_of_granularity(granularity, bits, counted)
        point = TablePoint(table, expected_nmse(table, counted), _lane_max(lane_bits) // granularity)
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
    limit = min(errors) * (1 + _EQUAL)
    return next(index for index, error in enumerate(errors) if error <= limit)


@cache
def _table(granularity: int, eighths: int, bits: int) -> LookupTable:
    truncated = _truncated(eighths)
    return LookupTable(optimal_table(granularity, truncated, bits), truncated)


def _truncated(eighths: int) -> float:
    return float(2.0 ** (-eighths / 8))
