# SPDX-License-Identifier: Apache-2.0
"""The answer of a report: hopsum's best setting beside the best other scheme, by links, model and place of switches.

Ours are the settings of codec thc that switches sum. `thc-ps` and `diloco-hopsum` have thc's codes too, and are neither
ours nor others, as in the claims of section `accuracy`. All other schemes are others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, nan
from statistics import fmean
from typing import Any, Final

from hopsum_evaluation.report.accuracy import at_hosts
from hopsum_evaluation.report.accuracy_figures import is_paced, with_seconds
from hopsum_evaluation.report.accuracy_plan import MODELS, AccuracyModel
from hopsum_evaluation.report.accuracy_ratios import Ratio, make_ratio
from hopsum_evaluation.report.settings import Result

FABRIC: Final = "fabric"
HOSTS: Final = "hosts"
RARELY: Final = "diloco-hopsum"
_NEITHER: Final = ("thc-ps", RARELY)
_CNN: Final = "cnn"


class Outcome(StrEnum):
    """The result of a row, hopsum beside the best other scheme."""

    FASTER = "faster"
    EQUAL = "equal within the interval"
    SLOWER = "slower"
    ONE_SEED = "one seed, which has no interval"
    OURS_MISSED = "hopsum missed the target"
    OTHERS_MISSED = "no other scheme reached the target with every seed"
    ALONE = "no other scheme measured with the same seeds"


@dataclass(frozen=True, slots=True)
class SchemeTime:
    """The trainings of one scheme, means over its seeds."""

    scheme: str
    seconds: float
    """Seconds to the target. Infinity where a seed missed it."""
    seeds: int
    step_s: float
    compute_s: float
    reduce_s: float | None
    steps: float
    """Steps to the target. Not a number where they are not known, infinity where a seed missed it."""
    about: bool
    """True where seconds follow from the time of a step, and no training went to the target at this rate."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One model on links of one rate, with the switches at one place."""

    model: str
    rate: str
    bits_per_s: float | None
    placement: str
    ours: SchemeTime
    """The setting with the fewest seconds of those that reached the target with every seed."""
    others: tuple[SchemeTime, ...]
    """The fastest first."""
    best: Ratio
    """The seconds of the fastest other scheme of each seed over those of ours."""
    fp32: Ratio
    """The same for fp32 alone."""
    rarely: SchemeTime | None
    """DiLoCo by hopsum's codec, where it was trained."""

    @property
    def outcome(self) -> Outcome:
        """Return what the interval says."""
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
        """Return the rate of the links in words."""
        if self.bits_per_s is None:
            return self.rate
        giga = self.bits_per_s >= 1e9
        return f"{self.bits_per_s / (1e9 if giga else 1e6):g} {'G' if giga else 'M'}bit/s"

    @property
    def share(self) -> float | None:
        """Return the share of a step in fp32 that is all-reduce, each part timed alone."""
        fp32 = next((each for each in self.others if each.scheme == "fp32"), None)
        return None if fp32 is None or fp32.reduce_s is None else fp32.reduce_s / (fp32.reduce_s + fp32.compute_s)


Trained = dict[str, dict[int, tuple[Mapping[str, Any], float]]]
"""Each training with its seconds to the target, by scheme and seed."""


def answer_rows(result: Result) -> list[AnswerRow]:
    """Return the rows of a result of section `accuracy`: by model, place of the switches, and rate."""
    runs = [normal_run(run) for run in result.get("runs", ())]
    rows = []
    for name in dict.fromkeys(run["model"] for run in runs):
        for placement in (FABRIC, HOSTS):
            rates = {run["rate"]: run.get("bits_per_s") for run in runs if run["model"] == name}
            for rate, bits_per_s in sorted(rates.items(), key=lambda each: each[1] or inf):
                ours, others = (_trained(runs, name, place, rate) for place in (placement, FABRIC))
                row = _row(MODELS[name], {**_switchless(others), **ours})
                rows += [AnswerRow(name, rate, bits_per_s, placement, *row)] if row else []
    return rows


def normal_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training with its model and placement, and its scheme without the words for the place."""
    at, mark = FABRIC, at_hosts("")
    scheme = str(run["scheme"])
    if scheme.endswith(mark):
        at, scheme = HOSTS, scheme.removesuffix(mark)
    return {"model": _CNN, "placement": at, **run, "scheme": scheme}


def is_ours(scheme: str) -> bool:
    """Return whether a scheme is a setting of thc that switches sum."""
    return scheme.partition(":")[0] == "thc"


def _trained(runs: Iterable[Mapping[str, Any]], model: str, placement: str, rate: str) -> Trained:
    same = [run for run in runs if (run["model"], run["placement"]) == (model, placement)]
    found: Trained = defaultdict(dict)
    for run, seconds in with_seconds(MODELS[model], same):
        if run["rate"] == rate:
            found[run["scheme"]][run["repeat"]] = run, seconds
    return dict(found)


def _switchless(trained: Trained) -> Trained:
    """Return the schemes whose trainings are the same wherever the switches are."""
    return {scheme: found for scheme, found in trained.items() if _is_other(scheme)}


def _is_other(scheme: str) -> bool:
    return not is_ours(scheme) and scheme not in _NEITHER


def _row(
    model: AccuracyModel, trained: Trained
) -> tuple[SchemeTime, tuple[SchemeTime, ...], Ratio, Ratio, SchemeTime | None] | None:
    """Return the fields of a row from `ours` on, or None where nothing of ours was trained."""
    times = [_time(model, scheme, list(found.values())) for scheme, found in trained.items()]
    ours = sorted((each for each in times if is_ours(each.scheme)), key=lambda each: each.seconds)
    if not ours:
        return None
    others = [each for each in times if _is_other(each.scheme)]
    best = _ratio(trained, ours[0].scheme, [each.scheme for each in others])
    rarely = next((each for each in times if each.scheme == RARELY), None)
    fastest_first = tuple(sorted(others, key=lambda each: each.seconds))
    return ours[0], fastest_first, best, _ratio(trained, ours[0].scheme, ["fp32"]), rarely


def _time(model: AccuracyModel, scheme: str, trained: Sequence[tuple[Mapping[str, Any], float]]) -> SchemeTime:
    runs, seconds = zip(*trained, strict=True)
    reduce = [run["reduce_s"] for run in runs if run["reduce_s"] is not None]
    return SchemeTime(
        scheme,
        fmean(seconds),
        len(runs),
        fmean(run["step_s"] for run in runs),
        fmean(run["compute_s"] for run in runs),
        fmean(reduce) if reduce else None,
        nan if any(map(is_paced, runs)) else fmean(_steps(model, run) for run in runs),
        any(map(is_paced, runs)),
    )


def _steps(model: AccuracyModel, run: Mapping[str, Any]) -> float:
    return next((float(step) for step, _, value in run["points"] if value is not None and model.reached(value)), inf)


def _ratio(trained: Trained, ours: str, others: Sequence[str]) -> Ratio:
    """Return the ratio over the seeds of ours that one of the others was trained with."""
    samples = []
    for repeat, (_, ours_s) in trained[ours].items():
        seconds = [trained[other][repeat][1] for other in others if repeat in trained.get(other, {})]
        if seconds:
            samples.append(min(seconds) / ours_s if max(min(seconds), ours_s) < inf else nan)
    return make_ratio(samples)
