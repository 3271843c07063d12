# SPDX-License-Identifier: Apache-2.0
"""The expected error of a given vector, against the general formula and against the codec itself."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.codec import make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum_evaluation.expected_error import expected_nmse_of, expected_normal_nmse
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

pytestmark = pytest.mark.system
WORKERS = 4
DITHERED = ("thc", "thc:bits=3", "thc:bits=2", "thc:bits=2,error_feedback=true", "thc:result_bits=8")


def made(codec: str, workers: int = WORKERS) -> LookupTableCodec:
    found = make_codec(codec, workers=workers, backend="numpy")
    assert isinstance(found, LookupTableCodec)
    return found


def test_normal_coordinates_give_the_general_formula() -> None:
    x = np.random.default_rng(1).standard_normal(1 << 18, dtype=np.float32)
    codec = made("thc:rounding=stochastic")
    found = expected_nmse_of(x, codec, np.random.default_rng(2), rotations=2)
    assert found == pytest.approx(expected_nmse(codec.table, WORKERS), rel=0.02)
    assert expected_normal_nmse(codec) == expected_nmse(codec.table, WORKERS)


@pytest.mark.parametrize("codec", DITHERED)
@pytest.mark.parametrize("workers", [1, 3, 8, 17])
def test_a_normal_vector_gives_the_error_of_a_normal_distribution(codec: str, workers: int) -> None:
    x = np.random.default_rng(1).standard_normal(1 << 17, dtype=np.float32)
    found = expected_nmse_of(x, made(codec, workers), np.random.default_rng(2), rotations=1)
    assert found == pytest.approx(expected_normal_nmse(made(codec, workers)), rel=0.02)


@pytest.mark.parametrize("spelled", ["thc:rounding=stochastic", *DITHERED])
@pytest.mark.parametrize("nonzero", [1, 3, 40, 1024])
def test_sparse_blocks_have_the_error_that_is_measured(nonzero: int, spelled: str) -> None:
    """Few elements rotate into few distinct coordinates, far from a normal distribution."""
    rng = np.random.default_rng(nonzero)
    blocks = np.zeros((300, 1024), np.float32)
    for block in blocks:
        block[rng.choice(1024, nonzero, replace=False)] = rng.standard_normal(nonzero)
    x = blocks.reshape(-1)[: 300 * 1024 - 500]  # the last block is not whole
    codec = made(spelled)
    expected = expected_nmse_of(x, codec, np.random.default_rng(5))
    energy = float(np.square(x, dtype=np.float64).sum())
    errors = []
    for step in range(8):
        means = simulate_allreduce(codec, [x] * WORKERS, seed=3, step=step)
        assert means is not None
        errors.append(float(np.square(means[0] - x, dtype=np.float64).sum()) / energy)
    assert np.mean(errors) == pytest.approx(expected, rel=0.05)
