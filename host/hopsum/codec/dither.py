# SPDX-License-Identifier: Apache-2.0
"""Rounding with a subtractive dither, and results that the switch looks up again: the numbers of a job.

Up. Levels are even: code z of 0..g stands for the coordinate (z - g/2) 2t/g of N(0, 1). A rank rounds v + u down, and
subtracts u - 1/2 from its code. All ranks draw the same 4 random bits s for a coordinate. Rank i has the dither
u = (x + f)/16, where x = (s + 16 i // n) mod 16 is known to everybody, and f in [0, 1) is the rank's own randomness.
So rounding has no bias, its error is the level's distance^2/12 whatever the coordinate, and ranks with equal inputs
round apart: their errors cancel. Signs of an error that staggered dithers share: Suresh et al., "Correlated
quantization for distributed mean estimation", ICML 2022. Dithers that are subtracted: Roberts, 1962.

    w = unit (sum of (z - g/2) of the contributors - sum of their known dithers)

is an integer, since a rank's known dither, unit (x + 1/2)/16 - unit/2, is rounded to one (`own`): the rest of it counts
as rounding error. `unit` is as large as 16-bit kernels allow (kernels.py).

Down. With results of as few bits as codes, the switch puts a sum into one of 2^bits cells by ascending thresholds
(`hopsum_wire.payload.requantize`), and a receiver knows of the sum only its cell. The width of a sum depends on how
alike the workers' vectors are, which nobody knows before: the root mean square of the mean is s r, where s lies
between 1/sqrt(n) (independent vectors) and 1 (equal vectors) for the largest range r of a worker.

- One set of thresholds serves all s of that range. It has the least average of the relative errors, exactly: cells are
  a shortest path, as values of a lookup table are (lookup_table.py).
- A receiver takes s from the block's own codes: an integer sum of squares over its codes, compared with the sums that
  are expected of each `class`. All ranks have the same codes, and so the same class.
- The value of a cell is the mean of the sums in it, times a gain that makes results unbiased: E[value sum] = E[sum^2]
  (Vargaftik et al., "EDEN", ICML 2022). The rotation is new in every all-reduce, so the error of the way down is noise
  of mean zero from one all-reduce to the next.

Means and gain follow from the distribution of the sums of clipped and rounded coordinates, for workers whose
coordinates are jointly normal: of one norm and with a correlation where s is at least 1/sqrt(n), else independent,
with one worker of norm r and the others of one norm below it. With error feedback the sum in question is that of what
the workers sent, because a worker keeps what was clipped. Without error feedback it is that of the coordinates
themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import CodecError, Doubles, Ints
from hopsum.codec.lookup_table import LookupTable, best_truncated_fraction, truncation_error

SHARES: Final = 16
"""The values of a dither that all ranks know: 4 random bits of a coordinate."""
RESULT_BITS: Final = (2, 3, 4)
"""Bits of codes that the switch looks up, adds, and looks up again."""
MOST_WORKERS: Final = {4: 17, 3: 17, 2: 42}
"""The most workers of which lanes of 8 bits hold the signed sum of codes, by their bits."""
CLASSES: Final = 17
"""The widths of a sum that receivers tell apart: s = 2^(-class/4), 1 to 1/16."""
_MOST: Final = 256
"""Bound of |w|: seven stages of the rotation multiply it by 2^7 in 16 bits (thc_kernels.py)."""
_MOST_UNIT: Final = 64
_SIXTEEN, _FIFTEEN, _EIGHT, _FOUR = 15, 14, 7, 3
"""Granularities: a table has one level more."""
_REACH: Final = 5.0
"""Standard deviations of the workers' common part that are counted."""
_LEAST_SPREAD: Final = 0.1
"""Least standard deviation of what workers do not have in common, in distances of levels."""
_LEAST_NORM: Final = 0.1
"""Least norm of the other workers over the largest one: of narrower sums 2 bits show the signs alone."""
_HALF_LANES: Final = 128
"""Sums that the second lookup tells apart: it takes the upper 7 bits of a lane."""


class ResultValues(NamedTuple):
    """The values of the cells of requantised results, for kernels. Row c of an array is for sums of c workers."""

    bounds: Ints
    """[n + 1, CLASSES - 1], descending. The class of a block is the number of bounds above its energy: the sum of
    (2 code - 2^bits + 1)^2 over its codes."""
    values: NDArray[np.int16]
    """[n + 1, CLASSES, 16]: w by code, before the known dithers are subtracted."""


@dataclass(frozen=True, eq=False)
class Dither:
    """The rounding of a job with subtractive dither. Arrays are read-only."""

    granularity: int
    """g: codes are 0..g."""
    unit: int
    """The integers w of one level's distance. It is even."""
    own: NDArray[np.int8]
    """[n, 16]: the known dither of each rank in units of w, by the shared 4 bits s."""
    results: ResultValues | None
    """None: results are whole sums."""

    @property
    def shifts(self) -> Ints:
        """Return int32[n]: the distance of each rank's known dither from rank 0's, of 16."""
        return stagger(len(self.own))


def stagger(workers: int) -> Ints:
    """Return the number that each rank i of n adds to the shared bits of a dither, 16 i // n, int32[n]."""
    return (SHARES * np.arange(workers) // workers).astype(np.int32)


def granularity_for(workers: int, bits: int, *, requantized: bool) -> int:
    """Return the granularity of a job, its largest code: for the most levels of which sums fit into lanes of 8 bits.

    Requantised sums are signed, and lose their lowest bit unless levels are 2 apart: they have 15 levels in place of 16
    above 8 workers, so that levels can be 1 apart with a middle of 0.

    Raises:
        CodecError: requantised sums of so many workers overflow a lane.
    """
    if requantized and workers > MOST_WORKERS[bits]:
        ways = [f"bits={fewer}" for fewer, most in MOST_WORKERS.items() if most >= workers]
        raise CodecError(
            f"{workers} workers with results of {bits} bits: lanes of 8 bits hold the signed sum of at most "
            f"{MOST_WORKERS[bits]} codes; take {', '.join([*ways, 'bits=4,result_bits=8'])}"
        )
    if bits < 4:
        return (1 << bits) - 1
    # Without requantisation more workers take fewer levels, as tables of stochastic rounding do.
    for limit, granularity in ((8, _SIXTEEN), (17, _FIFTEEN), (32, _EIGHT)):
        if workers <= limit:
            return granularity
    return _FOUR


@cache
def even_levels(granularity: int) -> LookupTable:
    """Return the table of the codes 0..granularity as values, with the bound of least error of one worker.

    The error is that of dithered rounding, and that of truncation.
    """

    def error(bound: float) -> float:
        return (2 * bound / granularity) ** 2 / 12 + truncation_error(bound)

    return LookupTable(tuple(range(granularity + 1)), best_truncated_fraction(error))


@cache
def job_dither(workers: int, bits: int, requantized: bool, error_feedback: bool) -> Dither:
    """Return the dither of a job, the same on all ranks.

    With requantised results the first call in a process takes 0.1 s for 4 workers, and 1 s for 16.

    Args:
        workers: of the job.
        bits: of a code.
        requantized: results have as many bits as codes, in place of 8.
        error_feedback: whether workers keep what is clipped.

    Raises:
        CodecError: see `granularity_for`.
    """
    granularity = granularity_for(workers, bits, requantized=requantized)
    unit = _MOST_UNIT
    while unit > 2 and unit * workers * (granularity + 1) > 2 * _MOST:
        unit //= 2
    results = None
    if requantized:
        bounds, means = _result_means(workers, bits, granularity, error_feedback)
        # Of few workers the mean of a cell, times the gain, can be beyond the largest sum. Only values of sums that are
        # narrower than those of independent vectors are clipped.
        dithers = np.arange(workers + 1)[:, None, None] / 2
        likely = np.square(_widths())[None, :, None] * 2 * dithers >= 1
        most = float(((np.abs(means) + dithers) * likely).max())
        while unit > 2 and unit * most > _MOST - 1:
            unit //= 2
        limits = _MOST - 1 - unit * dithers
        results = ResultValues(bounds, np.clip(np.rint(unit * means), -limits, limits).astype(np.int16))
        for each in results:
            each.setflags(write=False)
    known = (np.arange(SHARES)[None, :] + stagger(workers)[:, None]) % SHARES
    # Ties round to even, so that the known dithers lie symmetrically around 0.
    own = np.rint(unit * ((known + 0.5) / SHARES - 0.5)).astype(np.int8)
    own.setflags(write=False)
    return Dither(granularity, unit, own, results)


@cache
def requantized_table(workers: int, bits: int) -> tuple[int, ...]:
    """Return a job's table of LOOKUP_ADD_LOOKUP: 2^bits signed values, then 2^bits - 1 thresholds that do not fall.

    Raises CodecError for more workers than MOST_WORKERS.
    """
    granularity = granularity_for(workers, bits, requantized=True)
    values = [_lane(min(code, granularity), 1, granularity) for code in range(1 << bits)]
    # The cells hold whole runs of half lanes, of which the last bit is not looked up.
    places = _half_lanes(workers, granularity)
    classes = [width for width in _widths() if width * width * workers >= 1 or width == 1.0]
    weight = np.zeros((len(classes), places[-1] + 1))
    first = np.zeros_like(weight)
    for row, width in enumerate(classes):
        sums = _sums(workers, granularity, width, error_feedback=True)
        np.add.at(weight[row], places, sums.weight)
        np.add.at(first[row], places, sums.first / math.sqrt(sums.square))
    return (*values, *_cells(weight[:, places[0] :], first[:, places[0] :], 1 << bits, int(places[0])))


def _lane(total: int, workers: int, granularity: int) -> int:
    """Return the lane of a sum of codes: 2 S - c g, or S - c g/2 where levels are 1 apart."""
    return 2 * total - workers * granularity if granularity % 2 else total - workers * granularity // 2


def _half_lanes(workers: int, granularity: int) -> NDArray[np.int64]:
    """Return what the second lookup sees of each sum of codes, int64[c g + 1]: (lane + 128) >> 1."""
    lanes = np.array([_lane(total, workers, granularity) for total in range(workers * granularity + 1)])
    return (lanes + _HALF_LANES) >> 1


def _widths() -> list[float]:
    return [2.0 ** (-number / 4) for number in range(CLASSES)]


class _Sums(NamedTuple):
    """The distribution of a sum of codes, and of the sum that it stands for, in distances of levels."""

    weight: Doubles
    """[c g + 1]: the probability of each sum of codes."""
    first: Doubles
    """[c g + 1]: the mean of the sum that it stands for, times that."""
    square: float
    """The mean square of the sum that it stands for."""


@cache
def _sums(count: int, granularity: int, width: float, error_feedback: bool) -> _Sums:
    """Return the sums of `count` workers where the mean has the root mean square `width` of a worker's vector."""
    scale = granularity / (2 * even_levels(granularity).bound)
    common, alone = _spreads(count, width)
    middle = granularity / 2
    # Equal coordinates differ by their dithers alone: a spread of 0 would need a sum over too many common parts.
    spreads = np.maximum(scale * alone, _LEAST_SPREAD)
    steps = math.ceil(2 * _REACH * max(2.0, scale * math.sqrt(common) / spreads[0])) if common else 0
    parts = np.linspace(-_REACH, _REACH, steps + 1) if common else np.zeros(1)
    chances = np.exp(-parts * parts / 2)
    chances /= chances.sum()
    mean = middle + scale * math.sqrt(common) * parts
    # Where workers are alike, of the shared bits those that change more than which rank has which dither.
    shared = np.arange(SHARES if spreads[0] != spreads[-1] else -(-SHARES // count))
    shape = (len(parts), len(shared), 1)
    weight, first, dithers = np.ones(shape), np.zeros(shape), np.zeros(len(shared))
    for shift, spread in zip(stagger(count), spreads, strict=True):
        dither = ((shared + shift) % SHARES + 0.5) / SHARES
        dithers += dither - 0.5
        # A code is z where v + dither lies in [z, z + 1): of the ends also what is clipped.
        ends = (np.arange(1, granularity + 1) - dither[:, None])[None, :, :] - mean[:, None, None]
        below = _normal_cdf(ends / spread)
        edge = np.zeros((*below.shape[:2], 1))
        chance = np.diff(np.concatenate((edge, below, edge + 1), axis=2))
        if error_feedback:
            known = np.arange(granularity + 1) + 0.5 - dither[:, None] - middle
            value = chance * known[None, :, :]
        else:
            density = np.concatenate((edge, np.exp(-((ends / spread) ** 2) / 2), edge), axis=2)
            density *= spread / math.sqrt(2 * math.pi)
            value = chance * (mean[:, None, None] - middle) - np.diff(density)
        weight, first = _convolved(weight, chance), _convolved(first, chance) + _convolved(weight, value)
    if error_feedback:
        totals = np.arange(weight.shape[2]) - count * middle
        squares = ((totals[None, :] - dithers[:, None])[None, :, :] ** 2 * weight).sum(axis=2).mean(axis=1)
        square = float((squares * chances).sum())
    else:
        square = scale**2 * (count**2 * common + float((alone**2).sum()))
    over = chances[:, None]
    return _Sums((weight.mean(axis=1) * over).sum(axis=0), (first.mean(axis=1) * over).sum(axis=0), square)


def _spreads(count: int, width: float) -> tuple[float, Doubles]:
    """Return the variance that workers' coordinates have in common, and the standard deviation of each one's rest.

    Both are of vectors over the range, which is the largest norm of a worker. So a mean that is narrower than that of
    independent vectors of one norm is of unlike norms: one worker has the range, and the others have one norm below it.
    """
    energy = (width * count) ** 2
    if count == 1:
        # Another worker has the range, and is not in.
        return 0.0, np.array([width])
    if energy >= count:
        # Workers' coordinates have this correlation if their mean is so wide.
        common = (energy / count - 1) / (count - 1)
        return common, np.full(count, math.sqrt(max(1 - common, 0.0)))
    others = max((energy - 1) / (count - 1), _LEAST_NORM**2)
    return 0.0, np.sqrt(np.array([1.0, *[others] * (count - 1)]))


def _convolved(a: Doubles, b: Doubles) -> Doubles:
    """Return the convolution of the last axes."""
    made = np.zeros((*a.shape[:2], a.shape[2] + b.shape[2] - 1))
    for place in range(b.shape[2]):
        made[:, :, place : place + a.shape[2]] += a * b[:, :, place, None]
    return made


def _normal_cdf(a: Doubles) -> Doubles:
    """Return Phi. Its last digits do not matter: what follows from it is rounded to integers."""
    made: Doubles = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in a.reshape(-1).tolist()])
    return made.reshape(a.shape)


def _cells(weight: Doubles, first: Doubles, cells: int, start: int) -> tuple[int, ...]:
    """Return the thresholds of the cells that keep most of the sums' energy, averaged over the rows.

    Args:
        weight: [classes, places]: the probability of each place, for sums of each width.
        first: [classes, places]: the mean of the sum there, times that, over the sum's root mean square.
        cells: the number of cells.
        start: number of the first place.
    """
    places = weight.shape[1]
    above = np.concatenate((np.zeros((len(weight), 1)), np.cumsum(weight, axis=1)), axis=1)
    moment = np.concatenate((np.zeros((len(weight), 1)), np.cumsum(first, axis=1)), axis=1)
    # The energy that a cell from place l to place h - 1 keeps: the square of its mean, times its probability.
    mass = above[:, None, :] - above[:, :, None]
    gained = (moment[:, None, :] - moment[:, :, None]) ** 2 / np.maximum(mass, 1e-300)
    kept = np.where(mass > 1e-15, gained, 0.0).mean(axis=0)
    kept[np.tril_indices(places + 1)] = -np.inf
    best = kept[0].copy()
    steps: list[NDArray[np.int64]] = []
    for _ in range(min(cells, places) - 1):
        ways = best[:, None] + kept
        # Ties are decided alike everywhere: the first of those within rounding.
        top = ways.max(axis=0)
        from_ = np.argmax(ways >= top - 1e-12, axis=0)
        steps.append(from_)
        best = np.take_along_axis(ways, from_[None, :], axis=0)[0]
    ends, place = [], places
    for from_ in reversed(steps):
        place = int(from_[place])
        ends.append(place + start)
    # A job with fewer sums than cells repeats the last threshold.
    return tuple([*reversed(ends), *[ends[0]] * (cells - 1 - len(ends))])


def _result_means(workers: int, bits: int, granularity: int, error_feedback: bool) -> tuple[Ints, Doubles]:
    """Return `ResultValues` for sums of every number of workers, with the values in distances of levels."""
    cells = 1 << bits
    thresholds = np.array(requantized_table(workers, bits)[cells:])
    bounds = np.zeros((workers + 1, CLASSES - 1), np.int32)
    values = np.zeros((workers + 1, CLASSES, SHARES))
    energies = (2 * np.arange(cells) - cells + 1) ** 2
    for count in range(1, workers + 1):
        codes = np.searchsorted(thresholds, _half_lanes(count, granularity), side="right")
        expected = []
        for number, width in enumerate(_widths()):
            sums = _sums(count, granularity, width, error_feedback)
            weight = np.bincount(codes, sums.weight, cells)
            first = np.bincount(codes, sums.first, cells)
            here = weight > 1e-12
            means = np.divide(first, weight, out=np.zeros(cells), where=here)
            gain = sums.square / float((first * means)[here].sum())
            # A cell that sums of this width never reach has the value of a wider class: of the one before.
            before = values[count, number - 1, :cells] if number else np.zeros(cells)
            values[count, number, :cells] = np.where(here, gain * means, before)
            expected.append(1024 * float((weight * energies).sum()))
        middles = (np.array(expected[:-1]) + expected[1:]) / 2
        bounds[count] = np.minimum.accumulate(np.rint(middles)).astype(np.int32)
    return bounds, values
