# SPDX-License-Identifier: Apache-2.0
"""Section `estimation`: the methods of Suresh et al. against their bounds.

Errors are mean squared errors of the mean over F, the mean of the workers' squared norms. Vectors are Gaussian;
Gaussian with one element of 100; and +1, -1 and zeros, which attain the bound of sb.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum_base.units import format_number
from hopsum_evaluation.baselines.estimator_interface import Estimator, estimate_mean
from hopsum_evaluation.baselines.estimators import make_estimator
from hopsum_evaluation.baselines.suresh import bits_bound_svk, mean_energy, mse_bound_sb, mse_bound_sk, mse_bound_srk
from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.experiment import ReportTable, Result, SectionView, Settings, Tell
from hopsum_evaluation.report.claims import Basis, Claim, Relation

SURESH: Final = "Suresh et al. (ICML 2017)"
LEVELS: Final = 16


def _bound(name: str, what: str) -> Claim:
    source = f"{SURESH}; bounds of docs/evaluation.md"
    return Claim(name, f"{what}, Gaussian and one huge element", source, Basis.THEORY, 1.0, Relation.AT_MOST)


CLAIMS: Final = (
    _bound("sb-bound", "error of sb (1 bit) over its bound d/2n F"),
    _bound("sk-bound", f"error of sk ({LEVELS} levels) over its bound d/2n(k-1)² F"),
    _bound("srk-bound", f"error of srk ({LEVELS} levels) over its bound (2 ln d + 2)/n(k-1)² F"),
    _bound("svk-bound", "error of svk (√d + 1 levels) over its bound d/2n(k-1)² F"),
    _bound("svk-bits", "bits of svk over their bound"),
    Claim(
        "sb-tight", "error of sb over its bound on the vectors that attain it, mean over all d and n",
        f"{SURESH}; docs/evaluation.md", Basis.THEORY, 1.0, Relation.WITHIN, 0.05,
    ),
    Claim(
        "sb-slope", "slope of ln error over ln d, stochastic rounding on its hardest vectors: error Θ(d/n)",
        f"{SURESH}, abstract", Basis.PUBLISHED, 1.0, Relation.WITHIN, 0.1,
    ),
    Claim(
        "workers-slope", "slope of ln error over ln n, stochastic rounding on its hardest vectors: error Θ(d/n)",
        f"{SURESH}, abstract", Basis.PUBLISHED, -1.0, Relation.WITHIN, 0.1,
    ),
    Claim(
        "srk-growth", "growth of srk's error over d, over that of 2 ln d + 2, hardest vectors: O((log d)/n)",
        f"{SURESH}, abstract", Basis.PUBLISHED, 1.0, Relation.AT_MOST,
    ),
    Claim(
        "svk-slope", "slope of ln error over ln d, svk on Gaussian vectors: error O(1/n) whatever d",
        f"{SURESH}, abstract", Basis.PUBLISHED, 0.0, Relation.WITHIN, 0.1,
    ),
)  # fmt: skip
_METHODS: Final = ("sb", "sk", "srk", "svk")

Vectors = list[NDArray[np.float32]]


def _gaussian(rng: np.random.Generator, n: int, d: int) -> Vectors:
    return [rng.standard_normal(d, dtype=np.float32) for _ in range(n)]


def _huge(rng: np.random.Generator, n: int, d: int) -> Vectors:
    vectors = _gaussian(rng, n, d)
    for x in vectors:
        # One huge element stretches the range of sb and sk. A rotation spreads it.
        x[rng.integers(d)] = 100
    return vectors


def _hardest(rng: np.random.Generator, n: int, d: int) -> Vectors:
    """Return +1, -1 and zeros: of all vectors of one length those with the greatest error of sb."""
    vectors = [np.zeros(d, np.float32) for _ in range(n)]
    for x in vectors:
        x[rng.choice(d, 2, replace=False)] = (1, -1)
    return vectors


_KINDS: Final[dict[str, Callable[[np.random.Generator, int, int], Vectors]]] = {
    "Gaussian": _gaussian,
    "one huge": _huge,
    "hardest": _hardest,
}


def run(settings: Settings, tell: Tell) -> Result:
    """Measure errors and bits of the estimators. Return the figures. Raises CodecError without constriction."""
    sizes = settings.pick((64, 256), (256, 1024, 4096), (256, 1024, 4096, 16384))
    workers, repeats = settings.pick((2, 8), (4, 16), (4, 16)), settings.pick(3, 5, 10)
    steps = 20
    cases = list(product(_KINDS, sizes, workers))
    found = []
    for number, (kind, d, n) in enumerate(cases):
        tell(number / len(cases), f"{kind}, {d} elements, {n} workers")
        runs = [_measure(settings, kind, d, n, steps, repeat) for repeat in range(repeats)]
        found.append({"kind": kind, "d": d, "n": n, "runs": runs})
    return {"cases": found, "steps": steps}


def _measure(settings: Settings, kind: str, d: int, n: int, steps: int, repeat: int) -> dict[str, dict[str, float]]:
    """Measure error over F and bits per element of every method, on vectors drawn anew in each step."""
    rng = settings.rng("data", kind, d, n, repeat)
    errors: dict[str, list[float]] = defaultdict(list)
    bits: dict[str, list[float]] = defaultdict(list)
    for step in range(steps):
        vectors = _KINDS[kind](rng, n, d)
        truth, energy = np.mean(vectors, axis=0, dtype=np.float64), mean_energy(vectors)
        for name in _METHODS:
            # All methods get the same vectors of a step: differences are the methods', not the draws'.
            estimate = estimate_mean(
                make_section_estimator(name), vectors, settings.derive_seed("codec", repeat), step + 1
            )
            errors[name].append(float(np.square(estimate.mean - truth).sum()) / energy)
            bits[name].append(estimate.bits / n / d)
    return {name: {"error": float(np.mean(errors[name])), "bits": float(np.mean(bits[name]))} for name in _METHODS}


def make_section_estimator(name: str) -> Estimator:
    """Make an estimator with LEVELS. Levels of svk follow from the length of a vector."""
    return make_estimator(name, **({"levels": LEVELS} if name in ("sk", "srk") else {}))


def error_bound(name: str, d: int, n: int) -> float:
    """Return the bound of a method's mean squared error, over F, for n vectors of d elements.

    `name` is sb, sk, srk or svk, with the levels of `make_section_estimator`.
    """
    if name == "sb":
        return mse_bound_sb(d, n, 1.0)
    if name == "srk":
        return mse_bound_srk(d, n, 1.0, LEVELS)
    return mse_bound_sk(d, n, 1.0, LEVELS if name == "sk" else _svk_levels(d))


def _svk_levels(d: int) -> int:
    # The default of svk, repeated here: an estimator would need the entropy coder, which showing a report does not.
    return ceil(sqrt(d)) + 1


def make_view(result: Result) -> SectionView:
    """Make tables, plots and the samples of the claims from a result of `run`."""
    cases = result["cases"]
    repeats = range(len(cases[0]["runs"]))
    samples = {
        f"{name}-bound": [max(_ratios(cases, name, repeat, ("Gaussian", "one huge"))) for repeat in repeats]
        for name in _METHODS
    }
    samples["sb-tight"] = [float(np.mean(_ratios(cases, "sb", repeat, ["hardest"]))) for repeat in repeats]
    samples["svk-bits"] = [_worst_bits(cases, repeat) for repeat in repeats]
    samples["sb-slope"] = [_slope(cases, "hardest", "sb", "d", repeat) for repeat in repeats]
    samples["workers-slope"] = [_slope(cases, "hardest", "sb", "n", repeat) for repeat in repeats]
    samples["svk-slope"] = [_slope(cases, "Gaussian", "svk", "d", repeat) for repeat in repeats]
    samples["srk-growth"] = [_srk_growth(cases, repeat) for repeat in repeats]
    return SectionView(plots=[_scaling_plot(cases)], tables=[_table(cases)], samples=samples)


def _error(case: dict[str, Any], name: str, repeat: int) -> float:
    return float(case["runs"][repeat][name]["error"])


def _ratios(cases: Sequence[dict[str, Any]], name: str, repeat: int, kinds: Sequence[str]) -> list[float]:
    """Divide the errors of the cases of these kinds by their bounds."""
    here = [case for case in cases if case["kind"] in kinds]
    return [_error(case, name, repeat) / error_bound(name, case["d"], case["n"]) for case in here]


def _worst_bits(cases: Sequence[dict[str, Any]], repeat: int) -> float:
    def bound(d: int) -> float:
        return bits_bound_svk(d, _svk_levels(d)) / d

    return max(float(case["runs"][repeat]["svk"]["bits"]) / bound(case["d"]) for case in cases)


def _slope(cases: Sequence[dict[str, Any]], kind: str, name: str, key: str, repeat: int) -> float:
    """Fit the slope of ln error over ln of d or n. The other one is the first that was measured."""
    other = "n" if key == "d" else "d"
    here = [case for case in cases if case["kind"] == kind and case[other] == cases[0][other]]
    # A power law is a line of logarithms, whose slope is the exponent.
    x = np.log([case[key] for case in here])
    return float(np.polyfit(x, np.log([_error(case, name, repeat) for case in here]), 1)[0])


def _srk_growth(cases: Sequence[dict[str, Any]], repeat: int) -> float:
    here = [case for case in cases if case["kind"] == "hardest" and case["n"] == cases[0]["n"]]
    least, greatest = here[0], here[-1]
    grown = _error(greatest, "srk", repeat) / _error(least, "srk", repeat)
    return grown / (error_bound("srk", greatest["d"], 1) / error_bound("srk", least["d"], 1))


def _average(case: dict[str, Any], name: str, key: str) -> float:
    return float(np.mean([each[name][key] for each in case["runs"]]))


def _scaling_plot(cases: Sequence[dict[str, Any]]) -> Plot:
    here = [case for case in cases if case["kind"] == "hardest" and case["n"] == cases[0]["n"]]
    sizes = [case["d"] for case in here]
    series = [Series(name, sizes, [_average(case, name, "error") for case in here]) for name in _METHODS]
    for name in ("sb", "srk"):
        bound = [error_bound(name, d, cases[0]["n"]) for d in sizes]
        series.append(Series(f"bound of {name}", sizes, bound, reference=True))
    return Plot("estimation-scaling", f"Error against elements, hardest vectors, {cases[0]['n']} workers",
                "elements", "error of the mean over F", series, True, True)  # fmt: skip


def _table(cases: Sequence[dict[str, Any]]) -> ReportTable:
    rows = []
    for case in cases:
        cells = [
            f"{format_number(_average(case, name, 'error'))} (≤ {format_number(bound)})"
            for name in _METHODS
            for bound in (error_bound(name, case["d"], case["n"]),)
        ]
        rows.append(
            [case["kind"], str(case["d"]), str(case["n"]), *cells, format_number(_average(case, "svk", "bits"))]
        )
    heads = ("vectors", "d", "n", *(f"{name} (bound)" for name in _METHODS), "bits of svk")
    return ReportTable("estimation-error", heads, rows)
