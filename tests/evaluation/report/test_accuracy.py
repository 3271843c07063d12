# SPDX-License-Identifier: Apache-2.0
"""Time to accuracy: ratios and bounds of made-up trainings, and what happens where none can be."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

import pytest

from hopsum_evaluation.report import accuracy
from hopsum_evaluation.report.accuracy import Trainings, train_all, turned
from hopsum_evaluation.report.accuracy_plan import MODELS, Course
from hopsum_evaluation.report.claims import Verdict, judge
from hopsum_evaluation.report.experiment import NotRunError, Settings, Size, measure_apart
from hopsum_evaluation.report.time_to_target import paced_seconds, to_target, with_seconds

CLAIMS = {each.name: each for each in accuracy.CLAIMS}


def training(scheme: str, repeat: int, step_s: float, reduce_s: float, steps: int = 40) -> dict[str, Any]:
    """Return one that reaches the target at step 40, if it gets so far."""
    points = [[step, step * step_s, 0.95 if step >= 40 else 0.5] for step in range(4, steps + 1, 4)]
    return {"model": "cnn", "rate": "200mbit", "bits_per_s": 2e8, "scheme": scheme, "repeat": repeat, "points": points,
            "step_s": step_s, "compute_s": 0.02, "reduce_s": reduce_s}  # fmt: skip


def result(thc_s: float, fp16_s: float = 0.15, thc_steps: int = 40) -> dict[str, Any]:
    runs = []
    for repeat in range(3):
        slow = 1 + repeat / 1000
        runs += [training("fp32", repeat, 0.28 * slow, 0.26), training("fp16", repeat, fp16_s * slow, fp16_s - 0.02),
                 training("thc", repeat, thc_s, 0.05, thc_steps)]  # fmt: skip
    cnn = {"steps": 40, "batch": 32, "parameters": 10**6, "data": "digits"}
    return {"workers": 4, "models": {"cnn": cnn}, "runs": runs}


def with_text(found: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    """Add trainings of the transformer that reach the target at step 20, after so many seconds by each scheme."""
    target = MODELS["transformer"].target
    runs = [
        {**run, "model": "transformer", "scheme": scheme, "reduce_s": None,
         "points": [[10, last_s / 2, target + 5], [20, last_s, target], [30, 2 * last_s, target + 1]]}
        for run in found["runs"] if run["scheme"] == "thc" for scheme, last_s in seconds.items()
    ]  # fmt: skip
    text = {"steps": 30, "batch": 8, "parameters": 10**6, "data": "a book"}
    return {"workers": 4, "models": {**found["models"], "transformer": text}, "runs": found["runs"] + runs}


def with_pairs(found: dict[str, Any], step_s: float) -> dict[str, Any]:
    """Add trainings of both models by paired codes: each as thc's, but for the seconds."""
    runs = [
        {**run, "scheme": "thc:bits=2", "points": [[step, step * step_s, value] for step, _, value in run["points"]]}
        for run in found["runs"] if run["scheme"] == "thc"
    ]  # fmt: skip
    hosts = [{**run, "scheme": accuracy.at_hosts(run["scheme"])} for run in runs]
    return {**found, "runs": found["runs"] + runs + hosts}


def with_software(found: dict[str, Any], step_s: float) -> dict[str, Any]:
    return {**found, "runs": found["runs"] + [training("thc-ps", repeat, step_s, step_s - 0.02) for repeat in range(3)]}


def verdicts(found: dict[str, Any]) -> dict[str, Verdict]:
    part = accuracy.show(found)
    return {name: judge(claim, part.samples[name]).verdict for name, claim in CLAIMS.items()}


def test_a_fast_scheme_reproduces_the_claims_and_a_slow_one_does_not() -> None:
    fast, slow = ({"fp32": 9.0, "topk": 5.0, "thc": thc_s} for thc_s in (3.0, 4.0))
    good = with_software(with_pairs(with_text(result(0.07), fast), 0.06), 0.1)
    bad = with_software(with_pairs(with_text(result(0.2), slow), 0.2), 0.12)
    assert set(verdicts(good).values()) == {Verdict.REPRODUCED}
    assert set(verdicts(bad).values()) == {Verdict.NOT_REPRODUCED}


def test_a_measure_that_falls_reaches_its_target_from_above() -> None:
    found = with_text(result(0.07), {"fp32": 9.0, "topk": 5.0, "thc": 2.5})
    part = accuracy.show(found)
    assert part.samples["tta-best-text"] == [2.0] * 3
    assert part.samples["tta-best"] == accuracy.show(result(0.07)).samples["tta-best"]  # the models keep apart
    assert [row[-1] for row in part.tables[1].rows] == ["9.00", "5.00", "2.50"]
    assert [plot.name for plot in part.plots] == ["accuracy-cnn-200mbit", "accuracy-transformer-200mbit"]
    assert part.plots[0].series[-1].y == [90.0, 90.0]
    assert part.plots[1].series[-1].y == [MODELS["transformer"].target] * 2


@pytest.mark.parametrize(("model", "better", "worse"), [("cnn", 0.91, 0.89), ("transformer", 6.9, 7.1)])
def test_a_target_has_a_direction(model: str, better: float, worse: float) -> None:
    plan = MODELS[model]
    assert plan.reached(better)
    assert plan.reached(plan.target)
    assert not plan.reached(worse)
    assert not plan.reached(float("nan"))
    points = [[1, 0.5, worse], [2, 1.0, None], [3, 1.5, better], [4, 2.0, worse]]
    assert to_target(plan, {"points": points}) == (3.0, 1.5)


def test_what_was_not_finite_is_left_out_of_the_curves() -> None:
    found = with_text(result(0.07), {"fp32": 9.0, "thc": 2.5})
    for run in found["runs"]:
        if run["model"] == "transformer":
            run["points"][-1][-1] = None
            if run["scheme"] == "fp32":
                run["points"] = [[step, seconds, None] for step, seconds, _ in run["points"]]
    part = accuracy.show(found)
    assert [(each.name, len(each.x)) for each in part.plots[1].series] == [("thc", 2), ("target", 2)]
    assert all(isnan(each) for each in part.samples["tta-best-text"])


def test_what_only_the_full_size_trains_is_not_run_without() -> None:
    told = verdicts(result(0.07))
    missed = {"tta-best-text": "transformer", "tta-software": "thc-ps", "tta-best-2bits": "thc:bits=2"}
    missed |= {"tta-best-text-2bits": "transformer", "tta-best-hosts": "thc:bits=2 at hosts"}
    for claim, missing in {**missed, "tta-best-text-hosts": "transformer"}.items():
        assert told.pop(claim) is Verdict.NOT_RUN
        reason = accuracy.show(result(0.07)).reasons[claim]
        assert missing in reason
        assert "--full" in reason
    assert set(told.values()) == {Verdict.REPRODUCED}


def test_another_rate_takes_the_steps_of_the_whole_training() -> None:
    model = MODELS["transformer"]
    whole = {"scheme": "thc", "repeat": 0, "points": [[100, 5.0, 8.0], [120, 6.0, 7.0], [140, 7.0, 6.0]]}
    looks = [[20, 9.0, 30.0], [40, 13.0, 20.0], [60, 17.0, 15.0]]
    paced = {"scheme": "thc", "repeat": 0, "paced": True, "points": looks}
    assert paced_seconds(model, whole, paced) == pytest.approx(9 + 100 * 0.2)
    assert paced_seconds(model, None, paced) == inf
    assert paced_seconds(model, {**whole, "points": whole["points"][:1]}, paced) == inf
    other = {**paced, "repeat": 1}
    assert [each for _, each in with_seconds(model, [whole, paced, other])] == [6.0, pytest.approx(29.0), inf]


def test_the_best_other_scheme_is_what_counts() -> None:
    found = accuracy.show(result(0.07, fp16_s=0.08)).samples
    assert found["tta-best"][0] == pytest.approx(0.08 / 0.07)
    assert found["tta-fp32"][0] == pytest.approx(4)
    assert found["amdahl"][0] == pytest.approx(4 / ((0.02 + 0.26) / (0.02 + 0.05)))


def test_what_never_reaches_the_target_is_not_fast() -> None:
    found = result(0.07, thc_steps=36)
    samples = accuracy.show(found).samples
    assert all(isnan(each) for each in samples["tta-fp32"])
    told = verdicts(found)
    assert told["tta-fp32"] is told["tta-best"] is Verdict.NOT_REPRODUCED
    assert told["amdahl"] is Verdict.REPRODUCED
    assert [row[-1] for row in accuracy.show(found).tables[0].rows if row[1] == "thc"] == ["not reached"]


def test_without_root_it_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotRunError, match="root"):
        accuracy.run(Settings(1, Size.SMALL), lambda *_: None)


@pytest.mark.system
def test_what_fails_in_the_other_process_is_told_here() -> None:
    trainings = Trainings(0, (Course("cnn", 1, 1, 1, {"200mbit": 1}, ("thc",)),), (1,))
    with pytest.raises(NotRunError, match="0 workers"):
        measure_apart(train_all, trainings, lambda *_: None)


def test_another_scheme_begins_with_each_seed() -> None:
    assert [turned("abc", repeat) for repeat in range(4)] == [tuple("abc"), tuple("bca"), tuple("cab"), tuple("abc")]


@pytest.mark.parametrize("scheme", ["two-shot:bits=4", "two-shot-4", "a new one"])
def test_no_scheme_is_left_out_of_the_fastest_other_for_its_name(scheme: str) -> None:
    """Reports of 2026-11 call two-shot otherwise: read without it, they would say that hopsum is faster."""
    found = result(0.10)
    found["runs"] += [training(scheme, repeat, 0.08, 0.06) for repeat in range(3)]
    shown = accuracy.show(found)
    assert shown.samples["tta-best"] == [pytest.approx(0.8)] * 3
