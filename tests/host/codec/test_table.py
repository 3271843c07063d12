# SPDX-License-Identifier: Apache-2.0
"""Tables against published ones, numerical integration and Monte Carlo."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from hopsum.codec import CodecError, LookupTable, make_codec
from hopsum.codec.lookup_table import (
    expected_nmse,
    optimal_table,
    require_switch_table,
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


def test_a_mirrored_table_is_chosen_the_same_way_everywhere() -> None:
    values = optimal_table(30, 1 / 32)
    mirrored = tuple(30 - value for value in reversed(values))
    bound = truncation_bound(1 / 32)
    assert rounding_error(values, bound) == pytest.approx(rounding_error(mirrored, bound), rel=1e-12)
    assert values != mirrored
    assert tuple(reversed(values)) <= tuple(reversed(mirrored))


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


def test_codec_thc_refuses_what_the_switch_cannot_look_up() -> None:
    with pytest.raises(CodecError, match=r"granularity 128 .* at most 127"):
        make_codec("thc", workers=1, backend="numpy", table=LookupTable((*range(15), 128), 0.01))
    with pytest.raises(CodecError, match="at most 4 bits"):
        make_codec("thc", workers=1, backend="numpy", table=LookupTable((*range(31), 40), 0.01))


def test_a_bound_does_not_depend_on_the_last_bit_of_a_logarithm() -> None:
    for eighths in range(1, 161):
        exact = -NormalDist().inv_cdf(2.0 ** (-eighths / 8) / 2)
        assert truncation_bound(2.0 ** (-eighths / 8)) == pytest.approx(exact, abs=2.0**-41)
        last_bits = np.spacing(exact) * np.arange(-3, 4)
        assert len({round(value * 2**40) for value in exact + last_bits}) == 1
