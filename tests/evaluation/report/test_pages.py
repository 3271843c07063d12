# SPDX-License-Identifier: Apache-2.0
"""Verdicts and intervals, and the words, tables and files that follow from them."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.experiment import ReportTable, SectionView
from hopsum_evaluation.interval import interval
from hopsum_evaluation.report.claims import UNDECIDED, Basis, Claim, Relation, Verdict, judge
from hopsum_evaluation.report.pages import claim_cells, claims_page, write_pages
from hopsum_evaluation.report.reporting import SECTIONS

from .test_answers import made_up, report_of


def judged_claims() -> list[Any]:
    claim = Claim("x", "seconds | of nothing", "Nobody (1900)", Basis.PUBLISHED, 2.0, Relation.AT_LEAST)
    return [judge(claim, [3.0, 3.0, 3.0]), judge(claim, [1.0, 2.5, 4.0]), judge(claim, (), "no switch <here>")]


def test_the_cells_of_a_claim_have_verdict_condition_interval_and_source() -> None:
    held, open_, missing = map(claim_cells, judged_claims())
    assert held == ("reproduced", "seconds | of nothing", "at least 2", "3.000 (3.000 to 3.000)", "3",
                    "Nobody (1900) (published)")  # fmt: skip
    assert open_[3] == "2.500 (-1.226 to 6.226): too few samples to tell"  # 4.303 * 1.5 / sqrt(3)
    assert missing[0] == "not run"
    assert missing[3:5] == ("no switch <here>", "0")


def test_the_page_of_claims_counts_them_and_no_cell_breaks_its_table() -> None:
    def rows_of(page: str) -> list[str]:
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} == {7}
        return rows[2:]

    page = claims_page(report_of({}), {"error": ("Errors", SectionView(), judged_claims())})
    counted = "1 of 2 reproduced. Claims not run, and not in the table: 1. 2026-01-01, A chip, 2 cores"
    assert f"## Errors\n\n{counted}, commit 00000000.\n" in page
    assert len(rows_of(page)) == 2
    without = claims_page(report_of({}), {"error": ("Errors", SectionView(), judged_claims()[2:])})
    assert "0 of 1 reproduced. 2026-01-01" in without
    assert "no switch &lt;here>" in rows_of(without)[0]


def test_pages_pictures_and_tables_are_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot = Plot("lines", "Lines", "x", "y", [Series.from_points("one", [(1, 2.0), (2, 1.0)])], log_x=True, log_y=True)
    shown = SectionView([ReportTable("figures", ("name", "value"), [["a, b", "1"]])], [plot])
    parts = {"links": ("Trainings", shown, judged_claims())}
    write_pages(report_of(made_up()), parts, tmp_path)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert files == [
        "claims.md", "csv/answers.csv", "csv/claims.csv", "csv/figures.csv", "images/lines.png", "images/lines.svg",
        "images/report-ratio.png", "images/report-ratio.svg", "results.md",
    ]  # fmt: skip
    text = (tmp_path / "csv/figures.csv").read_text()
    assert list(csv.reader(text.splitlines())) == [["name", "value"], ["a, b", "1"]]
    assert "images/report-ratio.svg" in (tmp_path / "results.md").read_text()
    first = (tmp_path / "images/lines.svg").read_bytes()
    write_pages(report_of({}), parts, tmp_path)
    assert (tmp_path / "images/lines.svg").read_bytes() == first, "a drawing follows from its figures alone"
    assert "were not run" in (tmp_path / "results.md").read_text()


def claim(relation: Relation, published: float = 10.0, margin: float = 0.0) -> Claim:
    return Claim("made-up", "a quantity", "nobody", Basis.OWN, published, relation, margin)


@pytest.mark.parametrize(
    ("samples", "reach"),
    [([1.0, 2.0, 3.0], 4.303 / 3**0.5), ([1, 2, 3, 4, 5], 2.776 * 2.5**0.5 / 5**0.5)],
)
def test_intervals_have_the_quantiles_of_the_tables(samples: list[float], reach: float) -> None:
    """Standard deviations are worked out by hand: 1, the root of 2.5."""
    found = interval(samples)
    assert found.mean == sum(samples) / len(samples)
    assert (found.high - found.mean, found.mean - found.low) == (pytest.approx(reach, rel=2e-4),) * 2


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [interval(rng.normal(3.0, 2.0, 4).tolist()) for _ in range(2000)]
    covered = np.mean([each.low <= 3.0 <= each.high for each in found])
    assert 0.935 < covered < 0.965  # 3 standard errors
    assert all(each.low < each.mean < each.high for each in found)


def test_equal_samples_are_a_point_and_few_are_refused() -> None:
    assert interval([0.1, 0.1, 0.1]) == (0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="2 samples"):
        interval([1.0, 2.0])
    with pytest.raises(ValueError, match="2 finite"):
        interval([1.0, 2.0, math.inf])


@pytest.mark.parametrize(
    ("relation", "margin", "samples", "verdict", "undecided"),
    [
        (Relation.AT_MOST, 0, [9.0, 9.1, 9.2], Verdict.REPRODUCED, False),
        (Relation.AT_MOST, 0, [10.0, 10.0, 10.0], Verdict.REPRODUCED, False),
        (Relation.AT_MOST, 0, [11.0, 11.1, 11.2], Verdict.NOT_REPRODUCED, False),
        (Relation.AT_MOST, 0, [8.0, 9.0, 10.5], Verdict.NOT_REPRODUCED, True),  # its mean would do
        (Relation.AT_MOST, 0, [9.0, 12.0, 12.5], Verdict.NOT_REPRODUCED, True),  # its lower end would do
        (Relation.AT_LEAST, 0, [11.0, 11.1, 11.2], Verdict.REPRODUCED, False),
        (Relation.AT_LEAST, 0, [9.0, 9.1, 9.2], Verdict.NOT_REPRODUCED, False),
        (Relation.AT_LEAST, 0, [9.5, 11.0, 12.0], Verdict.NOT_REPRODUCED, True),
        (Relation.WITHIN, 1, [9.9, 10.0, 10.1], Verdict.REPRODUCED, False),
        (Relation.WITHIN, 1, [11.4, 11.5, 11.6], Verdict.NOT_REPRODUCED, False),
        (Relation.WITHIN, 1, [8.4, 8.5, 8.6], Verdict.NOT_REPRODUCED, False),
        (Relation.WITHIN, 1, [8.0, 10.0, 12.0], Verdict.NOT_REPRODUCED, True),
        # All of what would do lies between its mean and an end.
        (Relation.WITHIN, 0.01, [8.0, 9.0, 12.0], Verdict.NOT_REPRODUCED, True),
        (Relation.AT_MOST, 0, [1.0, 2.0], Verdict.NOT_RUN, False),
        (Relation.AT_MOST, 0, [], Verdict.NOT_RUN, False),
        (Relation.AT_MOST, 0, [1.0, 2.0, -math.inf], Verdict.NOT_REPRODUCED, False),
    ],
)
def test_a_verdict_needs_the_whole_interval_and_too_few_samples_are_told(
    relation: Relation, margin: float, samples: list[float], verdict: Verdict, undecided: bool
) -> None:
    judged = judge(claim(relation, margin=margin), samples)
    assert judged.verdict is verdict
    assert judged.ours is not None or judged.reason
    assert (judged.reason == UNDECIDED) == undecided


def test_what_was_not_run_says_why() -> None:
    assert judge(claim(Relation.AT_MOST), [], "no switch").reason == "no switch"


def test_claims_have_names_of_their_own() -> None:
    names = [each.name for _, section in SECTIONS.values() for each in section.CLAIMS]
    assert len(names) == len(set(names))
    assert all(each.margin > 0 for _, s in SECTIONS.values() for each in s.CLAIMS if each.relation is Relation.WITHIN)
