# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan --calibrate` and `--validate`: what they make of measurements, and where they cannot measure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum.plan import PlannedJob, shipped_costs
from hopsum.plan.costs import NAMES, costs_from_json
from hopsum.plan.setting import MOST_BITS_PER_S
from hopsum.plan.traffic import ring_traffic
from hopsum_cli.main import main
from hopsum_evaluation.bench.allreduce import RateFinding
from hopsum_evaluation.plan import calibrate, validate

COSTS = shipped_costs()
JOB = PlannedJob(4_000_000, 4, 0.0, MOST_BITS_PER_S, shared_cores=2)


def finding(subject: str, rate: float | None, seconds: float, worker_s: float, switch_s: float) -> RateFinding:
    name = None if rate is None else f"{rate / 1e6:g}mbit"
    return RateFinding(subject, name, rate, [seconds, seconds], [], worker_cpu_s=[worker_s], switch_cpu_s=[switch_s])


def as_predicted(subject: str, rate: float | None) -> RateFinding:
    """Return what would be measured if the prediction were right."""
    expected = validate.predict(subject, replace(JOB, link_bits_per_s=rate or MOST_BITS_PER_S), COSTS)
    return finding(subject, rate, expected.allreduce_s, expected.worker_cpu_s, expected.aggregator_cpu_s)


@pytest.mark.parametrize("subject", ["thc", "thc-no-overlap", "gloo-fp32", "gloo-fp16"])
@pytest.mark.parametrize("rate", [200e6, 1e9, None])
def test_a_measurement_as_predicted_has_no_error(subject: str, rate: float | None) -> None:
    row = validate.compare(as_predicted(subject, rate), JOB, COSTS)
    assert row.error == pytest.approx(0)
    assert row.predicted_cpu_s == pytest.approx(row.measured_cpu_s)
    assert (row.within_goal, row.reason) == (True, "")
    assert row.rate == ("unshaped" if rate is None else f"{rate / 1e6:g}mbit")


def test_a_prediction_that_is_off_says_of_what() -> None:
    right = as_predicted("thc", 1e9)
    slow = replace(right, seconds=[2 * right.seconds[0]])
    row = validate.compare(slow, JOB, COSTS)
    assert row.error == pytest.approx(-0.5)
    assert not row.within_goal
    assert row.reason.endswith("50%: waiting, or other load")
    busy = replace(slow, worker_cpu_s=[2 * right.worker_cpu_s[0]], switch_cpu_s=[2 * right.switch_cpu_s[0]])
    assert validate.compare(busy, JOB, COSTS).reason.startswith("processor time ")
    fast = replace(right, seconds=[right.seconds[0] / 2])
    assert validate.compare(fast, JOB, COSTS).reason.startswith("faster than its parts")


def test_validate_prints_rows_and_fails_where_one_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = []
    off = as_predicted("gloo-fp32", 1e9)

    def run(setting: Any, console: Any) -> list[RateFinding]:
        settings.append(setting)
        return [as_predicted("thc", 200e6), replace(off, seconds=[2 * off.seconds[0]])]

    monkeypatch.setattr(validate, "unavailable", lambda: None)
    monkeypatch.setattr(validate, "run", run)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    words = ["plan", "--validate", "--elements", "4M", "--runs", "2", "--rates", "200mbit,unshaped"]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "-50%" in text
    assert "1 of 2 within 25%" in text
    assert "1000mbit, gloo-fp32: links busy" in text
    assert (settings[0].rates, settings[0].elements, settings[0].runs) == (["200mbit", None], 4_000_000, 2)
    assert main([*words, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [row["within_goal"] for row in report["rows"]] == [True, False]
    assert report["rows"][1]["error"] == pytest.approx(-0.5)


def test_validate_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as refused:
        main(["plan", "--validate"])
    assert refused.value.code == 1
    assert "need root" in capsys.readouterr().err


def test_calibrate_writes_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    path = tmp_path / "costs.json"
    assert calibrate.main(["--output", str(path), "--runs", "1", "--scale", "0.005"]) == 0
    assert "need root" in capsys.readouterr().err
    costs = costs_from_json(path.read_text(), "")
    measured = {name for name in NAMES if costs[name].origin != COSTS[name].origin}
    assert measured == {name for name in NAMES if name.startswith(("encode", "decode", "two_shot"))} | {"place"}
    for name in ("encode_thc", "decode_thc", "encode_fixed", "place"):
        assert 1e-12 < costs[name].seconds < 1e-4
    assert costs["chunk"] == COSTS["chunk"]


def test_network_costs_follow_from_processor_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings made up from chunks of 5 us, vectors of 2 ms, updates of 3 us and rings of 2 ns a byte give these."""
    elements = 1 << 22
    known = COSTS.replace({name: COSTS[name]._replace(seconds=value) for name, value in
                           {"chunk": 5e-6, "vector": 2e-3, "update": 3e-6}.items()})  # fmt: skip
    expected = validate.predict("thc", replace(JOB, elements=elements), known)
    small = validate.predict("thc", replace(JOB, elements=8 * 1024), known)
    ring_s = 2e-9 * ring_traffic(elements, calibrate.WORKERS, 4).up_bytes * calibrate.WORKERS / 2
    found = [
        finding("thc", None, 1.0, expected.worker_cpu_s, expected.aggregator_cpu_s),
        finding("gloo-fp32", None, ring_s, 0.1, 0.0),
    ]
    thin = [finding("thc", None, 1.0, small.worker_cpu_s, small.aggregator_cpu_s)]
    monkeypatch.setattr(
        "hopsum_evaluation.bench.allreduce.run",
        lambda setting, console: found if setting.elements == elements else thin,
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    costs = calibrate.network_costs(COSTS, elements, 1, 1, None)  # type: ignore[arg-type]
    assert {name: cost.seconds for name, cost in costs.items()} == pytest.approx(
        {"chunk": 5e-6, "vector": 2e-3, "update": 3e-6, "ring_fp32": 2e-9}
    )
