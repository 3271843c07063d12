# SPDX-License-Identifier: Apache-2.0
"""Supports, sparse vectors and kernels that the tests of `lossless` use."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec.lossless.sketch_kernels import SketchKernels
from hopsum.codec.lossless.sketch_plan import BLOCK_ELEMENTS

Floats = NDArray[np.float32]
Members = NDArray[np.uint32]


def sketch_kernels(backend: str) -> SketchKernels:
    if backend == "numpy":
        return SketchKernels()
    pytest.importorskip("numba")
    from hopsum.codec.lossless.sketch_numba import NumbaSketch

    return NumbaSketch()


def sparse(elements: int, density: float, seed: int = 1) -> Floats:
    """Normal values where a coin says so, over six orders of magnitude along the vector."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(elements) * np.logspace(-3, 3, elements)
    return np.where(rng.random(elements) < density, values, 0).astype(np.float32)


def random_members(elements: int, density: float, seed: int = 1) -> Members:
    return np.flatnonzero(np.random.default_rng(seed).random(elements) < density).astype(np.uint32)


def dense_blocks(blocks: int, among: int) -> Members:
    """All elements of some blocks, none of the others."""
    chosen = np.sort(np.random.default_rng(1).choice(among, blocks, replace=False))
    return (chosen[:, None] * BLOCK_ELEMENTS + np.arange(BLOCK_ELEMENTS)).reshape(-1).astype(np.uint32)


def one_column(blocks: int) -> Members:
    """The same place of every block."""
    return (np.arange(blocks) * BLOCK_ELEMENTS + 5).astype(np.uint32)
