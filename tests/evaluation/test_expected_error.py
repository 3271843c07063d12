# SPDX-License-Identifier: Apache-2.0
"""The expected error of a given vector, against the general formula and against the codec itself."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.codec import best_table, make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum_evaluation.expected_error import expected_nmse_of
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

pytestmark = pytest.mark.system
WORKERS = 4


def test_normal_coordinates_give_the_general_formula() -> None:
    x = np.random.default_rng(1).standard_normal(1 << 18, dtype=np.float32)
    table = best_table(WORKERS)
    found = expected_nmse_of(x, table.values, table.bound, WORKERS, np.random.default_rng(2), rotations=2)
    assert found == pytest.approx(expected_nmse(table, WORKERS), rel=0.02)


@pytest.mark.parametrize("nonzero", [1, 3, 40, 1024])
def test_sparse_blocks_have_the_error_that_is_measured(nonzero: int) -> None:
    """Few elements rotate into few distinct coordinates, far from a normal distribution."""
    rng = np.random.default_rng(nonzero)
    blocks = np.zeros((300, 1024), np.float32)
    for block in blocks:
        block[rng.choice(1024, nonzero, replace=False)] = rng.standard_normal(nonzero)
    x = blocks.reshape(-1)[: 300 * 1024 - 500]  # the last block is not whole
    table = best_table(WORKERS)
    codec = make_codec("thc", workers=WORKERS, backend="numpy")
    expected = expected_nmse_of(x, table.values, table.bound, WORKERS, np.random.default_rng(5))
    energy = float(np.square(x, dtype=np.float64).sum())
    errors = []
    for step in range(8):
        means = simulate_allreduce(codec, [x] * WORKERS, seed=3, step=step)
        assert means is not None
        errors.append(float(np.square(means[0] - x, dtype=np.float64).sum()) / energy)
    assert np.mean(errors) == pytest.approx(expected, rel=0.05)
