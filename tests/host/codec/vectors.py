# SPDX-License-Identifier: Apache-2.0
"""Vectors and errors that several tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges
from hopsum.codec.range_codec import RangeCodec
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

Floats = NDArray[np.float32]


def normal(elements: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)


def layered(elements: int, seed: int = 1) -> Floats:
    """Heavy tails, and a scale that changes by six orders of magnitude along the vector."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(3, elements) * np.logspace(-3, 3, elements)).astype(np.float32)


def nmse(found: NDArray[Any], right: NDArray[Any]) -> float:
    error = found.astype(np.float64) - right
    return float(error @ error / (right.astype(np.float64) @ right))


def encode_alone(codec: RangeCodec, x: Floats, context: ReductionContext) -> tuple[NDArray[np.uint8], SharedRanges]:
    """Encode with the own ranges as shared ones."""
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32).copy())
    return codec.encode(x, own, shared, context), shared


def only(rank: int, chunks: int) -> NDArray[np.uint64]:
    return np.full(chunks, 1 << rank, np.uint64)


def means_and_residuals(codec: RangeCodec, vectors: list[Floats], seed: int) -> tuple[bytes, ...]:
    """Return the bytes of the one mean of all ranks, and of each rank's residual."""
    kept = [ErrorFeedback(x.size) for x in vectors]
    means = simulate_allreduce(codec, vectors, seed=seed, step=1, feedback=kept)
    assert means is not None
    assert len({mean.tobytes() for mean in means}) == 1
    return means[0].tobytes(), *(each.residual.tobytes() for each in kept)


def require_equal_backends(make: Callable[[str, int], RangeCodec], elements: int) -> None:
    """Hold numba, with one thread and with two, to numpy's bytes. `make` takes a backend and a number of threads."""
    pytest.importorskip("numba")
    vectors = [layered(elements, seed=rank) for rank in range(3)]
    ways = (("numpy", 1), ("numba", 1), ("numba", 2))
    assert len({means_and_residuals(make(*way), vectors, seed=5) for way in ways}) == 1


def require_equal_runs(make: Callable[[], RangeCodec], monkeypatch: pytest.MonkeyPatch) -> None:
    """Require bytes that do not depend on how many blocks are worked on at a time."""
    x, found = layered(9 * 1024 + 5), set()
    for blocks in (2, 4, 512):
        monkeypatch.setattr("hopsum.codec.thc._RUN_ELEMENTS", 1024 * blocks)
        found.add(means_and_residuals(make(), [x, -x[::-1].copy()], seed=1))
    assert len(found) == 1
