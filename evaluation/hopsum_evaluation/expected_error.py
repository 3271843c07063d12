# SPDX-License-Identifier: Apache-2.0
"""The expected error of `thc` and codecs like it for a given vector: from the formulas, sharing no code with them.

`hopsum.codec.lookup_table.expected_nmse` assumes coordinates with distribution N(0, 1). A block with few non-zero
elements is rotated into coordinates with lighter tails, and its error is smaller. Here the coordinates are those of
the vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024
"""Elements that are rotated together, with lanes of 8 bits."""


def expected_nmse_of(
    x: NDArray[np.float32],
    values: Sequence[int],
    bound: float,
    workers: int,
    rng: np.random.Generator,
    *,
    block: int = BLOCK,
    per_block: bool = True,
    rotations: int = 8,
) -> float:
    """Expected NMSE of the mean, E||mean' - x||^2 / ||x||^2, when all workers have x, over roundings and rotations.

    Args:
        x: float32[elements], finite and not zero.
        values: the table, non-negative integers: the first means -bound, the last +bound.
        bound: where coordinates are truncated, in units of the range.
        block: elements that are rotated together, a power of two.
        per_block: whether the range is the root mean square of each block, or of x.
        rotations: random rotations over which the mean is taken.
    """
    blocks = np.zeros((-(-x.size // block), block))
    blocks.reshape(-1)[: x.size] = x
    energy = np.square(blocks).sum(axis=1)
    ranges = np.sqrt(energy / block if per_block else np.full(len(blocks), energy.sum() / x.size))[:, None]
    # A block of zeros is sent as zeros.
    ranges[ranges == 0] = np.inf
    levels = -bound + 2 * bound * np.array(values) / values[-1]
    error = 0.0
    for _ in range(rotations):
        # Rotated in float64 by a plain transform, which shares no code with the kernels that it judges.
        coordinates = _rotate(blocks * rng.choice([-1.0, 1.0], blocks.shape))
        # Rounding is random, so its mean square is known without drawing. Only rotations are drawn.
        rounded, lost = _coordinate_errors(coordinates / ranges, levels)
        scale = np.where(np.isinf(ranges), 0.0, ranges)
        error += _within(rounded * np.square(scale), lost * scale, x.size, workers)
    return error / rotations / float(energy.sum())


def _within(rounded: NDArray[np.float64], lost: NDArray[np.float64], elements: int, workers: int) -> float:
    """Return the squared error of the vector's own elements, of which the last block may have few.

    What rounding adds to coordinates the inverse rotation spreads evenly over a block, and falls as 1/n. What
    truncation takes away it puts where it was, and stays.
    """
    # The last block is padded: errors on the padding are not counted.
    filled = (elements - 1) % rounded.shape[1] + 1
    total = float(rounded[:-1].sum() / workers + np.square(lost[:-1]).sum())
    spread = float(rounded[-1].sum()) * filled / rounded.shape[1] / workers
    kept = _rotate(lost[-1:])[0, :filled]
    return float(total + spread + np.square(kept).sum())


def _coordinate_errors(
    a: NDArray[np.float64], levels: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return of each coordinate the variance of its rounding, and what truncation takes away."""
    inside = np.clip(a, levels[0], levels[-1])
    upper = np.clip(np.searchsorted(levels, inside, side="left"), 1, len(levels) - 1)
    high, low = levels[upper], levels[upper - 1]
    return (high - inside) * (inside - low), a - inside


def _rotate(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return H v / sqrt(columns) for each row. H is its own inverse."""
    rows, columns = v.shape
    stride = 1
    while stride < columns:
        pair = v.reshape(rows, -1, 2, stride)
        v = np.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), axis=2).reshape(rows, columns)
        stride *= 2
    return np.asarray(v / np.sqrt(columns))
