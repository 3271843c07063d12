# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench lossless` prints what it promises."""

from __future__ import annotations

import json

import pytest

from hopsum_cli.main import main

pytestmark = pytest.mark.system
SMALL = ["bench", "lossless", "--elements", "100000", "--runs", "2", "--threads", "1", "2", "--index", "bitmap"]


def test_json_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["gamma"], row["threads"]) for row in report["settings"]] == [(1.25, 1), (1.25, 2), (0, 1), (0, 2)]
    for row in report["settings"]:
        for key in ("encode_elements_per_s", "all_elements_per_s"):
            assert 0 < row[f"{key}_min"] <= row[key] <= row[f"{key}_max"]
        lanes = row["gamma"] or 1
        assert row["lanes_per_nonzero"] == pytest.approx(lanes, rel=0.1)
        assert row["index_bytes"] == 13 * 1024
        assert row["bytes_of_dense"] == pytest.approx((row["index_bytes"] + row["sums_bytes"]) / 400_000, abs=1e-5)
        assert 0 < row["memory_of_dense"] < 2
    assert {"machine", "versions", "commit", "seed", "elements", "nonzero"} <= set(report)


def test_table_names_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("gamma=1.25, 2 threads", "gamma=0, 1 thread", "encode", "bytes", "memory"))


@pytest.mark.parametrize("wrong", [["--density", "0"], ["--elements", "0"], ["--index", "trie"], ["--threads", "0"]])
def test_wrong_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "lossless", *wrong])
    assert "usage:" in capsys.readouterr().err
