# SPDX-License-Identifier: Apache-2.0
"""Vectors and errors that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ReductionContext, SharedRanges
from hopsum.codec.range_codec import RangeCodec

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
