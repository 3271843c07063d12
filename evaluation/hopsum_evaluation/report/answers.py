# SPDX-License-Identifier: Apache-2.0
"""Answers of section `links`: four questions of a reader, what to use on which links, and every figure that says so.

    compression against none                hopsum's fastest scheme over fp32
    the switch against software             codec thc over the faster two-shot, whose ranks add the codes
    against others                          over the best of torch's hooks for halves and for low rank
    accuracy                                steps to the target over those of fp32

A row is a model on links of one rate. Its seconds were measured in one of three ways (`Evidence`). Won and lost are
those of `outcome` alone, which the page of claims uses too.

hopsum's schemes are the settings of codec thc, which switches sum, and low rank by it. Of these a row takes the fastest
that has reached the target in every training of the run. Others are taken as they are.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopsum.codec import CodecError, make_codec
from hopsum.codec.two_shot import TwoShot
from hopsum_base.units import format_number, format_rate, format_time, rate_bits_per_s
from hopsum_evaluation.charts import BarChart, BarPanel, BarSeries
from hopsum_evaluation.experiment import ReportTable, Result, SectionView
from hopsum_evaluation.plan.step_plan import PlanCosts, plan_step
from hopsum_evaluation.report.claims import UNDECIDED, Basis, Claim, Relation, Verdict, judge
from hopsum_evaluation.training.accuracy_plan import AUTO, MODELS, UNSHAPED, diloco_of, low_rank_of
from hopsum_evaluation.training.time_to_target import (
    Ratio,
    is_ours,
    make_ratio,
    seconds_ratio,
    seconds_to_target,
    steps_to_target,
)

FABRIC, HOSTS = "fabric", "hosts"
PLACES: Final = {FABRIC: "a switch in the middle", HOSTS: "a switch on every host"}
MOST_OFF: Final = 0.25
"""Most by which a prediction of `hopsum plan` may differ from what was measured, as a share."""


class Rivals(NamedTuple):
    """Schemes of others, of which a row takes the fastest, and hopsum's scheme that is compared with it.

    head: of the ratio, in tables.
    ours: one of hopsum's schemes. None: the fastest safe one.
    """

    head: str
    names: tuple[str, ...]
    ours: str | None = None


FP32: Final = Rivals("over fp32", ("fp32",))
# The fastest scheme may have fewer bits than two-shot: then the ratio would not be that of the switch.
SOFTWARE: Final = Rivals("`thc` over two-shot", ("two-shot:bits=4", "two-shot:bits=8"), "thc")
"""Codes that ranks add, without a switch. 4 bits err more than `thc` does, 8 bits less."""
HOOKS: Final = Rivals("over torch's best hook", ("fp16", "powersgd", "powersgd-4"))
"""What torch's users have: its hooks for halves, and for low rank of 2 and of 4."""
RIVALS: Final = (FP32, SOFTWARE, HOOKS)


class Evidence(StrEnum):
    """The kind of measurement behind the seconds of a row, in words for the pages."""

    TRAINED = "trained over these links"
    COUNTED = "counted (steps, times a timed step)"
    TIMED = "timed (a step, its computing a wait)"


class Outcome(StrEnum):
    """The result of hopsum in a ratio, seconds of others over those of hopsum, by the whole interval of its samples.

    LEVEL: 1 is inside the interval. OPEN: there is no interval.
    """

    WON = "won"
    LOST = "lost"
    LEVEL = "level"
    OPEN = "no interval"


_FASTER: Final = Claim("faster", "seconds of others over those of hopsum", "own", Basis.OWN, 1.0, Relation.AT_LEAST)


def outcome(ratios: Sequence[float]) -> Outcome:
    """Return the outcome of ratios, one per seed: the verdict of the page of claims on "at least 1.0".

    OPEN for fewer than three samples, or one that is not finite.
    """
    judged = judge(_FASTER, ratios)
    if judged.ours is None:
        return Outcome.OPEN
    if judged.verdict is Verdict.REPRODUCED:
        return Outcome.WON
    return Outcome.LEVEL if judged.reason == UNDECIDED else Outcome.LOST


_PARTS: Final = {
    "step_s": "step",
    "compute_s": "compute alone",
    "reduce_s": "all-reduce alone",
    "step_cpu_s": "processor time of a worker",
}
"""Words for the parts of a step, by their names in a training's figures."""
_HOOKS_SAID: Final = "the fastest of fp32 and torch's hooks"


class _Claimed(NamedTuple):
    """A claim about trainings: the fastest of `others` takes at least `least` times the seconds of hopsum's fastest."""

    name: str
    model: str
    rate: str
    least: float
    said: str = _HOOKS_SAID
    others: tuple[str, ...] = ("fp32", *HOOKS.names)
    place: str = FABRIC
    source: str = "goal"

    @property
    def claim(self) -> Claim:
        """The claim in words."""
        where = f"{self.rate} links, {PLACES[self.place]}"
        text = f"`{self.model}`: seconds to {MODELS[self.model].goal}, {where}: {self.said} over hopsum"
        basis = Basis.OWN if self.source == "goal" else Basis.PUBLISHED
        return Claim(f"{self.name}-{self.model}-{self.rate}", text, self.source, basis, self.least, Relation.AT_LEAST)


_THC: Final = "Li et al., THC (NSDI 2024), abstract: 1.40 to 1.47"
_CLAIMED: Final = [
    each
    for model in ("cnn", "transformer", "cnn-10m")
    for rate in ("200mbit", "1gbit")
    for each in (
        _Claimed("tta-best", model, rate, 1.40, source=_THC),
        _Claimed("tta-all", model, rate, 1.30, f"{_HOOKS_SAID}, and two-shot", ("fp32", *HOOKS.names, *SOFTWARE.names)),
        _Claimed("tta-hosts", model, rate, 1.0, place=HOSTS),
    )
]
CLAIMS: Final = tuple(each.claim for each in _CLAIMED)

Times = dict[str, dict[int, float]]
"""Seconds by scheme and seed. Infinity where a training missed its target."""


@dataclass(slots=True)
class LinkAnswer:
    """The measured seconds of a model, or of an all-reduce, on links of one rate: a row.

    name: of the model, empty for an all-reduce.
    model: the name and its size, or the size of the vector, in words.
    what: quantity of `times`, in words.
    safe: hopsum's schemes that have reached the target in every training of the run.
    times: by place of the switches. Schemes that need no switch are under FABRIC.
    """

    bits_per_s: float
    name: str
    model: str
    what: str
    evidence: Evidence = Evidence.TIMED
    safe: frozenset[str] = frozenset()
    times: dict[str, Times] = field(default_factory=lambda: {FABRIC: defaultdict(dict), HOSTS: defaultdict(dict)})

    @property
    def rate_in_words(self) -> str:
        """Rate of the links in words."""
        return format_rate(self.bits_per_s)

    def best(self, names: Iterable[str], place: str = FABRIC) -> str | None:
        """Return the one of the schemes with the fewest mean seconds at a place. Schemes without times are left out.

        None: none of them reached the target with every seed.
        """
        means = {name: self.mean(name, place) for name in names if name in self.times[place]}
        return min(means, key=means.__getitem__) if means and min(means.values()) < inf else None

    def mean(self, name: str, place: str = FABRIC) -> float:
        """Return a scheme's mean seconds over its seeds, infinity if one missed the target.

        The scheme must have times at the place.
        """
        return fmean(self.times[place][name].values())

    def ours(self, place: str) -> str | None:
        """Return hopsum's fastest safe scheme with the switches at one place, None as `best` does."""
        return self.best((name for name in self.times[place] if name in self.safe), place)

    def ratios_over(self, rivals: Rivals, place: str) -> list[float]:
        """Return the `ratios` of the scheme that is compared with `rivals`. Empty where it was not measured, or missed.

        Missed: the scheme did not reach the target in some training of the run.
        """
        if rivals.ours is not None and rivals.ours not in self.safe:
            return []
        return self.ratios(rivals.names, rivals.ours or self.ours(place), place)

    def ratio(self, others: Sequence[str], ours: str | None, place: str = FABRIC) -> Ratio:
        """Return the mean over the seeds of the fastest of `others` over `ours`, in seconds, and its interval.

        `place` holds for `ours` only: the others are always taken from FABRIC. A seed that only one side has is left
        out. The mean is nan if a training missed its target, if no seed is left, or if `ours` is None.
        """
        return make_ratio(self.ratios(others, ours, place))

    def ratios(self, others: Sequence[str], ours: str | None, place: str) -> list[float]:
        """Return the samples of `ratio`, one for each seed that both sides have. nan: a training missed the target."""
        theirs = [self.times[FABRIC].get(name, {}) for name in others]
        mine = self.times[place].get(ours or "", {})
        pairs = ((s, [each[seed] for each in theirs if seed in each]) for seed, s in mine.items())
        return [seconds_ratio(them, s) for s, them in pairs if them]


def answers_of(result: Result) -> list[LinkAnswer]:
    """Group the trainings of a result of section `links` by model and links, in the order of its cases.

    Counted steps times the seconds of a step are seconds to the target. Empty for a result without trainings.
    """
    found: dict[tuple[str, float], LinkAnswer] = {}
    steps, safe = {**steps_of(result, over_links=True), **steps_of(result)}, _safe_schemes(result)
    trained = {
        (document["model"], rate_bits_per_s(run["rate"]))
        for document in _documents(result, "accuracy") for run in document["runs"] if run["rate"] != UNSHAPED
    }  # fmt: skip
    for document in _documents(result, "accuracy", "training"):
        name, waits = document["model"], document.get("compute_s")
        counted, timed = steps.get(name, {}), document["benchmark"] == "training"
        said = f"`{name}`, {document['parameters'] / 1e6:.3g} M"
        for run in document["runs"]:
            if run["rate"] == UNSHAPED:
                continue
            bits_per_s = rate_bits_per_s(run["rate"])
            # A training over the links themselves is better evidence than its steps.
            if timed and (name, bits_per_s) in trained:
                continue
            how = Evidence.TRAINED if not timed else Evidence.COUNTED if counted else Evidence.TIMED
            what = "s a step" if how is Evidence.TIMED else f"s to {MODELS[name].goal}"
            words = f"{said}, computing {format_time(waits)}" if waits else said
            answer = found.setdefault((name, bits_per_s), LinkAnswer(bits_per_s, name, words, what, how, safe))
            times = answer.times[run["placement"]][run["scheme"]]
            if how is Evidence.TRAINED:
                times[run["repeat"]] = seconds_to_target(MODELS[name], run)
            else:
                times[run["repeat"]] = run["step_s"]
    for answer in found.values():
        if answer.evidence is Evidence.COUNTED:
            _multiply(answer, steps[answer.name])
    return list(found.values())


def _multiply(answer: LinkAnswer, counted: Times) -> None:
    """Make seconds of a step seconds to the target: each seed's steps times the mean step."""
    for place, by_scheme in answer.times.items():
        for name, step_s in by_scheme.items():
            mean_s = fmean(step_s.values())
            # A scheme whose steps were not counted may not have reached the target.
            answer.times[place][name] = {seed: n * mean_s for seed, n in counted.get(name, {0: inf}).items()}


def _safe_schemes(result: Result) -> frozenset[str]:
    """Return hopsum's schemes that reached the target in every training of the run.

    Low rank is one scheme, whatever the rank.
    """
    reached: dict[str, bool] = defaultdict(lambda: True)
    names = set()
    for document in (*_documents(result, "accuracy", "training"), *_choices(result)):
        for run in document["runs"]:
            names.add(run["scheme"])
            if document["benchmark"] == "accuracy":
                reached[_family(run["scheme"])] &= steps_to_target(MODELS[document["model"]], run) < inf
    kept = (name for name in names if is_ours(name) and name != AUTO and not diloco_of(name).every)
    return frozenset(name for name in kept if reached[_family(name)])


def _family(scheme: str) -> str:
    return scheme if low_rank_of(scheme) is None else "low-rank"


def steps_of(result: Result, *, over_links: bool = False) -> dict[str, Times]:
    """Return the steps to the target by model, of trainings on unlimited links, or of those over shaped links.

    Below each model they are by scheme and seed, infinity where a training missed the target. The rate does not change
    the steps of a seed.
    """
    found: dict[str, Times] = defaultdict(lambda: defaultdict(dict))
    for document in _documents(result, "accuracy"):
        model = document["model"]
        for run in document["runs"]:
            if (run["rate"] != UNSHAPED) == over_links:
                found[model][run["scheme"]].setdefault(run["repeat"], steps_to_target(MODELS[model], run))
    return found


def all_reduces_of(result: Result) -> list[tuple[dict[str, Any], dict[str, Any], LinkAnswer]]:
    """Return (document, entry of its "rates", answer) for all all-reduces but those that check time dilation.

    Entries of one size and rate share one answer, which has the seconds of all of them under seed 0.
    """
    found: dict[tuple[int, float], LinkAnswer] = {}
    listed = []
    for document in _documents(result, "allreduce"):
        if document["workers"] != result["workers"]:
            continue  # of the check of time dilation
        for entry in document["rates"]:
            key = entry["elements"], rate_bits_per_s(entry["rate"])
            answer = found.setdefault(key, LinkAnswer(key[1], "", f"{key[0] / 1e6:.3g} M elements", "ms/all-reduce"))
            for name, subject in entry["subjects"].items():
                answer.times[document["placement"]][name.removeprefix("gloo-")][0] = subject["seconds"]
            listed.append((document, entry, answer))
    return listed


def _documents(result: Result, *benchmarks: str) -> list[dict[str, Any]]:
    return [each for each in result.get("documents", ()) if each["benchmark"] in benchmarks and not _is_choice(each)]


def _choices(result: Result) -> list[dict[str, Any]]:
    return [each for each in result.get("documents", ()) if _is_choice(each)]


def _is_choice(document: Mapping[str, Any]) -> bool:
    """Whether these steps show the choice of the first steps. They compute, unlike the timed steps of an answer."""
    return AUTO in document.get("schemes", ()) and not document.get("compute_s")


def answer_table(answers: Sequence[LinkAnswer]) -> ReportTable:
    """Tabulate hopsum's fastest scheme and its ratios: a row for model, links and place of the switches."""
    rows = []
    for each in answers:
        for place, words in PLACES.items():
            if (ours := each.ours(place)) is None:
                continue
            cells = (_compared(each, rivals, place) for rivals in RIVALS)
            rows.append([each.rate_in_words, each.model, each.evidence.name.lower(), words, f"`{ours}`", *cells])
    heads = ("links", "model", "how", "hopsum with", "hopsum's fastest", *(each.head for each in RIVALS))
    return ReportTable("answers", heads, rows)


def _compared(answer: LinkAnswer, rivals: Rivals, place: str) -> str:
    """Write a ratio with its interval, its outcome, and the fastest of several rivals."""
    ratios = answer.ratios_over(rivals, place)
    if not ratios:
        return "-"
    best = answer.best(rivals.names)
    name = f" `{best}`" if len(rivals.names) > 1 and best else ""
    return f"{ratio_text(make_ratio(ratios))}{name}, {outcome(ratios)}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio in words, with its interval where it has one. "-" where its mean is not finite."""
    if not isfinite(ratio.mean):
        return "-"
    interval = "" if ratio.low is None else f" ({format_number(ratio.low, 2)} to {format_number(ratio.high, 2)})"
    return f"{format_number(ratio.mean, 2)}{interval}"


def range_table(answers: Sequence[LinkAnswer]) -> ReportTable:
    """Tabulate the least and the greatest ratio of all models, with their outcomes: a row for each rate and place."""
    rows = []
    for rate in dict.fromkeys(each.bits_per_s for each in answers):
        for place, words in PLACES.items():
            same = [each for each in answers if each.bits_per_s == rate and each.ours(place)]
            if not same:
                continue
            how = Counter(each.evidence.name.lower() for each in same)
            counts = ", ".join(f"{count} {name}" for name, count in sorted(how.items(), reverse=True))
            cells = (_span_cell(same, rivals, place) for rivals in RIVALS)
            rows.append([format_rate(rate), words, counts, *cells])
    heads = ("links", "hopsum with", "rows", *(each.head for each in RIVALS))
    return ReportTable("ranges", heads, rows)


def _span_cell(answers: Sequence[LinkAnswer], rivals: Rivals, place: str) -> str:
    compared = compare(answers, rivals, place)
    return f"{compared.span}; {compared.outcomes}" if compared.rows else "-"


class RowComparison(NamedTuple):
    """Ratios of several rows: their least and greatest mean in words, and outcomes in words."""

    rows: int
    span: str
    outcomes: str
    lost: tuple[str, ...]
    """The rows that hopsum lost, each as model and rate."""


def compare(answers: Sequence[LinkAnswer], rivals: Rivals, place: str) -> RowComparison:
    """Compare hopsum with the fastest of its rivals in every row that has both.

    Rows in which a training missed its target are left out too.
    """
    compared = [(each, each.ratios_over(rivals, place)) for each in answers]
    found = [(each, ratios) for each, ratios in compared if ratios and isfinite(make_ratio(ratios).mean)]
    means = [make_ratio(ratios).mean for _, ratios in found]
    low, high = (format_number(each, 2) for each in (min(means, default=None), max(means, default=None)))
    outcomes = [outcome(ratios) for _, ratios in found]
    counted = Counter(outcomes)
    rows = zip(found, outcomes, strict=True)
    lost = tuple(f"`{each.name}` at {each.rate_in_words}" for (each, _), which in rows if which is Outcome.LOST)
    words = ", ".join(f"{counted[each]} {each}" for each in Outcome if counted[each])
    return RowComparison(len(found), low if low == high else f"{low} to {high}", words, lost)


def accuracy_table(result: Result) -> ReportTable:
    """Tabulate steps to the target, and in brackets over those of fp32: a row for each model, a column a scheme."""
    counts = {**steps_of(result, over_links=True), **steps_of(result)}
    names = list(dict.fromkeys(name for times in counts.values() for name in times))
    rows = []
    for model, times in counts.items():
        fp32 = fmean(times["fp32"].values()) if "fp32" in times else inf
        means = {name: fmean(each.values()) for name, each in times.items()}
        cells = [_steps_cell(means[name], fp32) if name in means else "-" for name in names]
        rows.append([f"`{model}` to {MODELS[model].goal}", *cells])
    return ReportTable("accuracy", ("steps (over fp32's)", *(f"`{name}`" for name in names)), rows)


def _steps_cell(steps: float, fp32: float) -> str:
    if steps == inf:
        return "missed"
    return f"{format_number(steps)} ({steps / fp32:.2f})" if fp32 < inf else format_number(steps)


def diloco_table(answers: Sequence[LinkAnswer]) -> ReportTable:
    """Tabulate seconds to the target of DiLoCo and of schemes that sum at every step, for each rate that has both."""
    rows = list[tuple[str, dict[str, float]]]()
    for each in answers:
        means = {name: each.mean(name) for name in each.times[FABRIC]}
        if each.evidence is not Evidence.TIMED and any(diloco_of(name).every for name in means):
            rows.append((each.rate_in_words, means))
    names = list(dict.fromkeys(name for _, means in rows for name in means))
    cells = [[links, *(_or_missed(means[name]) if name in means else "-" for name in names)] for links, means in rows]
    return ReportTable("rare", ("links", *(f"`{name}`" for name in names)), cells)


def auto_table(result: Result) -> ReportTable:
    """Tabulate the choice of method="auto", its step, and the steps of the fastest of its methods and of safe schemes.

    A row for each model, rate and place where it was timed.
    """
    safe = _safe_schemes(result)
    found: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for document in _choices(result):
        for run in document["runs"]:
            found[document["model"], run["rate"], run["placement"]][run["scheme"]].append(run)
    rows = []
    for (model, rate, place), by_scheme in found.items():
        means = {name: fmean(run["step_s"] for run in runs) for name, runs in by_scheme.items()}
        fixed = {name: s for name, s in means.items() if name in safe}
        if AUTO in means and fixed:
            best = min(fixed, key=fixed.__getitem__)
            tried = [s for name, s in fixed.items() if name == "thc" or low_rank_of(name)]
            own = min(tried, default=fixed[best])
            chosen = " or ".join(dict.fromkeys(run["method"] for run in by_scheme[AUTO]))
            cells = (format_number(1000 * each) for each in (means[AUTO], fixed[best]))
            where = f"`{model}`, {format_rate(rate_bits_per_s(rate))}, {PLACES[place]}"
            over = (f"{means[AUTO] / s:.2f}" for s in (own, fixed[best]))
            rows.append([where, chosen, *cells, f"`{best}`", *over])
    heads = ("ms/step", "auto chose", "auto", "best fixed", "which", "auto over its best", "auto over best")
    return ReportTable("auto", heads, rows)


def accuracy_words(result: Result) -> str:
    """Return a sentence with the steps to the target of hopsum's schemes over those of fp32.

    Without trainings the sentence says that there are none.
    """
    table, said = accuracy_table(result), []
    for column, head in enumerate(table.heads[1:], 1):
        if is_ours(head.strip("`")) and not diloco_of(head.strip("`")).every:
            cells = [row[column] for row in table.rows if row[column] != "-"]
            ratios = sorted((cell.partition("(")[2].rstrip(")") for cell in cells if "(" in cell), key=float)
            parts = [" to ".join(dict.fromkeys((ratios[0], ratios[-1])))] if ratios else []
            missed = cells.count("missed")
            parts += [f"missed in {missed} of {len(cells)} models"] if missed else []
            said.append(f"{head} {', '.join(parts)}")
    if not said:
        return "No training to a target was run."
    models = ", ".join(row[0].partition(" ")[0] for row in table.rows)
    return f"Steps over fp32's, fewer is better ({models}): {'; '.join(said)}."


def figure_table(result: Result) -> ReportTable:
    """Tabulate every time that was measured, a column for each scheme, and bits and error of an element."""
    found = list({id(answer): answer for _, _, answer in all_reduces_of(result)}.values())
    listed = [*((each, 1000) for each in found), *((each, 1) for each in answers_of(result))]
    keys = list(dict.fromkeys((p, name) for p in PLACES for each, _ in listed for name in each.times[p]))
    sent = {
        (document["placement"], name.removeprefix("gloo-")): subject
        for document, entry, _ in all_reduces_of(result) for name, subject in entry["subjects"].items()
    }  # fmt: skip
    rows = [
        [f"{each.model}, {each.rate_in_words}: {each.what}", *(_mean_cell(each, *key, unit) for key in keys)]
        for each, unit in listed
    ]
    for words, name, form in (
        ("bits an element", "busiest_bits_per_element", format_number),
        ("error", "nmse", "{:.0e}".format),
    ):
        rows.append([words, *(form(sent[key][name]) if key in sent else "-" for key in keys)])
    return ReportTable("figures", ("", *(_label(*key) for key in keys)), rows)


def _label(place: str, name: str) -> str:
    return f"`{name}`{', hosts' if place == HOSTS else ''}"


def _mean_cell(answer: LinkAnswer, place: str, name: str, unit: float) -> str:
    if name not in answer.times[place]:
        return "-"
    return _or_missed(answer.mean(name, place) * unit)


def _or_missed(value: float) -> str:
    return format_number(value) if value < inf else "missed"


def parts_table(result: Result) -> ReportTable:
    """Tabulate the parts of a step of hopsum's fastest scheme, in milliseconds, as means of the seeds."""
    fastest = {(each.name, each.bits_per_s, place): each.ours(place) for each in answers_of(result) for place in PLACES}
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for document in _documents(result, "accuracy", "training"):
        for run in document["runs"]:
            bits_per_s = 0.0 if run["rate"] == UNSHAPED else rate_bits_per_s(run["rate"])
            if run["scheme"] == fastest.get((document["model"], bits_per_s, run["placement"])):
                where = f"`{document['model']}`, {format_rate(bits_per_s)}"
                found[where, run["placement"], run["scheme"]].append(run)
    rows = []
    for (where, place, name), runs in found.items():
        wire_s = [8 * run["bytes_per_step"] / rate_bits_per_s(run["rate"]) for run in runs]
        parts = [[run[part] for run in runs if run[part] is not None] for part in _PARTS]
        cells = [format_number(1000 * fmean(part)) if part else "-" for part in (*parts, wire_s)]
        rows.append([f"{where}: {_label(place, name)}", *cells])
    return ReportTable("parts", ("ms", *_PARTS.values(), "wire"), rows)


def plan_table(result: Result) -> ReportTable:
    """Tabulate the seconds that `hopsum plan` predicts over those that were measured, for every all-reduce.

    Codecs that have another form now than in a recorded run have no row: their bytes are not known here.
    """
    costs = next((_costs_of_today(PlanCosts(**each["costs"])) for each in _documents(result, "plan")), None)
    rows: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    if costs is None:
        return ReportTable("plan", (), ())
    for document, entry, answer in all_reduces_of(result):
        place, elements = document["placement"], entry["elements"]
        options = argparse.Namespace(
            workers=document["workers"], rate=answer.bits_per_s, buckets=document["buckets"], placement=place,
            overlap=0.0, compute=0.0, density=1.0,
        )  # fmt: skip
        for row in plan_step(options, elements, costs):
            name = row.method.removeprefix("ring ")
            if name in answer.times[place]:
                ratio = row.allreduce_s / answer.mean(name, place)
                rows[place, name][f"{answer.model}, {answer.rate_in_words}"] = f"{ratio:.2f}"
    heads = list(dict.fromkeys(head for cells in rows.values() for head in cells))
    shown = [[_label(*key), *(cells.get(head, "-") for head in heads)] for key, cells in rows.items()]
    return ReportTable("plan", ("predicted over measured", *heads), shown)


def _costs_of_today(costs: PlanCosts) -> PlanCosts:
    """Return the costs of codecs whose operation is what it was when they were measured, and of two-shot."""
    kept = {
        name: s for name, s in costs.codec_s.items()
        if name.startswith(TwoShot.name) or _operation(name) == costs.ops.get(name)
    }  # fmt: skip
    return replace(costs, codec_s=kept)


def _operation(name: str) -> str:
    """Name the operation of a codec, empty for a codec of another version."""
    try:
        # Two workers are too many for no codec.
        return make_codec(name, workers=2, backend="numpy").op.name
    except CodecError:
        return ""


def check_table(result: Result) -> ReportTable:
    """Tabulate all-reduces of few workers with a processor each: milliseconds undilated, dilated, and their ratio."""
    found: dict[tuple[str, str], dict[bool, float]] = defaultdict(dict)
    for document in _documents(result, "allreduce"):
        if document["workers"] == result["workers"]:
            continue
        for entry in document["rates"]:
            size = f"{entry['elements'] / 1e6:.3g} M elements, {format_rate(rate_bits_per_s(entry['rate']))}"
            where = f"{document['workers']} workers, {size}"
            for name, subject in entry["subjects"].items():
                found[where, name.removeprefix("gloo-")][document["dilate"] > 1] = 1000 * subject["seconds"]
    rows = [
        [f"{where}: `{name}`", format_number(ms[False]), format_number(ms[True]), f"{ms[True] / ms[False]:.2f}"]
        for (where, name), ms in found.items() if len(ms) == 2
    ]  # fmt: skip
    return ReportTable("check", ("ms/all-reduce", "not dilated", "dilated", "dilated over not"), rows)


def check_words(table: ReportTable) -> str:
    """Return a sentence on the error of time dilation, from a `check_table`. Raises ValueError for one without rows."""
    ratios = [float(row[-1]) for row in table.rows]
    return (
        f"Dilated times are {min(ratios):.2f} to {max(ratios):.2f} of those that are not: below 1, the page is too "
        "favourable."
    )


def speed_bars(answers: Sequence[LinkAnswer]) -> BarChart | None:
    """Return a chart of the speeds of each side over that of fp32: a panel for each rate, a group for each model.

    Rows without fp32 are left out. None where no row is left.
    """
    measured = [each for each in answers if "fp32" in each.times[FABRIC]]
    panels = []
    for rate in dict.fromkeys(each.bits_per_s for each in measured):
        kept = [each for each in measured if each.bits_per_s == rate]
        sides = [_sides(each) for each in kept]
        series = []
        for name in sides[0]:
            ratios = [each.ratio(["fp32"], *side[name]) for each, side in zip(kept, sides, strict=True)]
            parts = [
                [getattr(each, part) if isfinite(each.mean) else None for each in ratios] for part in Ratio._fields
            ]
            series.append(BarSeries(name, *parts))
        groups = [f"{each.name}, {each.evidence.name.lower()}" for each in kept]
        panels.append(BarPanel(f"links of {format_rate(rate)}", groups, series))
    return BarChart("report-ratio", "Times as fast as DDP in fp32", panels, 1.0, "fp32") if panels else None


def _sides(answer: LinkAnswer) -> dict[str, tuple[str | None, str]]:
    """Name the scheme of each bar of a group, and the place of its switches."""
    return {
        "the best of torch's hooks (fp16, PowerSGD)": (answer.best(HOOKS.names), FABRIC),
        "two-shot: codes of 4 or 8 bits, added by ranks": (answer.best(SOFTWARE.names), FABRIC),
        **{f"hopsum, {words}": (answer.ours(place), place) for place, words in PLACES.items()},
    }


def make_view(result: Result) -> SectionView:
    """Make tables and the samples of the claims from a result of `links.run`."""
    found = {(each.name, each.bits_per_s): each for each in answers_of(result)}
    samples: dict[str, list[float]] = {}
    for each in _CLAIMED:
        answer = found.get((each.model, rate_bits_per_s(each.rate)))
        if answer is None or answer.evidence is Evidence.TIMED:
            samples[each.claim.name] = []
            continue
        samples[each.claim.name] = answer.ratios(each.others, answer.ours(each.place), each.place)
    reasons = {name: "not trained at this size; --full does" for name, each in samples.items() if not each}
    makers = (figure_table, accuracy_table, auto_table, parts_table, plan_table, check_table)
    tables = [diloco_table(list(found.values())), *(make(result) for make in makers)]
    return SectionView([table for table in tables if table.rows], samples=samples, reasons=reasons)
