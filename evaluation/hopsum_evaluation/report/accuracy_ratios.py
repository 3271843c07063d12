# SPDX-License-Identifier: Apache-2.0
"""Ratios of trainings to those of one scheme, seed by seed, with Student's interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopsum_evaluation.report.accuracy_figures import seconds_to_target
from hopsum_evaluation.report.accuracy_plan import AccuracyModel
from hopsum_evaluation.report.interval import interval
from hopsum_evaluation.report.shown import figure

BEST: Final = "best"
"""The fastest of the others, of each seed."""


class Ratio(NamedTuple):
    """The mean of several seeds, and where it lies with 95 %, or not a number where a training missed the target."""

    mean: float
    low: float | None = None
    """None with a single seed."""
    high: float | None = None


def time_ratios(model: AccuracyModel, runs: Sequence[Mapping[str, Any]], ours: str) -> dict[str, Ratio]:
    """Return how many times longer each other scheme takes to the target than ours, and the fastest of them (BEST).

    A scheme that missed the target with some seed has no number. For BEST the other schemes count that reached it.
    """
    pairs = _by_seed(runs, ours)
    others = dict.fromkeys(scheme for pair in pairs for scheme in pair if scheme != ours)
    found = {}
    for scheme in others:
        both = [pair for pair in pairs if scheme in pair]
        found[scheme] = make_ratio([_over(model, (pair[scheme],), pair[ours]) for pair in both])
    if others:
        best = [_over(model, [run for name, run in pair.items() if name != ours], pair[ours]) for pair in pairs]
        found[BEST] = make_ratio(best)
    return found


def end_ratios(runs: Sequence[Mapping[str, Any]], ours: str) -> dict[str, Ratio]:
    """Return the measure of each other scheme after all steps, less that of ours."""
    pairs = _by_seed(runs, ours)
    others = dict.fromkeys(scheme for pair in pairs for scheme in pair if scheme != ours)
    return {
        scheme: make_ratio([_last(pair[scheme]) - _last(pair[ours]) for pair in pairs if scheme in pair])
        for scheme in others
    }


def reached_s(model: AccuracyModel, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean seconds to the target of one scheme, or with how many seeds it missed it, in words."""
    seconds = [seconds_to_target(model, run) for run in runs]
    missed = sum(each == inf for each in seconds)
    return f"missed by {missed} of {len(runs)}" if missed else figure(fmean(seconds))


def _by_seed(runs: Sequence[Mapping[str, Any]], ours: str) -> list[dict[str, Mapping[str, Any]]]:
    """Return the runs of each seed by scheme, only for seeds with a run of ours."""
    found: dict[int, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run in runs:
        found[run["repeat"]][run["scheme"]] = run
    return [pair for pair in found.values() if ours in pair]


def _over(model: AccuracyModel, others: Sequence[Mapping[str, Any]], ours: Mapping[str, Any]) -> float:
    other_s = min((seconds_to_target(model, run) for run in others), default=inf)
    ours_s = seconds_to_target(model, ours)
    return other_s / ours_s if max(other_s, ours_s) < inf else nan


def _last(run: Mapping[str, Any]) -> float:
    value = run["points"][-1][2]
    return nan if value is None else float(value)


def make_ratio(samples: Sequence[float]) -> Ratio:
    """Return the mean of the samples, one per seed, with its interval where all are finite."""
    if not samples or not all(map(isfinite, samples)):
        return Ratio(nan)
    return Ratio(samples[0]) if len(samples) == 1 else Ratio(*interval(samples))
