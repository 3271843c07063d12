# SPDX-License-Identifier: Apache-2.0
"""Vectors, and what many runs of an estimator show."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_evaluation.baselines.estimator_interface import Estimator, estimate_mean

Floats = NDArray[np.float32]


def gaussian(elements: int, workers: int, seed: int = 1) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(elements, dtype=np.float32) for _ in range(workers)]


def heavy(elements: int, workers: int, seed: int = 1) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.standard_t(2, elements).astype(np.float32) for _ in range(workers)]


def spike(elements: int, workers: int, seed: int = 1) -> list[Floats]:
    """One huge coordinate over small ones, another one for each worker."""
    vectors = [x * np.float32(0.01) for x in gaussian(elements, workers, seed)]
    for rank, x in enumerate(vectors):
        x[7 * rank % elements] = 100
    return vectors


def pair(elements: int, workers: int, seed: int = 1) -> list[Floats]:
    """+1, -1 and zeros: the worst case of `sb` and of `sk` with even k, where zero lies half way between levels."""
    vectors = [np.zeros(elements, np.float32) for _ in range(workers)]
    for rank, x in enumerate(vectors):
        x[rank], x[-1 - rank] = 1, -1
    return vectors


VECTORS = {"gaussian": gaussian, "heavy": heavy, "spike": spike, "pair": pair}


class Measured(NamedTuple):
    """Means over steps, with the standard error of the first one."""

    mse: float
    standard_error: float
    bits: float
    """Of one worker."""


def measure(estimator: Estimator, vectors: list[Floats], steps: int, seed: int = 1) -> Measured:
    right = np.mean(vectors, axis=0, dtype=np.float64)
    errors, bits = np.empty(steps), 0
    for step in range(steps):
        mean, cost = estimate_mean(estimator, vectors, seed, step)
        errors[step] = np.square(mean - right).sum()
        bits += cost
    deviation = float(errors.std(ddof=1) / np.sqrt(steps))
    return Measured(float(errors.mean()), deviation, bits / steps / len(vectors))


def grid_mse(vectors: list[Floats], lows: list[float], widths: list[float], levels: int) -> float:
    """1/n^2 of the variances of unbiased rounding to equidistant levels, from the formula alone."""
    total = 0.0
    for x, low, width in zip(vectors, lows, widths, strict=True):
        place = (x.astype(np.float64) - low) / width * (levels - 1)
        part = place - np.floor(place)
        total += float((part * (1 - part)).sum()) * (width / (levels - 1)) ** 2
    return total / len(vectors) ** 2
