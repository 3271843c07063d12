# SPDX-License-Identifier: Apache-2.0
"""Curves and tables of section `accuracy`, from its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import mean
from typing import Any

from hopsum_evaluation.report.accuracy_plan import AccuracyModel
from hopsum_evaluation.report.interval import interval
from hopsum_evaluation.report.shown import Plot, Series, ShownTable, figure


def seconds_to_target(model: AccuracyModel, run: Mapping[str, Any]) -> float:
    """Return the seconds to the model's target, infinity if the run did not reach it."""
    reached = (float(seconds) for _, seconds, value in run["points"] if value is not None and model.reached(value))
    return next(reached, inf)


def paced_seconds(model: AccuracyModel, whole: Mapping[str, Any] | None, paced: Mapping[str, Any]) -> float:
    """Return the seconds to the target that follow from the times of steps at another rate.

    A training takes the same steps at every rate. The steps to the target are those of `whole`, and their seconds go on
    as they did between the first look of `paced` and its last.

    Args:
        whole: the training of the same scheme, seed and placement that went to the target, or None where there is none.
    """
    if whole is None:
        return inf
    reached = (step for step, _, value in whole["points"] if value is not None and model.reached(value))
    steps = next(reached, inf)
    (first, first_s, _), *_, (last, last_s, _) = paced["points"]
    return float(first_s + (steps - first) * (last_s - first_s) / (last - first))


def is_paced(run: Mapping[str, Any]) -> bool:
    """Return whether a training only timed its steps."""
    return bool(run.get("paced"))


def with_seconds(model: AccuracyModel, runs: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Return each training with its seconds to the target: measured, or by `paced_seconds` where it is paced."""
    whole = {(run["scheme"], run["repeat"]): run for run in runs if not is_paced(run)}
    return [
        (run, paced_seconds(model, whole.get((run["scheme"], run["repeat"])), run))
        if is_paced(run) else (run, seconds_to_target(model, run))
        for run in runs
    ]  # fmt: skip


def curves(model: AccuracyModel, name: str, runs: Sequence[dict[str, Any]], rate: str) -> Plot:
    """Return the measure over the seconds of training, a line for each scheme: means over the seeds."""
    series = []
    for scheme in dict.fromkeys(run["scheme"] for run in runs):
        same = [run["points"] for run in runs if (run["rate"], run["scheme"]) == (rate, scheme)]
        together = [each for each in zip(*same, strict=True) if all(p[2] is not None for p in each)]
        points = [(mean(p[1] for p in each), model.shown(mean(p[2] for p in each))) for each in together]
        series += [Series.of(scheme, points)] if points else []  # none if training was not finite from the start
    last_s = max(run["points"][-1][1] for run in runs if run["rate"] == rate)
    series.append(Series("target", [0, last_s], [model.shown(model.target)] * 2, reference=True))
    title = f"Time to {model.goal}, {model.words}, {rate} links, mean of the seeds"
    y_label = f"{model.measure}, %" if model.percent else model.measure
    return Plot(_plot_name(name, rate), title, "seconds of training", y_label, series, log_y=not model.percent)


def _plot_name(name: str, rate: str) -> str:
    return f"accuracy-{rate}" if name == "cnn" else f"accuracy-{name}-{rate}"


def figures_of(model: AccuracyModel, name: str, runs: Sequence[dict[str, Any]]) -> ShownTable:
    """Return the times of a step and of its parts, and to the target, a row for each rate and scheme."""
    rows, all_runs = [], with_seconds(model, runs)
    for rate, scheme in dict.fromkeys((run["rate"], run["scheme"]) for run in runs):
        same, reached = zip(
            *(each for each in all_runs if (each[0]["rate"], each[0]["scheme"]) == (rate, scheme)), strict=True
        )
        compute_s = mean(run["compute_s"] for run in same)
        steps_ms = [1000 * run["step_s"] for run in same]
        reach = f" ± {figure(interval(steps_ms).high - mean(steps_ms), 2)}" if len(same) > 1 else ""
        reduce = [run["reduce_s"] for run in same if run["reduce_s"] is not None]
        share = f"{mean(reduce) / (mean(reduce) + compute_s):.0%}" if reduce else "-"
        about = "about " if any(map(is_paced, same)) else ""
        rows.append([
            rate, scheme, f"{figure(mean(steps_ms))}{reach}", figure(1000 * compute_s),
            figure(1000 * mean(reduce)) if reduce else "-", share,
            about + figure(mean(reached)) if max(reached) < inf else "not reached",
        ])  # fmt: skip
    heads = ("links", "scheme", "step, ms", "compute, ms", "all-reduce, ms", "communication", f"s to {model.goal}")
    return ShownTable(f"Steps, {name}", heads, rows)
