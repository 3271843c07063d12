# SPDX-License-Identifier: Apache-2.0
"""The expected error of `thc` and codecs like it for a given vector: from the formulas, sharing no code with them.

`hopsum.codec.lookup_table.expected_nmse` assumes coordinates with distribution N(0, 1) and stochastic rounding. A block
with few non-zero elements is rotated into coordinates with lighter tails, and its error is smaller. Here the
coordinates are those of the vector, and rounding is that of the codec.

With a subtractive dither all workers have the same coordinate v, in distances of levels. The dither of rank i is
(x + f)/16, with an integer x of 0..15 that is known, and f uniform over 0..1. For given x, rank i's code is an integer,
or one of two with a probability. The mean over the 16 values that all ranks draw is a function of v alone, and of the
block's class where results are requantised. It is tabulated once for a codec. The class of a block is random where its
energy is near a bound: the energy is a sum over 1,024 codes, and taken as normally distributed.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.dither import CLASSES, SHARES
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec

Doubles = NDArray[np.float64]
_STEPS: Final = 16 * SHARES
"""Points of a tabulated function in the distance of two levels."""
_QUANTILES: Final = 1 << 14
"""Coordinates that stand for a normal distribution."""
_LEAST_SHARE: Final = 1e-6
"""Probability below which a class of a block is left out."""


def expected_nmse_of(
    x: NDArray[np.float32],
    codec: LookupTableCodec,
    rng: np.random.Generator,
    *,
    per_block: bool = True,
    rotations: int = 8,
) -> float:
    """Return the expected NMSE of the mean, E||mean' - x||^2 / ||x||^2, when all workers have x.

    The expectation is over roundings and rotations.

    Args:
        x: float32[elements], finite and not zero.
        codec: of the job. Its workers are all in the sum.
        rng: draws the rotations. Roundings are not drawn.
        per_block: True where the range is the root mean square of each block, False where it is that of x.
        rotations: number of random rotations over which the mean is taken.
    """
    block = codec.block_elements
    blocks = np.zeros((-(-x.size // block), block))
    blocks.reshape(-1)[: x.size] = x
    energy = np.square(blocks).sum(axis=1)
    ranges = np.sqrt(energy / block if per_block else np.full(len(blocks), energy.sum() / x.size))[:, None]
    # A block of zeros is sent as zeros.
    ranges[ranges == 0] = np.inf
    error = 0.0
    for _ in range(rotations):
        # Rotated in float64 by a plain transform, which shares no code with the kernels that it judges.
        coordinates = _rotate(blocks * rng.choice([-1.0, 1.0], blocks.shape))
        # The mean square over roundings is known without drawing. Only rotations are drawn.
        rounded, lost = _coordinate_errors(coordinates / ranges, codec)
        scale = np.where(np.isinf(ranges), 0.0, ranges)
        error += _within(rounded * np.square(scale), lost * scale, x.size)
    return error / rotations / float(energy.sum())


def expected_normal_nmse(codec: LookupTableCodec) -> float:
    """Return the expected NMSE of the mean when all workers have one vector of N(0, 1), without error feedback."""
    if codec.dither is None:
        return expected_nmse(codec.table, codec.workers)
    # Blocks differ as normal samples do: each coordinate may be any quantile.
    a = _normal_quantiles()[None, :]
    rounded, lost = _dither_errors(a, codec, drawn=True)
    return float((rounded + np.square(lost)).sum() / np.square(a).sum())


@cache
def _normal_quantiles() -> Doubles:
    normal = NormalDist()
    return np.array([normal.inv_cdf((at + 0.5) / _QUANTILES) for at in range(_QUANTILES)])


def _within(rounded: Doubles, lost: Doubles, elements: int) -> float:
    """Return the squared error of the vector's own elements, of which the last block may have few.

    What rounding adds to coordinates the inverse rotation spreads evenly over a block. What is lost of them whatever
    the rounding it puts where it was.
    """
    # The last block is padded: errors on the padding are not counted.
    filled = (elements - 1) % rounded.shape[1] + 1
    total = float(rounded[:-1].sum() + np.square(lost[:-1]).sum())
    spread = float(rounded[-1].sum()) * filled / rounded.shape[1]
    kept = _rotate(lost[-1:])[0, :filled]
    return float(total + spread + np.square(kept).sum())


def _coordinate_errors(a: Doubles, codec: LookupTableCodec) -> tuple[Doubles, Doubles]:
    """Return of each coordinate the variance of the mean that ranks decode, and the coordinate less its expectation.

    a: [blocks, elements], all workers alike, in units of the block's range.
    """
    if codec.dither is not None:
        return _dither_errors(a, codec)
    levels = -codec.bound + 2 * codec.bound * np.array(codec.table.values) / codec.granularity
    inside = np.clip(a, levels[0], levels[-1])
    upper = np.clip(np.searchsorted(levels, inside, side="left"), 1, len(levels) - 1)
    high, low = levels[upper], levels[upper - 1]
    # What rounding adds falls as 1/n. What truncation takes away stays.
    return (high - inside) * (inside - low) / codec.workers, a - inside


def _dither_errors(a: Doubles, codec: LookupTableCodec, *, drawn: bool = False) -> tuple[Doubles, Doubles]:
    """Return `_coordinate_errors` of a codec with a dither. drawn: elements are samples, each 1,024th of a block."""
    tables, distance = _dithered(codec), 2 * codec.bound / codec.granularity
    places = np.clip((a + codec.bound) / distance, 0, codec.granularity) * _STEPS
    shares = np.ones((len(a), 1))
    assert codec.dither is not None
    if codec.dither.results is not None:
        energy, square = _looked_up(tables.energy, places), _looked_up(tables.energy_square, places)
        variance = square.mean(axis=1) - (np.square(energy.mean(axis=1)) if drawn else np.square(energy).mean(axis=1))
        shares = _class_shares(
            energy.mean(axis=1) * codec.block_elements,
            variance * codec.block_elements,
            codec.dither.results.bounds[codec.workers],
        )
    mean, square = np.zeros((2, *a.shape))
    for number in np.flatnonzero(shares.any(axis=0)):
        mean += shares[:, number, None] * _looked_up(tables.mean[number], places)
        square += shares[:, number, None] * _looked_up(tables.square[number], places)
    return (square - mean * mean) * distance**2, a - (mean - codec.granularity / 2) * distance


def _class_shares(energy: Doubles, variance: Doubles, bounds: NDArray[np.int32]) -> Doubles:
    """Return the probability of each class, [blocks, classes], of blocks with this mean and variance of the energy."""
    deviations = (bounds[None, :] - energy[:, None]) / np.sqrt(np.maximum(variance, 1e-9))[:, None]
    below = np.array([math.erfc(-each / math.sqrt(2)) / 2 for each in deviations.reshape(-1).tolist()])
    # The class is the number of bounds above the energy.
    at_least = np.pad(below.reshape(deviations.shape), ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
    shares = at_least[:, :-1] - at_least[:, 1:]
    return np.where(shares > _LEAST_SHARE, shares, 0)


class _DitherTables(NamedTuple):
    """What ranks decode for equal coordinates, by the coordinate's place among the levels."""

    energy: Doubles
    """[places]: (2 code - 2^bits + 1)^2 of a requantised result, as the mean."""
    energy_square: Doubles
    """[places]: its square, as the mean."""
    mean: Doubles
    """[classes, places]: the mean of the workers, on the scale of codes, as the mean over dithers."""
    square: Doubles
    """[classes, places]: its square, as the mean over dithers."""


@lru_cache(maxsize=8)
def _dithered(codec: LookupTableCodec) -> _DitherTables:
    """Tabulate a codec with a dither at places of 0..g, in steps of 1/_STEPS. Classes are one for whole sums."""
    dither, workers, top = codec.dither, codec.workers, codec.granularity
    assert dither is not None
    places = np.arange(top * _STEPS + 1) / _STEPS
    by_sum = _values_of_sums(codec)
    energies = _energies_of_sums(codec)
    energy, energy_square = np.zeros((2, places.size))
    mean, square = np.zeros((2, len(by_sum), places.size))
    for shared in range(SHARES):
        known = (shared + dither.shifts) % SHARES
        least, some, chance = np.zeros(places.size, np.int64), np.zeros(places.size, np.int64), np.zeros(places.size)
        for each in known:
            whole = np.floor(places + each / SHARES)
            # The rank's own randomness f lifts the code by 1 with this probability: 0, 1 or, in one place, between.
            lifted = np.where(whole < top, np.clip(SHARES * (places - whole - 1) + each + 1, 0, 1), 0)
            sure = lifted == 1
            least += whole.astype(np.int64) + sure
            some += (lifted > 0) & ~sure
            chance = np.maximum(chance, np.where(sure, 0, lifted))
        taken = float(dither.own[np.arange(workers), shared].sum())
        for more in range(int(some.max()) + 1):
            # Of ranks with the same known dither, a binomial number is lifted.
            ways = np.array([math.comb(count, more) for count in range(int(some.max()) + 1)])[some]
            weight = ways * chance**more * (1 - chance) ** np.maximum(some - more, 0) / SHARES
            total = np.minimum(least + more, workers * top)
            value = (by_sum[:, total] - taken) / (workers * dither.unit) + top / 2
            energy += weight * energies[total]
            energy_square += weight * energies[total] ** 2
            mean += weight * value
            square += weight * value * value
    return _DitherTables(energy, energy_square, mean, square)


def _values_of_sums(codec: LookupTableCodec) -> Doubles:
    """Return w of each sum of codes of all workers, before known dithers are subtracted: [classes, n g + 1]."""
    dither, sums = codec.dither, np.arange(codec.workers * codec.granularity + 1)
    assert dither is not None
    if dither.results is None:
        return np.asarray((dither.unit * (sums - codec.workers * codec.granularity / 2))[None, :])
    values = dither.results.values[codec.workers].astype(np.float64)
    assert len(values) == CLASSES
    return np.asarray(values[:, _codes_of_sums(codec)])


def _energies_of_sums(codec: LookupTableCodec) -> Doubles:
    cells = 1 << codec.result_bits
    return np.asarray(np.square(2.0 * _codes_of_sums(codec) - cells + 1))


def _codes_of_sums(codec: LookupTableCodec) -> NDArray[np.int64]:
    """Return the code that the switch sends for each sum of codes, int64[n g + 1]: 0 for whole sums."""
    sums = np.arange(codec.workers * codec.granularity + 1)
    if codec.lookup is None or codec.dither is None or codec.dither.results is None:
        return np.zeros_like(sums)
    cells = 1 << codec.result_bits
    first, second = codec.lookup[:2]
    lanes = codec.workers * first + sums * (second - first)
    # The switch sees the upper seven bits of a lane.
    return np.asarray(np.searchsorted(np.array(codec.lookup[cells:]), (lanes + 128) // 2, side="right"))


def _looked_up(table: Doubles, places: Doubles) -> Doubles:
    """Interpolate a tabulated function."""
    below = np.minimum(places.astype(np.int64), table.size - 2)
    part = places - below
    return np.asarray(table[below] * (1 - part) + table[below + 1] * part)


def _rotate(v: Doubles) -> Doubles:
    """Return H v / sqrt(columns) for each row. H is its own inverse."""
    rows, columns = v.shape
    stride = 1
    while stride < columns:
        pair = v.reshape(rows, -1, 2, stride)
        v = np.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), axis=2).reshape(rows, columns)
        stride *= 2
    return np.asarray(v / np.sqrt(columns))
