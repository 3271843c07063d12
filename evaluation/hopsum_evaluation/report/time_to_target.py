# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of trainings: seconds to a target, ratios of seeds, and the answer that follows from them.

Hopsum's schemes are the settings of codec thc that switches sum. `thc-ps` has thc's codes and software servers: it is
neither hopsum's nor a rival. All other schemes are rivals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, nan
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.report.accuracy_plan import MODELS, AccuracyModel
from hopsum_evaluation.report.claims import interval
from hopsum_evaluation.report.experiment import Result, ShownTable
from hopsum_evaluation.units import figure, said_rate

BEST: Final = "best"
"""Key of `time_ratios` for the fastest of the other schemes, taken seed by seed."""
FABRIC: Final = "fabric"
HOSTS: Final = "hosts"
_AT_HOSTS: Final = " at hosts"
_NEITHER: Final = "thc-ps"

Run = Mapping[str, Any]
"""Figures of one training, as `accuracy.train_all` makes them: TrainingRun with model, rate, scheme, repeat (seed)."""


def at_hosts(scheme: str) -> str:
    """Name a scheme whose switches run on the workers' hosts."""
    return f"{scheme}{_AT_HOSTS}"


def to_target(model: AccuracyModel, run: Run) -> tuple[float, float]:
    """Return steps and seconds of a training until the target is measured first. Infinity where it never is."""
    reached = (
        (float(step), float(s)) for step, s, value in run["points"] if value is not None and model.reached(value)
    )
    return next(reached, (inf, inf))


def seconds_to_target(model: AccuracyModel, run: Run) -> float:
    """Return the seconds of a training until the target is measured first, infinity if it never is."""
    return to_target(model, run)[1]


def paced_seconds(model: AccuracyModel, whole: Run | None, paced: Run) -> float:
    """Estimate the seconds to the target at a rate where only the time of steps was measured.

    A training takes the same steps at every rate. So the steps to the target are those of `whole`, and each step takes
    as long as those between the first and the last point of `paced`.

    Args:
        model: the model of both trainings.
        whole: the training of the same scheme and seed that went on to the target, at another rate, or None.
        paced: the short training.
    """
    if whole is None:
        return inf
    (first, first_s, _), *_, (last, last_s, _) = paced["points"]
    return float(first_s + (to_target(model, whole)[0] - first) * (last_s - first_s) / (last - first))


def is_paced(run: Run) -> bool:
    """Return True for a training that was too short for the target, and measured the time of steps only."""
    return bool(run.get("paced"))


def with_seconds(model: AccuracyModel, runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """Pair each training with its seconds to the target: measured, or by `paced_seconds` where it is paced."""
    # Steps to the target are those of the same scheme and seed at another rate: a rate changes the time of a sum, not
    # the sum.
    whole = {(run["scheme"], run["repeat"]): run for run in runs if not is_paced(run)}
    found = []
    for run in runs:
        if is_paced(run):
            seconds = paced_seconds(model, whole.get((run["scheme"], run["repeat"])), run)
        else:
            seconds = seconds_to_target(model, run)
        found.append((run, seconds))
    return found


class Ratio(NamedTuple):
    """Mean ratio over seeds with its 95 % interval. nan: a training missed the target. low is None: a single seed."""

    mean: float
    low: float | None = None
    high: float | None = None


def make_ratio(samples: Sequence[float]) -> Ratio:
    """Average ratios, one per seed, with their interval where all are finite."""
    if not samples or not all(map(isfinite, samples)):
        return Ratio(nan)
    return Ratio(samples[0]) if len(samples) == 1 else Ratio(*interval(samples))


def time_ratios(model: AccuracyModel, runs: Sequence[Run], ours: str) -> dict[str, Ratio]:
    """Divide the seconds to the target of each other scheme, and of the fastest of them (BEST), by those of `ours`.

    A scheme that missed the target with a seed has no number. BEST takes, for each seed, the schemes that reached it.
    """
    pairs = runs_by_seed(runs, ours)
    others = dict.fromkeys(scheme for pair in pairs for scheme in pair if scheme != ours)
    found = {}
    for scheme in others:
        both = [pair for pair in pairs if scheme in pair]
        found[scheme] = make_ratio([seconds_ratio(model, (pair[scheme],), pair[ours]) for pair in both])
    if others:
        rivals = [[run for name, run in pair.items() if name != ours] for pair in pairs]
        best = [seconds_ratio(model, them, pair[ours]) for them, pair in zip(rivals, pairs, strict=True)]
        found[BEST] = make_ratio(best)
    return found


def end_ratios(runs: Sequence[Run], ours: str) -> dict[str, Ratio]:
    """Subtract the measure that `ours` ends with from that of each other scheme, seed by seed."""
    pairs = runs_by_seed(runs, ours)
    others = dict.fromkeys(scheme for pair in pairs for scheme in pair if scheme != ours)
    return {
        scheme: make_ratio([_last(pair[scheme]) - _last(pair[ours]) for pair in pairs if scheme in pair])
        for scheme in others
    }


def reached_s(model: AccuracyModel, runs: Sequence[Run]) -> str:
    """Write the mean seconds to the target of one scheme, or how many seeds missed it."""
    seconds = [seconds_to_target(model, run) for run in runs]
    missed = sum(each == inf for each in seconds)
    return f"missed by {missed} of {len(runs)}" if missed else figure(fmean(seconds))


def runs_by_seed(runs: Sequence[Run], ours: str = "") -> list[dict[str, Run]]:
    """Group trainings by seed, each group by scheme. Seeds without a training of `ours` are left out."""
    # Seeds are paired, since trainings of one seed share parameters and batches: their ratios vary less than means do.
    found: dict[int, dict[str, Run]] = defaultdict(dict)
    for run in runs:
        found[run["repeat"]][run["scheme"]] = run
    return [pair for pair in found.values() if not ours or ours in pair]


def seconds_ratio(model: AccuracyModel, others: Sequence[Run], ours: Run) -> float:
    """Divide the seconds to the target of the fastest of `others` by those of `ours`. nan if either missed it."""
    other_s = min((seconds_to_target(model, run) for run in others), default=inf)
    ours_s = seconds_to_target(model, ours)
    # Infinity over infinity is no ratio, and a missed target is no number to average.
    return other_s / ours_s if max(other_s, ours_s) < inf else nan


def _last(run: Run) -> float:
    value = run["points"][-1][2]
    return nan if value is None else float(value)


class Outcome(StrEnum):
    """Hopsum beside the best other scheme, in one row of the answer."""

    FASTER = "faster"
    EQUAL = "equal"
    SLOWER = "slower"
    ONE_SEED = "one seed, no interval"
    OURS_MISSED = "hopsum missed the target"
    OTHERS_MISSED = "the others missed the target"
    ALONE = "nothing to compare with"


@dataclass(frozen=True, slots=True)
class SchemeTime:
    """Trainings of one scheme on one kind of links: means over its seeds."""

    scheme: str
    seconds: float
    """Seconds to the target. Infinity where a seed missed it."""
    compute_s: float
    reduce_s: float | None
    about: bool
    """True where seconds come from `paced_seconds`."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """A model on links of one rate, with the switches at one place: hopsum's best setting beside the others."""

    model: str
    rate: str
    bits_per_s: float | None
    placement: str
    ours: SchemeTime
    """The setting with the fewest seconds of those that reached the target with every seed."""
    others: tuple[SchemeTime, ...]
    """The fastest first."""
    best: Ratio
    """Seconds of the fastest other scheme of each seed over those of `ours`."""
    fp32: Ratio
    """Seconds of fp32 over those of `ours`."""

    @property
    def outcome(self) -> Outcome:
        """Tell from the interval of `best` whether hopsum is faster."""
        if self.ours.seconds == inf:
            return Outcome.OURS_MISSED
        if not isfinite(self.best.mean):
            missed = bool(self.others) and all(each.seconds == inf for each in self.others)
            return Outcome.OTHERS_MISSED if missed else Outcome.ALONE
        if self.best.low is None or self.best.high is None:
            return Outcome.ONE_SEED
        if self.best.low > 1:
            return Outcome.FASTER
        return Outcome.SLOWER if self.best.high < 1 else Outcome.EQUAL

    @property
    def links(self) -> str:
        """Rate of the links in words."""
        return self.rate if self.bits_per_s is None else said_rate(self.bits_per_s)

    @property
    def share(self) -> float | None:
        """Share of a step in fp32 that is all-reduce, each part timed alone. None without trainings in fp32."""
        fp32 = next((each for each in self.others if each.scheme == "fp32"), None)
        if fp32 is None or fp32.reduce_s is None:
            return None
        return fp32.reduce_s / (fp32.reduce_s + fp32.compute_s)


Trained = dict[str, dict[int, tuple[Run, float]]]
"""Trainings with their seconds to the target, by scheme and seed."""


def answer_rows(result: Result) -> list[AnswerRow]:
    """Make the rows of the answer from a result of section `accuracy`: by model, place of the switches, and rate."""
    runs = [normal_run(run) for run in result.get("runs", ())]
    rows = []
    for name in dict.fromkeys(run["model"] for run in runs):
        rates = {run["rate"]: run.get("bits_per_s") for run in runs if run["model"] == name}
        for placement in (FABRIC, HOSTS):
            for rate, bits_per_s in sorted(rates.items(), key=lambda each: each[1] or inf):
                # Rivals need no switch: their trainings are the same for both places, and stand under FABRIC.
                rivals = {s: t for s, t in _trained(runs, name, FABRIC, rate).items() if _is_rival(s)}
                row = _row(name, rate, bits_per_s, placement, {**rivals, **_trained(runs, name, placement, rate)})
                rows += [row] if row else []
    return rows


def normal_run(run: Run) -> dict[str, Any]:
    """Fill in the model and the place of the switches, and take the words for the place from the scheme's name."""
    scheme = str(run["scheme"])
    place = HOSTS if scheme.endswith(_AT_HOSTS) else FABRIC
    return {"model": "cnn", "placement": place, **run, "scheme": scheme.removesuffix(_AT_HOSTS)}


def is_ours(scheme: str) -> bool:
    """Return True for a setting of thc that switches sum."""
    return scheme.partition(":")[0] == "thc"


def _is_rival(scheme: str) -> bool:
    return not is_ours(scheme) and scheme != _NEITHER


def _trained(runs: Iterable[Run], model: str, placement: str, rate: str) -> Trained:
    same = [run for run in runs if (run["model"], run["placement"]) == (model, placement)]
    found: Trained = defaultdict(dict)
    for run, seconds in with_seconds(MODELS[model], same):
        if run["rate"] == rate:
            found[run["scheme"]][run["repeat"]] = run, seconds
    return dict(found)


def _row(model: str, rate: str, bits_per_s: float | None, placement: str, trained: Trained) -> AnswerRow | None:
    """Make one row, or None where nothing of hopsum's was trained."""
    times = [_mean_time(scheme, list(found.values())) for scheme, found in trained.items()]
    # Infinity sorts last: a setting that missed the target wins only where all did.
    ours = sorted((each for each in times if is_ours(each.scheme)), key=lambda each: each.seconds)
    if not ours:
        return None
    others = tuple(sorted((each for each in times if _is_rival(each.scheme)), key=lambda each: each.seconds))
    best = _ratio(trained, ours[0].scheme, [each.scheme for each in others])
    return AnswerRow(
        model, rate, bits_per_s, placement, ours[0], others, best, _ratio(trained, ours[0].scheme, ["fp32"])
    )


def _mean_time(scheme: str, trained: Sequence[tuple[Run, float]]) -> SchemeTime:
    runs, seconds = zip(*trained, strict=True)
    reduce = [run["reduce_s"] for run in runs if run["reduce_s"] is not None]
    return SchemeTime(
        scheme,
        fmean(seconds),
        fmean(run["compute_s"] for run in runs),
        fmean(reduce) if reduce else None,
        any(map(is_paced, runs)),
    )


def _ratio(trained: Trained, ours: str, others: Sequence[str]) -> Ratio:
    """Average over the seeds of `ours` that one of the others was trained with."""
    samples = []
    for repeat, (_, ours_s) in trained[ours].items():
        seconds = [trained[other][repeat][1] for other in others if repeat in trained.get(other, {})]
        if seconds:
            samples.append(min(seconds) / ours_s if max(min(seconds), ours_s) < inf else nan)
    return make_ratio(samples)


def curves(model: AccuracyModel, name: str, runs: Sequence[Run], rate: str) -> Plot:
    """Plot the measure over the seconds of training, a line for each scheme: means over the seeds."""
    series = []
    for scheme in dict.fromkeys(run["scheme"] for run in runs):
        same = [run["points"] for run in runs if (run["rate"], run["scheme"]) == (rate, scheme)]
        # Only points at which every seed is finite: the mean of fewer seeds would jump there.
        together = [each for each in zip(*same, strict=True) if all(p[2] is not None for p in each)]
        points = [(fmean(p[1] for p in each), model.shown(fmean(p[2] for p in each))) for each in together]
        # A training that was not finite from the start has no points.
        if points:
            series.append(Series.of(scheme, points))
    # The line of the target is as long as the slowest scheme's curve.
    last_s = max(run["points"][-1][1] for run in runs if run["rate"] == rate)
    series.append(Series("target", [0, last_s], [model.shown(model.target)] * 2, reference=True))
    title = f"Time to {model.goal}, {model.words}, {rate} links, mean of the seeds"
    y_label = f"{model.measure}, %" if model.percent else model.measure
    return Plot(f"accuracy-{name}-{rate}", title, "seconds of training", y_label, series, log_y=not model.percent)


def step_table(model: AccuracyModel, name: str, runs: Sequence[Run]) -> ShownTable:
    """Tabulate the times of a step and of its parts, and to the target, a row for each rate and scheme."""
    rows, all_runs = [], with_seconds(model, runs)
    for rate, scheme in dict.fromkeys((run["rate"], run["scheme"]) for run in runs):
        same, reached = zip(
            *(each for each in all_runs if (each[0]["rate"], each[0]["scheme"]) == (rate, scheme)), strict=True
        )
        compute_s = fmean(run["compute_s"] for run in same)
        steps_ms = [1000 * run["step_s"] for run in same]
        reach = f" ± {figure(interval(steps_ms).high - fmean(steps_ms), 2)}" if len(same) > 1 else ""
        reduce = [run["reduce_s"] for run in same if run["reduce_s"] is not None]
        share = f"{fmean(reduce) / (fmean(reduce) + compute_s):.0%}" if reduce else "-"
        about = "about " if any(map(is_paced, same)) else ""
        rows.append([
            rate, scheme, f"{figure(fmean(steps_ms))}{reach}", figure(1000 * compute_s),
            figure(1000 * fmean(reduce)) if reduce else "-", share,
            about + figure(fmean(reached)) if max(reached) < inf else "not reached",
        ])  # fmt: skip
    heads = ("links", "scheme", "step, ms", "compute, ms", "all-reduce, ms", "communication", f"s to {model.goal}")
    return ShownTable(f"steps-{name}", heads, rows)
