# SPDX-License-Identifier: Apache-2.0
"""The figures in docs/codecs.md are what is measured here, and `hopsum bench codec` prints what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsum.codec import make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum_cli.main import main
from hopsum_evaluation.bench.timing import one_core
from hopsum_wire import Op

pytestmark = pytest.mark.system
DOCS = Path(__file__).resolve().parents[3] / "docs" / "codecs.md"
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"lane_bits": 16}),
    ("uhc", {"bits": 2}),
    ("uhc", {"bits": 4}),
    ("uhc", {"bits": 6}),
    ("uhc", {"bits": 8}),
]


@pytest.mark.parametrize("workers", [1, 8, 17, 32, 64])
def test_expected_errors(workers: int) -> None:
    cells = []
    for name, options in KINDS:
        codec = make_codec(name, workers=workers, backend="numpy", **options)
        assert isinstance(codec, LookupTableCodec)
        lanes = {Op.LOOKUP_ADD8: "8", Op.ADD8: "8", Op.LOOKUP_ADD16: "16", Op.ADD16: "16"}[codec.op]
        cells.append(f"{expected_nmse(codec.table, workers):.1e} ({codec.table.bits}, {lanes})")
    require_row([str(workers), *cells])


def require_row(cells: list[str]) -> None:
    row = f"| {' | '.join(cells)} |"
    assert row in DOCS.read_text(encoding="utf-8").splitlines(), row


ACTIONS = ("encode", "decode", "contribution", "encode_feedback", "residual_read", "residual_write")


def test_json_has_every_codec_and_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codec", "--json", "--scale", "0.004", "--runs", "5", "--workers", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {(row["codec"], row["backend"]): row for row in report["codecs"]}
    assert {("thc", "numpy"), ("fixed", "numpy")} <= set(rows)
    for row in rows.values():
        for rate in (f"{action}_elements_per_s" for action in ACTIONS):
            assert 0 < row[f"{rate}_min"] <= row[rate] <= row[f"{rate}_max"]
        assert row["encode_bytes_per_s"] == pytest.approx(
            row["encode_elements_per_s"] * row["encode_bytes_per_element"], rel=1e-4
        )
    assert rows["thc", "numpy"]["encode_bytes_per_element"] == 4 + 0.5
    assert rows["fixed", "numpy"]["decode_bytes_per_element"] == 8
    assert rows["thc", "numpy"]["nmse"] == pytest.approx(rows["thc", "numpy"]["nmse_expected"], rel=0.1)
    assert rows["uhc", "numpy"]["nmse"] == pytest.approx(rows["uhc", "numpy"]["nmse_expected"], rel=0.1)
    assert rows["fixed", "numpy"]["nmse"] < 1e-14
    for row in report["threads"]:
        assert row["threads"] == 2
        alone = row["encode_one_thread_by_core"]
        assert len(alone) == 2
        assert row["encode_of_one_thread"] == pytest.approx(2 * row["encode_elements_per_s"] / sum(alone), rel=1e-2)
    lossless = report["lossless"]
    assert lossless["bytes_formula"] == pytest.approx(1.25 * 0.05 + 1 / 32, rel=1e-3)
    assert lossless["bytes_of_formula"] == pytest.approx(1, abs=0.15)
    assert 0 < lossless["all_elements_per_s_min"] <= lossless["all_elements_per_s"]
    assert report["memcpy_elements_per_s_min"] <= report["memcpy_elements_per_s"]
    assert {"machine", "versions", "commit", "seed", "elements", "workers", "runs"} <= set(report)


def test_table_names_codecs_and_memcpy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codec", "--scale", "0.001", "--runs", "5"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("thc numpy", "fixed numpy", "memcpy", "encode", "decode"))


def test_one_core_is_held_for_the_block_only() -> None:
    before = os.sched_getaffinity(0)
    with one_core() as core:
        assert os.sched_getaffinity(0) == {core} <= before
        inherited = subprocess.run(
            [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"], capture_output=True, check=True
        )
        assert inherited.stdout.split() == [str(core).encode()]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("arguments", [["--runs", "4"], ["--scale", "0"], ["--workers", "65"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "codec", *arguments])
    assert "hopsum bench codec: error" in capsys.readouterr().err
