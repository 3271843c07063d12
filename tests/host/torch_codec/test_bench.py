# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs on any machine, says what it measured on, and measures nothing that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hopsum.torch.codec import TorchThc
from hopsum_evaluation.torch import bench

pytestmark = pytest.mark.system
SMALL = ["--device", "cpu", "--elements", "4096", "--runs", "5"]


def test_json_has_every_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(SMALL) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["elements"], report["backend"], report["runs"]) == (4096, "torch", 5)
    assert set(report["phases"]) >= {"kernel encode", "kernel decode", "codec with error feedback"}
    for phase in report["phases"].values():
        assert 0 < phase["elements_per_s_min"] <= phase["elements_per_s"] <= phase["elements_per_s_max"]
        assert phase["share_of_copy"] == pytest.approx(phase["bytes_per_s"] / phase["copy_bytes_per_s"])
    assert [each["elements"] for each in report["all_reduces"]] == [4096]
    for each in report["all_reduces"]:
        assert 0 < each["s_min"] <= each["s"] <= each["s_max"]
        # codes and results: 1 byte an element; ranges, contributors, samples and flags in addition
        assert 1.0 * 4096 < each["bus_bytes_per_s"] * each["s"] < 1.1 * 4096


def test_a_codec_whose_sample_differs_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode = TorchThc.encode_blocks

    def wrong(*arguments: Any) -> None:
        encode(*arguments)
        arguments[-1][0, 100] ^= 1

    monkeypatch.setattr(TorchThc, "encode_blocks", wrong)
    assert bench.main(SMALL) == 1
    assert "differs from numpy's" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--runs", "4"], ["--elements", "1000"], ["--workers", "300"], ["--codec-backend", "no"]]
)
def test_options_that_cannot_be(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main([*SMALL, *options])
    assert capsys.readouterr().err.startswith("usage: python -m hopsum_evaluation.torch.bench")
