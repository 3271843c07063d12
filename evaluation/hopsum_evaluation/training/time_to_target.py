# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of trainings: seconds to a target, and ratios of seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, nan
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopsum.codec.registry import is_codec
from hopsum_base.units import format_number
from hopsum_evaluation.interval import LEAST, interval
from hopsum_evaluation.training.accuracy_plan import AccuracyModel, codec_of, ranks_codec_of

BEST: Final = "best"
"""Key of `time_ratios` for the fastest of the other schemes, taken seed by seed."""
Run = Mapping[str, Any]
"""Figures of one training, as `accuracy.train_all` makes them: TrainingRun with model, rate, scheme, repeat (seed)."""


def seconds_to_target(model: AccuracyModel, run: Run) -> float:
    """Return the seconds of a training up to the first measurement at the target, infinity if there is none."""
    return _at_target(model, run)[1]


def steps_to_target(model: AccuracyModel, run: Run) -> float:
    """Return the steps of a training up to the first measurement at the target, infinity if there is none."""
    return _at_target(model, run)[0]


def _at_target(model: AccuracyModel, run: Run) -> tuple[float, float]:
    reached = ((step, float(s)) for step, s, value in run["points"] if value is not None and model.is_reached(value))
    return next(reached, (inf, inf))


class Ratio(NamedTuple):
    """Mean ratio over seeds with its 95 % interval.

    nan: a training missed the target. low is None: fewer seeds than an interval needs (`interval.LEAST`).
    """

    mean: float
    low: float | None = None
    high: float | None = None


def make_ratio(samples: Sequence[float]) -> Ratio:
    """Return the mean of ratios, one per seed, and its interval. Below LEAST ratios there is no interval.

    The mean is nan without ratios, or where one is not finite.
    """
    if not samples or not all(map(isfinite, samples)):
        return Ratio(nan)
    return Ratio(fmean(samples)) if len(samples) < LEAST else Ratio(*interval(samples))


def time_ratios(model: AccuracyModel, runs: Sequence[Run], ours: str) -> dict[str, Ratio]:
    """Return the seconds to the target of each other scheme, and of the fastest of them (BEST), over those of `ours`.

    A scheme that missed the target with a seed has the mean nan. BEST takes, for each seed, the schemes that reached
    it. Seeds without `ours` are left out.
    """
    pairs = [{name: seconds_to_target(model, run) for name, run in pair.items()} for pair in runs_by_seed(runs, ours)]
    others = dict.fromkeys(scheme for pair in pairs for scheme in pair if scheme != ours)
    found = {}
    for scheme in others:
        found[scheme] = make_ratio([seconds_ratio([pair[scheme]], pair[ours]) for pair in pairs if scheme in pair])
    if others:
        rivals = ([s for name, s in pair.items() if name != ours] for pair in pairs)
        found[BEST] = make_ratio([seconds_ratio(them, pair[ours]) for them, pair in zip(rivals, pairs, strict=True)])
    return found


def seconds_in_words(model: AccuracyModel, runs: Sequence[Run]) -> str:
    """Return the mean seconds to the target of one scheme, or the share of seeds that missed it, in words."""
    seconds = [seconds_to_target(model, run) for run in runs]
    missed = sum(each == inf for each in seconds)
    return f"missed {missed}/{len(runs)}" if missed else format_number(fmean(seconds))


def mean_of(runs: Sequence[Run], name: str) -> float | None:
    """Return the mean of a figure over the runs that have it, None where none does."""
    known = [run[name] for run in runs if run[name] is not None]
    return fmean(known) if known else None


def runs_by_seed(runs: Sequence[Run], ours: str) -> list[dict[str, Run]]:
    """Group trainings by seed, each group by scheme. Seeds without a training of `ours` are left out."""
    # Seeds are paired, since trainings of one seed share parameters and batches: their ratios vary less than means do.
    found: dict[int, dict[str, Run]] = defaultdict(dict)
    for run in runs:
        found[run["repeat"]][run["scheme"]] = run
    return [pair for pair in found.values() if ours in pair]


def seconds_ratio(others: Iterable[float], ours_s: float) -> float:
    """Return the seconds to the target of the fastest other over ours. nan if all others or ours missed it."""
    other_s = min(others, default=inf)
    # Infinity over infinity is no ratio, and a missed target is no number to average.
    return other_s / ours_s if max(other_s, ours_s) < inf else nan


def is_ours(scheme: str) -> bool:
    """Return True for a scheme that switches sum: a codec, low rank or DiLoCo by thc, or the trial of them (`auto`)."""
    return is_codec(codec_of(scheme).partition(":")[0]) and ranks_codec_of(scheme) is None
