# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/codecs.md are measured here; the codec's benchmark; and the memory that an all-reduce needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges, make_codec
from hopsum.codec.lookup_table import LookupTable, best_table, expected_nmse
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import LookupTableCodec
from hopsum_cli.main import main
from hopsum_evaluation.bench.timing import one_core
from hopsum_wire import Op
from hopsum_wire.payload import up_bytes

from .vectors import normal

pytestmark = pytest.mark.system
DOCS = Path(__file__).resolve().parents[3] / "docs" / "codecs.md"
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {"rounding": "stochastic"}),
    ("thc", {"rounding": "stochastic", "lane_bits": 16}),
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


def figures(table: LookupTable, workers: int) -> list[str]:
    return [str(table.granularity), f"{1 / table.truncated:.0f}", f"{expected_nmse(table, workers):.5f}"]


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 12, 16])
def test_default_tables(workers: int) -> None:
    plain, kept = (best_table(workers, error_feedback=kept) for kept in (False, True))
    require_row([str(workers), *figures(plain, workers), *figures(kept, 1)])


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


ELEMENTS = (1 << 20) + 5
CODECS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"bits": 2}),
    ("thc", {"result_bits": 8}),
    ("thc", {"rounding": "stochastic"}),
    ("thc", {"rounding": "stochastic", "lane_bits": 16}),
    ("uhc", {"bits": 8}),
    ("fixed", {}),
]


def beyond_output(work: Callable[[], np.ndarray | None]) -> float:
    """Return the most memory that work had at any time, less what it returned, in vectors."""
    tracemalloc.start()
    try:
        result = work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - (0 if result is None else result.nbytes)) / (4 * ELEMENTS)


@pytest.mark.parametrize(("name", "options"), CODECS)
def test_every_phase_needs_little_beyond_input_and_output(name: str, options: dict[str, Any], backend: str) -> None:
    codec = make_codec(name, workers=2, backend=backend, **options)
    assert isinstance(codec, RangeCodec)
    x, context = normal(ELEMENTS), ReductionContext(1, 1, 0)
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32).copy())
    payloads = codec.encode(x, own, shared, context)
    results, everybody = simulate_switch(codec.op, [payloads], codec.lookup)
    tail = 4 * 1024 / ELEMENTS
    used = {
        "ranges": beyond_output(lambda: codec.ranges(x)),
        "encode": beyond_output(lambda: codec.encode(x, own, shared, context)),
        "decode": beyond_output(lambda: codec.decode(results, everybody, shared, x.size, context)),
        "contribution": beyond_output(lambda: codec.dequantize_own(payloads, shared, x.size, context)),
        "subtract_dequantized": beyond_output(lambda: codec.subtract_dequantized(x, payloads, shared, context)),
    }
    assert max(used.values()) < (1.2 if name == "fixed" else 0.4) + tail, used


@pytest.mark.parametrize(("name", "options"), CODECS)
def test_an_all_reduce_with_error_feedback_needs_less_than_three_vectors(
    name: str, options: dict[str, Any], backend: str
) -> None:
    """One of them is the feedback's second vector. Besides them there are the residual, payloads and the mean."""
    codec = make_codec(name, workers=2, backend=backend, **options)
    assert isinstance(codec, RangeCodec)
    x, feedback, context = normal(ELEMENTS), ErrorFeedback(ELEMENTS), ReductionContext(1, 1, 0)
    given: list[tuple[np.ndarray, np.ndarray]] = []
    practice = codec.start(x, context)
    while (phase := practice.phase) is not None:
        given.append(simulate_switch(phase.op, [phase.payloads], codec.lookup))
        practice.on_results(*given[-1])
    payload_bytes = len(given[1][0]) * up_bytes(codec.op)

    def all_reduce() -> np.ndarray | None:
        reduction = codec.start(x, context, feedback)
        for results, contributors in given:
            reduction.on_results(results, contributors)
        return reduction.mean

    assert beyond_output(all_reduce) - payload_bytes / (4 * ELEMENTS) < 3


def test_error_feedbacks_of_one_length_share_the_second_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight in turn have nine vectors, and give all of them back at the end."""
    # Objects of other tests that are not collected yet hold this process's spare arrays.
    monkeypatch.setattr("hopsum_base.spare_arrays._SHARED", weakref.WeakValueDictionary())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        feedbacks = [ErrorFeedback(ELEMENTS) for _ in range(8)]
        for _ in range(3):
            for feedback in feedbacks:
                feedback.compensate(np.ones(ELEMENTS, np.float32))
                feedback.commit(None)
        _, peak = tracemalloc.get_traced_memory()
        assert [int(each.residual[0]) for each in feedbacks] == [3] * 8
        assert (peak - before) / (4 * ELEMENTS) == pytest.approx(10, abs=0.1)  # and the ones
        del feedbacks, feedback
        after, _ = tracemalloc.get_traced_memory()
        assert (after - before) / (4 * ELEMENTS) == pytest.approx(0, abs=0.1)
    finally:
        tracemalloc.stop()
