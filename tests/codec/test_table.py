# SPDX-License-Identifier: Apache-2.0
"""Tables against published ones, brute force, and numerical integration."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from hopsum.codec import CodecError, LookupTable, best_table
from hopsum.codec.table import (
    expected_nmse,
    optimal_table,
    rounding_error,
    truncation_bound,
    truncation_error,
)

G17 = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17)
G19 = (0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19)
G21 = (0, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 21)
PUBLISHED_G30 = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
UNIFORM = tuple(range(16))


@pytest.mark.parametrize(
    ("inverse", "bound"),
    [(16, 1.8627), (32, 2.1539), (64, 2.4176), (128, 2.6601), (256, 2.8856), (512, 3.0973), (1024, 3.2972)],
)
def test_truncation_bounds_are_the_published_ones(inverse: int, bound: float) -> None:
    assert truncation_bound(1 / inverse) == pytest.approx(bound, abs=6e-5)


@pytest.mark.parametrize(
    ("values", "inverse", "error"),
    [
        (UNIFORM, 32, 0.01332),
        (UNIFORM, 1024, 0.03218),
        (PUBLISHED_G30, 32, 0.01307),
        (PUBLISHED_G30, 64, 0.01622),
        ((0, 4, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 26, 30), 128, 0.01925),
        ((0, 4, 7, 9, 11, 12, 13, 14, 16, 17, 18, 19, 21, 23, 26, 30), 512, 0.02351),
        ((0, 3, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 31, 34), 128, 0.01775),
        ((0, 5, 8, 10, 12, 14, 15, 16, 18, 19, 20, 22, 24, 26, 29, 34), 1024, 0.02377),
        ((0, 3, 5, 7, 9, 11, 13, 16), 32, 0.05547),
        ((0, 13, 21, 34), 1024, 0.62431),
    ],
)
def test_errors_of_published_tables(values: tuple[int, ...], inverse: int, error: float) -> None:
    assert rounding_error(values, truncation_bound(1 / inverse)) == pytest.approx(error, abs=6e-6)


@pytest.mark.parametrize(
    ("granularity", "inverse", "values", "error"),
    [
        (15, 64, UNIFORM, 0.01705),
        (17, 32, G17, 0.01253),
        (17, 1024, G17, 0.02580),
        (19, 128, G19, 0.01742),
        (19, 1024, G19, 0.02325),
        (21, 256, G21, 0.01931),
        (21, 1024, G21, 0.02166),
    ],
)
def test_optimal_tables(granularity: int, inverse: int, values: tuple[int, ...], error: float) -> None:
    assert optimal_table(granularity, 1 / inverse) == values
    assert rounding_error(values, truncation_bound(1 / inverse)) == pytest.approx(error, abs=6e-6)


@pytest.mark.parametrize(
    ("granularity", "inverse", "error"),
    [
        (30, 32, 0.01306),
        (30, 128, 0.01911),
        (30, 1024, 0.02427),
        (51, 32, 0.01201),
        (38, 64, 0.01455),
        (46, 1024, 0.02104),
    ],
)
def test_errors_of_optimal_tables(granularity: int, inverse: int, error: float) -> None:
    values = optimal_table(granularity, 1 / inverse)
    assert rounding_error(values, truncation_bound(1 / inverse)) == pytest.approx(error, abs=6e-6)


@pytest.mark.parametrize("granularity", range(7, 14))
@pytest.mark.parametrize("entries", [4, 8])
def test_dynamic_programming_finds_what_brute_force_finds(granularity: int, entries: int) -> None:
    bound = truncation_bound(1 / 100)
    tables = [(0, *inner, granularity) for inner in combinations(range(1, granularity), entries - 2)]
    best = min(rounding_error(values, bound) for values in tables)
    assert rounding_error(optimal_table(granularity, 1 / 100, entries), bound) == pytest.approx(best, rel=1e-9)


def test_errors_are_the_integrals() -> None:
    table = LookupTable(G21, 1 / 500)
    a = (np.arange(2_000_000) + 0.5) / 125_000 - 8
    density = np.exp(-a * a / 2) / math.sqrt(2 * math.pi) / 125_000
    points = -table.bound + 2 * table.bound * np.array(table.values) / table.granularity
    inside = np.abs(a) < table.bound
    upper = np.clip(np.searchsorted(points, a), 1, 15)
    rounding = ((points[upper] - a) * (a - points[upper - 1]) * density)[inside].sum()
    truncation = ((np.abs(a) - table.bound) ** 2 * density)[~inside].sum()
    assert rounding_error(table.values, table.bound) == pytest.approx(rounding, rel=1e-4)
    assert truncation_error(table.bound) == pytest.approx(truncation, rel=1e-4)


@pytest.mark.parametrize(
    ("values", "inverse", "workers", "error"),
    [
        (PUBLISHED_G30, 32, 1, 0.02034),
        (PUBLISHED_G30, 32, 8, 0.00890),
        (PUBLISHED_G30, 64, 64, 0.00340),
        (UNIFORM, 1024, 16, 0.00214),
        (G21, 1024, 8, 0.00284),
    ],
)
def test_expected_error_of_the_mean(values: tuple[int, ...], inverse: int, workers: int, error: float) -> None:
    assert expected_nmse(LookupTable(values, 1 / inverse), workers) == pytest.approx(error, abs=6e-6)


@pytest.mark.parametrize("workers", range(1, 18))
def test_best_table_fits_the_lane_and_beats_the_published_default(workers: int) -> None:
    table = best_table(workers)
    assert workers * table.granularity <= 255
    assert expected_nmse(table, workers) <= expected_nmse(LookupTable(PUBLISHED_G30, 1 / 32), workers)
    for granularity in (15, 17, 21):
        if workers * granularity <= 255:
            for quarters in range(16, 60):
                truncated = 2.0 ** (-quarters / 4)
                other = LookupTable(optimal_table(granularity, truncated), truncated)
                assert expected_nmse(table, workers) <= expected_nmse(other, workers) + 1e-12


def test_best_table_of_eight_workers() -> None:
    assert best_table(8).values == G21
    assert expected_nmse(best_table(8), 8) < 0.0029


def test_more_workers_than_a_lane_holds_are_refused() -> None:
    with pytest.raises(CodecError, match="at most 17"):
        best_table(18)


def test_a_mirrored_table_is_chosen_the_same_way_everywhere() -> None:
    values = optimal_table(30, 1 / 32)
    mirrored = tuple(30 - value for value in reversed(values))
    bound = truncation_bound(1 / 32)
    assert rounding_error(values, bound) == pytest.approx(rounding_error(mirrored, bound), rel=1e-12)
    assert values != mirrored
    assert tuple(reversed(values)) <= tuple(reversed(mirrored))


@pytest.mark.parametrize(
    ("values", "truncated"),
    [(UNIFORM[:-1], 0.01), ((1, *range(2, 17)), 0.01), ((0, 0, *range(2, 16)), 0.01), (UNIFORM, 0.0), (UNIFORM, 1.0)],
)
def test_what_is_no_table_is_refused(values: tuple[int, ...], truncated: float) -> None:
    with pytest.raises(CodecError):
        LookupTable(values, truncated)


def test_granularity_is_limited() -> None:
    with pytest.raises(CodecError, match="at most 127"):
        LookupTable((*range(15), 128), 0.01)
    with pytest.raises(CodecError, match="at least 15"):
        optimal_table(14, 0.01)
