# SPDX-License-Identifier: Apache-2.0
"""The answer at the top of the results page: it says the truth of made-up trainings, and is that of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsum_evaluation.report import command
from hopsum_evaluation.report.accuracy import at_hosts
from hopsum_evaluation.report.answer import AnswerRow, Outcome, answer_rows
from hopsum_evaluation.report.answer_page import (
    advice,
    pictures,
    ratio_bars,
    readme_words,
    stamp,
    summary_words,
    what_to_use,
    with_results,
)
from hopsum_evaluation.report.claims import Basis, Claim, Relation, judge
from hopsum_evaluation.report.collect import read_report
from hopsum_evaluation.report.markdown import answer_pictures, make_markdown
from hopsum_evaluation.report.shown import BarChart, BarSeries, Plot, Series, Shown, fingerprint

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PARTS: dict[str, Any] = {"error": (Shown([]), [])}
FEW_WORDS = 125
"""The room that README has for its part."""


def training(scheme: str, repeat: int, last_s: float, reaches: bool = True, **other: Any) -> dict[str, Any]:
    """Return one that reaches the target at step 40 after so many seconds, or never."""
    points = [[step, step / 40 * last_s, 0.95 if reaches and step >= 40 else 0.5] for step in (20, 40, 60)]
    return {"model": "cnn", "rate": "200mbit", "bits_per_s": 2e8, "scheme": scheme, "repeat": repeat, "points": points,
            "step_s": last_s / 40, "compute_s": 0.02, "reduce_s": 0.05, **other}  # fmt: skip


def trainings(seconds: dict[str, float], seeds: int = 3, missing: str = "", **other: Any) -> list[dict[str, Any]]:
    return [
        training(scheme, repeat, last_s * (1 + repeat / 1000 * ("fp" in scheme)), scheme != missing, **other)
        for scheme, last_s in seconds.items() for repeat in range(seeds)
    ]  # fmt: skip


def report_of(runs: list[dict[str, Any]], **sections: dict[str, Any]) -> dict[str, Any]:
    found = {"runs": runs, "begun": "2026-02-03T01:00:00+00:00", "commit": "abcdef0123456789"}
    return {"begun": "2026-01-01T00:00:00+00:00", "commit": "0" * 40, "machine": {"processor": "A chip", "cores": 2},
            "sections": {"accuracy": found, **sections}}  # fmt: skip


def row_of(runs: list[dict[str, Any]]) -> AnswerRow:
    (row,) = answer_rows({"runs": runs})
    return row


@pytest.mark.parametrize(
    ("seconds", "seeds", "missing", "outcome", "use"),
    [
        ({"fp32": 12, "fp16": 6, "thc": 4}, 3, "", Outcome.FASTER, "`thc`"),
        ({"fp32": 12, "fp16": 4, "thc": 6}, 3, "", Outcome.SLOWER, "`fp16`"),
        ({"fp16": 3.996, "thc": 4}, 3, "", Outcome.EQUAL, "either: `fp16` needs no switch"),
        ({"fp16": 6, "thc": 4}, 1, "", Outcome.ONE_SEED, "`thc`, by one seed"),
        ({"fp16": 6, "thc": 4}, 3, "thc", Outcome.OURS_MISSED, "`fp16`"),
        ({"fp16": 6, "thc": 4}, 3, "fp16", Outcome.OTHERS_MISSED, "`thc`"),
        ({"thc": 4}, 3, "", Outcome.ALONE, "nothing to choose from"),
    ],
)
def test_the_words_say_what_the_figures_say(
    seconds: dict[str, float], seeds: int, missing: str, outcome: Outcome, use: str
) -> None:
    runs = trainings(seconds, seeds, missing)
    row = row_of(runs)
    assert (row.outcome, advice(row)) == (outcome, use)
    words = summary_words(report_of(runs), PARTS, [row])
    faster = "in 1" if outcome is Outcome.FASTER else "in 0"
    assert f"faster to the target than the best other scheme {faster}" in words[0]
    assert ("slower in 1" in words[0]) is (outcome is Outcome.SLOWER)
    assert words[1].startswith("**At 200 Mbit/s**")
    assert what_to_use([row], {"runs": runs}).rows[0][-1] == use


def test_the_best_setting_is_the_fastest_that_always_reaches() -> None:
    seconds = {"fp16": 6.0, "thc": 4.0, "thc:bits=2": 3.0, "thc:result_bits=6": 3.5}
    assert row_of(trainings(seconds)).ours.scheme == "thc:bits=2"
    row = row_of(trainings(seconds, missing="thc:bits=2"))
    assert row.ours.scheme == "thc:result_bits=6"
    assert row.best.mean == pytest.approx(6 * 1.001 / 3.5)


def test_software_servers_and_diloco_by_hopsum_are_neither_side() -> None:
    row = row_of(trainings({"fp16": 6.0, "thc": 4.0, "thc-ps": 1.0, "diloco-hopsum": 2.0}))
    assert [each.scheme for each in row.others] == ["fp16"]
    assert row.outcome is Outcome.FASTER
    assert advice(row) == "`thc`; `diloco-hopsum` where rare synchronisation will do: 2.00 s"


@pytest.mark.parametrize("marked", [True, False])
def test_switches_on_the_hosts_have_a_row_of_their_own_beside_the_same_others(marked: bool) -> None:
    scheme = at_hosts("thc") if marked else "thc"
    placed: dict[str, Any] = {} if marked else {"placement": "hosts"}
    rows = answer_rows({"runs": trainings({"fp16": 6, "thc": 4}) + trainings({scheme: 9}, **placed)})
    assert [(row.placement, row.outcome) for row in rows] == [("fabric", Outcome.FASTER), ("hosts", Outcome.SLOWER)]


def test_rates_stand_in_order_and_paced_trainings_are_about() -> None:
    fast = trainings({"fp16": 1, "thc": 2}, 1, rate="1gbit", bits_per_s=1e9, paced=True)
    runs = fast + trainings({"fp16": 6, "thc": 4})
    slow, quick = answer_rows({"runs": runs})
    assert (slow.links, quick.links) == ("200 Mbit/s", "1 Gbit/s")
    assert (slow.ours.about, quick.ours.about) == (False, True)
    assert quick.outcome is Outcome.ONE_SEED
    assert what_to_use([quick], {"runs": runs}).rows[0][5] == "about 2.00"


def test_the_summary_and_each_caption_have_machine_date_and_commit() -> None:
    report = report_of(trainings({"fp16": 6, "thc": 4}))
    assert stamp(report, "accuracy") == "A chip, 2 cores, 2026-02-03, commit abcdef01"
    assert stamp(report, "error") == "A chip, 2 cores, 2026-01-01, commit 00000000"
    plot = Plot("error-bits-x", "Error", "x", "y", [Series("s", [1], [1])])
    parts: dict[str, Any] = {"error": (Shown([], plots=[plot]), [])}
    rows = answer_rows(report["sections"]["accuracy"])
    made = pictures(report, parts, rows)
    assert [each.file for each in made] == ["report-accuracy.svg", "report-ratio.svg", "report-error.svg"]
    assert any("(All of this: A chip, 2 cores, 2026-0" in words for words in summary_words(report, parts, rows))
    for words in (*(each.caption for each in made), readme_words(report)):
        assert "A chip, 2 cores, 2026-0" in words
        assert ", commit " in words


def test_the_goal_that_is_not_met_has_its_reason() -> None:
    report = report_of(trainings({"fp16": 5, "thc": 4}))
    words = summary_words(report, PARTS, answer_rows(report["sections"]["accuracy"]))
    (goal,) = [each for each in words if each.startswith("**The goal")]
    assert "not met, 1.25" in goal
    assert "100 ms with `thc` (20.0 ms of compute and 50.0 ms of all-reduce, timed alone) and 125 ms" in goal
    assert "1.4 times would take steps of 89.4 ms" in goal
    met = report_of(trainings({"fp16": 6, "thc": 4}))
    words = summary_words(met, PARTS, answer_rows(met["sections"]["accuracy"]))
    assert any("met, 1.50" in each and "not met" not in each for each in words)


def test_sections_of_delay_and_growth_are_taken_by_their_claims() -> None:
    claim = Claim("x", "the fastest scheme", "here", Basis.OWN, 2.0, Relation.AT_LEAST)
    report = report_of([], delay={"commit": "f" * 40, "begun": "2026-03-04", "cells": []})
    words = summary_words(report, {**PARTS, "delay": (Shown([]), [judge(claim, [3.0, 3.0])])}, [])
    assert "not run in this report" in words[0]
    assert words[1].startswith("**Delay**: hopsum has the fastest all-reduce on 0 of 0 links; reproduced: ")
    assert "; reproduced: the fastest scheme, at least 2 (3.00, 3.00 to 3.00)." in words[1]
    assert "2026-03-04, commit ffffffff" in words[1]
    several = [judge(claim, [3.0, 3.0]), judge(claim, [1.0, 1.0])]
    assert "1 of 2 claims reproduced" in summary_words(report, {**PARTS, "delay": (Shown([]), several)}, [])[1]


def test_links_on_which_hopsum_is_fastest_are_named() -> None:
    cells = [
        {"sites": 4, "round_trip_s": trip_s, "rate": "200mbit", "scheme": scheme, "seconds": [seconds] * 3}
        for trip_s, found in ((0.0, (2.0, 1.5, 1.0)), (0.01, (3.0, 1.0, 1.5)))
        for scheme, seconds in zip(("thc", at_hosts("thc"), "two-shot-4"), found, strict=True)
    ]
    report = report_of([], delay={"cells": cells})
    words = summary_words(report, {**PARTS, "delay": (Shown([]), [])}, [])[1]
    assert "fastest all-reduce on 1 of 2 links (200mbit, 4 sites, 10 ms: thc at hosts 1.5x); " in words


def test_bars_leave_out_what_has_no_ratio() -> None:
    runs = trainings({"fp16": 6, "thc": 4}, missing="fp16")
    assert ratio_bars(answer_rows({"runs": runs})) is None
    runs += trainings({"fp16": 6, "thc": 4}, 1, rate="1gbit", bits_per_s=1e9)
    bars = ratio_bars(answer_rows({"runs": runs}))
    assert bars is not None
    assert (list(bars.groups), bars.series[0].low) == (["1 Gbit/s"], [None])


def test_a_drawing_carries_the_fingerprint_of_its_figures() -> None:
    plots = pytest.importorskip("hopsum_evaluation.report.plots", reason="matplotlib is not installed")
    bars = BarChart("b", "Bars", ["1", "2"], "y", [BarSeries("s", [1.0, None], [0.5, None], [1.5, None])], 1.0, "one")
    drawn = plots.draw_svg(bars)
    assert fingerprint(bars) in drawn
    other = BarChart("b", "Bars", ["1", "2"], "y", [BarSeries("s", [1.01, None], [0.5, None], [1.5, None])], 1.0, "one")
    assert fingerprint(other) not in drawn


def test_the_part_of_readme_is_replaced_and_nothing_else() -> None:
    report = report_of(trainings({"fp16": 6, "thc": 4}))
    page = "# A\n\n<!-- generated: results -->\nold\n<!-- end -->\n\nB\n"
    made = with_results(page, report)
    assert "old" not in made
    assert made.startswith("# A\n\n<!-- generated: results -->\nOf one case")
    assert made.endswith("\n<!-- end -->\n\nB\n")
    assert with_results(made, report) == made
    with pytest.raises(ValueError, match="generated: results"):
        with_results("# A\n", report)


def test_the_part_of_readme_stays_short_with_all_rows() -> None:
    several = {"fp32": 12, "fp16": 6, "thc": 4, at_hosts("thc:bits=2"): 5}
    runs = [
        run for rate, bits_per_s in (("100mbit", 1e8), ("200mbit", 2e8), ("1gbit", 1e9))
        for model in ("cnn", "transformer")
        for run in trainings(several, model=model, rate=rate, bits_per_s=bits_per_s)
    ]  # fmt: skip
    report = report_of(runs)
    assert len(answer_rows(report["sections"]["accuracy"])) == 12
    assert len(readme_words(report).split()) <= FEW_WORDS


def test_the_answer_of_the_repository_is_that_of_its_report() -> None:
    """Else: hopsum report --read docs/results.json --markdown docs/results.md --readme README.md."""
    report = read_report(DOCS / "results.json")
    readme = (ROOT / "README.md").read_text()
    assert with_results(readme, report) == readme
    made = answer_pictures(report)
    assert "report-ratio.svg" in {each.file for each in made}
    for each in made:
        assert fingerprint(each.plot) in (DOCS / "images" / each.file).read_text(), each.file


def test_one_command_writes_page_pictures_and_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    source, page, readme = DOCS / "results.json", tmp_path / "page.md", tmp_path / "README.md"
    arguments = ["--read", str(source), "--markdown", str(page), "--readme", str(readme)]
    readme.write_text("no part\n")
    assert command.main(arguments) == 1
    assert "README.md: no part between" in capsys.readouterr().err
    assert not page.exists()
    readme.write_text("<!-- generated: results -->\n<!-- end -->\n")
    assert command.main(arguments) == 0
    report = json.loads(source.read_text())
    assert page.read_text() == make_markdown(report, "results.json")
    assert readme.read_text() == with_results(readme.read_text(), report)
    names = {path.name for path in (tmp_path / "images").iterdir()}
    assert all(f"images/{name}" in page.read_text() for name in names)
    assert names == {each.file for each in answer_pictures(report)}
