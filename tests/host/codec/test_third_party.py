# SPDX-License-Identifier: Apache-2.0
"""Tests of the codec in `examples`: hopsum finds it by its entry point, as docs/codecs.md says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hopsum
from hopsum.codec import CODECS, Codec, make_codec
from hopsum.codec.interface import ErrorFeedback, ReductionContext
from hopsum.codec.simulate import simulate_switch
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

from .vectors import Floats, normal

ROOT = Path(__file__).resolve().parents[3]
WORKERS = 8
ELEMENTS = 5 * 512 + 7


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the example as pip would: its module, and the entry point that the page shows."""
    page = (ROOT / "docs" / "codecs.md").read_text(encoding="utf-8")
    line = 'int16 = "int16_codec:Int16"'
    assert f'[project.entry-points."hopsum.codecs"]\n{line}\n' in page
    info = tmp_path / "int16_codec-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: int16-codec\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hopsum.codecs]\n{line.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield
    CODECS.pop("int16", None)


def vectors() -> list[Floats]:
    return [normal(ELEMENTS) * np.float32(rank + 1) for rank in range(WORKERS)]


def unit(codec: Codec, inputs: list[Floats]) -> float:
    """Return the largest distance between two levels."""
    return float(max(np.abs(x).max() for x in inputs)) / (0xFFFF // codec.workers // 2)


def test_its_mean_is_numpys_to_half_a_level() -> None:
    codec, inputs = make_codec("int16", workers=WORKERS), vectors()
    means = simulate_allreduce(codec, inputs, seed=3, step=1)
    assert means is not None
    assert all(mean.tobytes() == means[0].tobytes() for mean in means)
    error = np.abs(means[0] - np.mean(inputs, axis=0, dtype=np.float64)).max()
    assert 0 < error <= 0.51 * unit(codec, inputs)


def test_a_vector_is_what_was_sent_and_its_residual() -> None:
    codec, x = make_codec("int16", workers=1), vectors()[0]
    kept = ErrorFeedback(x.size)
    reduction = codec.start(x, ReductionContext(3, 1, 0), kept)
    while (phase := reduction.phase) is not None:
        results, contributors = simulate_switch(phase.op, [phase.payloads])
        reduction.on_results(results, contributors)
    assert reduction.mean is not None
    np.testing.assert_allclose(reduction.mean + kept.residual, x, rtol=0, atol=1e-6)
    assert np.abs(kept.residual).max() > 0


def test_workers_connect_with_it() -> None:
    def work(rank: int) -> Floats:
        with hopsum.connect("memory://int16?workers=2", rank=rank, codec="int16") as comm:
            mean: Floats = hopsum.allreduce(np.full(600, rank, np.float32), comm, op="mean")
            return mean

    with ThreadPoolExecutor(2) as pool:
        means = list(pool.map(work, range(2)))
    assert means[0].tobytes() == means[1].tobytes()
    np.testing.assert_allclose(means[0], 0.5, atol=1e-4)
