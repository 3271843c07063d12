# SPDX-License-Identifier: Apache-2.0
"""What error theory expects of `thc` for a given vector: written from the formulas, sharing no code with the codec.

`table.expected_nmse` assumes coordinates with distribution N(0, 1). A block with few non-zero elements is rotated
into coordinates with lighter tails, and its error is smaller; here the coordinates are those of the vector.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.table import LookupTable

BLOCK = 1024
"""Elements that are rotated together."""


def expected_nmse_of(
    x: NDArray[np.float32], table: LookupTable, workers: int, rng: np.random.Generator, rotations: int = 8
) -> float:
    """Return E||mean' - x||^2 / ||x||^2 when all workers have x, over roundings and a few random rotations.

    Args:
        x: float32[elements], finite and not zero.
    """
    blocks = np.zeros((-(-x.size // BLOCK), BLOCK))
    blocks.reshape(-1)[: x.size] = x
    energy = np.square(blocks).sum(axis=1)
    counted = np.full(len(blocks), 1.0)
    counted[-1] = (x.size - 1) % BLOCK / BLOCK + 1 / BLOCK  # of an error that the rotation spreads over the block
    used = energy > 0
    range_ = np.sqrt(energy[used] / BLOCK)[:, None]
    error = np.zeros(int(used.sum()))
    for _ in range(rotations):
        signs = rng.choice([-1.0, 1.0], (len(error), BLOCK))
        error += _coordinate_errors(_rotate(blocks[used] * signs) / range_, table, workers).mean(axis=1)
    return float((error / rotations * energy[used] * counted[used]).sum() / energy.sum())


def _coordinate_errors(a: NDArray[np.float64], table: LookupTable, workers: int) -> NDArray[np.float64]:
    """Return the expected squared error of each coordinate: rounding falls as 1/n, truncation stays."""
    bound = table.bound
    values = -bound + 2 * bound * np.array(table.values) / table.granularity
    inside = np.clip(a, -bound, bound)
    upper = np.clip(np.searchsorted(values, inside, side="left"), 1, len(values) - 1)
    high, low = values[upper], values[upper - 1]
    return (high - inside) * (inside - low) / workers + np.square(a - inside)


def _rotate(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return H v / sqrt(1024) for each row."""
    stride = 1
    while stride < BLOCK:
        pair = v.reshape(len(v), -1, 2, stride)
        v = np.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), axis=2).reshape(len(v), BLOCK)
        stride *= 2
    return np.asarray(v / np.sqrt(BLOCK))
