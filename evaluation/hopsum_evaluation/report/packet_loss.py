# SPDX-License-Identifier: Apache-2.0
"""Section `loss`: THC's simulations: training in memory with lost packets, stragglers, few bits and many workers.

Workers in one process train a small network on scikit-learn's digits. hopsum has codec thc, and the published scheme
codes of 4 bits in lanes of 16 bits with error feedback. Packets are lost independently, each way. Late workers miss the
sums of a step with all that they send. `lossy_training` says what hopsum and the published scheme do then. Drops are in
points of test accuracy against fp32 with the same batches and first parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from hopsum_base.units import format_number
from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.experiment import ReportTable, Result, SectionView, Settings, Tell
from hopsum_evaluation.interval import interval
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.lossy_training import Learner, LossCase, train

THC: Final = "Li et al., THC (NSDI 2024)"
LOSSY_STEPS: Final = 2000
CLAIMS: Final = (
    Claim(
        "loss-1-sync",
        "points of accuracy lost at 1 % packet loss, 10 workers, synchronised every pass: published scheme",
        f"{THC}, simulation of packet loss",
        Basis.RECALLED,
        1.5,
        Relation.AT_MOST,
    ),
    Claim(
        "loss-5-ours",
        "points of accuracy lost at 5 % packet loss, 10 workers, never synchronised: hopsum",
        "as recalled of THC's simulation",
        Basis.OWN,
        1.5,
        Relation.AT_MOST,
    ),
    Claim(
        "replicas-equal",
        "largest relative distance of a worker's parameters from the mean at 5 % packet loss: hopsum",
        "all workers decode the same sum",
        Basis.OWN,
        1e-5,
        Relation.AT_MOST,
    ),
    Claim(
        "stragglers-3",
        "points of accuracy lost where 3 of 10 workers are late in every step: hopsum",
        "as recalled of THC's simulation",
        Basis.OWN,
        1.5,
        Relation.AT_MOST,
    ),
    Claim(
        "feedback-stable",
        f"growth of error feedback, last fifth of {LOSSY_STEPS} steps over the second, 5 % loss: hopsum",
        "a residual stays bounded",
        Basis.OWN,
        2.0,
        Relation.AT_MOST,
    ),
)
_WORKERS: Final = 10
_STABLE_WORKERS: Final = 4
_SCHEMES: Final = {
    ("ours", False): "hopsum",
    ("published", False): "published",
    ("published", True): "published, synchronised",
    ("fp32", False): "fp32",
}


def run(settings: Settings, tell: Tell) -> Result:
    """Do all trainings, each several times. Return the figures. Raises NotRunError without scikit-learn."""
    learner = Learner()
    cases = make_cases(settings)
    repeats = settings.pick(3, 4, 5)
    found: list[dict[str, Any]] = [{"case": asdict(case), "outcomes": []} for case in cases]
    for repeat in range(repeats):
        for number, (case, row) in enumerate(zip(cases, found, strict=True)):
            tell((repeat + number / len(cases)) / repeats, f"{case.scheme}, {case.workers} workers, {case.steps} steps")
            row["outcomes"].append(asdict(train(learner, case, settings, repeat)))
    return {"trainings": found}


def make_cases(settings: Settings) -> list[LossCase]:
    """Return every training of a report of this size once."""
    # The small size only shows that the code runs.
    steps = settings.pick(20, 120, 400)
    losses = settings.pick((0.01, 0.05), (0.001, 0.01, 0.05), (0.001, 0.005, 0.01, 0.02, 0.05))
    stragglers, bits = settings.pick((3,), (1, 3), (1, 2, 3)), settings.pick((2,), (2, 3), (2, 3))
    workers = settings.pick((4,), (4, 16), (4, 8, 16, 32, 64))
    ours, published = LossCase("ours", _WORKERS, steps), LossCase("published", _WORKERS, steps)
    cases = [LossCase("fp32", _WORKERS, steps), ours, published]
    for loss in losses:
        cases += [replace(each, loss=loss) for each in (ours, published, replace(published, sync=True))]
    cases += [replace(each, stragglers=late) for late in stragglers for each in (ours, published)]
    cases += [replace(ours, bits=few) for few in bits]
    cases += [LossCase(scheme, n, steps) for n in workers for scheme in ("fp32", "ours", "published")]
    return [*cases, LossCase("ours", _STABLE_WORKERS, settings.pick(60, LOSSY_STEPS, 2 * LOSSY_STEPS), loss=0.05)]


def make_view(result: Result) -> SectionView:
    """Make a table, plots and the samples of the claims from a result of `run`."""
    rows = result["trainings"]
    base = _accuracies(_find(rows, "fp32"))
    stable = max(rows, key=lambda row: row["case"]["steps"])
    samples = {
        "loss-1-sync": _dropped(base, _find(rows, "published", loss=0.01, sync=True)),
        "loss-5-ours": _dropped(base, _find(rows, "ours", loss=0.05)),
        "replicas-equal": [each["apart"] for each in _find(rows, "ours", loss=0.05)["outcomes"]],
        "stragglers-3": _dropped(base, _find(rows, "ours", stragglers=3)),
        "feedback-stable": [_growth(each["residual"]) for each in stable["outcomes"]],
    }
    reasons = {}
    if stable["case"]["steps"] < LOSSY_STEPS:
        samples["feedback-stable"] = []
        reasons["feedback-stable"] = f"{stable['case']['steps']} steps were run, not {LOSSY_STEPS}"
    return SectionView(
        plots=[_loss_plot(rows, base), _straggler_plot(rows, base), _worker_plot(rows), _residual_plot(stable)],
        tables=[_table(rows)],
        samples=samples,
        reasons=reasons,
    )


def _find(rows: Sequence[dict[str, Any]], scheme: str, **wanted: Any) -> dict[str, Any]:
    """Find the training of _WORKERS workers that differs from the plain one of its scheme by `wanted` only."""
    plain = {"scheme": scheme, "workers": _WORKERS, "bits": 4, "loss": 0.0, "stragglers": 0, "sync": False} | wanted
    return next(row for row in rows if all(row["case"][key] == value for key, value in plain.items()))


def _accuracies(row: dict[str, Any]) -> list[float]:
    return [100 * each["accuracy"] for each in row["outcomes"]]


def _dropped(base: Sequence[float], row: dict[str, Any]) -> list[float]:
    return [before - after for before, after in zip(base, _accuracies(row), strict=True)]


def _growth(residual: Sequence[float]) -> float:
    """Divide the mean of the last fifth by that of the second: two tenths of the training each."""
    return (residual[8] + residual[9]) / (residual[2] + residual[3])


def _lines(
    rows: Iterable[dict[str, Any]], x: str, y: Callable[[dict[str, Any]], Sequence[float]], factor: float = 1.0
) -> list[Series]:
    """Make a line for each scheme over a key of the cases, with intervals."""
    points: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        found = interval(y(row))
        name = _SCHEMES[row["case"]["scheme"], row["case"]["sync"]]
        points[name].append((factor * row["case"][x], found.mean, found.high - found.mean))
    return [Series.from_points(name, found) for name, found in points.items()]


def _of_ten(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["case"]["workers"] == _WORKERS and row["case"]["bits"] == 4]


def _loss_plot(rows: Sequence[dict[str, Any]], base: Sequence[float]) -> Plot:
    here = [row for row in _of_ten(rows) if row["case"]["loss"]]
    series = _lines(here, "loss", lambda row: _dropped(base, row), 100.0)
    return Plot("loss-accuracy", f"Lost packets, {_WORKERS} workers", "packets lost, % each way",
                "points of accuracy lost", series, log_x=True)  # fmt: skip


def _straggler_plot(rows: Sequence[dict[str, Any]], base: Sequence[float]) -> Plot:
    here = [row for row in _of_ten(rows) if not row["case"]["loss"] and row["case"]["scheme"] != "fp32"]
    series = _lines(here, "stragglers", lambda row: _dropped(base, row))
    return Plot("loss-stragglers", f"Late workers of {_WORKERS}", "workers late in every step",
                "points of accuracy lost", series)  # fmt: skip


def _worker_plot(rows: Sequence[dict[str, Any]]) -> Plot:
    here = [
        row for row in rows if row["case"]["bits"] == 4 and not row["case"]["loss"] and not row["case"]["stragglers"]
    ]
    return Plot("loss-workers", "Workers, nothing lost", "workers", "test accuracy, %",
                _lines(here, "workers", _accuracies), log_x=True)  # fmt: skip


def _residual_plot(stable: dict[str, Any]) -> Plot:
    # Tenths of a training: single steps jump with their batches.
    steps = stable["case"]["steps"]
    series = [
        Series(f"seed {number + 1}", [steps * (tenth + 1) / 10 for tenth in range(10)], each["residual"])
        for number, each in enumerate(stable["outcomes"])
    ]
    return Plot("loss-feedback", "Error feedback over steps with 5 % loss, hopsum", "step",
                "residual over gradient (norms)", series)  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> ReportTable:
    made = []
    for row in rows:
        case, found = row["case"], interval(_accuracies(row))
        # The largest, not the mean: a single replica that drifts is a failure.
        apart = max(each["apart"] for each in row["outcomes"])
        made.append([
            _SCHEMES[case["scheme"], case["sync"]],
            *(str(case[key]) for key in ("workers", "bits")), f"{100 * case['loss']:g} %",
            *(str(case[key]) for key in ("stragglers", "steps")),
            f"{found.mean:.2f} ± {found.high - found.mean:.2f}", format_number(apart, 2),
        ])  # fmt: skip
    heads = ("", "workers", "bits", "lost", "late", "steps", "accuracy, %", "replicas apart")
    return ReportTable("loss-trainings", heads, made)
