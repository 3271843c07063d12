# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of mean estimation, of sketches that peel, of speed-ups, and the expected error of a vector."""

from __future__ import annotations

from itertools import product
from math import log
from typing import Any

import numpy as np
import pytest

from hopsum_evaluation.experiment import Settings, Size
from hopsum_evaluation.report import estimation
from hopsum_evaluation.report.claims import Verdict, judge
from hopsum_evaluation.report.lossless_claims import (
    THRESHOLD,
    iteration_speedup,
    measure_iterations,
    peeling_threshold,
    speedup,
    unpeeled_share,
)

pytestmark = pytest.mark.system
CLAIMS = {each.name: each for each in estimation.CLAIMS}


def made_up(error: dict[str, Any]) -> dict[str, Any]:
    """Return a result of three repeats whose errors are functions of (d, n)."""
    cases = [
        {"kind": kind, "d": d, "n": n, "runs": [
            {name: {"error": rule(d, n) * (1 + repeat / 1e4), "bits": 1.0} for name, rule in error.items()}
            for repeat in range(3)
        ]}
        for kind, d, n in product(("Gaussian", "one huge", "hardest"), (64, 256, 1024), (4, 16))
    ]  # fmt: skip
    return {"cases": cases, "steps": 1}


def verdicts(result: dict[str, Any]) -> dict[str, Verdict]:
    samples = estimation.make_view(result).samples
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


def test_sketches_peel_above_the_threshold_and_fail_at_once_below() -> None:
    rng = np.random.default_rng(3)
    assert peeling_threshold(1 << 15, 0.05, rng) == pytest.approx(THRESHOLD, abs=0.04)
    assert unpeeled_share(1 << 15, 1.1, 0.05, rng) > 0.4
    assert unpeeled_share(1 << 15, 1.35, 0.05, rng) == 0


def test_speedups_are_those_of_codec_and_link_one_after_the_other() -> None:
    assert speedup(float("inf"), 0.1, 1e9) == pytest.approx(10)
    assert speedup(1e9 / 32, 0.0, 1e9) == pytest.approx(1)
    assert speedup(1e9 / 32, 0.5, 1e9) == pytest.approx(1 / 1.5)


def test_iterations_have_the_compute_on_both_sides() -> None:
    million = 10**6
    assert iteration_speedup(0.0, million, 5e7, 0.1, 1e9) == pytest.approx(speedup(5e7, 0.1, 1e9))
    assert iteration_speedup(0.032, million, float("inf"), 0.0, 1e9) == pytest.approx(2)  # a link of 32 ms, then none
    assert iteration_speedup(0.032, million, 1e6 / 0.032, 0.5, 1e9) == pytest.approx(64 / 80)
    assert iteration_speedup(1e9, million, 5e7, 0.1, 1e9) == pytest.approx(1)


def test_compute_is_measured_in_one_thread_that_is_given_back() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = measure_iterations(Settings(1, Size.SMALL), 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert found is not None
    assert found["parameters"] == 1_012_426
    assert len(found["compute_s"]) == 2
    assert min(found["compute_s"]) > 1e-4  # a million parameters, 32 images: 0.3 G operations at the least
