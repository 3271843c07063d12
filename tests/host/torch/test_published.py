# SPDX-License-Identifier: Apache-2.0
"""The transcription of the published worker does what its description promises."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hopsum.codec.lookup_table import LookupTable, expected_nmse
from hopsum_evaluation.torch.published import BLOCK, STAGES, TABLE, TRUNCATED, PublishedWorker

pytestmark = pytest.mark.system
ELEMENTS = 64 * BLOCK


def gaussian(seed: int, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def delivered(worker: PublishedWorker, x: torch.Tensor, **options: bool) -> torch.Tensor:
    sent = worker.encode(x, **options)
    return worker.decode(worker.lookup(sent.codes), 1, sent.max_norm)


def nmse(found: torch.Tensor, x: torch.Tensor) -> float:
    return float((found.double() - x.double()).square().sum() / x.double().square().sum())


def test_error_is_what_theory_says_of_the_default_table() -> None:
    table = LookupTable(TABLE, TRUNCATED)
    x = gaussian(1)
    worker = PublishedWorker(ELEMENTS)
    single = [nmse(delivered(worker, x), x) for _ in range(4)]
    # theory's grid is exact, the published one has 1001 points: delta^2/6 more, 3e-6
    assert sum(single) / 4 == pytest.approx(expected_nmse(table, 1), rel=0.03)
    crew = [PublishedWorker(ELEMENTS, seed=rank) for rank in range(8)]
    sent = [worker.encode(x) for worker in crew]
    total = torch.stack([worker.lookup(each.codes) for worker, each in zip(crew, sent, strict=True)]).sum(0)
    assert total.max() <= 8 * TABLE[-1]
    assert nmse(crew[0].decode(total, 8, sent[0].max_norm), x) == pytest.approx(expected_nmse(table, 8), rel=0.03)


def test_unbiased_where_nothing_is_clamped() -> None:
    runs, x = 400, gaussian(2, BLOCK)
    worker = PublishedWorker(BLOCK, truncated=1e-6)
    found = torch.stack([delivered(worker, x) for _ in range(runs)]).double()
    standard_errors = (found.mean(0) - x) / (found.std(0) / runs**0.5)
    assert float(standard_errors.abs().max()) < 5  # of 1024: beyond 5 once in 1700 seeds
    assert float(standard_errors.square().mean()) == pytest.approx(1, abs=0.2)


def test_error_feedback_keeps_exactly_what_was_lost() -> None:
    worker = PublishedWorker(ELEMENTS)
    gradients = [gaussian(seed) for seed in (3, 4, 5)]
    arrived = sum(delivered(worker, each, feedback=True).double() for each in gradients)
    missing = sum(each.double() for each in gradients) - arrived - worker.error.double()
    assert float(missing.abs().max()) < 1e-5
    before = worker.error.clone()
    worker.encode(gradients[0])
    assert torch.equal(worker.error, before)


def test_rotation_is_its_own_inverse_and_mixes_blocks_only() -> None:
    worker = PublishedWorker(2 * BLOCK)
    one = torch.zeros(2 * BLOCK)
    one[5] = 1.0
    rotated = worker._rotate(one.clone())
    assert float(rotated[:BLOCK].abs().min()) == pytest.approx(2 ** (-STAGES / 2))
    assert not rotated[BLOCK:].any()
    assert torch.allclose(worker._rotate(rotated), one, atol=1e-6)


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="1000 elements: a multiple of 1024"):
        PublishedWorker(1000)


def test_module_serves_actions_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hopsum_evaluation.torch.published", "--elements", "2048"],
        input="encode\nencode_feedback\ndecode\n", capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"] * 3
