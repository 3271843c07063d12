# SPDX-License-Identifier: Apache-2.0
"""Time to accuracy: ratios and bounds of made-up trainings, and what happens where none can be."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from hopsum.cli.report import accuracy
from hopsum.cli.report.accuracy_run import Trainings, run_apart
from hopsum.cli.report.claims import Verdict, judge
from hopsum.cli.report.settings import NotRun, Settings, Size

CLAIMS = {each.name: each for each in accuracy.CLAIMS}


def training(scheme: str, repeat: int, step_s: float, reduce_s: float, steps: int = 40) -> dict[str, Any]:
    """Return one that reaches the target at step 40, if it gets so far."""
    points = [[step, step * step_s, 0.95 if step >= 40 else 0.5] for step in range(4, steps + 1, 4)]
    return {"rate": "200mbit", "bits_per_s": 2e8, "scheme": scheme, "repeat": repeat, "points": points,
            "step_s": step_s, "compute_s": 0.02, "reduce_s": reduce_s}  # fmt: skip


def result(thc_s: float, fp16_s: float = 0.15, thc_steps: int = 40) -> dict[str, Any]:
    runs = []
    for repeat in range(3):
        slow = 1 + repeat / 1000
        runs += [training("fp32", repeat, 0.28 * slow, 0.26), training("fp16", repeat, fp16_s * slow, fp16_s - 0.02),
                 training("thc", repeat, thc_s, 0.05, thc_steps)]  # fmt: skip
    return {"workers": 4, "steps": 40, "batch": 32, "parameters": 10**6, "runs": runs}


def verdicts(found: dict[str, Any]) -> dict[str, Verdict]:
    part = accuracy.show(found)
    return {name: judge(claim, part.samples[name]).verdict for name, claim in CLAIMS.items()}


def test_a_fast_scheme_reproduces_the_claims_and_a_slow_one_does_not() -> None:
    assert set(verdicts(result(0.07)).values()) == {Verdict.REPRODUCED}
    assert set(verdicts(result(0.2)).values()) == {Verdict.NOT_REPRODUCED}


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
    with pytest.raises(NotRun, match="root"):
        accuracy.run(Settings(1, Size.SMALL), lambda *_: None)


def test_what_fails_in_the_other_process_is_told_here() -> None:
    with pytest.raises(NotRun, match="0 workers"):
        run_apart(Trainings(0, 1, 1, 1, ("200mbit",), ("thc",), (1,)), lambda *_: None)
