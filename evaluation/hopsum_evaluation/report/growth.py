# SPDX-License-Identifier: Apache-2.0
"""Section `growth`: time, processor time, memory and bytes against elements, workers and jobs, and the plan beside it.

It needs root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from math import nan
from statistics import median
from typing import Any, Final

from hopsum.plan import Costs, PlannedJob, Prediction, predict_summed
from hopsum.plan.costs import costs_from_json
from hopsum_evaluation.bench.allreduce import unavailable
from hopsum_evaluation.bench.allreduce_run import AllReduceSetting
from hopsum_evaluation.plan.forecast import codec_of
from hopsum_evaluation.plan.validate import GOAL, compare
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.growth_run import (
    CODEC,
    JOB_WORKERS,
    RATE,
    RATE_BITS_PER_S,
    WINDOW,
    Point,
    apart,
    costs_here,
    find_rates,
    measure_allreduce,
    measure_jobs,
)
from hopsum_evaluation.report.settings import NotRunError, Result, Settings, Tell
from hopsum_evaluation.report.shown import Plot, Series, Shown, ShownTable, figure

LARGE: Final = 1_000_000
"""The elements from which on a vector is long against what an all-reduce costs once."""
_BILLION: Final = 1_000_000_000
_WORKERS: Final = 4
_BUCKETS: Final = 8
CLAIMS: Final = (
    Claim(
        "growth-bytes",
        f"bytes per element in the busiest direction of a link, vectors above {LARGE:,} elements over one of {LARGE:,}",
        "a goal of this project",
        Basis.OWN,
        1.0,
        Relation.WITHIN,
        0.05,
    ),
    Claim(
        "growth-cpu-elements",
        f"processor time of a worker per element, vectors above {LARGE:,} elements over one of {LARGE:,}",
        "a goal of this project",
        Basis.OWN,
        1.1,
        Relation.AT_MOST,
    ),
    Claim(
        "growth-cpu-workers",
        "processor time of a worker in an all-reduce, 4 and more workers over 2",
        "a goal of this project",
        Basis.OWN,
        1.25,
        Relation.AT_MOST,
    ),
    Claim(
        "plan-error",
        "distance of `hopsum plan` from the measured seconds, as a share of them, mean of hopsum and gloo at all rates",
        "a goal of this project",
        Basis.OWN,
        0.15,
        Relation.AT_MOST,
    ),
    Claim(
        "plan-within",
        f"share of the forecasts of `hopsum plan` that are within {GOAL:.0%} of the measured seconds",
        "a goal of this project",
        Basis.OWN,
        1.0,
        Relation.AT_LEAST,
    ),
)


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the sweeps of this section, and the planner. Raises NotRunError where they cannot run here."""
    if reason := unavailable():
        raise NotRunError(reason)
    million = 1_000_000
    sizes = settings.pick((1000, 32_000), (1000, 32_000, LARGE, 2 * million, 4 * million),
                          (1000, 32_000, LARGE, 4 * million, 16 * million, 64 * million))  # fmt: skip
    workers = settings.pick((2,), (2, 4, 8), (2, 4, 8, 16, 32))
    jobs = settings.pick((1, 2), (1, 2, 4), (1, 2, 4, 8))
    of_workers, of_jobs = settings.pick(32_000, 4 * million, 4 * million), settings.pick(32_000, million, million)
    planned = settings.pick(32_000, 4 * million, 25 * million)
    runs, seed = settings.pick(2, 3, 5), settings.stream("data", "growth") % (1 << 31)
    steps: list[tuple[str, str, Any]] = [
        *(("elements", f"{n:,} elements", (measure_allreduce, n, _WORKERS, _buckets(n), runs, seed)) for n in sizes),
        *(("workers", f"{n} workers", (measure_allreduce, of_workers, n, _BUCKETS, runs, seed)) for n in workers),
        *(("jobs", f"{n} jobs", (measure_jobs, n, of_jobs, runs, seed)) for n in jobs),
    ]
    found: dict[str, list[Any]] = {"elements": [], "workers": [], "jobs": []}
    for number, (sweep, words, call) in enumerate(steps):
        tell(number / (len(steps) + 1), words)
        found[sweep].append(apart(*call))
    tell(len(steps) / (len(steps) + 1), "the plan beside measurements")
    costs = apart(costs_here, runs, settings.pick(0.01, 0.25, 1.0), seed)
    validated = _validate(settings, planned, runs, seed, costs)
    return {**found, "validated": validated, "costs": costs.as_json(), "cores": _cores()}


def _buckets(elements: int) -> int:
    return _BUCKETS if elements >= LARGE else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _validate(settings: Settings, elements: int, runs: int, seed: int, costs: Costs) -> list[dict[str, Any]]:
    """Return the plan's predictions beside measurements, as `hopsum plan --validate` makes them."""
    subjects = ["thc", *(("gloo-fp32", "gloo-fp16") if find_spec("torch") is not None else ())]
    rates: list[str | None] = settings.pick(["200mbit"], ["200mbit", "1gbit"], ["200mbit", "1gbit", "2.5gbit", None])
    setting = AllReduceSetting(rates, _WORKERS, elements, _BUCKETS, WINDOW, runs, seed, subjects, "auto")
    job = PlannedJob(elements, _WORKERS, 0.0, RATE_BITS_PER_S, vectors=_BUCKETS, shared_cores=_cores())
    rows = [compare(each, job, costs) for each in apart(find_rates, setting)]
    kept = ("rate", "subject", "predicted_s", "measured_s", "error", "binds", "reason")
    return [{"elements": elements, **{name: getattr(row, name) for name in kept}} for row in rows]


def predict(elements: int, workers: int, cores: int | None, costs: Costs) -> Prediction:
    """Return the plan's prediction of a measured point, or of machines of their own where `cores` is None."""
    job = PlannedJob(
        elements, workers, 0.0, RATE_BITS_PER_S, vectors=_buckets(elements), shared_cores=cores,
    )  # fmt: skip
    return predict_summed(job, costs, codec_of(CODEC, workers), "embedded")


def show(result: Result) -> Shown:
    """Return what the page says of a result of `run`, and nothing else."""
    elements, workers, jobs = result["elements"], result["workers"], result["jobs"]
    cores, costs = result["cores"], costs_from_json(json.dumps(result["costs"]), "the report")
    base = next((each for each in elements if each["elements"] == LARGE), None)
    larger = [each for each in elements if each["elements"] > LARGE] if base else []
    return Shown(
        words=_words(result),
        tables=[
            _points_table("By elements", "elements", elements, cores, costs),
            _points_table("By workers", "workers", workers, cores, costs),
            _jobs_table(jobs),
            _planned_table(costs),
            _validated_table(result["validated"]),
        ],
        plots=[_plot(elements, cores, costs)],
        samples={
            "growth-bytes": [_per_element(each, "busiest_bytes") / _per_element(base, "busiest_bytes")
                             for each in larger],
            "growth-cpu-elements": [_per_element(each, "worker_cpu_s") / _per_element(base, "worker_cpu_s")
                                    for each in larger],
            "growth-cpu-workers": [each["worker_cpu_s"] / workers[0]["worker_cpu_s"] for each in workers[1:]],
            "plan-error": [abs(row["error"]) for row in result["validated"]],
            "plan-within": [float(abs(row["error"]) <= GOAL) for row in result["validated"]],
        },
        reasons=dict.fromkeys((claim.name for claim in CLAIMS), "too few sizes or schemes were run"),
    )  # fmt: skip


def _words(result: Result) -> list[str]:
    return [
        f"All-reduces of codec {CODEC} on links of {RATE}, one embedded switch in the middle, workers in network "
        f"namespaces, {result['cores']} cores for all of them. Medians of {len(result['elements'][0]['seconds'])} runs "
        "after one that warms up. Memory is a worker's peak beyond its vector. Bytes are whole frames, in the "
        "direction of a link that has most of them.",
        f"By jobs: each has {JOB_WORKERS} workers, all at the same time on one switch. Seconds are of the slowest.",
        "Predictions are of `hopsum plan` with the costs of this machine, which `hopsum plan --calibrate` measured "
        "after the sweeps, for a machine whose cores all processes share. The last point of the picture is such a "
        "forecast too. The table of forecasts is for machines of their own, and nothing there was measured, nor were "
        "racks below one more "
        f"switch. On the points by elements the forecasts are {_errors(result)} off.",
    ]


def _errors(result: Result) -> str:
    """Return the range of the plan's errors by elements, in words."""
    costs = costs_from_json(json.dumps(result["costs"]), "the report")
    found = [
        predict(each["elements"], each["workers"], result["cores"], costs).allreduce_s / median(each["seconds"]) - 1
        for each in result["elements"]
    ]
    return f"{min(found):+.0%} to {max(found):+.0%}"


def _per_element(point: Point | None, key: str) -> float:
    return float(point[key]) / int(point["elements"]) if point else nan


def _points_table(title: str, key: str, points: Sequence[Point], cores: int, costs: Costs) -> ShownTable:
    rows = []
    for each in points:
        seconds, count = median(each["seconds"]), each["elements"]
        expected = predict(count, each["workers"], cores, costs).allreduce_s
        rows.append([
            f"{each[key]:,}", figure(1000 * seconds), figure(1000 * expected), f"{expected / seconds - 1:+.0%}",
            figure(1e9 * _per_element(each, "worker_cpu_s")), figure(1e9 * each["switch_cpu_s"] / count),
            figure(8 * _per_element(each, "busiest_bytes")), figure(each["memory_bytes"] / 1e6),
        ])  # fmt: skip
    heads = (key, "ms", "predicted, ms", "error", "worker, ns an element", "switch, ns an element", "bits an element",
             "memory beyond the vector, MB")  # fmt: skip
    return ShownTable(title, heads, rows)


def _jobs_table(jobs: Sequence[Point]) -> ShownTable:
    rows = []
    for each in jobs:
        rows.append([
            f"{each['jobs']}", figure(1000 * median(each["seconds"])), figure(1e9 * _per_element(each, "worker_cpu_s")),
            figure(1e9 * each["switch_cpu_s"] / each["jobs"] / each["elements"]),
        ])  # fmt: skip
    heads = ("jobs", "ms", "worker, ns an element", "switch, ns an element of each job")
    return ShownTable(f"By jobs, {jobs[0]['elements']:,} elements each", heads, rows)


def _planned_table(costs: Costs) -> ShownTable:
    """Return what was not measured: machines of their own, more workers, more elements."""
    rows = []
    for elements, workers in ((LARGE, 64), (100 * LARGE, 64), (_BILLION, 4), (_BILLION, 64)):
        found = predict(elements, workers, None, costs)
        rows.append([f"{elements:,}", f"{workers}", figure(found.allreduce_s), found.allreduce_binds])
    return ShownTable(f"Predicted, links of {RATE}, a machine for each worker", ("elements", "workers", "s", "binds"),
                      rows)  # fmt: skip


def _validated_table(rows: Sequence[dict[str, Any]]) -> ShownTable:
    cells = [
        [f"{row['rate']}, {row['subject']}", figure(row["predicted_s"]), figure(row["measured_s"]),
         f"{row['error']:+.0%}", row["binds"], row["reason"] or "-"]
        for row in rows
    ]  # fmt: skip
    title = f"The plan beside measurements, {rows[0]['elements']:,} elements" if rows else "The plan"
    heads = ("links and scheme", "predicted, s", "measured, s", "error", "binds", "what was not as predicted")
    return ShownTable(title, heads, cells)


def _plot(points: Sequence[Point], cores: int, costs: Costs) -> Plot:
    measured = [(each["elements"], median(each["seconds"])) for each in points]
    predicted = [(n, predict(n, _WORKERS, cores, costs).allreduce_s) for n, _ in measured]
    predicted += [(n, predict(n, _WORKERS, cores, costs).allreduce_s) for n in (_BILLION,)]
    sizes, seconds = zip(*predicted, strict=True)
    series = [Series.of("measured", measured), Series("predicted", sizes, seconds, reference=True)]
    return Plot("growth-elements", f"Seconds of an all-reduce by elements, {_WORKERS} workers, links of {RATE}",
                "elements", "seconds", series, True, True)  # fmt: skip
