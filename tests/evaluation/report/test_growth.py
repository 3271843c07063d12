# SPDX-License-Identifier: Apache-2.0
"""Growth and delay: the arithmetic of what the page shows, of made-up measurements."""

from __future__ import annotations

from typing import Any

import pytest

from hopsum.plan import shipped_costs
from hopsum_evaluation.report import delay, growth
from hopsum_evaluation.report.claims import Verdict, judge
from hopsum_evaluation.report.settings import NotRunError, Settings, Size

pytestmark = pytest.mark.system
CLAIMS = {each.name: each for each in (*growth.CLAIMS, *delay.CLAIMS)}


def point(elements: int, workers: int = 4, jobs: int = 1, ns: float = 4.0, bits: float = 8.5) -> dict[str, Any]:
    return {"elements": elements, "workers": workers, "jobs": jobs, "seconds": [1e-8 * elements] * 3,
            "worker_cpu_s": 1e-9 * ns * elements, "switch_cpu_s": 1e-9 * elements, "memory_bytes": 4 * elements,
            "busiest_bytes": bits / 8 * elements, "retransmits": 0}  # fmt: skip


def grown(larger_ns: float = 4.0, error: float = 0.1) -> dict[str, Any]:
    million = 1_000_000
    row = {"elements": million, "rate": "1gbit", "predicted_s": 0.1, "measured_s": 0.1, "binds": "link up"}
    return {
        "elements": [point(1000, ns=90, bits=30), *(point(n * million, ns=larger_ns) for n in (4, 16)), point(million)],
        "workers": [point(million, n) for n in (2, 4, 8)], "jobs": [point(million, 2, n) for n in (1, 2)],
        "validated": [{**row, "subject": name, "error": sign * error, "reason": ""}
                      for name, sign in (("thc", 1), ("gloo-fp32", -1))],
        "costs": shipped_costs().as_json(), "cores": 2,
    }  # fmt: skip


def verdict_of(name: str, found: dict[str, Any]) -> Verdict:
    return judge(CLAIMS[name], growth.show(found).samples[name]).verdict


def test_growth_is_judged_from_a_million_elements_on() -> None:
    assert growth.show(grown()).samples["growth-bytes"] == pytest.approx([1.0, 1.0])
    assert verdict_of("growth-cpu-elements", grown(4.0)) is Verdict.REPRODUCED
    assert verdict_of("growth-cpu-elements", grown(5.0)) is Verdict.NOT_REPRODUCED
    assert growth.show(grown()).samples["growth-cpu-workers"] == pytest.approx([1.0, 1.0])


def test_the_distance_of_the_plan_has_no_sign() -> None:
    assert growth.show(grown(error=0.1)).samples["plan-error"] == [0.1, 0.1]
    assert verdict_of("plan-error", grown(error=0.1)) is Verdict.REPRODUCED
    assert verdict_of("plan-error", grown(error=0.3)) is Verdict.NOT_REPRODUCED


def test_a_billion_elements_are_predicted_and_not_measured() -> None:
    part = growth.show(grown())
    measured, predicted = part.plots[0].series
    assert max(measured.x) == 16_000_000
    assert max(predicted.x) == 1_000_000_000
    assert predicted.reference


def cell(place: tuple[int, float], rate: str, scheme: str, seconds: float) -> dict[str, Any]:
    return {"sites": place[0], "round_trip_s": place[1], "rate": rate, "scheme": scheme,
            "seconds": [seconds, seconds, 9 * seconds], "retransmits": 0, "window": 512}  # fmt: skip


def delayed(thc_s: float) -> dict[str, Any]:
    cells = [
        cell((sites, trip_s), rate, scheme, seconds)
        for sites in (2, 4) for trip_s in (0.0, 0.01) for rate in ("200mbit", "1gbit")
        for scheme, seconds in (("thc", thc_s), ("gloo-fp32", 0.4), ("gloo-fp16", 0.2), ("thc at hosts", 0.3))
    ]  # fmt: skip
    predicted = [
        {"sites": sites, "round_trip_s": trip_s, "bits_per_s": 1e10, "seconds": {"thc": 0.1, "gloo-fp16": 0.05}}
        for sites in (2, 4) for trip_s in (0.0, 0.01) for _ in range(2)
    ]  # fmt: skip
    return {"elements": 1000, "cells": cells, "predicted": predicted}


@pytest.mark.parametrize(("thc_s", "cell_text", "verdict"), [
    (0.1, "thc 2.0x", Verdict.REPRODUCED), (0.4, "gloo-fp16 1.5x", Verdict.NOT_REPRODUCED),
])  # fmt: skip
def test_the_fastest_is_beside_the_best_of_the_other_kind(thc_s: float, cell_text: str, verdict: Verdict) -> None:
    part = delay.show(delayed(thc_s))
    assert part.tables[0].rows[0] == ["2 sites, no delay added", cell_text, cell_text, *["gloo-fp16 2.0x"] * 2]
    assert len(part.samples["delay-slow"]) == 4
    assert judge(CLAIMS["delay-slow"], part.samples["delay-slow"]).verdict is verdict


@pytest.mark.parametrize("section", [growth, delay])
def test_without_root_neither_is_run(section: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotRunError, match="root"):
        section.run(Settings(1, Size.SMALL), lambda *_: None)
