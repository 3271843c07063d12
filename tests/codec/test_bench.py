# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench codec` prints what it promises."""

from __future__ import annotations

import json

import pytest

from hopsum.cli.bench import main

RATES = ("encode_elements_per_s", "decode_elements_per_s", "contribution_elements_per_s")


def test_json_has_every_codec_and_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codec", "--json", "--scale", "0.004", "--runs", "5", "--workers", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {(row["codec"], row["backend"]): row for row in report["codecs"]}
    assert {("thc", "numpy"), ("fixed", "numpy")} <= set(rows)
    for row in rows.values():
        for rate in RATES:
            assert 0 < row[f"{rate}_min"] <= row[rate] <= row[f"{rate}_max"]
    assert rows["thc", "numpy"]["nmse"] == pytest.approx(rows["thc", "numpy"]["nmse_expected"], rel=0.1)
    assert rows["fixed", "numpy"]["nmse"] < 1e-14
    assert report["memcpy_elements_per_s_min"] <= report["memcpy_elements_per_s"]
    assert {"machine", "versions", "commit", "seed", "elements", "workers", "runs"} <= set(report)


def test_table_names_codecs_and_memcpy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codec", "--scale", "0.001", "--runs", "5"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("thc numpy", "fixed numpy", "memcpy", "encode", "decode"))


@pytest.mark.parametrize("arguments", [["--runs", "4"], ["--scale", "0"], ["--workers", "18"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["codec", *arguments])
    assert "hopsum bench codec: error" in capsys.readouterr().err
