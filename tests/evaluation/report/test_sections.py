# SPDX-License-Identifier: Apache-2.0
"""Every section at its smallest, through JSON and back; what switches and codecs must show even so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsum_evaluation.charts import write_chart
from hopsum_evaluation.report import accuracy, error
from hopsum_evaluation.report.accuracy_plan import MODELS
from hopsum_evaluation.report.experiment import Settings, Size
from hopsum_evaluation.report.reporting import SECTIONS

pytestmark = pytest.mark.system
SETTINGS = Settings(2, Size.SMALL)
SENT_BITS = {"fp32": 32, "thc": 4, "thc-ps": (4 + 8) / 2, "thc:bits=2": 2}
"""Of an element, by a worker of two, in the direction that has most of them."""


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_shows_what_it_ran(name: str, tmp_path: Path) -> None:
    section = SECTIONS[name][1]
    told: list[float] = []
    if name == "accuracy" and (reason := accuracy.unavailable()):
        pytest.skip(reason)
    result = json.loads(json.dumps(section.run(SETTINGS, lambda done, _: told.append(done))))
    assert told == sorted(told)
    assert 0 <= told[0] <= told[-1] <= 1
    part = section.show(result)
    assert all(part.samples.get(claim.name) or claim.name in part.reasons for claim in section.CLAIMS)
    assert set(part.samples) <= {claim.name for claim in section.CLAIMS}
    for table in part.tables:
        assert {len(row) for row in table.rows} == {len(table.heads)}
    assert len({plot.name for plot in part.plots}) == len(part.plots)
    for plot in part.plots:
        drawn = write_chart(plot, tmp_path)[1].read_text()
        assert all(series.name.split(",")[0] in drawn for series in plot.series)
    if name == "accuracy":
        check_accuracy(result)


def check_accuracy(result: dict[str, Any]) -> None:
    """The rate is that of the links: a worker's gradient cannot pass faster."""
    middle, hosts = ([run for run in result["runs"] if run["placement"] == each] for each in ("fabric", "hosts"))
    assert result["runs"] == middle + hosts
    runs = result["runs"]
    schemes = {"cnn": ("fp32", "thc", "thc-ps", "thc:bits=2"), "transformer": ("fp32", "thc")}
    assert [(run["model"], run["scheme"]) for run in hosts] == [(model, "thc:bits=2 at hosts") for model in schemes]
    ran = [(model, scheme) for model in schemes for scheme in schemes[model]]
    assert [(run["model"], run["scheme"]) for run in middle] == ran
    assert {run["bits_per_s"] for run in runs} == {200e6}
    for run in runs:
        elements = result["models"][run["model"]]["parameters"]
        sent = SENT_BITS[run["scheme"].removesuffix(" at hosts")]
        assert run["reduce_s"] > 0.8 * sent * elements / 200e6
        assert [step for step, *_ in run["points"]] == ([2, 4] if run["model"] == "cnn" else [2])
        assert all(seconds > 0 and MODELS[run["model"]].percent == (value <= 1) for _, seconds, value in run["points"])
    learned = {run["scheme"]: [point[2] for point in run["points"]] for run in middle[:4]}
    assert learned["thc"] == learned["thc-ps"]  # the same sums


def test_the_least_error_fits_the_bits_of_both_directions() -> None:
    def cell(method: str, up: float, down: float, nmse: float | None) -> dict[str, Any]:
        return {"vectors": "gaussian", "workers": 4, "method": method, "bits_up": up, "bits_down": down, "nmse": nmse}

    cells = [cell("narrow", 4, 4, 0.5), cell("down", 4, 8, 0.1), cell("up", 8, 4, 0.2), cell("none", 1, 1, None)]
    (row,) = error.least_error(cells).rows
    assert row == ["Gaussian", "narrow (0.50)", "narrow (0.50)", "down (0.10)", "down (0.10)"]


def test_the_sum_of_codes_decodes_to_the_mean_of_what_was_sent() -> None:
    assert error.homomorphic_error(3, 5000, workers=3) < 1e-12
