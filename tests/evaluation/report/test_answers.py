# SPDX-License-Identifier: Apache-2.0
"""Section `links`: words, tables and claims of made-up figures, and pages of a recorded run."""

from __future__ import annotations

import json
import sys
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest

from hopsum_evaluation.experiment import NotRunError, Settings, Size
from hopsum_evaluation.report import answers, links
from hopsum_evaluation.report.answers import (
    CLAIMS,
    HOSTS,
    PLACES,
    Evidence,
    Outcome,
    accuracy_table,
    accuracy_words,
    answer_table,
    answers_of,
    auto_table,
    check_table,
    check_words,
    figure_table,
    outcome,
    parts_table,
    plan_table,
    range_table,
    speed_bars,
)
from hopsum_evaluation.report.claims import Verdict, judge
from hopsum_evaluation.report.pages import answer_lines, answers_page, plan_words, question_lines
from hopsum_evaluation.report.reporting import read_report
from hopsum_evaluation.training.accuracy_plan import MODELS

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tools"))
import render_results  # noqa: E402  # type: ignore[import-not-found]

TARGET = MODELS["cnn"].target
HOLDS = "dilated 2.5 times: one processor for each of 4 workers and 1 switch, out of 2"
SECONDS = {"fp32": 12.0, "fp16": 6.0, "powersgd": 4.0, "two-shot:bits=4": 3.0, "thc": 2.5, "thc:bits=2": 2.0}
PARTS = {"step_s": 0.06, "compute_s": 0.02, "reduce_s": 0.04, "step_cpu_s": 0.03, "bytes_per_step": 5e5}
STEPS = {"fp32": 8.0, "powersgd": 2.0, "two-shot:bits=4": 1.0, "thc": 2.0, "thc:bits=2": 1.6}


def document(benchmark: str, **other: Any) -> dict[str, Any]:
    return {"benchmark": benchmark, "commit": "c" * 40, "dilate": 2.5, "workers": 4, "processors": HOLDS, **other}


def cnn(seconds: dict[str, float], rate: str = "200mbit", placement: str = "fabric", seeds: int = 3) -> dict[str, Any]:
    """Make trainings of the CNN. Those of others vary a thousandth from seed to seed; infinity misses the target."""
    runs = [
        {**PARTS, "scheme": scheme, "rate": rate, "placement": placement, "repeat": seed,
         "points": [[10, 0.1, 0.2], [20, s * (1 + seed / 1000 * ("fp" in scheme)), TARGET if s < inf else 0.5]]}
        for scheme, s in seconds.items() for seed in range(seeds)
    ]  # fmt: skip
    return document("accuracy", model="cnn", parameters=1_012_426, runs=runs)


def made_up(hosts: float = 5.0, **seconds: float) -> dict[str, Any]:
    same = {**PARTS, "reduce_s": None, "rate": "1000mbit", "placement": "fabric", "repeat": 0}
    timed = [{**same, "scheme": name, "step_s": s} for name, s in STEPS.items()]
    subjects = {"gloo-fp32": 0.260, "gloo-fp16": 0.130, "two-shot:bits=4": 0.05, "thc": 0.05, "thc:bits=2": 0.1}
    found = {name: {"seconds": s, "busiest_bits_per_element": 8.6, "nmse": 0.02} for name, s in subjects.items()}
    entry = {"elements": 1_000_000, "rate": "200mbit", "subjects": found}
    reduce = document("allreduce", placement="fabric", buckets=1, window=512, rates=[entry])
    costs = {"chunk_s": 1e-6, "vector_s": 1e-3, "missing": "", "nmse": {}, "refused": {}}
    codec_s = {"two-shot:bits=4": 4e-9, "thc": 3e-9, "thc:bits=2": 3e-9}
    ops = {"thc": "LOOKUP_ADD_LOOKUP4", "thc:bits=2": "LOOKUP_ADD8"}
    plan = {"benchmark": "plan", "costs": {**costs, "codec_s": codec_s, "first_s": {"thc": 1e-9}, "ops": ops}}
    return {"workers": 4, "documents": [
        plan, reduce, cnn({**SECONDS, **seconds}), cnn({"thc:bits=2": hosts}, placement="hosts"),
        document("training", model="resnet50", parameters=25_557_032, runs=timed),
    ]}  # fmt: skip


def report_of(result: dict[str, Any]) -> dict[str, Any]:
    found = {**result, "begun": "2026-02-03T01:00:00+00:00", "commit": "abcdef0123456789"}
    return {"format": 1, "begun": "2026-01-01T00:00:00+00:00", "commit": "0" * 40,
            "machine": {"processor": "A chip", "cores": 2}, "sections": {"links": found}}  # fmt: skip


def test_the_table_names_the_fastest_scheme_and_what_it_is_compared_with() -> None:
    rows = answer_table(answers_of(made_up())).rows
    assert rows[0][:5] == ["200 Mbit/s", "`cnn`, 1.01 M", "trained", PLACES["fabric"], "`thc:bits=2`"]
    assert rows[0][5:] == [
        "6.0 (6.0 to 6.0), won", "1.2 (1.2 to 1.2) `two-shot:bits=4`, won", "2.0 (2.0 to 2.0) `powersgd`, won",
    ]  # fmt: skip
    # Slower than what needs no switch: the row says so.
    assert rows[1][3:5] == [PLACES["hosts"], "`thc:bits=2`"]
    assert rows[1][6:] == ["-", "0.80 (0.80 to 0.80) `powersgd`, lost"]
    # One run of steps has no interval, and no place on the hosts.
    assert rows[2][:4] == ["1 Gbit/s", "`resnet50`, 25.6 M", "timed", PLACES["fabric"]]
    assert rows[2][5:] == ["5.0, no interval", "0.50 `two-shot:bits=4`, no interval", "1.2 `powersgd`, no interval"]
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.2, 1.3], Outcome.OPEN),  # two seeds
        ([1.2, 1.3, 1.25], Outcome.WON),
        ([0.8, 0.7, 0.75], Outcome.LOST),
        ([0.9, 1.1, 1.3], Outcome.LEVEL),
        ([1.2, float("nan"), 1.3], Outcome.OPEN),  # a seed missed the target
    ],
)
def test_won_and_lost_need_a_whole_interval_and_are_the_verdict_of_the_claims(
    ratios: list[float], expected: Outcome
) -> None:
    assert outcome(ratios) is expected
    claim = next(each for each in CLAIMS if each.published == 1.0)
    assert (judge(claim, ratios).verdict is Verdict.REPRODUCED) == (expected is Outcome.WON)


def test_the_answer_counts_what_the_rows_say() -> None:
    lines = question_lines(answers_of(made_up()), made_up())
    compression, switch, hosts, accuracy, _, legend = lines
    assert compression.endswith("in the middle: 6.0 at 200 Mbit/s, 5.0 at 1 Gbit/s.")
    # The same bits: the fastest scheme, thc:bits=2, has half as many.
    assert "`thc` over two-shot, whose ranks add the codes: 0.50 to 1.2 (1 won, 1 no interval)" in switch
    assert "best hook (fp16, PowerSGD): 1.2 to 2.0 (1 won, 1 no interval)" in switch
    assert hosts.endswith("The fastest over torch's best hook: 0.80 (1 lost). Lost: `cnn` at 200 Mbit/s.")
    assert "two-shot" not in hosts, "thc was not trained on the hosts"
    assert accuracy.endswith("over fp32's, fewer is better (`cnn`): `thc` 1.00; `thc:bits=2` 1.00.")
    kinds = "1 trained over these links; 1 timed (a step, its computing a wait)"
    assert legend.startswith(f"Rows: {kinds}. Level: ")
    # README shows as many wins as the table of every row.
    won = sum(cell.endswith("won") for row in answer_table(answers_of(made_up())).rows for cell in row)
    shown = [cell for row in range_table(answers_of(made_up())).rows for cell in row if "won" in cell]
    assert won == len(shown) == 4


def test_the_answer_in_readme_is_short() -> None:
    for report in (report_of(made_up()), read_report(ROOT / "docs/results.json")):
        lines = [line for line in answer_lines(report, "docs/") if line.startswith(("- ", "Rows: "))]
        assert len(lines) == 5
        assert len(" ".join(lines).split()) <= 150


def test_a_scheme_that_missed_a_target_is_taken_in_no_row() -> None:
    found = answers_of(made_up(**{"thc:bits=2": inf}))
    assert [each.ours("fabric") for each in found] == ["thc", "thc"]
    assert found[0].ours(HOSTS) is None
    assert "`thc:bits=2` 1.00, missed" not in accuracy_words(made_up())
    assert accuracy_words(made_up(**{"thc:bits=2": inf})).endswith("`thc:bits=2` missed in 1 of 1 models.")


def test_a_run_that_was_stopped_shows_what_it_has() -> None:
    made = made_up()
    part = {**made, "documents": made["documents"][:3]}
    lines = question_lines(answers_of(part), part)
    assert "6.0 at 200 Mbit/s." in lines[0]
    assert lines[2].endswith("Not measured.")
    assert "nan" not in " ".join(lines)
    page = answers_page(report_of({**made, "documents": made["documents"][:2], "failed": {"cnn": "out of memory"}}))
    shown = ["## Every figure", "## Predictions of `hopsum plan`", "## Time dilation", "## Open"]
    assert [line for line in page.splitlines() if line.startswith("## ")] == shown
    assert "Failed: cnn, out of memory." in page


def test_a_step_has_its_parts_next_to_the_time_of_its_bytes() -> None:
    rows = {row[0]: row[1:] for row in parts_table(made_up()).rows}
    assert rows["`cnn`, 200 Mbit/s: `thc:bits=2`"] == ["60.0", "20.0", "40.0", "30.0", "20.0"]
    assert rows["`cnn`, 200 Mbit/s: `thc:bits=2`, hosts"] == rows["`cnn`, 200 Mbit/s: `thc:bits=2`"]
    assert rows["`resnet50`, 1 Gbit/s: `thc:bits=2`"] == ["1,600", "20.0", "-", "30.0", "4.00"]


def test_a_missed_target_is_no_number() -> None:
    found = made_up(**{"thc:bits=2": inf, "powersgd": inf})
    (answer, _) = answers_of(found)
    assert answer.ours("fabric") == "thc"
    assert answer.best(answers.HOOKS.names) == "fp16"
    assert isnan(answer.ratio(["fp32"], "thc:bits=2").mean)
    table = figure_table(found)
    assert table.rows[1][table.heads.index("`thc:bits=2`")] == "missed"
    accuracy = accuracy_table(found)
    assert accuracy.rows[0][accuracy.heads.index("`thc:bits=2`")] == "missed"
    claims = {each.name: judge(each, answers.make_view(found).samples[each.name]).verdict for each in answers.CLAIMS}
    assert claims["tta-hosts-cnn-200mbit"] is Verdict.NOT_RUN  # the one scheme on the hosts missed elsewhere
    assert claims["tta-best-cnn-1gbit"] is Verdict.NOT_RUN


@pytest.mark.parametrize(("ours", "verdict"), [(2.0, Verdict.REPRODUCED), (3.0, Verdict.NOT_REPRODUCED)])
def test_a_fast_scheme_reproduces_the_claims_and_a_slow_one_does_not(ours: float, verdict: Verdict) -> None:
    shown = answers.make_view(made_up(hosts=2 * ours, **{"thc:bits=2": ours, "thc": ours}))
    told = {each.name: judge(each, shown.samples[each.name]).verdict for each in answers.CLAIMS}
    named = ("tta-best-cnn-200mbit", "tta-all-cnn-200mbit", "tta-hosts-cnn-200mbit")
    assert {told[name] for name in named} == {verdict}
    assert shown.samples["tta-all-cnn-200mbit"] == [3.0 / ours] * 3


def test_steps_and_the_time_of_a_step_are_seconds() -> None:
    counted = cnn({"thc": 1.0, "fp32": 1.0, "fp16": inf}, "unshaped")
    steps = ("fabric", "fp32", 2.0), ("fabric", "fp16", 1.0), ("hosts", "thc", 0.5)
    # Two runs of each step: the mean counts.
    timed = [{**PARTS, "rate": "1000mbit", "placement": place, "repeat": repeat, "scheme": name, "step_s": s * factor}
             for place, name, s in steps for repeat, factor in enumerate((0.5, 1.5))]  # fmt: skip
    documents = [counted, document("training", model="cnn", parameters=1_012_426, runs=timed)]
    result = {"workers": 4, "documents": documents}
    (answer,) = answers_of(result)
    assert answer.evidence is Evidence.COUNTED
    assert answer.what == "s to 90% test accuracy"
    assert answer.times["hosts"] == {"thc": dict.fromkeys(range(3), 10.0)}
    assert answer.times["fabric"] == {"fp32": dict.fromkeys(range(3), 40.0), "fp16": dict.fromkeys(range(3), inf)}
    assert not parts_table({"documents": [counted]}).rows
    assert accuracy_table(result).rows == [["`cnn` to 90% test accuracy", "20.0 (1.00)", "20.0 (1.00)", "missed"]]
    (row,) = range_table([answer]).rows
    assert row == ["1 Gbit/s", PLACES["hosts"], "1 counted", "4.0; 1 won", "-", "-"]


def test_a_training_over_the_links_counts_more_than_its_steps() -> None:
    counted = cnn({"thc": 1.0, "fp32": 1.0}, "unshaped")
    timed = [{**PARTS, "rate": "200mbit", "placement": "fabric", "repeat": 0, "scheme": "thc", "step_s": 9.0}]
    documents = [counted, document("training", model="cnn", parameters=1, runs=timed), cnn({"thc": 2.0, "fp32": 4.0})]
    (answer,) = answers_of({"workers": 4, "documents": documents})
    assert answer.evidence is Evidence.TRAINED
    assert answer.times["fabric"]["thc"] == dict.fromkeys(range(3), 2.0)


def test_predictions_are_arithmetic_on_recorded_costs() -> None:
    table = plan_table(made_up())
    ratios = {row[0]: float(row[1]) for row in table.rows}
    wire_s = 4.617e-3 * 5
    # The ranges, then the wire, which takes longer than the worker.
    assert ratios["`thc`"] == pytest.approx((1e-3 + wire_s) / 0.05, abs=0.02)
    assert ratios["`fp32`"] == pytest.approx(0.2509 / 0.26, abs=0.01)
    # A codec that had another operation in the recorded run has no prediction.
    assert set(ratios) == {"`fp32`", "`fp16`", "`two-shot:bits=4`", "`thc`"}
    assert plan_words(table).startswith("2 of 4 are within 25%")


def test_the_choice_of_the_first_steps_has_a_table_of_its_own() -> None:
    steps = {"thc": 0.4, "thc:bits=3": 0.25, "low-rank-8": 0.2, "auto": 0.21}
    runs = [
        {**PARTS, "rate": "200mbit", "placement": "hosts", "repeat": repeat, "scheme": name, "step_s": s,
         "method": "low rank 8" if name == "auto" else None}
        for name, s in steps.items() for repeat in range(3)
    ]  # fmt: skip
    choice = document("training", model="cnn", parameters=1_012_426, schemes=[*steps], compute_s=0.0, runs=runs)
    made = made_up()
    result = {**made, "documents": [*made["documents"], choice]}
    assert auto_table(result).rows == [
        ["`cnn`, 200 Mbit/s, a switch on every host", "low rank 8", "210", "200", "`low-rank-8`", "1.05", "1.05"]
    ]
    # Its steps compute, those of an answer wait.
    assert [each.times for each in answers_of(result)] == [each.times for each in answers_of(made)]
    assert auto_table(made).rows == []


def checked(real_ms: float, dilated_ms: float) -> list[dict[str, Any]]:
    """Make the documents of the check of dilation: the same all-reduce of two workers, not dilated and dilated."""
    return [
        document("allreduce", placement="fabric", rates=[
            {"elements": 1_000_000, "rate": "200mbit", "subjects": {"gloo-fp32": {"seconds": ms / 1000}}}
        ]) | {"workers": 2, "dilate": dilate}
        for ms, dilate in ((real_ms, 1), (dilated_ms, 1.5))
    ]  # fmt: skip


def test_a_dilated_page_has_its_own_check() -> None:
    made = made_up()
    result = {**made, "documents": [*made["documents"], *checked(200.0, 190.0)]}
    table = check_table(result)
    assert table.rows == [["2 workers, 1 M elements, 200 Mbit/s: `fp32`", "200", "190", "0.95"]]
    assert check_words(table).startswith("Dilated times are 0.95 to 0.95 of those that are not")
    page = answers_page(report_of(result))
    assert f"D{HOLDS[1:]}." in page
    assert "Dilated times are 0.95" in page
    # Workers of the check are in no other table.
    assert figure_table(result).rows == figure_table(made).rows
    assert (
        "Measured: 2026-02-03, A chip, 2 cores for 4 workers and a switch, with time dilation, commit abcdef01" in page
    )
    assert "GPUs, and a machine with two processors for each worker and switch." in page


def test_results_begin_with_the_picture_and_the_answer() -> None:
    lines = [line for line in answers_page(report_of(made_up())).splitlines() if line]
    assert lines[0] == "# Results"
    assert lines[1].startswith("![Times as fast as DDP in fp32](images/report-ratio.svg)")
    assert lines[2].startswith("- **Does compression pay?**")


def test_bars_are_times_as_fast_as_fp32_at_every_rate() -> None:
    chart = speed_bars(answers_of(made_up()))
    assert chart is not None
    slow, fast = chart.panels
    assert (slow.title, slow.groups) == ("links of 200 Mbit/s", ["cnn, trained"])
    assert [each.values[0] for each in slow.series] == pytest.approx([3.0, 4.0, 6.0, 2.4], rel=2e-3)
    assert [each.values[0] for each in fast.series] == pytest.approx([4.0, 8.0, 5.0, None])
    assert speed_bars([]) is None


def test_cases_have_a_processor_each_where_time_is_dilated() -> None:
    cases = links.cases_of(Settings(1, Size.FULL, dilate=True))
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        parser, _ = links._BENCHMARKS[case.benchmark]
        options = parser().parse_args(links.arguments_of(case, dilate=True, cores=2))
        factor = case.spare * {"fabric": case.workers + 1, "hosts": 2 * case.workers}[case.placement] / 2
        alone = case.name.startswith(("steps", "check-real"))
        assert getattr(options, "dilate", factor) == (1.0 if alone else factor)
        assert "--dilate" not in links.arguments_of(case, dilate=True, cores=16)


def test_without_root_it_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotRunError, match="root"):
        links.run(Settings(1, Size.SMALL), lambda *_: None)


def test_what_was_measured_before_an_interrupt_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(_: object, order: tuple[links.LinkCase, Settings]) -> dict[str, Any]:
        if order[0].benchmark == "accuracy":
            raise KeyboardInterrupt
        return document(order[0].benchmark, arguments=links.arguments_of(order[0], True, 2), commit="c")

    monkeypatch.setattr(links, "trainings_unavailable", lambda: None)
    monkeypatch.setattr(links, "source_commit", lambda: "c")
    monkeypatch.setattr(links, "machine", lambda: {"cores": 2})
    monkeypatch.setattr(links, "measure_apart", stopped)
    settings = Settings(1, Size.SMALL, tmp_path, dilate=True)
    result = links.run(settings, lambda *_: None)
    found = result["documents"]
    assert result["stopped"]
    assert [each["benchmark"] for each in found] == ["plan", *["allreduce"] * 4]
    # The case at which the run was stopped is the first that is measured again.
    monkeypatch.setattr(links, "measure_apart", lambda *_: document("again", arguments=[], commit="c"))
    again = links.run(settings, lambda *_: None)["documents"]
    assert again[: len(found)] == found
    assert [each["benchmark"] for each in again[len(found) :]] == ["again"] * 2


def test_a_case_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(_: object, order: tuple[links.LinkCase, Settings]) -> dict[str, Any]:
        if order[0].benchmark == "accuracy":
            raise NotRunError("out of memory\nand more")
        return document(order[0].benchmark, arguments=[])

    monkeypatch.setattr(links, "trainings_unavailable", lambda: None)
    monkeypatch.setattr(links, "measure_apart", fails)
    found = links.run(Settings(1, Size.SMALL, tmp_path), lambda *_: None)
    assert len(found["documents"]) == 3
    assert found["failed"] == dict.fromkeys(("cnn-fabric-200mbit", "cnn-hosts-200mbit"), "out of memory")
    page = answers_page(report_of({**made_up(), "failed": found["failed"]}))
    assert "Failed: cnn-hosts-200mbit, out of memory." in page


def test_texts_follow_from_the_recorded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "docs/images").mkdir(parents=True)
    (tmp_path / "docs/results.json").write_text(json.dumps(report_of(made_up())))
    for name in ("README.md", "docs/claims.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert render_results.main(["--check"], tmp_path) == 1
    assert render_results.main([], tmp_path) == 0
    capsys.readouterr()
    assert render_results.main(["--check"], tmp_path) == 0
    assert not capsys.readouterr().out
    before, after = ((root / "README.md").read_text().split("\n## ") for root in (ROOT, tmp_path))
    changed = [new.split("\n")[0] for old, new in zip(before, after, strict=True) if old != new]
    assert changed == ["Does it pay?"]
    assert [path.name for path in (tmp_path / "docs/images").iterdir()] == ["report-ratio.svg"]


@pytest.mark.skipif(not (ROOT / "docs/results.json").exists(), reason="no run is recorded")
def test_the_pages_are_those_of_the_recorded_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert render_results.main(["--check"]) == 0, capsys.readouterr().out
