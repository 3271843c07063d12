# SPDX-License-Identifier: Apache-2.0
"""Mean estimation: exact errors of the hardest vectors, slopes of made-up figures, applications with exact means."""

from __future__ import annotations

from itertools import pairwise, product
from math import log
from typing import Any

import numpy as np
import pytest

from hopsum_evaluation.baselines.estimators import make_estimator
from hopsum_evaluation.compare.methods import EstimatorMethod
from hopsum_evaluation.report import estimation
from hopsum_evaluation.report.claims import Verdict, judge
from hopsum_evaluation.report.estimation import estimated, exact, k_means, power_iteration, shares
from hopsum_evaluation.report.experiment import Settings, Size

pytestmark = pytest.mark.system
CLAIMS = {each.name: each for each in estimation.CLAIMS}
USES = [{"exact": {"k-means": [2.0, 1.0], "PCA": [1.0, 0.5]}}] * 3


def made_up(error: dict[str, Any]) -> dict[str, Any]:
    """Return a result of three repeats whose errors are functions of (d, n)."""
    cases = [
        {"kind": kind, "d": d, "n": n, "runs": [
            {name: {"error": rule(d, n) * (1 + repeat / 1e4), "bits": 1.0} for name, rule in error.items()}
            for repeat in range(3)
        ]}
        for kind, d, n in product(("Gaussian", "one huge", "hardest"), (64, 256, 1024), (4, 16))
    ]  # fmt: skip
    return {"cases": cases, "uses": USES, "steps": 1, "rounds": 1}


def verdicts(result: dict[str, Any]) -> dict[str, Verdict]:
    samples = estimation.show(result).samples
    return {name: judge(claim, samples[name]).verdict for name, claim in CLAIMS.items()}


def test_figures_that_follow_the_theory_reproduce_it() -> None:
    found = verdicts(made_up({
        "sb": lambda d, n: 0.98 * d / (2 * n),
        "sk": lambda d, n: 0.5 * d / (2 * n * 15**2),
        "srk": lambda d, n: (log(d) + 3) / (n * 15**2),
        "svk": lambda d, n: 0.4 / n,
    }))  # fmt: skip
    assert set(found.values()) == {Verdict.REPRODUCED}


def test_figures_that_do_not_follow_it_do_not() -> None:
    found = verdicts(made_up({
        "sb": lambda d, n: d**1.3 / n**0.5,
        "sk": lambda d, n: d / n,
        "srk": lambda d, n: d / n,
        "svk": lambda d, n: d**0.2 / n,
    }))  # fmt: skip
    assert {name for name in found if found[name] is Verdict.REPRODUCED} == {"svk-bits"}


@pytest.mark.parametrize(("d", "n"), [(64, 2), (256, 4)])
def test_the_hardest_vectors_err_as_much_as_the_formula_says(d: int, n: int) -> None:
    settings, steps = Settings(3, Size.SMALL), 200
    found = estimation._measure(settings, "hardest", d, n, steps, 0)["sb"]["error"]
    expected = (d - 2) / (2 * n)  # every zero becomes +1 or -1, in the mean of n: variance 1/n; F = 2
    assert found == pytest.approx(expected, rel=6 * (2 / d / steps) ** 0.5)


def test_exact_k_means_never_gets_worse_and_shares_do_not_matter() -> None:
    rng = np.random.default_rng(5)
    points = np.concatenate([rng.normal(centre, 0.1, (50, 3)) for centre in rng.normal(0, 5, (12, 3))])
    costs = {}
    for clients in (1, 10):
        held = shares(points, clients, np.random.default_rng(6))
        costs[clients] = k_means(held, exact, 8, np.random.default_rng(7))
    assert all(after <= before + 1e-9 for before, after in pairwise(costs[10]))
    assert costs[10] == pytest.approx(costs[1])
    assert costs[1][-1] < costs[1][0]


def test_power_iteration_finds_the_eigenvector_and_a_fine_estimator_changes_little() -> None:
    rng = np.random.default_rng(8)
    points = rng.normal(0, [4, 2, 1, 1, 1, 1, 1, 1], (600, 8))
    held = shares(points, 6, rng)
    errors = power_iteration(held, exact, 30, np.random.default_rng(9))
    assert errors[-1] < 1e-5 < errors[0]
    fine = estimated(EstimatorMethod(make_estimator("srk", levels=65536)), 1)
    assert power_iteration(held, fine, 30, np.random.default_rng(9))[-1] < 1e-3
    coarse = estimated(EstimatorMethod(make_estimator("sb")), 1)
    assert power_iteration(held, coarse, 30, np.random.default_rng(9))[-1] > 1e-2
