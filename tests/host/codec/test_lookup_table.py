# SPDX-License-Identifier: Apache-2.0
"""Tables against published ones, integration, Monte Carlo and enumeration, and the solver's fast steps."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from statistics import NormalDist

import numpy as np
import pytest

from hopsum.codec import CodecError, LookupTable
from hopsum.codec.lookup_table import (
    cell_errors_between,
    grid_costs,
    optimal_table,
    require_switch_table,
    rounding_error,
    truncation_bound,
    truncation_error,
)

G21 = (0, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 21)
UNIFORM = tuple(range(16))


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
    ("values", "truncated"),
    [
        ((0,), 0.01),
        (tuple(range(257)), 0.01),
        ((1, *range(2, 17)), 0.01),
        ((0, 0, *range(2, 16)), 0.01),
        (UNIFORM, 0.0),
        (UNIFORM, 1.0),
    ],
)
def test_what_is_no_table_is_refused(values: tuple[int, ...], truncated: float) -> None:
    with pytest.raises(CodecError):
        LookupTable(values, truncated)


@pytest.mark.parametrize(
    ("granularity", "truncated", "bits", "message"),
    [
        (14, 0.01, 4, "14 for the 16 values of 4 bits: at least 15"),
        (4096, 0.01, 4, "at most 4095"),
        (30, 0.01, 0, "0 bits: 1 to 8"),
        (30, 0.01, 9, "9 bits: 1 to 8"),
        (30, 0.0, 4, "fraction 0.0"),
        (30, 1.0, 4, "fraction 1.0"),
    ],
)
def test_what_cannot_be_solved_is_refused(granularity: int, truncated: float, bits: int, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        optimal_table(granularity, truncated, bits)


@pytest.mark.parametrize("bits", range(1, 9))
def test_tables_have_any_number_of_bits(bits: int) -> None:
    granularity = 3 * (1 << bits)
    table = LookupTable(optimal_table(granularity, 1 / 512, bits), 1 / 512)
    assert (table.bits, table.granularity, len(table.values)) == (bits, granularity, 1 << bits)
    uniform = tuple(range(1 << bits))
    assert rounding_error(table.values, table.bound) <= rounding_error(uniform, table.bound)


def test_the_switch_takes_tables_of_16_values_up_to_127() -> None:
    assert LookupTable(G21, 0.01).switch_values == G21
    assert LookupTable((0, 2, 3, 5), 0.01).switch_values == (0, 2, 3, *[5] * 13)
    require_switch_table(LookupTable((*range(15), 127), 0.01))
    with pytest.raises(CodecError, match="granularity 128 of a table for the switch: at most 127"):
        require_switch_table(LookupTable((*range(15), 128), 0.01))
    with pytest.raises(CodecError, match=r"32 values \(5 bits\): the switch looks up 4-bit codes"):
        _ = LookupTable(tuple(range(32)), 0.01).switch_values


def test_a_bound_does_not_depend_on_the_last_bit_of_a_logarithm() -> None:
    for eighths in range(1, 161):
        exact = -NormalDist().inv_cdf(2.0 ** (-eighths / 8) / 2)
        assert truncation_bound(2.0 ** (-eighths / 8)) == pytest.approx(exact, abs=2.0**-41)
        last_bits = np.spacing(exact) * np.arange(-3, 4)
        assert len({round(value * 2**40) for value in exact + last_bits}) == 1


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
