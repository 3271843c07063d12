# SPDX-License-Identifier: Apache-2.0
"""Every section at its smallest, through JSON and back; what switches and codecs must show even so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from hopsum_evaluation.charts import write_chart
from hopsum_evaluation.experiment import Settings, Size
from hopsum_evaluation.report import error, links
from hopsum_evaluation.report.reporting import SECTIONS
from hopsum_evaluation.training import accuracy

pytestmark = pytest.mark.system
LONG = pytest.mark.long
SETTINGS = Settings(2, Size.SMALL)
SENT_BITS = {
    "fp32": 48,
    "fp16": 24,
    "two-shot:bits=4": 6,
    "two-shot:bits=8": 12,
    "thc": 4,
    "thc:bits=3": 3,
    "thc:bits=2": 2,
}
"""Of an element, at a worker of four, in the direction that has most of them."""


@pytest.mark.parametrize("name", [pytest.param(each, marks=LONG if each == "links" else ()) for each in SECTIONS])
def test_a_section_shows_what_it_ran(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = SECTIONS[name][1]
    told: list[float] = []
    if name == "links" and (reason := accuracy.trainings_unavailable()):
        pytest.skip(reason)
    settings = replace(SETTINGS, folder=tmp_path)
    result = json.loads(json.dumps(section.run(settings, lambda done, _: told.append(done))))
    assert told == sorted(told)
    assert 0 <= told[0] <= told[-1] <= 1
    part = section.make_view(result)
    assert all(part.samples.get(claim.name) or claim.name in part.reasons for claim in section.CLAIMS)
    assert set(part.samples) <= {claim.name for claim in section.CLAIMS}
    for table in part.tables:
        assert {len(row) for row in table.rows} == {len(table.heads)}
    assert len({plot.name for plot in part.plots}) == len(part.plots)
    for plot in part.plots:
        drawn = write_chart(plot, tmp_path)[1].read_text()
        assert all(series.name.split(",")[0] in drawn for series in plot.series)
    if name == "links":
        check_links(result)
        # Nothing is measured again from the files of these arguments, whatever the source tree has become meanwhile.
        monkeypatch.setattr(links, "source_commit", lambda: ANY)
        monkeypatch.setattr(links, "measure_apart", None)
        assert section.run(settings, lambda *_: None) == result


def check_links(result: dict[str, Any]) -> None:
    """The rate is that of the links: a worker's gradient cannot pass faster."""
    cases = [(each["benchmark"], each.get("placement")) for each in result["documents"]]
    places = ("fabric", "hosts")
    assert cases == [
        ("plan", None),
        *(("allreduce", each) for each in places),
        *(("accuracy", each) for each in places),
    ]
    for document in result["documents"][3:]:
        for run in document["runs"]:
            assert run["reduce_s"] is None or run["reduce_s"] > 0.8 * SENT_BITS[run["scheme"]] * 1e6 / 200e6
    learned = [{run["scheme"]: [point[2] for point in run["points"]] for run in result["documents"][number]["runs"]}
               for number in (3, 4)]  # fmt: skip
    assert learned[0]["thc"] == learned[1]["thc"]  # the same sums, wherever they are added


def test_the_least_error_fits_the_bits_of_both_directions() -> None:
    def cell(method: str, up: float, down: float, nmse: float | None) -> dict[str, Any]:
        return {"vectors": "gaussian", "workers": 4, "method": method, "bits_up": up, "bits_down": down, "nmse": nmse}

    cells = [cell("narrow", 4, 4, 0.5), cell("down", 4, 8, 0.1), cell("up", 8, 4, 0.2), cell("none", 1, 1, None)]
    (row,) = error.least_error_table(cells).rows
    assert row == ["Gaussian", "-", "-", "narrow (0.50)", "narrow (0.50)", "down (0.10)", "down (0.10)"]


def test_the_sum_of_codes_decodes_to_the_mean_of_what_was_sent() -> None:
    assert error.homomorphic_error(3, 5000, workers=3) < 1e-12
