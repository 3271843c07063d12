# SPDX-License-Identifier: Apache-2.0
"""The top of the results page: a summary, what to use, three pictures, all from the report; and README's part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from textwrap import fill
from typing import Any, Final, NamedTuple

from hopsum_evaluation.report.accuracy import CLAIMS, RATE, at_hosts
from hopsum_evaluation.report.accuracy_figures import curves, is_paced
from hopsum_evaluation.report.accuracy_plan import MODELS
from hopsum_evaluation.report.accuracy_ratios import Ratio
from hopsum_evaluation.report.answer import (
    FABRIC,
    HOSTS,
    AnswerRow,
    Outcome,
    SchemeTime,
    answer_rows,
    is_ours,
    normal_run,
)
from hopsum_evaluation.report.claims import Judged, Verdict
from hopsum_evaluation.report.delay import fastest_links
from hopsum_evaluation.report.settings import Result
from hopsum_evaluation.report.shown import BarChart, BarSeries, Plot, Shown, ShownTable, figure

GOAL: Final = next(claim.published for claim in CLAIMS if claim.name == "tta-best-2bits")
"""The times as fast as the best other scheme that this project wants at RATE."""
ACCURACY, ERROR = "accuracy", "error"
DELAY: Final = "delay"
BESIDE: Final = (DELAY, "growth")
"""Sections of which the summary has the verdicts, where they are there."""
README_COLUMNS: Final = 120
_PLACES: Final = {"fabric": "a switch in the middle", HOSTS: "a switch on every host"}
_PART: Final = re.compile(r"^(<!-- generated: results -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
NOTE: Final = (
    "hopsum's setting is the one with the fewest mean seconds of those that reached the target with every seed. The "
    "best other scheme is named by its mean. The ratio is that of the fastest other scheme of each seed, as in the "
    "claims below, so that it can be less than the ratio of the two columns. The interval does not contain that the "
    "setting was chosen from the same trainings. `thc-ps`, which has hopsum's codes and no switch, is not among the "
    "others. Your model is like one of these where its steps in fp32 wait for the network for as large a share of "
    "their time."
)

Parts = Mapping[str, tuple[Shown, Sequence[Judged]]]
"""What each section shows, and its claims, by its name."""


class Picture(NamedTuple):
    """One figure of the answer, and the words for it."""

    file: str
    plot: Plot | BarChart
    caption: str


def answer(report: dict[str, Any], parts: Parts) -> tuple[list[str], ShownTable | None, list[Picture]]:
    """Return the paragraphs, the table and the pictures of the answer. Nothing but the report is behind them."""
    rows = answer_rows(_found(report))
    table = what_to_use(rows, _found(report)) if rows else None
    return summary_words(report, parts, rows), table, pictures(report, parts, rows)


def stamp(report: dict[str, Any], section: str) -> str:
    """Return the machine, date and commit of a section's figures."""
    result = report["sections"].get(section, {})
    where = result.get("machine", report["machine"])
    commit = result.get("commit", report["commit"]) or "unknown"
    date = str(result.get("begun", report["begun"]))[:10]
    return f"{where['processor']}, {where['cores']} cores, {date}, commit {commit[:8]}"


def summary_words(report: dict[str, Any], parts: Parts, rows: Sequence[AnswerRow]) -> list[str]:
    """Return the summary, with the stamp of its figures at the end."""
    made = stamp(report, ACCURACY)
    if not rows:
        return [f"The trainings that would tell were not run in this report ({made}).", *_beside(report, parts)]
    find = "Find the row of the table that is nearest to your links and model."
    words = [f"**Does it pay for you?** {_count(rows)} {find}"]
    here = [row for row in rows if row.rate == RATE]
    if here:
        listed = "; ".join(f"{_name(row)}, {_over(row)}" for row in here)
        words.append(f"**At {here[0].links}**, seconds of others over hopsum's, to the target: {listed}.")
    words += [f"**The goal there, {GOAL:g} times the best other scheme, {_name(row)}**: {_goal(row)}"
              for row in here if row.placement == FABRIC]  # fmt: skip
    if remark := report["sections"][ACCURACY].get("remark"):
        words.append(f"**The run**: {remark}")
    return [*words, f"(All of this: {made}.)", *_beside(report, parts)]


def what_to_use(rows: Sequence[AnswerRow], result: Result) -> ShownTable:
    """Return the table of what to use on which links for which model."""
    heads = ("your links", "your model", "all-reduce in a step of fp32", "switch", "best setting of hopsum",
             "s to the target", "best other scheme", "times as fast (95 %)", "times as fast as fp32",
             "use this")  # fmt: skip
    found = []
    for row in rows:
        share, best = row.share, next(iter(row.others), None)
        found.append([
            row.links, _model(row.model, result), "-" if share is None else f"{share:.0%}", _PLACES[row.placement],
            f"`{row.ours.scheme}`", _seconds(row.ours),
            "-" if best is None else f"`{best.scheme}`, {_seconds(best)}", _times(row.best), _times(row.fp32),
            advice(row),
        ])  # fmt: skip
    return ShownTable("Your links, your model: use this", heads, found)


def advice(row: AnswerRow) -> str:
    """Return what to use."""
    ours, best = f"`{row.ours.scheme}`", f"`{row.others[0].scheme}`" if row.others else "fp32"
    faster = ours if row.best.mean > 1 else best
    said = {
        Outcome.FASTER: ours,
        Outcome.EQUAL: f"either: {best} needs no switch",
        Outcome.SLOWER: best,
        Outcome.ONE_SEED: f"{faster}, by one seed",
        Outcome.OURS_MISSED: best if row.others and row.others[0].seconds < inf else "none of these",
        Outcome.OTHERS_MISSED: ours,
        Outcome.ALONE: "nothing to choose from",
    }[row.outcome]
    if row.rarely is not None and row.rarely.seconds < inf:
        said += f"; `{row.rarely.scheme}` where rare synchronisation will do: {_seconds(row.rarely)} s"
    return said


def pictures(report: dict[str, Any], parts: Parts, rows: Sequence[AnswerRow]) -> list[Picture]:
    """Return the pictures that this report has figures for."""
    made = []
    whole = [row for row in rows if row.rate == RATE and not row.ours.about]
    if whole:
        plot = _curves(_found(report), [row for row in whole if row.model == whole[0].model])
        made.append(Picture("report-accuracy.svg", plot, f"{plot.title}. {stamp(report, ACCURACY)}."))
    bars = ratio_bars(rows)
    if bars is not None:
        reach = ("Bars are means over the seeds, with the 95 % interval where there are two seeds or more. There is no "
                 "bar where nothing could be compared")  # fmt: skip
        caption = f"{bars.title}. {reach}. {stamp(report, ACCURACY)}."
        made.append(Picture("report-ratio.svg", bars, caption))
    bits = [plot for plot in parts[ERROR][0].plots if plot.name.startswith("error-bits")]
    if bits:
        made.append(Picture("report-error.svg", bits[0], f"{bits[0].title}. {stamp(report, ERROR)}."))
    return made


def ratio_bars(rows: Sequence[AnswerRow]) -> BarChart | None:
    """Return the ratios to the best other scheme, a group for each rate, or None where there is none."""
    kept = [row for row in rows if isfinite(row.best.mean)]
    if not kept:
        return None
    links = [row.links for row in sorted(kept, key=lambda row: row.bits_per_s or inf)]
    groups = list(dict.fromkeys(links))
    series = []
    for name in dict.fromkeys(map(_name, kept)):
        found = {row.links: row.best for row in kept if _name(row) == name}
        of = [found.get(group) for group in groups]
        series.append(BarSeries(name, *([getattr(each, part, None) for each in of] for part in Ratio._fields)))
    title = "hopsum's best setting over the best other scheme: times as fast to the target"
    return BarChart("report-ratio", title, groups, "times as fast", series, 1.0, "as fast as the best other scheme")


def with_results(readme: str, report: dict[str, Any]) -> str:
    """Return a README with its part `results` made anew. Raises ValueError where it has none."""
    if _PART.search(readme) is None:
        raise ValueError("no part between `<!-- generated: results -->` and `<!-- end -->`, each on a line of its own")
    made = fill(readme_words(report), README_COLUMNS, break_long_words=False, break_on_hyphens=False)
    return _PART.sub(lambda part: f"{part[1]}{made}\n{part[2]}", readme)


def readme_words(report: dict[str, Any]) -> str:
    """Return the answer in few words."""
    rows = answer_rows(_found(report))
    said = [_count(rows)] if rows else ["The trainings that would tell were not run."]
    here = [row for row in rows if row.rate == RATE]
    if here:
        listed = "; ".join(f"{_name(row)}, {_over(row)}" for row in here)
        said.append(f"Seconds of others over hopsum's at {here[0].links}: {listed}.")
    return " ".join([*said, f"[What to use](docs/results.md) ({stamp(report, ACCURACY)})."])


def _over(row: AnswerRow) -> str:
    """Return the ratios of a row in the fewest words."""
    if not isfinite(row.best.mean):
        return _short(row)
    fp32 = f", {figure(row.fp32.mean)} for fp32" if isfinite(row.fp32.mean) else ""
    return f"`{row.ours.scheme}`: {_times(row.best)} for `{row.others[0].scheme}`{fp32}"


def _found(report: dict[str, Any]) -> Result:
    found: Result = report["sections"].get(ACCURACY, {})
    return found


def _count(rows: Sequence[AnswerRow]) -> str:
    """Return one sentence on all rows."""
    tally = {outcome: sum(row.outcome is outcome for row in rows) for outcome in Outcome}
    said = [f"{_state(outcome)} in {count}" for outcome, count in tally.items() if count or outcome is Outcome.FASTER]
    listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
    cases = f"{len(rows)} cases" if len(rows) > 1 else "one case"
    return f"Of {cases} of links, model and switch, hopsum's best setting is {listed}."


def _state(outcome: Outcome) -> str:
    return {
        Outcome.FASTER: "faster to the target than the best other scheme",
        Outcome.EQUAL: "no different within the 95 % interval",
        Outcome.SLOWER: "slower",
        Outcome.ONE_SEED: "not judged for want of seeds",
        Outcome.OURS_MISSED: "short of the target",
        Outcome.OTHERS_MISSED: "alone at the target",
        Outcome.ALONE: "without a comparison",
    }[outcome]


def _short(row: AnswerRow) -> str:
    """Return the result of a row in a clause."""
    ours = f"`{row.ours.scheme}`"
    if row.outcome is Outcome.OURS_MISSED:
        return f"no setting of hopsum reached {MODELS[row.model].goal} with every seed"
    if row.outcome in (Outcome.ALONE, Outcome.OTHERS_MISSED):
        return f"{ours} took {_seconds(row.ours)} s, {row.outcome}"
    return f"{ours} {_times(row.best)} times as fast as `{row.others[0].scheme}`"


def _goal(row: AnswerRow) -> str:
    """Return whether the goal is met, and where it is not what keeps it away."""
    low = row.best.low
    if low is not None and low >= GOAL:
        return f"met, {_times(row.best)} times."
    if not row.others or row.ours.seconds == inf or row.others[0].seconds == inf:
        return f"not met: {_short(row)}."
    ours, best = row.ours, row.others[0]
    why = f"a step takes {figure(1000 * ours.step_s)} ms with `{ours.scheme}`"
    if ours.reduce_s is not None:
        alone = f"{figure(1000 * ours.compute_s)} ms of compute and {figure(1000 * ours.reduce_s)} ms of all-reduce"
        why += f" ({alone}, timed alone)"
    why += f" and {figure(1000 * best.step_s)} ms with `{best.scheme}`"
    if isfinite(ours.steps) and isfinite(best.steps):
        why += f", and the target takes {ours.steps:.3g} and {best.steps:.3g} steps"
    needed_s = best.seconds / GOAL * ours.step_s / ours.seconds
    return (f"not met, {_times(row.best)} times: {why}. With as many steps, {GOAL:g} times would take steps of "
            f"{figure(1000 * needed_s)} ms.")  # fmt: skip


def _beside(report: dict[str, Any], parts: Parts) -> list[str]:
    """Return the verdicts of other sections that a practitioner asks for. Of several claims, their tally."""
    words = []
    for name in BESIDE:
        if name in parts and name in report["sections"]:
            judged = parts[name][1]
            held = sum(each.verdict is Verdict.REPRODUCED for each in judged)
            said = _verdict(judged[0]) if len(judged) == 1 else f"{held} of {len(judged)} claims reproduced, see below"
            if name == DELAY:
                said = f"{fastest_links(report['sections'][name])}; {said}"
            words.append(f"**{name.capitalize()}**: {said}. ({stamp(report, name)}.)")
    return words


def _verdict(judged: Judged) -> str:
    ours, claim = judged.ours, judged.claim
    reason = [judged.reason] if judged.reason else []
    if ours is not None:
        reason = [f"{figure(ours.mean)}, {figure(ours.low)} to {figure(ours.high)}", *reason]
    return f"{judged.verdict}: {claim.text}, {claim.condition} ({': '.join(reason)})"


def _curves(result: Result, rows: Sequence[AnswerRow]) -> Plot:
    """Return the curves of the other schemes, and of the best setting at each place, for the rows of one model."""
    model = rows[0].model
    best = {row.placement: row.ours.scheme for row in rows}
    runs = []
    for run in map(normal_run, result["runs"]):
        if (run["model"], run["rate"]) != (model, RATE) or is_paced(run):
            continue
        scheme, placement = run["scheme"], run["placement"]
        if is_ours(scheme) and best.get(placement) == scheme:
            runs.append({**run, "scheme": at_hosts(scheme) if placement == HOSTS else scheme})
        elif not is_ours(scheme) and placement != HOSTS:
            runs.append(run)
    plot = curves(MODELS[model], model, runs, RATE)
    title = f"Seconds to {MODELS[model].goal}, {MODELS[model].words}, links of {rows[0].links}, means of the seeds"
    return Plot("report-accuracy", title, plot.x_label, plot.y_label, plot.series, plot.log_x, plot.log_y)


def _name(row: AnswerRow) -> str:
    return f"{row.model}, {_PLACES[row.placement]}"


def _model(name: str, result: Result) -> str:
    parameters = result.get("models", {}).get(name, result).get("parameters")
    size = f", {figure(parameters / 1e6, 2)} M parameters" if parameters else ""
    return f"{MODELS[name].words} (`{name}`{size}), to {MODELS[name].goal}"


def _seconds(time: SchemeTime) -> str:
    if time.seconds == inf:
        return "missed it"
    return f"about {figure(time.seconds)}" if time.about else figure(time.seconds)


def _times(ratio: Ratio) -> str:
    if not isfinite(ratio.mean):
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{figure(ratio.mean)} (one seed)"
    return f"{figure(ratio.mean)} ({figure(ratio.low)} to {figure(ratio.high)})"
