# SPDX-License-Identifier: Apache-2.0
"""The solver against enumeration, against tables that were shipped, and its fast steps against its plain ones."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from statistics import NormalDist

import numpy as np
import pytest

from hopsum.codec import lookup_table
from hopsum.codec.lookup_table import (
    cell_errors_between,
    grid_costs,
    optimal_table,
    relax_all,
    relax_narrowed,
    rounding_error,
    shortest_table,
    truncation_bound,
)

# Tables of the authors' repository: bits, granularity, the values of 1/p that share it, the table.
SHIPPED = [
    (4, 30, (16,), "0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30"),
    (4, 30, (32, 64), "0 3 5 7 9 11 13 14 16 17 19 21 23 25 27 30"),
    (4, 30, (128, 256), "0 4 6 8 10 12 13 14 16 17 18 20 22 24 26 30"),
    (4, 30, (512,), "0 4 7 9 11 12 13 14 16 17 18 19 21 23 26 30"),
    (4, 34, (16, 32, 64, 128), "0 3 6 8 10 12 14 16 18 20 22 24 26 28 31 34"),
    (4, 34, (256, 512), "0 4 7 9 11 13 15 16 18 19 21 23 25 27 30 34"),
    (4, 34, (1024,), "0 5 8 10 12 14 15 16 18 19 20 22 24 26 29 34"),
    (3, 16, (16, 32, 64, 128, 256, 512), "0 3 5 7 9 11 13 16"),
    (3, 16, (1024,), "0 4 6 7 9 10 12 16"),
    (3, 34, (16, 32), "0 6 11 15 19 23 28 34"),
    (3, 34, (64, 128), "0 7 11 15 19 23 27 34"),
    (3, 42, (1024,), "0 10 15 19 23 27 32 42"),
    (2, 34, (512, 1024), "0 13 21 34"),
]
CASES = [(bits, g, inverse, tuple(map(int, table.split()))) for bits, g, many, table in SHIPPED for inverse in many]


def closed_form(low: float, high: float) -> float:
    """Return a gap's error by moments of N(0, 1): (l + h) m1 - l h m0 - m2."""
    normal = NormalDist()
    m0 = (math.erfc(-high / math.sqrt(2)) - math.erfc(-low / math.sqrt(2))) / 2
    m1 = normal.pdf(low) - normal.pdf(high)
    m2 = m0 + low * normal.pdf(low) - high * normal.pdf(high)
    return (low + high) * m1 - low * high * m0 - m2


@pytest.mark.parametrize(("granularity", "bound"), [(1, 0.3), (1, 5.0), (2, 2.0), (15, 3.1), (30, 2.1539), (63, 4.5)])
def test_costs_are_the_closed_form(granularity: int, bound: float) -> None:
    costs = grid_costs(granularity, bound)
    points = -bound + 2 * bound * np.arange(granularity + 1) / granularity
    for low in range(granularity + 1):
        for high in range(granularity + 1):
            expected = closed_form(points[low], points[high]) if low < high else math.inf
            assert costs[low, high] == pytest.approx(expected, abs=1e-13)


def test_costs_and_cells_agree_to_the_last_digits_on_a_fine_grid() -> None:
    costs = grid_costs(1023, 4.0)
    points = -4.0 + 8.0 * np.arange(1024) / 1023
    for stride in (1, 3, 33, 341, 1023):
        picked = np.arange(0, 1024, stride)
        np.testing.assert_allclose(costs[picked[:-1], picked[1:]], cell_errors_between(points[picked]), rtol=1e-12)


@pytest.mark.parametrize("bound", [0.5, 2.1539, 4.5])
def test_costs_satisfy_the_quadrangle_inequality(bound: float) -> None:
    costs = grid_costs(24, bound).copy()
    np.fill_diagonal(costs, 0.0)
    for a in range(25):
        for b in range(a, 25):
            for c in range(b, 25):
                crossed, nested = costs[a, c] + costs[b, c:], costs[a, c:] + costs[b, c]
                assert (crossed <= nested * (1 + 1e-13)).all()


@pytest.mark.parametrize(("bits", "finest"), [(1, 12), (2, 20), (3, 15)])
def test_no_enumerated_table_is_better(bits: int, finest: int) -> None:
    for granularity in range((1 << bits) - 1, finest + 1):
        for inverse in (2, 32, 1000):
            bound = truncation_bound(1 / inverse)
            tables = [(0, *inner, granularity) for inner in combinations(range(1, granularity), (1 << bits) - 2)]
            errors = [
                sum(grid_costs(granularity, bound)[low, high] for low, high in pairwise(table)) for table in tables
            ]
            equal = [
                table[::-1] for table, error in zip(tables, errors, strict=True) if error <= min(errors) * (1 + 1e-12)
            ]
            assert optimal_table(granularity, 1 / inverse, bits) == min(equal)[::-1]


def test_no_table_of_16_values_is_better() -> None:
    bound = truncation_bound(1 / 300)
    best = min(rounding_error((0, *inner, 19), bound) for inner in combinations(range(1, 19), 14))
    assert rounding_error(optimal_table(19, 1 / 300), bound) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(("bits", "granularity", "inverse", "shipped"), CASES)
def test_shipped_tables_are_the_best_symmetric_ones_and_not_better_than_ours(
    bits: int, granularity: int, inverse: int, shipped: tuple[int, ...]
) -> None:
    bound = truncation_bound(1 / inverse)
    inner = list(combinations(range(1, granularity // 2), (1 << bits - 1) - 1))
    halves = np.array([(0, *half) for half in inner])
    tables = np.concatenate([halves, granularity - halves[:, ::-1]], axis=1)
    errors = grid_costs(granularity, bound)[tables[:, :-1], tables[:, 1:]].sum(axis=1)
    assert tuple(tables[errors.argmin()].tolist()) == shipped
    ours = rounding_error(optimal_table(granularity, 1 / inverse, bits), bound)
    assert 1.0 <= rounding_error(shipped, bound) / ours * (1 + 1e-12) <= 1.0273  # the gain is at most 2.65 %


@pytest.mark.parametrize("bound", [0.7, 2.1539, 4.0])
def test_narrowed_steps_equal_plain_ones(bound: float) -> None:
    for granularity in [*range(1, 70), 127, 128, 255]:
        costs = grid_costs(granularity, bound)
        best = np.full(granularity + 1, np.inf)
        best[0] = 0.0
        for _ in range(min(granularity, 40)):
            plain, narrowed = relax_all(best, costs), relax_narrowed(best, costs)
            np.testing.assert_allclose(narrowed, plain, rtol=1e-14)
            best = plain


def test_narrowed_steps_find_the_same_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(g, 1 << bits, bound) for g in (15, 30, 77, 300) for bits in (1, 2, 4) for bound in (1.0, 2.4176, 3.2972)]
    cases += [(300, 256, 3.0), (520, 128, 4.0)]
    tables = []
    for limit in (0, 10_000):
        monkeypatch.setattr(lookup_table, "_PLAIN_GRANULARITY", limit)
        tables.append([shortest_table(*(g, bound, entries)) for g, entries, bound in cases])
    assert tables[0] == tables[1]


def test_fine_tables_approach_the_continuous_optimum() -> None:
    """Of many values, the best density of values is phi^(1/3): error (integral of phi^(1/3))^3 / (6 N^2)."""
    bound = truncation_bound(2.0**-14)
    a = np.linspace(-bound, bound, 100_001)
    third = np.exp(-a * a / 6) / (2 * math.pi) ** (1 / 6)
    limit = (third.sum() * (a[1] - a[0])) ** 3 / 6 / 255**2
    errors = [rounding_error(optimal_table(granularity, 2.0**-14, 8), bound) for granularity in (255, 511, 1023)]
    assert errors[0] > 2 * limit  # uniform
    assert errors[0] > errors[1] > errors[2]
    assert limit < errors[2] < 1.04 * limit
