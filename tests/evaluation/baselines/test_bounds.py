# SPDX-License-Identifier: Apache-2.0
"""Error and bits are what theory promises. Every tolerance is in standard errors of the mean over seeded steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hopsum.codec.interface import ReductionContext
from hopsum_evaluation.baselines import suresh as bounds
from hopsum_evaluation.baselines.estimator_interface import Estimator
from hopsum_evaluation.baselines.estimators import make_estimator
from hopsum_evaluation.baselines.suresh import EntropyCoder, Sb, Sk, Srk, padded_size

from .cases import VECTORS, Floats, gaussian, grid_mse, measure, pair

pytestmark = pytest.mark.system
ELEMENTS = 1024
STEPS = 60


def mse_sb(vectors: list[Floats]) -> float:
    """Mean squared error of `sb` itself: 1/n^2 sum_i sum_j (max - X_j)(X_j - min)."""
    total = 0.0
    for x in vectors:
        # float64: a bound must not be broken by the rounding of its own figure.
        wide = x.astype(np.float64)
        total += float(((wide.max() - wide) * (wide - wide.min())).sum())
    return total / len(vectors) ** 2


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("workers", [1, 5])
def test_sb_has_the_error_of_the_formula(kind: str, workers: int) -> None:
    vectors = VECTORS[kind](ELEMENTS, workers)
    found = measure(Sb(), vectors, STEPS)
    exact = mse_sb(vectors)
    assert abs(found.mse - exact) <= 4 * found.standard_error + 1e-6 * exact
    assert exact <= bounds.mse_bound_sb(ELEMENTS, workers, bounds.mean_energy(vectors))
    assert found.bits == ELEMENTS + 64


def test_the_bound_of_sb_is_reached() -> None:
    vectors = pair(ELEMENTS, 4)
    bound = bounds.mse_bound_sb(ELEMENTS, 4, bounds.mean_energy(vectors))
    assert 0.99 * bound < mse_sb(vectors) <= bound


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("levels", [3, 16, 33])
def test_sk_has_the_error_of_the_formula(kind: str, levels: int) -> None:
    vectors = VECTORS[kind](ELEMENTS, 4)
    found = measure(Sk(levels), vectors, STEPS)
    lows = [float(x.min()) for x in vectors]
    widths = [float(x.max()) - float(x.min()) for x in vectors]
    exact = grid_mse(vectors, lows, widths, levels)
    assert abs(found.mse - exact) <= 4 * found.standard_error + 1e-6 * exact
    assert exact <= bounds.mse_bound_sk(ELEMENTS, 4, bounds.mean_energy(vectors), levels)
    assert found.bits == ELEMENTS * math.ceil(math.log2(levels)) + 64


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize(("elements", "levels"), [(1024, 2), (1024, 16), (1025, 16), (1500, 65)])
def test_srk_stays_below_its_bound(kind: str, elements: int, levels: int) -> None:
    vectors = VECTORS[kind](elements, 4)
    found = measure(Srk(levels), vectors, STEPS)
    bound = bounds.mse_bound_srk(elements, 4, bounds.mean_energy(vectors), levels)
    assert found.mse + 4 * found.standard_error < bound
    assert found.bits == padded_size(elements) * math.ceil(math.log2(levels)) + 80


@pytest.mark.parametrize("others", [1.0, 0.01])
def test_the_rotation_spreads_a_huge_coordinate(others: float) -> None:
    """It takes the range from the coordinate, 100, to a few |X| / sqrt(d)."""
    vectors = [x * np.float32(others) for x in gaussian(ELEMENTS, 4)]
    for rank, x in enumerate(vectors):
        x[7 * rank] = 100
    plain, rotated = (measure(made, vectors, STEPS) for made in (Sk(16), Srk(16)))
    assert rotated.mse + 4 * rotated.standard_error < 0.1 * (plain.mse - 4 * plain.standard_error)


def svk_levels(elements: int) -> list[int | None]:
    return [2, 16, math.isqrt(elements) + 1, None]


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("levels", svk_levels(ELEMENTS))
def test_svk_has_the_error_of_the_formula_and_few_bits(kind: str, levels: int | None) -> None:
    pytest.importorskip("constriction")
    vectors = VECTORS[kind](ELEMENTS, 4)
    found = measure(make_estimator("svk", levels=levels), vectors, STEPS)
    k = levels or 33
    widths = [math.sqrt(2 * bounds.mean_energy([x])) for x in vectors]
    exact = grid_mse(vectors, [float(x.min()) for x in vectors], widths, k)
    assert abs(found.mse - exact) <= 4 * found.standard_error + 1e-6 * exact
    assert exact <= bounds.mse_bound_sk(ELEMENTS, 4, bounds.mean_energy(vectors), k)
    assert found.bits <= bounds.bits_bound_svk(ELEMENTS, k)


@pytest.mark.parametrize("elements", [1 << 8, 1 << 12, 1 << 16, (1 << 18) + 3])
def test_svk_takes_constant_bits_an_element_for_an_error_of_one_over_n(elements: int) -> None:
    pytest.importorskip("constriction")
    vectors = gaussian(elements, 2)
    steps = 20 if elements < 1 << 16 else 2
    found = measure(make_estimator("svk"), vectors, steps)
    assert found.mse < bounds.mean_energy(vectors) / (2 * 2)
    assert found.bits <= bounds.bits_bound_svk(elements, math.isqrt(elements - 1) + 2)
    assert found.bits - bounds.SVK_EXTRA_BITS < 2.9 * elements


@pytest.mark.parametrize(
    ("elements", "levels", "spread"),
    [(200_000, 16, 3.0), (200_000, 449, 2.0), (1000, 1000, 300.0), (100_000, 2, 1e-3), (100_000, 65536, 8000.0)],
)
def test_svk_bits_follow_the_entropy(elements: int, levels: int, spread: float) -> None:
    """The stream is what frequencies and histogram hold, and two words, and the range coder's loss an element."""
    pytest.importorskip("constriction")
    rng = np.random.default_rng(3)
    codes = np.clip(np.rint(rng.standard_normal(elements) * spread + levels // 2), 0, levels - 1).astype(np.uint16)
    histogram = entropy_bits(np.array([elements, levels - 1]))
    content = entropy_bits(np.bincount(codes, minlength=levels)) + histogram
    bits = 8 * len(EntropyCoder().compress(codes, levels))
    assert content - 1 <= bits <= content + 64 + (0.01 if levels > 1000 else 0.001) * elements
    assert histogram <= levels * math.log2((elements + levels) * math.e / levels)


def entropy_bits(counts: Any) -> float:
    used = counts[counts > 0].astype(np.float64)
    return float((used * np.log2(used.sum() / used)).sum())


UNBIASED: list[tuple[str, dict[str, Any]]] = [
    ("sb", {}),
    ("sk", {"levels": 5}),
    ("srk", {"levels": 4}),
    ("svk", {}),
    ("svk", {"levels": 16}),
    ("terngrad", {}),
]


@pytest.mark.parametrize(("name", "options"), UNBIASED)
@pytest.mark.parametrize("kind", ["gaussian", "spike"])
def test_estimates_are_unbiased(name: str, options: dict[str, Any], kind: str) -> None:
    """Along x, along one and along random directions; and the mean error is as small as independent errors make it."""
    if name == "svk":
        pytest.importorskip("constriction")
    estimator = make_estimator(name, **options)
    assert estimator.unbiased
    x, steps = VECTORS[kind](1000, 1)[0], 400
    errors = all_errors(estimator, x, steps)
    directions = np.random.default_rng(2).choice([-1.0, 1.0], (8, x.size))
    for along in (errors @ x, errors.sum(axis=1), *(errors @ direction for direction in directions)):
        assert abs(along.mean()) < 4 * along.std(ddof=1) / np.sqrt(steps)
    if kind == "gaussian":  # independent elements: the square of the mean error is a sum of 1000 terms
        ratio = steps * np.square(errors.mean(axis=0)).sum() / errors.var(axis=0, ddof=1).sum()
        assert abs(ratio - 1) < 5 * np.sqrt(2 / x.size)


def test_clipping_biases_terngrad_and_lowers_its_error() -> None:
    x = gaussian(1000, 1)[0]
    clipped, plain = make_estimator("terngrad", clip_sigma=2.5), make_estimator("terngrad")
    assert not clipped.unbiased
    along = all_errors(clipped, x, 200) @ x
    assert along.mean() < -4 * along.std(ddof=1) / np.sqrt(200)
    found, more = measure(clipped, [x], STEPS), measure(plain, [x], STEPS)
    assert found.mse + 4 * found.standard_error < more.mse - 4 * more.standard_error


def all_errors(estimator: Estimator, x: Floats, steps: int) -> Any:
    errors = np.empty((steps, x.size))
    for step in range(steps):
        context = ReductionContext(11, step, 3)
        errors[step] = estimator.decode(estimator.encode(x, context), x.size, context).astype(np.float64) - x
    return errors
