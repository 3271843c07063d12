# SPDX-License-Identifier: Apache-2.0
"""The pages of a report: answers (results.md), claims (claims.md), pictures, and a CSV file for each table.

All of it follows from the report's JSON. Each page says date, machine and commit of its figures.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from hopsum_base.units import figure
from hopsum_evaluation.charts import BarChart, Plot, write_chart
from hopsum_evaluation.report.answers import (
    MOST_OFF,
    PLACES,
    LinkAnswer,
    answer_table,
    answers_of,
    check_table,
    figure_table,
    parts_table,
    plan_table,
    range_table,
    speed_bars,
)
from hopsum_evaluation.report.claims import CONFIDENCE, Judged, Verdict
from hopsum_evaluation.report.experiment import Shown, ShownTable
from hopsum_evaluation.training.accuracy_plan import MODELS, TIMED
from hopsum_evaluation.training.time_to_target import is_ours

LINKS: Final = "links"
_CLAIM_HEADS: Final = ("verdict", "claim", "needed", "measured", "seeds", "from")

Parts = Mapping[str, tuple[str, Shown, Sequence[Judged]]]
"""Title, tables and plots, and claims of each section, by its name."""


def write_pages(report: dict[str, Any], parts: Parts, folder: Path) -> None:
    """Write results.md, claims.md, images/ and csv/ into an existing folder. Raises OSError."""
    images, tables = folder / "images", folder / "csv"
    images.mkdir(exist_ok=True)
    tables.mkdir(exist_ok=True)
    result = report["sections"].get(LINKS, {})
    found = answers_of(result)
    bars = speed_bars(found)
    # Pictures of all sections are written, also of those that the two pages do not show: a release carries them.
    charts: list[Plot | BarChart] = [plot for _, shown, _ in parts.values() for plot in shown.plots]
    for chart in [*charts, *([bars] if bars else [])]:
        write_chart(chart, images)
    answers = answer_table(found)
    all_judged = [each for _, _, judged in parts.values() for each in judged]
    claims = ShownTable("claims", _CLAIM_HEADS, [claim_cells(each) for each in all_judged])
    for table in (answers, claims, *(table for _, shown, _ in parts.values() for table in shown.tables)):
        with (tables / f"{table.title}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table.heads, *table.rows])
    (folder / "results.md").write_text(answers_page(report))
    (folder / "claims.md").write_text(claims_page(report, parts))


def answers_page(report: dict[str, Any]) -> str:
    """Write the page of answers: how it was measured, what to use, every figure, and predictions beside them."""
    result = report["sections"].get(LINKS, {})
    check, predicted = check_table(result), plan_table(result)
    # Steps on links that are not shaped are counted, not timed.
    timed = [each for each in result.get("documents", ()) if each.get("rate_bits_per_s", 0) is not None]
    said = list(dict.fromkeys(each["processors"] for each in timed if "processors" in each))
    lines = ["# Results", "", *(f"{each[:1].upper()}{each[1:]}." for each in said), ""]
    if check.rows:
        lines += [
            "Dilated: links are slower by that factor and times divided by it "
            "([time dilation](performance.md#time-dilation)). All-reduces on 16 processors, where each worker had its "
            "own, beside this run:",
            "", *_markdown(check),
        ]  # fmt: skip
    lines += ["## Which scheme", "", *answer_lines(report, "")]
    if answers_of(result):
        lines += [_LEGEND, ""]
    for heading, table, words in (
        ("Every figure", figure_table(result), _FIGURES),
        ("Where a step goes", parts_table(result), _PARTS),
        ("What `hopsum plan` predicts", predicted, plan_words(predicted)),
    ):
        lines += [f"## {heading}", "", *_markdown(table), words, ""] if table.rows else []
    if not result.get("documents"):
        return "\n".join(lines)
    few = any(each.startswith(("dilated", "crowded")) for each in said)
    known = {each.name for each in answers_of(result)}
    absent = "".join(f"`{name}`, " for name in (*MODELS, *TIMED) if name not in known)
    lines += ["## Open", "", f"Not measured in this run: {absent}{_OPEN}{_FEW if few else ''}.", ""]
    lines += [f"Failed: {name}, {reason}." for name, reason in result.get("failed", {}).items()]
    return "\n".join([*lines, ""])


_LEGEND: Final = (
    "The fastest scheme of each place, as many times as fast as fp32 and as the best of torch's hooks, seed by seed, "
    "with the 95 % interval where there are seeds. After a semicolon: hopsum's best with switches over the best hook, "
    "where another scheme is faster. `cnn` trains on the CPU, on these links, to its target. A step of other models "
    "waits for the named time in place of computing, as a program does whose GPU computes. Their seconds to a target "
    "are the steps of trainings on links that are not shaped, times the seconds of a step. PowerSGD's first ten steps, "
    "which it does not compress, count as its others."
)
_FIGURES: Final = (
    "Missed: the target, within the steps of the plan. Bits: in the busier direction of a link. Error: squared error "
    "of the mean of a standard normal vector, with what the all-reduce before left out."
)
_PARTS: Final = (
    "Wire: the bytes of a step by the rate of the link. What a step has beyond computing and the wire is codec, "
    "datagrams and waiting."
)
_OPEN: Final = "links of 25 Gbit/s and more, GPUs"
_FEW: Final = ", and a machine with two processors for each worker and switch"


def answer_lines(report: dict[str, Any], docs: str) -> list[str]:
    """Write the answer for README and the page: three sentences, a table, a picture. `docs`: where the pages are."""
    result = report["sections"].get(LINKS, {})
    found = answers_of(result)
    if not found:
        return ["The trainings that would tell were not run.", ""]
    bars = speed_bars(found)
    # README has the ranges alone: a row for each model would be more than a reader of README wants.
    lines = [answer_words(found), "", *_markdown(range_table(found) if docs else answer_table(found))]
    if bars is not None:
        lines += [f"![{bars.title}]({docs}images/{bars.name}.svg)", ""]
    more = f"[every figure]({docs}results.md)" if docs else "what papers claim: [claims](claims.md)"
    return [*lines, f"Measured: {stamp(report, LINKS)}; {more}.", ""]


def answer_words(answers: Sequence[LinkAnswer]) -> str:
    """Say in three sentences how many times as fast hopsum is, in how many cases it is faster, and what it costs."""
    fp32, hooks, wins = [], [], []
    # A recorded run has the schemes of its commit.
    named = sorted({name for each in answers for place in PLACES for name in each.times[place] if is_ours(name)})
    for place, words in PLACES.items():
        here = [each for each in answers if each.ours(place) and each.best(each.hooks)]
        # A run that was stopped has not all places.
        if not here:
            continue
        ratios = [each.ratio(each.hooks, each.ours(place), place) for each in here]
        span = _span([each.ratio(["fp32"], each.ours(place), place).mean for each in here])
        fp32.append(f"{span} times as fast with {words}")
        hooks.append(_span([ratio.mean for ratio in ratios]))
        # The whole interval, where there is one.
        faster = sum((ratio.mean if ratio.low is None else ratio.low) > 1 for ratio in ratios)
        wins.append(f"in {faster} of {len(here)} with {words}")
    if not wins:
        return "None of the schemes can be compared."
    return (
        f"Beside DDP in fp32, training with hopsum ({_fastest_of(named)}) is {' and '.join(fp32)}. Beside "
        f"the best of torch's hooks (fp16, PowerSGD of rank 2) it is {' and '.join(hooks)} times as fast: faster "
        f"{' and '.join(wins)}, by whole intervals. "
        'Compressing takes processor time and changes gradients: `method="auto"` measures both ways on your job, '
        "`hopsum plan` predicts."
    )


def _fastest_of(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"the {'faster' if len(names) == 2 else 'fastest'} of {', '.join(names[:-1])} and {names[-1]}"


def _span(values: Sequence[float]) -> str:
    known = [each for each in values if isfinite(each)]
    low, high = (figure(each, 2) for each in (min(known, default=None), max(known, default=None)))
    return low if low == high else f"{low} to {high}"


def plan_words(table: ShownTable) -> str:
    """Count the predictions that are near what was measured."""
    ratios = [float(cell) for row in table.rows for cell in row[1:] if cell != "-"]
    near = sum(1 - MOST_OFF <= each <= 1 + MOST_OFF for each in ratios)
    return f"{near} of {len(ratios)} are within {MOST_OFF:.0%}. Below 1: the plan is too hopeful."


_CODE_OF_OTHERS: Final = (
    "Code that others wrote: torch's hooks for fp16, bf16 and PowerSGD are run as they are. THC's public worker "
    "(BytePS_THC) needs CUDA, and was read: it rounds twice without bias, to a grid and then by its table, which makes "
    "the codes of `thc-published` (a test), with one range for each tensor of up to 8 M elements. Bytes were not "
    "compared. PRIME's all-reduce of bytes for DiLoCo was read too: `int8 ring` of `hopsum "
    "codec compare` has its levels. No public code of OptiReduce's UHC mode was found."
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
        _CODE_OF_OTHERS,
        "",
    ]
    for name, (title, _, judged) in parts.items():
        lines += [f"## {title}", "", *claim_lines(report, name, judged)]
    return "\n".join(lines).rstrip() + "\n"


def claim_lines(report: dict[str, Any], name: str, judged: Sequence[Judged]) -> list[str]:
    """Write the claims of a section: how many are reproduced, when and where they were measured, and a table."""
    held = sum(each.verdict is Verdict.REPRODUCED for each in judged)
    table = ShownTable(name, _CLAIM_HEADS, [claim_cells(each) for each in judged])
    return [f"{held} of {len(judged)} reproduced. {stamp(report, name)}.", "", *_markdown(table)]


def stamp(report: dict[str, Any], section: str) -> str:
    """Name date, machine with its users, and commit of a section's figures, with the remark on its run if any."""
    result = report["sections"].get(section, {})
    where = result.get("machine", report["machine"])
    commit = result.get("commit", report["commit"]) or "unknown"
    date = str(result.get("begun", report["begun"]))[:10]
    shared = f" for {result['workers']} workers and a switch" if "workers" in result else ""
    shared += ", dilated" if any(each.get("dilate", 1) > 1 for each in result.get("documents", ())) else ""
    made = f"{date}, {where['processor']}, {where['cores']} cores{shared}, commit {commit[:8]}"
    # A remark is written into the JSON by hand: what else the machine did meanwhile.
    return f"{made}. {str(result['remark']).rstrip('.')}" if "remark" in result else made


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


def _markdown(table: ShownTable) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        # A bar ends a cell, and < begins a tag.
        return f"|{'|'.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in cells)}|"

    return [row(table.heads), row(["---"] * len(table.heads)), *(row(cells) for cells in table.rows), ""]
