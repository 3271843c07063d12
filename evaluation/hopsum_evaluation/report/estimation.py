# SPDX-License-Identifier: Apache-2.0
"""Section `estimation`: the methods of Suresh et al. against their bounds, and in their applications."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation import Estimator, estimate_mean
from hopsum.codec.estimation.bounds import bits_bound_svk, mean_energy, mse_bound_sb, mse_bound_sk, mse_bound_srk
from hopsum_evaluation.baselines.registry import make_estimator
from hopsum_evaluation.compare.candidates import CANDIDATES
from hopsum_evaluation.report.applications import CENTRES, estimated, exact, k_means, power_iteration, shares
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.learner import Learner
from hopsum_evaluation.report.settings import Result, Settings, Tell
from hopsum_evaluation.report.shown import Plot, Series, Shown, ShownTable, figure

SURESH: Final = "Suresh et al., Distributed Mean Estimation with Limited Communication, ICML 2017"
LEVELS: Final = 16


def _bound(name: str, what: str) -> Claim:
    source = f"{SURESH}; bound derived again in docs/lossless-and-estimation.md"
    return Claim(name, f"{what}, greatest over Gaussian and huge", source, Basis.THEORY, 1.0, Relation.AT_MOST)


CLAIMS: Final = (
    _bound("sb-bound", "error of sb (1 bit) over its bound d/2n F"),
    _bound("sk-bound", f"error of sk ({LEVELS} levels) over its bound d/2n(k-1)² F"),
    _bound("srk-bound", f"error of srk ({LEVELS} levels) over its bound (2 ln d + 2)/n(k-1)² F"),
    _bound("svk-bound", "error of svk (√d + 1 levels) over its bound d/2n(k-1)² F"),
    _bound("svk-bits", "bits of svk over their bound"),
    Claim(
        "sb-tight", "error of sb over its bound on the vectors that attain it, mean over all d and n",
        f"{SURESH}; vectors by docs/lossless-and-estimation.md", Basis.THEORY, 1.0, Relation.WITHIN, 0.05,
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
_IN_USE: Final = ("sk 16 levels", "srk 16 levels", "svk", "thc", "uhc 4 bits")
_CLIENTS: Final = 10

Vectors = list[NDArray[np.float32]]


def _gaussian(rng: np.random.Generator, n: int, d: int) -> Vectors:
    return [rng.standard_normal(d, dtype=np.float32) for _ in range(n)]


def _huge(rng: np.random.Generator, n: int, d: int) -> Vectors:
    vectors = _gaussian(rng, n, d)
    for x in vectors:
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
    """Measure the estimators of this section. Raises NotRunError where they cannot run here."""
    sizes = settings.pick((64, 256), (256, 1024, 4096), (256, 1024, 4096, 16384))
    workers, repeats = settings.pick((2, 8), (4, 16), (4, 16)), settings.pick(2, 5, 10)
    steps, rounds = 20, settings.pick(5, 20, 40)
    cases = list(product(_KINDS, sizes, workers))
    found = []
    for number, (kind, d, n) in enumerate(cases):
        tell(0.7 * number / len(cases), f"{kind}, {d} elements, {n} workers")
        runs = [_measure(settings, kind, d, n, steps, repeat) for repeat in range(repeats)]
        found.append({"kind": kind, "d": d, "n": n, "runs": runs})
    uses = []
    for repeat in range(repeats):
        tell(0.7 + 0.3 * repeat / repeats, "k-means and power iteration")
        uses.append(_use(settings, repeat, rounds))
    return {"cases": found, "uses": uses, "steps": steps, "rounds": rounds}


def _measure(settings: Settings, kind: str, d: int, n: int, steps: int, repeat: int) -> dict[str, dict[str, float]]:
    """Return error over F and bits an element of every method, on vectors drawn anew in each step."""
    rng = settings.rng("data", kind, d, n, repeat)
    errors: dict[str, list[float]] = defaultdict(list)
    bits: dict[str, list[float]] = defaultdict(list)
    for step in range(steps):
        vectors = _KINDS[kind](rng, n, d)
        truth, energy = np.mean(vectors, axis=0, dtype=np.float64), mean_energy(vectors)
        for name in _METHODS:
            estimate = estimate_mean(make(name), vectors, settings.stream("codec", repeat), step + 1)
            errors[name].append(float(np.square(estimate.mean - truth).sum()) / energy)
            bits[name].append(estimate.bits / n / d)
    return {name: {"error": float(np.mean(errors[name])), "bits": float(np.mean(bits[name]))} for name in _METHODS}


def make(name: str) -> Estimator:
    """Return the estimator with the levels of this section: svk has those that follow from the length."""
    return make_estimator(name, **({"levels": LEVELS} if name in ("sk", "srk") else {}))


def error_bound(name: str, d: int, n: int) -> float:
    """Return the bound of a method's error, over F."""
    if name == "sb":
        return mse_bound_sb(d, n, 1.0)
    if name == "srk":
        return mse_bound_srk(d, n, 1.0, LEVELS)
    return mse_bound_sk(d, n, 1.0, LEVELS if name == "sk" else _svk_levels(d))


def _svk_levels(d: int) -> int:
    return ceil(sqrt(d)) + 1  # svk's default; to show a report needs no entropy coder


def _use(settings: Settings, repeat: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    learner = Learner()
    held = shares(learner.x.astype(np.float64), _CLIENTS, settings.rng("data", "shares", repeat))
    by_label = {each.label: each for each in CANDIDATES}
    found: dict[str, dict[str, list[float]]] = {}
    for label in ("exact", *_IN_USE):
        seed = settings.stream("codec", "uses", repeat)
        mean = exact if label == "exact" else estimated(by_label[label].make(_CLIENTS), seed)
        found[label] = {
            "k-means": k_means(held, mean, rounds, settings.rng("data", "centres", repeat)),
            "PCA": power_iteration(held, mean, rounds, settings.rng("data", "vector", repeat)),
        }
    return found


def show(result: Result) -> Shown:
    """Return what the page says of a result of `run`, and nothing else."""
    cases, uses = result["cases"], result["uses"]
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
    return Shown(
        words=[
            f"Mean squared error of the mean over F, the mean of the workers' squared norms; {result['steps']} steps "
            "with vectors, rotations and roundings of their own. Gaussian elements; the same with one element of 100; "
            "and +1, -1 and zeros, for which the bound of sb is attained.",
            f"Applications on scikit-learn's digits, {_CLIENTS} clients, means of {len(uses)} seeds: Lloyd's algorithm "
            f"with {CENTRES} centres and power iteration, where all that the server has of the clients' vectors is an "
            "estimated mean. Their figures in the paper are not on record here, so that there is no verdict on them. "
            "thc and uhc are this project's, in lanes that a switch adds.",
        ],
        plots=[_scaling_plot(cases), _use_plot(uses, "k-means"), _use_plot(uses, "PCA")],
        tables=[_table(cases), _use_table(uses)],
        samples=samples,
    )


def _error(case: dict[str, Any], name: str, repeat: int) -> float:
    return float(case["runs"][repeat][name]["error"])


def _ratios(cases: Sequence[dict[str, Any]], name: str, repeat: int, kinds: Sequence[str]) -> list[float]:
    """Return error over bound of the cases of these kinds."""
    here = [case for case in cases if case["kind"] in kinds]
    return [_error(case, name, repeat) / error_bound(name, case["d"], case["n"]) for case in here]


def _worst_bits(cases: Sequence[dict[str, Any]], repeat: int) -> float:
    def bound(d: int) -> float:
        return bits_bound_svk(d, _svk_levels(d)) / d

    return max(float(case["runs"][repeat]["svk"]["bits"]) / bound(case["d"]) for case in cases)


def _slope(cases: Sequence[dict[str, Any]], kind: str, name: str, key: str, repeat: int) -> float:
    """Return the slope of ln error over ln of d or n, the other one being the first that was measured."""
    other = "n" if key == "d" else "d"
    here = [case for case in cases if case["kind"] == kind and case[other] == cases[0][other]]
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


def _use_plot(uses: Sequence[dict[str, Any]], which: str) -> Plot:
    series = []
    for name in uses[0]:
        curve = np.mean([each[name][which] for each in uses], axis=0).tolist()
        series.append(Series(name, list(range(len(curve))), curve, reference=name == "exact"))
    labels = {"k-means": "mean squared distance to a centre", "PCA": "distance to the eigenvector"}
    name = {"k-means": "estimation-kmeans", "PCA": "estimation-pca"}[which]
    return Plot(name, f"{which} on digits, {_CLIENTS} clients", "round", labels[which], series, log_y=which == "PCA")


def _table(cases: Sequence[dict[str, Any]]) -> ShownTable:
    rows = []
    for case in cases:
        cells = [
            f"{figure(_average(case, name, 'error'))} (≤ {figure(error_bound(name, case['d'], case['n']))})"
            for name in _METHODS
        ]
        rows.append([case["kind"], str(case["d"]), str(case["n"]), *cells, figure(_average(case, "svk", "bits"))])
    heads = ("vectors", "d", "n", *(f"{name} (bound)" for name in _METHODS), "bits of svk")
    return ShownTable("Error over F", heads, rows)


def _use_table(uses: Sequence[dict[str, Any]]) -> ShownTable:
    rows = []
    for name in uses[0]:
        cost, error = ([each[name][which][-1] for each in uses] for which in ("k-means", "PCA"))
        base = [each["exact"]["k-means"][-1] for each in uses]
        more = float(np.mean([one / other - 1 for one, other in zip(cost, base, strict=True)]))
        spread = float(np.std(error, ddof=1) / sqrt(len(error)))
        distance = f"{figure(float(np.mean(error)))} ± {figure(spread, 2)}"
        rows.append([name, figure(float(np.mean(cost)), 4), f"{more:+.2%}", distance])
    heads = ("", "k-means: mean squared distance", "more than exact", "PCA: distance, ± standard error")
    return ShownTable("After the last round", heads, rows)
