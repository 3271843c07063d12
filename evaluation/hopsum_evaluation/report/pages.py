# SPDX-License-Identifier: Apache-2.0
"""The pages of a report: answers (results.md), claims (claims.md), pictures, and a CSV file for each table.

All of it follows from the report's JSON. Each page says date, machine and commit of its figures.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

from hopsum_evaluation.bench.timing import is_crowded
from hopsum_evaluation.charts import BarChart, BarSeries, Plot, write_chart
from hopsum_evaluation.report.accuracy_plan import MODELS
from hopsum_evaluation.report.claims import CONFIDENCE, Judged, Verdict
from hopsum_evaluation.report.experiment import Shown, ShownTable
from hopsum_evaluation.report.time_to_target import HOSTS, AnswerRow, Outcome, Ratio, SchemeTime, answer_rows
from hopsum_evaluation.units import figure

ACCURACY: Final = "accuracy"
_PLACES: Final = {"fabric": "in the middle", HOSTS: "on every host"}
_ANSWER_HEADS: Final = ("links", "model", "all-reduce in a step of fp32", "switch", "hopsum", "s to the target",
                        "best other", "s", "times as fast", "as fp32", "use")  # fmt: skip
_CLAIM_HEADS: Final = ("verdict", "claim", "needed", "measured", "seeds", "from")

Parts = Mapping[str, tuple[str, Shown, Sequence[Judged]]]
"""Title, tables and plots, and claims of each section, by its name."""


def write_pages(report: dict[str, Any], parts: Parts, folder: Path) -> None:
    """Write results.md, claims.md, images/ and csv/ into an existing folder. Raises OSError."""
    images, tables = folder / "images", folder / "csv"
    images.mkdir(exist_ok=True)
    tables.mkdir(exist_ok=True)
    # The page of answers has trainings only. Other sections have no target that a user would train to.
    rows = answer_rows(report["sections"].get(ACCURACY, {}))
    bars = ratio_bars(rows)
    # Pictures of all sections are written, also of those that the two pages do not show: a release carries them.
    charts: list[Plot | BarChart] = [plot for _, shown, _ in parts.values() for plot in shown.plots]
    for chart in [*charts, *([bars] if bars else [])]:
        write_chart(chart, images)
    answers = ShownTable("answers", _ANSWER_HEADS, [_answer_cells(row) for row in rows])
    all_judged = [each for _, _, judged in parts.values() for each in judged]
    claims = ShownTable("claims", _CLAIM_HEADS, [claim_cells(each) for each in all_judged])
    for table in (answers, claims, *(table for _, shown, _ in parts.values() for table in shown.tables)):
        with (tables / f"{table.title}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table.heads, *table.rows])
    (folder / "results.md").write_text(answers_page(report, rows, answers, bars))
    (folder / "claims.md").write_text(claims_page(report, parts))


def answers_page(report: dict[str, Any], rows: Sequence[AnswerRow], table: ShownTable, bars: BarChart | None) -> str:
    """Write the page of answers: one sentence that counts outcomes, the table of links and models, one picture."""
    lines = ["# Results", "", _first_words(report), ""]
    if not rows:
        lines += ["The trainings that would tell were not run.", ""]
    else:
        lines += [count_words(rows), "", *_markdown(table)]
        targets = "; ".join(f"`{name}` is a {MODELS[name].words}, trained to {MODELS[name].goal}"
                            for name in dict.fromkeys(row.model for row in rows))  # fmt: skip
        lines += [
            f"Models: {targets}. Your model is like one of them where its steps in fp32 wait for the network for as "
            "large a share of their time.",
            "",
            "hopsum: its setting with the fewest mean seconds that reached the target with every seed. Times as fast: "
            "seconds of the fastest other scheme of each seed over hopsum's, mean and 95 % interval over the seeds. As "
            'fp32: the same for fp32. "about": only the time of a step was measured on these links.',
            "",
        ]
    if bars is not None:
        lines += [f"![{bars.title}](images/{bars.name}.svg)", ""]
    return "\n".join([*lines, f"Measured: {stamp(report, ACCURACY)}. What papers claim: [claims](claims.md).", ""])


def _first_words(report: dict[str, Any]) -> str:
    """Say what the page answers. Where workers shared processors, it answers for such a machine only."""
    result = report["sections"].get(ACCURACY, {})
    cores, workers = result.get("machine", report["machine"])["cores"], result.get("workers", 0)
    if not workers or not is_crowded(workers, 1, cores):
        return "This page says which scheme to train with, by links and model."
    return (
        f"These are the figures of {workers} workers and their switches that share {cores} processors. They do not "
        "answer which scheme to train with: an answer needs two processors for each worker and two for the switch, "
        f"{2 * (workers + 1)}."
    )


def claims_page(report: dict[str, Any], parts: Parts) -> str:
    """Write the page of claims: a table for each section."""
    lines = [
        "# Claims",
        "",
        "Figures that papers or this project claim, beside those that `hopsum report` measured.",
        "",
        f"Measured: mean over seeds and its {CONFIDENCE:.0%} interval (Student's t). A claim is reproduced if the "
        "whole interval satisfies the condition.",
        "",
    ]
    for name, (title, _, judged) in parts.items():
        held = sum(each.verdict is Verdict.REPRODUCED for each in judged)
        lines += [f"## {title}", "", f"{held} of {len(judged)} reproduced. {stamp(report, name)}.", ""]
        lines += _markdown(ShownTable(name, _CLAIM_HEADS, [claim_cells(each) for each in judged]))
    return "\n".join(lines).rstrip() + "\n"


def stamp(report: dict[str, Any], section: str) -> str:
    """Name date, machine with its users, and commit of a section's figures, with the remark on its run if any."""
    result = report["sections"].get(section, {})
    where = result.get("machine", report["machine"])
    commit = result.get("commit", report["commit"]) or "unknown"
    date = str(result.get("begun", report["begun"]))[:10]
    shared = f" for {result['workers']} workers and a switch" if "workers" in result else ""
    made = f"{date}, {where['processor']}, {where['cores']} cores{shared}, commit {commit[:8]}"
    # A remark is written into the JSON by hand: what else the machine did meanwhile.
    return f"{made}. {str(result['remark']).rstrip('.')}" if "remark" in result else made


def count_words(rows: Sequence[AnswerRow]) -> str:
    """Count the outcomes of all rows in one sentence."""
    said = {
        Outcome.EQUAL: "no different within the 95 % interval",
        Outcome.SLOWER: "slower",
        Outcome.ONE_SEED: "not judged for want of seeds",
        Outcome.OURS_MISSED: "short of the target",
        Outcome.OTHERS_MISSED: "alone at the target",
        Outcome.ALONE: "without a rival",
    }
    counts = {outcome: sum(row.outcome is outcome for row in rows) for outcome in Outcome}
    rest = [f"{words} in {counts[outcome]}" for outcome, words in said.items() if counts[outcome]]
    return (
        f"Of {len(rows)} cases of links, model and switch, hopsum's best setting is faster to the target than the "
        f"best other scheme in {counts[Outcome.FASTER]}{''.join(f', {each}' for each in rest)}."
    )


def advice(row: AnswerRow) -> str:
    """Name the scheme to use."""
    ours = f"`{row.ours.scheme}`"
    best = f"`{row.others[0].scheme}`" if row.others else "fp32"
    reached = bool(row.others) and row.others[0].seconds < inf
    return {
        Outcome.FASTER: ours,
        Outcome.EQUAL: f"either: {best} needs no switch",
        Outcome.SLOWER: best,
        Outcome.ONE_SEED: f"{ours if row.best.mean > 1 else best}, by one seed",
        Outcome.OURS_MISSED: best if reached else "none of these",
        Outcome.OTHERS_MISSED: ours,
        Outcome.ALONE: "nothing to choose from",
    }[row.outcome]


def ratio_bars(rows: Sequence[AnswerRow]) -> BarChart | None:
    """Chart the ratios to the best other scheme, a group for each rate. None without a ratio."""
    # A ratio is not finite where a scheme missed the target: no bar has that height.
    kept = [row for row in rows if isfinite(row.best.mean)]
    if not kept:
        return None
    groups = list(dict.fromkeys(row.links for row in sorted(kept, key=lambda row: row.bits_per_s or inf)))
    series = []
    for model, place in dict.fromkeys((row.model, row.placement) for row in kept):
        found = {row.links: row.best for row in kept if (row.model, row.placement) == (model, place)}
        of = [found.get(group) for group in groups]
        name = f"{model}, a switch {_PLACES[place]}"
        series.append(BarSeries(name, *([getattr(each, part, None) for each in of] for part in Ratio._fields)))
    title = "hopsum's best setting over the best other scheme: times as fast to the target"
    return BarChart("report-ratio", title, groups, "times as fast", series, 1.0, "as fast as the best other scheme")


def claim_cells(judged: Judged) -> tuple[str, ...]:
    """Make the cells of a claim, in the order of the heads of the claims' table."""
    claim, ours = judged.claim, judged.reason
    if judged.ours is not None:
        mean, low, high = (figure(each, 4) for each in judged.ours)
        interval = f"{mean} ({low} to {high})"
        ours = f"{interval}: {judged.reason}" if judged.reason else interval
    return (
        str(judged.verdict), claim.text, claim.condition, ours, str(len(judged.samples)),
        f"{claim.source} ({claim.basis})",
    )  # fmt: skip


def _answer_cells(row: AnswerRow) -> list[str]:
    best = row.others[0] if row.others else None
    share = "-" if row.share is None else f"{row.share:.0%}"
    other = ("-", "-") if best is None else (f"`{best.scheme}`", _seconds(best))
    return [
        row.links, f"`{row.model}`", share, _PLACES[row.placement], f"`{row.ours.scheme}`", _seconds(row.ours), *other,
        _times(row.best), _times(row.fp32), advice(row),
    ]  # fmt: skip


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


def _markdown(table: ShownTable) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        # A bar ends a cell, and < begins a tag.
        return f"|{'|'.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in cells)}|"

    return [row(table.heads), row(["---"] * len(table.heads)), *(row(cells) for cells in table.rows), ""]
