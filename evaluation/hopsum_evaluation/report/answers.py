# SPDX-License-Identifier: Apache-2.0
"""Answers of section `links`: what to use on which links for which model, and every figure that says so.

hopsum's schemes are the settings of codec thc, which switches sum, and two-shot, which needs no switch. Others are
torch's own hooks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopsum.codec import CodecError, make_codec
from hopsum.codec.two_shot import TwoShot
from hopsum_base.units import figure, rate_bits_per_s, said_rate, said_time
from hopsum_evaluation.charts import BarChart, BarSeries
from hopsum_evaluation.plan.step_plan import PlanCosts, plan_step
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.experiment import Result, Shown, ShownTable
from hopsum_evaluation.training.accuracy_plan import MODELS, UNSHAPED
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
SWITCHLESS: Final = "two-shot:bits=4"
MOST_OFF: Final = 0.25
"""Most by which a prediction of `hopsum plan` may differ from what was measured, as a share."""
REAL: Final = {
    (1_000_000, 2e8): {"fp32": 248, "fp16": 125},
    (1_000_000, 1e9): {"fp32": 51, "fp16": 29},
    (25_000_000, 2e8): {"fp32": 6564, "fp16": 3234},
    (25_000_000, 1e9): {"fp32": 1286, "fp16": 713},
}
"""Milliseconds of an all-reduce of 4 workers over gloo on 16 processors of the Sapphire Rapids kind, medians of 3 to 7
runs: dilated runs are compared with them. Of codecs there are none: thc had other forms then."""

_PARTS: Final = {
    "step_s": "step",
    "compute_s": "compute alone",
    "reduce_s": "all-reduce alone",
    "step_cpu_s": "processor time of a worker",
}
"""Words for the parts of a step, by their names in a training's figures."""
_HOOKS: Final = ("fp32", "fp16", "powersgd")
_HOOKS_SAID: Final = "the fastest of torch's hooks"


class _Claimed(NamedTuple):
    """A claim about trainings: the fastest of `others` takes at least `least` times the seconds of hopsum's fastest."""

    name: str
    model: str
    rate: str
    least: float
    said: str = _HOOKS_SAID
    others: tuple[str, ...] = _HOOKS
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
    for model in ("cnn", "cnn-10m", "transformer-10m")
    for rate in ("200mbit", "1gbit")
    for each in (
        _Claimed("tta-best", model, rate, 1.40, source=_THC),
        _Claimed("tta-all", model, rate, 1.30, f"{_HOOKS_SAID} and {SWITCHLESS}", (*_HOOKS, SWITCHLESS)),
        _Claimed("tta-hosts", model, rate, 1.0, place=HOSTS),
    )
]
CLAIMS: Final = tuple(each.claim for each in _CLAIMED)

Times = dict[str, dict[int, float]]
"""Seconds by scheme and seed. Infinity where a training missed its target."""


@dataclass(slots=True)
class LinkAnswer:
    """What was measured of a model, or of an all-reduce, on links of one rate.

    name: of the model, empty for an all-reduce.
    model: the name and its size, or the size of the vector, in words.
    what: quantity of `times`, in words.
    times: by place of the switches. Schemes that need no switch are under FABRIC.
    """

    bits_per_s: float
    name: str
    model: str
    what: str
    times: dict[str, Times] = field(default_factory=lambda: {FABRIC: defaultdict(dict), HOSTS: defaultdict(dict)})

    @property
    def links(self) -> str:
        """Rate of the links in words."""
        return said_rate(self.bits_per_s)

    @property
    def hooks(self) -> list[str]:
        """The schemes of others: torch's hooks."""
        return [name for name in self.times[FABRIC] if not is_ours(name) and name != SWITCHLESS]

    def best(self, names: Iterable[str], place: str = FABRIC) -> str | None:
        """Name the scheme with the fewest mean seconds, or None where none reached the target with every seed."""
        means = {name: self.mean(name, place) for name in names if name in self.times[place]}
        return min(means, key=means.__getitem__) if means and min(means.values()) < inf else None

    def mean(self, name: str, place: str = FABRIC) -> float:
        """Average a scheme's seconds over its seeds."""
        return fmean(self.times[place][name].values())

    def ours(self, place: str) -> str | None:
        """Name hopsum's best setting with the switches at one place."""
        return self.best(filter(is_ours, list(self.times[place])), place)

    def ratio(self, others: Sequence[str], ours: str | None, place: str = FABRIC) -> Ratio:
        """Divide the seconds of the fastest other, seed by seed, by those of `ours`."""
        return make_ratio(self.ratios(others, ours, place))

    def ratios(self, others: Sequence[str], ours: str | None, place: str) -> list[float]:
        """Return the ratio of each seed. nan: a training missed the target."""
        theirs = [self.times[FABRIC].get(name, {}) for name in others]
        mine = self.times[place].get(ours or "", {})
        return [seconds_ratio([each[seed] for each in theirs if seed in each], s) for seed, s in mine.items()]


def answers_of(result: Result) -> list[LinkAnswer]:
    """Group the trainings of a result of section `links` by model and links, in the order of its cases.

    Counted steps times the seconds of a step are seconds to the target.
    """
    found: dict[tuple[str, float], LinkAnswer] = {}
    steps = steps_of(result)
    for document in _documents(result, "accuracy", "training"):
        name, waits = document["model"], document.get("compute_s")
        counted, timed = steps.get(name, {}), document["benchmark"] == "training"
        said = f"`{name}`, {document['parameters'] / 1e6:.3g} M"
        said += f", computing {said_time(waits)}" if waits else ""
        for run in document["runs"]:
            if run["rate"] == UNSHAPED:
                continue
            bits_per_s = rate_bits_per_s(run["rate"])
            what = "s a step" if timed and not counted else f"s to {MODELS[name].goal}"
            answer = found.setdefault((name, bits_per_s), LinkAnswer(bits_per_s, name, said, what))
            times = answer.times[run["placement"]][run["scheme"]]
            if not timed:
                times[run["repeat"]] = seconds_to_target(MODELS[name], run)
            elif not counted:
                times[run["repeat"]] = run["step_s"]
            else:
                # A scheme whose steps were not counted may not have reached the target.
                times.update({seed: n * run["step_s"] for seed, n in counted.get(run["scheme"], {0: inf}).items()})
    return list(found.values())


def steps_of(result: Result) -> dict[str, Times]:
    """Return the steps to the target of trainings on links without a limit of rate, by model."""
    found: dict[str, Times] = defaultdict(lambda: defaultdict(dict))
    for document in _documents(result, "accuracy"):
        model = document["model"]
        for run in document["runs"]:
            if run["rate"] == UNSHAPED:
                found[model][run["scheme"]][run["repeat"]] = steps_to_target(MODELS[model], run)
    return found


def all_reduces_of(result: Result) -> list[tuple[dict[str, Any], dict[str, Any], LinkAnswer]]:
    """List documents and entries of all-reduces, each with its seconds."""
    found: dict[tuple[int, float], LinkAnswer] = {}
    listed = []
    for document in _documents(result, "allreduce"):
        for entry in document["rates"]:
            key = entry["elements"], rate_bits_per_s(entry["rate"])
            answer = found.setdefault(key, LinkAnswer(key[1], "", f"{key[0] / 1e6:.3g} M elements", "ms an all-reduce"))
            for name, subject in entry["subjects"].items():
                answer.times[document["placement"]][name.removeprefix("gloo-")][0] = subject["seconds"]
            listed.append((document, entry, answer))
    return listed


def _documents(result: Result, *benchmarks: str) -> list[dict[str, Any]]:
    return [each for each in result.get("documents", ()) if each["benchmark"] in benchmarks]


def answer_table(answers: Sequence[LinkAnswer]) -> ShownTable:
    """Tabulate the scheme to use: a row for links and model, a column for each place of the switches."""
    rows = [[each.links, each.model, *(_use(each, place) for place in PLACES)] for each in answers]
    return ShownTable("answers", ("links", "model", *PLACES.values()), rows)


def _use(answer: LinkAnswer, place: str) -> str:
    """Name the fastest scheme, and say how many times as fast it is as fp32 and as the best of the others."""
    ours, hook = answer.ours(place), answer.best(answer.hooks)
    if ours is None or hook is None:
        return "not measured" if not answer.times[place] or not answer.hooks else "a scheme missed the target"
    best, where = ours, place
    for rival in (SWITCHLESS, hook):
        if rival in answer.times[FABRIC] and answer.mean(rival) < answer.mean(best, where):
            best, where = rival, FABRIC
    text = f"`{best}`: {said_ratio(answer.ratio(['fp32'], best, where))} times fp32"
    if best != hook:
        text += f", {said_ratio(answer.ratio(answer.hooks, best, where))} times `{hook}`"
    return text if best == ours else f"{text}; `{ours}` {said_ratio(answer.ratio(answer.hooks, ours, place))}"


def said_ratio(ratio: Ratio) -> str:
    """Write a ratio with its interval where it has one."""
    if not isfinite(ratio.mean):
        return "-"
    interval = "" if ratio.low is None else f" ({figure(ratio.low, 2)} to {figure(ratio.high, 2)})"
    return f"{figure(ratio.mean, 2)}{interval}"


def range_table(answers: Sequence[LinkAnswer]) -> ShownTable:
    """Tabulate how many times as fast hopsum is, least and most of all models, a row for each rate and place."""
    rows = []
    for rate in dict.fromkeys(each.bits_per_s for each in answers):
        for place, words in PLACES.items():
            same = [each for each in answers if each.bits_per_s == rate and each.ours(place) and each.best(each.hooks)]
            cells = [_range([(each.ratio(them(each), each.ours(place), place).mean, each.name) for each in same])
                     for them in (lambda _: ["fp32"], lambda each: each.hooks)]  # fmt: skip
            rows += [[said_rate(rate), words, str(len(same)), *cells]] if same else []
    return ShownTable("ranges", ("links", "hopsum with", "models", "times as fast as fp32", f"as {_HOOKS_SAID}"), rows)


def _range(ratios: Sequence[tuple[float, str]]) -> str:
    known = sorted(each for each in ratios if isfinite(each[0]))
    ends = dict.fromkeys((known[0], known[-1])) if known else ()
    return " to ".join(f"{figure(ratio, 2)} (`{name}`)" for ratio, name in ends) or "-"


def figure_table(result: Result) -> ShownTable:
    """Tabulate every time that was measured, a column for each scheme, and bits and error of an element."""
    found = list({id(answer): answer for _, _, answer in all_reduces_of(result)}.values())
    listed = [*((each, 1000) for each in found), *((each, 1) for each in answers_of(result))]
    keys = list(dict.fromkeys((p, name) for p in PLACES for each, _ in listed for name in each.times[p]))
    sent = {
        (document["placement"], name.removeprefix("gloo-")): subject
        for document, entry, _ in all_reduces_of(result) for name, subject in entry["subjects"].items()
    }  # fmt: skip
    rows = [
        [f"{each.model}, {each.links}: {each.what}", *(_mean_cell(each, *key, unit) for key in keys)]
        for each, unit in listed
    ]
    for model, times in steps_of(result).items():
        means = {name: fmean(counts.values()) for name, counts in times.items()}
        cells = ["-" if place == HOSTS or name not in means else _or_missed(means[name]) for place, name in keys]
        rows.append([f"`{model}`: steps to {MODELS[model].goal}", *cells])
    for words, name, form in (
        ("bits an element", "busiest_bits_per_element", figure),
        ("error", "nmse", "{:.0e}".format),
    ):
        rows.append([words, *(form(sent[key][name]) if key in sent else "-" for key in keys)])
    return ShownTable("figures", ("", *(_label(*key) for key in keys)), rows)


def _label(place: str, name: str) -> str:
    return f"`{name}`{', hosts' if place == HOSTS else ''}"


def _mean_cell(answer: LinkAnswer, place: str, name: str, unit: float) -> str:
    if name not in answer.times[place]:
        return "-"
    return _or_missed(answer.mean(name, place) * unit)


def _or_missed(value: float) -> str:
    return figure(value) if value < inf else "missed"


def parts_table(result: Result) -> ShownTable:
    """Tabulate where a step of hopsum's fastest scheme goes, in milliseconds, as means of the seeds."""
    fastest = {(each.name, each.bits_per_s, place): each.ours(place) for each in answers_of(result) for place in PLACES}
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for document in _documents(result, "accuracy", "training"):
        for run in document["runs"]:
            bits_per_s = 0.0 if run["rate"] == UNSHAPED else rate_bits_per_s(run["rate"])
            if run["scheme"] == fastest.get((document["model"], bits_per_s, run["placement"])):
                where = f"`{document['model']}`, {said_rate(bits_per_s)}"
                found[where, run["placement"], run["scheme"]].append(run)
    rows = []
    for (where, place, name), runs in found.items():
        wire_s = [8 * run["bytes_per_step"] / rate_bits_per_s(run["rate"]) for run in runs]
        parts = [[run[part] for run in runs if run[part] is not None] for part in _PARTS]
        cells = [figure(1000 * fmean(part)) if part else "-" for part in (*parts, wire_s)]
        rows.append([f"{where}: {_label(place, name)}", *cells])
    return ShownTable("parts", ("ms", *_PARTS.values(), "wire"), rows)


def plan_table(result: Result) -> ShownTable:
    """Tabulate the seconds that `hopsum plan` predicts over those that were measured, for every all-reduce.

    Codecs that have another form now than in a recorded run have no row: their bytes are not known here.
    """
    costs = next((_costs_of_today(PlanCosts(**each["costs"])) for each in _documents(result, "plan")), None)
    rows: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    if costs is None:
        return ShownTable("plan", (), ())
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
                rows[place, name][f"{answer.model}, {answer.links}"] = f"{ratio:.2f}"
    heads = list(dict.fromkeys(head for cells in rows.values() for head in cells))
    shown = [[_label(*key), *(cells.get(head, "-") for head in heads)] for key, cells in rows.items()]
    return ShownTable("plan", ("predicted over measured", *heads), shown)


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


def check_table(result: Result) -> ShownTable:
    """Tabulate all-reduces on 16 processors beside those of a dilated run, in milliseconds. No row where none is."""
    rows = []
    for document, entry, answer in all_reduces_of(result):
        real = REAL.get((entry["elements"], answer.bits_per_s), {})
        if document["dilate"] > 1 and document["placement"] == FABRIC and real:
            cells = [f"{ms:,} / {figure(1000 * answer.mean(name))}" for name, ms in real.items()]
            rows.append([f"{answer.model}, {answer.links}", *cells])
    return ShownTable("check", ("16 processors / dilated, ms", *next(iter(REAL.values()))), rows)


def speed_bars(answers: Sequence[LinkAnswer]) -> BarChart | None:
    """Chart how many times as fast as fp32 each side is, a group for links and model. None without a ratio."""
    measured = [each for each in answers if "fp32" in each.times[FABRIC]]
    if not measured:
        return None
    # All rates would be too many bars for one picture: it has the one at which most models were measured.
    rates = [each.bits_per_s for each in measured]
    kept = [each for each in measured if each.bits_per_s == max(rates, key=rates.count)]
    sides = [_sides(each) for each in kept]
    series = []
    for name in sides[0]:
        ratios = [each.ratio(["fp32"], *side[name]) for each, side in zip(kept, sides, strict=True)]
        parts = [[getattr(each, part) if isfinite(each.mean) else None for each in ratios] for part in Ratio._fields]
        series.append(BarSeries(name, *parts))
    groups = [each.model.replace("`", "").replace(", ", "\n") for each in kept]
    return BarChart(
        "report-ratio",
        f"Times as fast as DDP in fp32, links of {kept[0].links}",
        groups,
        "times as fast",
        series,
        1.0,
        "fp32",
    )


def _sides(answer: LinkAnswer) -> dict[str, tuple[str | None, str]]:
    """Name the scheme of each bar of a group, and the place of its switches."""
    return {
        "the best of torch's other hooks": (answer.best(set(answer.hooks) - {"fp32"}), FABRIC),
        f"{SWITCHLESS}, no switch": (SWITCHLESS, FABRIC),
        **{f"hopsum, {words}": (answer.ours(place), place) for place, words in PLACES.items()},
    }


def show(result: Result) -> Shown:
    """Make tables and the samples of the claims from a result of `links.run`."""
    found = {(each.name, each.bits_per_s): each for each in answers_of(result)}
    samples: dict[str, list[float]] = {}
    for each in _CLAIMED:
        answer = found.get((each.model, rate_bits_per_s(each.rate)))
        # A model whose steps were not counted has seconds of a step.
        if answer is None or MODELS[each.model].goal not in answer.what:
            samples[each.claim.name] = []
            continue
        samples[each.claim.name] = answer.ratios(each.others, answer.ours(each.place), each.place)
    reasons = {name: "not trained at this size; --full does" for name, each in samples.items() if not each}
    tables = [figure_table(result), parts_table(result), plan_table(result), check_table(result)]
    return Shown([table for table in tables if table.rows], samples=samples, reasons=reasons)
