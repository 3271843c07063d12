# SPDX-License-Identifier: Apache-2.0
"""The peeling of two sketches: ours, and the published layout, where whole rows of blocks share three rows of cells."""

from __future__ import annotations

from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.lossless.reference import NumpySketch
from hopsum.codec.lossless.sizing import unpeeled

THRESHOLD: Final = 1.222
"""Cells per edge of a large random hypergraph, three cells an edge, above which it peels."""
_HASHES: Final = 3


def our_share_left(members: int, gamma: float, density: float, rng: np.random.Generator) -> float:
    """Return the share of members, at random places of a vector, that do not peel in gamma cells each."""
    places = _places(members, density, rng)
    left = unpeeled(NumpySketch(), places, gamma, key=int(rng.integers(1 << 62)))
    return left / members


def our_threshold(members: int, density: float, rng: np.random.Generator, step: float = 0.005) -> float:
    """Return the least gamma, in steps, at which a sketch of these members peels, found by bisection."""
    places, kernels, key = _places(members, density, rng), NumpySketch(), int(rng.integers(1 << 62))
    low, high = round(1.0 / step), round(1.6 / step)
    while high - low > 1:
        middle = (low + high) // 2
        left = unpeeled(kernels, places, middle * step, key=key)
        low, high = (low, middle) if left == 0 else (middle, high)
    return high * step


def published_columns(blocks: int, gamma: float, density: float, columns: int, rng: np.random.Generator) -> float:
    """Return the share of columns that peel wholly in the published layout.

    A block lies in three rows of one table, drawn independently, so that two may be the same. Every column has an
    edge for each block that is not zero there. Rows follow from the non-zero elements on average.
    """
    rows = max(_HASHES, ceil(gamma * density * blocks))
    where = rng.integers(0, rows, (blocks, _HASHES))
    return float(np.mean([peels(where[rng.random(blocks) < density], rows) for _ in range(columns)]))


def peels(edges: NDArray[np.int64], cells: int) -> bool:
    """Return whether edges, int64[edges, 3], peel: again and again, those that are alone in a cell go."""
    left = edges
    while len(left):
        alone = np.bincount(left.ravel(), minlength=cells) == 1
        free = alone[left].any(axis=1)
        if not free.any():
            return False
        left = left[~free]
    return True


def _places(members: int, density: float, rng: np.random.Generator) -> NDArray[np.uint32]:
    found = rng.choice(ceil(members / density), members, replace=False)
    return np.sort(found).astype(np.uint32)
