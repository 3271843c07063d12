# SPDX-License-Identifier: Apache-2.0
"""The pages of a report: answers (results.md), claims (claims.md), pictures, and a CSV file for each table.

All of it follows from the report's JSON. Each page says date, machine and commit of its figures.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hopsum_base.units import format_number, format_rate
from hopsum_evaluation.charts import BarChart, Plot, write_chart
from hopsum_evaluation.experiment import ReportTable, SectionView
from hopsum_evaluation.interval import CONFIDENCE
from hopsum_evaluation.report.answers import (
    FABRIC,
    FP32,
    HOOKS,
    HOSTS,
    MOST_OFF,
    SOFTWARE,
    Evidence,
    LinkAnswer,
    accuracy_table,
    accuracy_words,
    answer_table,
    answers_of,
    auto_table,
    check_table,
    check_words,
    compare,
    diloco_table,
    figure_table,
    parts_table,
    plan_table,
    range_table,
    speed_bars,
)
from hopsum_evaluation.report.claims import JudgedClaim, Verdict
from hopsum_evaluation.training.accuracy_plan import MODELS, TIMED

LINKS: Final = "links"
_CLAIM_HEADS: Final = ("verdict", "claim", "needed", "measured", "seeds", "from")

Parts = Mapping[str, tuple[str, SectionView, Sequence[JudgedClaim]]]
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
    claims = ReportTable("claims", _CLAIM_HEADS, [claim_cells(each) for each in all_judged])
    for table in (answers, claims, *(table for _, shown, _ in parts.values() for table in shown.tables)):
        with (tables / f"{table.title}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table.heads, *table.rows])
    (folder / "results.md").write_text(answers_page(report))
    (folder / "claims.md").write_text(claims_page(report, parts))


def answers_page(report: dict[str, Any]) -> str:
    """Return the page of answers in Markdown: the picture, the answers, every figure, and the conditions of the run."""
    result = report["sections"].get(LINKS, {})
    check, predicted = check_table(result), plan_table(result)
    # Steps on links that are not shaped are counted, not timed.
    timed = [each for each in result.get("documents", ()) if each.get("rate_bits_per_s", 0) is not None]
    said = list(dict.fromkeys(each["processors"] for each in timed if "processors" in each))
    lines = ["# Results", "", *answer_lines(report, "")]
    for heading, table, words in (
        ("Accuracy", accuracy_table(result), _ACCURACY),
        ("Methods chosen by the first steps", auto_table(result), _AUTO),
        ("A sum at every step, or rarely", diloco_table(answers_of(result)), _RARE),
        ("Every figure", figure_table(result), _FIGURES),
        ("Where a step goes", parts_table(result), _STEP_PARTS),
        ("Predictions of `hopsum plan`", predicted, plan_words(predicted)),
    ):
        lines += [f"## {heading}", "", *_markdown(table), *words.splitlines(), ""] if table.rows else []
    if said:
        lines += ["## Time dilation", "", *(f"{each[:1].upper()}{each[1:]}." for each in said), ""]
        if any(each.startswith("dilated") for each in said):
            lines += [_DILATED, ""]
        lines += [*_markdown(check), check_words(check), ""] if check.rows else []
    if not result.get("documents"):
        return "\n".join(lines)
    few = any(each.startswith(("dilated", "oversubscribed")) for each in said)
    known = {each.name for each in answers_of(result)}
    absent = "".join(f"`{name}`, " for name in (*MODELS, *TIMED) if name not in known)
    lines += ["## Open", "", f"Not measured in this run: {absent}{_OPEN}{_FEW if few else ''}.", ""]
    if result.get("stopped"):
        lines += ["The run was interrupted: not every model was measured at every rate and placement.", ""]
    lines += [f"Failed: {name}, {reason}." for name, reason in result.get("failed", {}).items()]
    return "\n".join([*lines, ""])


_DILATED: Final = (
    "Links are slower by that factor and times are divided by it ([time dilation](performance.md#time-dilation))."
)
_LEGEND: Final = """\
A row takes hopsum's fastest scheme among those that reached the target in every training of this run.
Two-shot is compared with codec `thc`, which has 4 bits and less error than two-shot in 4 bits.
Ratios are taken seed by seed, with the 95 % interval of the seeds.
Won and lost are said of whole intervals, by the function that judges the [claims](claims.md).
Trained: the model trained to its target over these links.
Timed: a step waits for the named time in place of computing, as if a GPU computed.
Its gradients are random.
Counted: steps to the target on unlimited links, times the seconds of a timed step.
PowerSGD's first ten, uncompressed steps are counted like the others.
Each table is a file in `csv/` of the report."""
_ACCURACY: Final = """\
Steps to the target, mean of the seeds, and over those of fp32.
Missed: with one seed or more the target was not reached within the steps of the plan, at least 1.4 times fp32's."""
_AUTO: Final = """`method="auto"` measures the methods in its first steps, and keeps the fastest that is safe.
Its methods: the codec `thc`, low rank and fp32 by the process group.
These steps compute and train, because the safety of low rank depends on the gradients.
The steps of the trial are not in the time of `auto`.
The best fixed scheme may be one that `auto` does not try: a codec of fewer bits, or low rank that fails the check."""
_RARE: Final = """\
Seconds of the transformer to its target.
`diloco-fp32-10`: each worker trains by itself, and every ten steps changes are averaged in fp32, as torchft does it.
`diloco-10`: the same with the changes in the codes of `thc`, added by the switch."""
_FIGURES: Final = (
    "Missed: the target was not reached within the planned steps. Bits: in the busier direction of a link. Error: "
    "squared error of the mean of a standard normal vector, including the residual of the previous all-reduce."
)
_STEP_PARTS: Final = (
    "Wire: the bytes of a step by the rate of the link. What a step has beyond computing and the wire is codec, "
    "datagrams and waiting."
)
_OPEN: Final = "links of 25 Gbit/s and more, GPUs"
_FEW: Final = ", and a machine with two processors for each worker and switch"


def answer_lines(report: dict[str, Any], docs: str) -> list[str]:
    """Return the lines of the answer for README or the page of answers: four questions, a table, a picture.

    docs: the folder of the pages, with a slash at the end, for README. Empty for the page, which also has every row.
    """
    result = report["sections"].get(LINKS, {})
    found = answers_of(result)
    if not found:
        return ["The trainings that would tell were not run.", ""]
    bars = speed_bars(found)
    picture = [f"![{bars.title}]({docs}images/{bars.name}.svg)", ""] if bars is not None else []
    words = [*question_lines(found, result), "", *_markdown(range_table(found))]
    measured = f"Measured: {provenance(report, LINKS)}"
    # README has the ranges alone: a row for each model would be more than a reader of README wants.
    if docs:
        return [*words, *picture, f"{measured}; [every figure]({docs}results.md).", ""]
    legend = [*_LEGEND.splitlines(), ""]
    return [*picture, *words, f"{measured}.", "", "## Every row", "", *_markdown(answer_table(found)), *legend]


def question_lines(answers: Sequence[LinkAnswer], result: Mapping[str, Any]) -> list[str]:
    """Return the answers to the four questions of a reader, a line for each, and a remark on their measurement."""
    over = []
    for rate in dict.fromkeys(each.bits_per_s for each in answers):
        same = compare([each for each in answers if each.bits_per_s == rate], FP32, FABRIC)
        over += [f"{same.span} at {format_rate(rate)}"] if same.rows else []
    counts = Counter(each.evidence for each in answers)
    kinds = "; ".join(f"{counts[kind]} {kind}" for kind in Evidence if counts[kind])
    return [
        f"- **Does compression pay?** Times as fast as fp32, with a switch in the middle: "
        f"{', '.join(over) or 'not measured'}.",
        f"- **Does the switch pay over compression in software?** {_against(answers, FABRIC)}",
        f"- **And with a switch on every host?** {_against(answers, HOSTS)}",
        f"- **Does accuracy suffer?** {accuracy_words(dict(result))}",
        "",
        f"Rows: {kinds}. Level: undecided at 95 %.",
    ]


def _against(answers: Sequence[LinkAnswer], place: str) -> str:
    software, hooks = (compare(answers, rivals, place) for rivals in (SOFTWARE, HOOKS))
    # The second answer need not say again what these are.
    adds, kinds = (", whose ranks add the codes", " (fp16, PowerSGD)") if place == FABRIC else ("", "")
    said = []
    if software.rows:
        said += [f"{SOFTWARE.head}{adds}: {software.span} ({software.outcomes})."]
    if hooks.rows:
        said += [f"The fastest {HOOKS.head}{kinds}: {hooks.span} ({hooks.outcomes})."]
    if hooks.lost:
        said += [f"Lost: {', '.join(hooks.lost)}."]
    return " ".join(said) or "Not measured."


def plan_words(table: ReportTable) -> str:
    """Return a sentence with the number of predictions of a `plan_table` that are near the measured values."""
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
    """Return the page of claims in Markdown, with a table for each section."""
    lines = [
        "# Claims",
        "",
        "Figures claimed by papers or by this project, compared with those that `hopsum report` measured.",
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


def claim_lines(report: dict[str, Any], name: str, judged: Sequence[JudgedClaim]) -> list[str]:
    """Return the lines of a section's claims: the number reproduced, date and machine of the figures, and a table.

    The table has the claims with figures, or all claims where none has any.
    """
    held = sum(each.verdict is Verdict.REPRODUCED for each in judged)
    # Where a section has figures, rows without any tell a reader nothing: their number is enough.
    shown = [each for each in judged if each.verdict is not Verdict.NOT_RUN] or judged
    absent = f" Claims not run, and not in the table: {len(judged) - len(shown)}." if len(shown) < len(judged) else ""
    table = ReportTable(name, _CLAIM_HEADS, [claim_cells(each) for each in shown])
    return [f"{held} of {len(shown)} reproduced.{absent} {provenance(report, name)}.", "", *_markdown(table)]


def provenance(report: dict[str, Any], section: str) -> str:
    """Return date, processor, cores, number of workers and commit of a section's figures, and a remark if any."""
    result = report["sections"].get(section, {})
    where = result.get("machine", report["machine"])
    commit = result.get("commit", report["commit"]) or "unknown"
    date = str(result.get("begun", report["begun"]))[:10]
    shared = f" for {result['workers']} workers and a switch" if "workers" in result else ""
    shared += ", with time dilation" if any(each.get("dilate", 1) > 1 for each in result.get("documents", ())) else ""
    made = f"{date}, {where['processor']}, {where['cores']} cores{shared}, commit {commit[:8]}"
    # A remark is written into the JSON by hand: what else the machine did meanwhile.
    return f"{made}. {str(result['remark']).rstrip('.')}" if "remark" in result else made


def claim_cells(judged: JudgedClaim) -> tuple[str, ...]:
    """Return the cells of a claim: verdict, claim, needed, measured (or a reason), number of seeds, source."""
    claim, ours = judged.claim, judged.reason
    if judged.ours is not None:
        mean, low, high = (format_number(each, 4) for each in judged.ours)
        interval = f"{mean} ({low} to {high})"
        ours = f"{interval}: {judged.reason}" if judged.reason else interval
    return (
        str(judged.verdict), claim.text, claim.condition, ours, str(len(judged.samples)),
        f"{claim.source} ({claim.basis})",
    )  # fmt: skip


def _markdown(table: ReportTable) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        # A bar ends a cell, and < begins a tag.
        return f"|{'|'.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in cells)}|"

    return [row(table.heads), row(["---"] * len(table.heads)), *(row(cells) for cells in table.rows), ""]
