# SPDX-License-Identifier: Apache-2.0
"""A report as a page of the documentation: generated, so that no figure in it is written by hand.

Its top is the answer. Of the plots it has those of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hopsum_evaluation.report.answer_page import NOTE, Picture, answer
from hopsum_evaluation.report.claims import Judged
from hopsum_evaluation.report.collect import shown
from hopsum_evaluation.report.page import CLAIM_HEADS, MEANING, claim_row, origin, summary
from hopsum_evaluation.report.sections import SECTIONS
from hopsum_evaluation.report.shown import Shown, ShownTable

IMAGES: Final = "images"
"""The folder of the page's pictures, beside the page."""


def make_markdown(report: dict[str, Any], source: str) -> str:
    """Return the page for a report that stands in the file `source`."""
    parts = {name: shown(report, name) for name in SECTIONS}
    lines = [
        "# Results",
        "",
        f"<!-- Generated: hopsum report --read docs/{source} --markdown docs/results.md --readme README.md -->",
        "",
        *_answer(report, parts),
        "## The run",
        "",
        f"What `hopsum report` found in the run of `docs/{source}`; this page is generated from that file, and a test "
        "fails when it is not.",
        "",
    ]
    for words in (*origin(report), MEANING):
        lines += [words, ""]
    lines += _table(summary(report, {name: judged for name, (_, judged) in parts.items()}))
    for name, (part, judged) in parts.items():
        lines += [f"## {SECTIONS[name].title}", ""]
        for words in part.words:
            lines += [words, ""]
        lines += _table(ShownTable("", CLAIM_HEADS, [claim_row(each) for each in judged]))
        for table in part.tables:
            lines += [f"**{table.title}**", "", *_table(table)]
    return "\n".join(lines).rstrip() + "\n"


def answer_pictures(report: dict[str, Any]) -> list[Picture]:
    """Return the pictures that the page shows, to be written into IMAGES beside it."""
    return answer(report, {name: shown(report, name) for name in SECTIONS})[2]


def _answer(report: dict[str, Any], parts: dict[str, tuple[Shown, list[Judged]]]) -> list[str]:
    words, table, pictures = answer(report, parts)
    lines = [line for each in words for line in (each, "")]
    if table is not None:
        lines += [f"## {table.title}", "", *_table(table), NOTE, ""]
    for each in pictures:
        lines += [f"![{each.plot.title}]({IMAGES}/{each.file})", "", f"*{each.caption}*", ""]
    return lines


def _table(table: ShownTable) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in cells)} |"

    return [row(table.heads), row(["---"] * len(table.heads)), *(row(cells) for cells in table.rows), ""]


def verdict_line(judged: Judged) -> str:
    """Return one claim as a line for a terminal."""
    verdict, text, condition, ours, *_ = claim_row(judged)
    return f"{verdict:15} {text}: {condition}; ours {ours}"
