# SPDX-License-Identifier: Apache-2.0
"""Distributed k-means and power iteration, where the server only ever has estimated means (Suresh et al. 2017).

Clients hold equal shares of the data, in random order. k-means: a client sends, for every centre, the sum of its points
that are nearest to it, and exact counts. Power iteration: a client sends its covariance times the vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum_evaluation.compare.methods import MeanMethod

Matrix = NDArray[np.float64]
CENTRES: Final = 10
Mean = Callable[[list[NDArray[np.float32]], int], Matrix]
"""A function from the clients' vectors and the number of the round to the estimated mean."""


def exact(vectors: list[NDArray[np.float32]], step: int) -> Matrix:
    """Return the mean in float64. See `Mean`."""
    return np.asarray(np.mean(vectors, axis=0, dtype=np.float64))


def estimated(method: MeanMethod, seed: int) -> Mean:
    """Return the `Mean` that a codec or estimator makes."""

    def mean(vectors: list[NDArray[np.float32]], step: int) -> Matrix:
        return method.run(vectors, seed, step + 1).mean.astype(np.float64)

    return mean


def shares(points: Matrix, clients: int, rng: np.random.Generator) -> list[Matrix]:
    """Return equal shares of shuffled points, float64[points, dimensions] each. A remainder is left out."""
    each = len(points) // clients
    order = rng.permutation(len(points))[: each * clients]
    return [points[part] for part in np.split(order, clients)]


def k_means(held: list[Matrix], mean: Mean, rounds: int, rng: np.random.Generator) -> list[float]:
    """Return the mean squared distance to the nearest centre after 0, 1, ... rounds of Lloyd's algorithm."""
    points = np.concatenate(held)
    centres = points[rng.choice(len(points), CENTRES, replace=False)]
    costs = [_cost(points, centres)]
    for step in range(rounds):
        sums, counts = zip(*(_centre_sums(own, centres) for own in held), strict=True)
        total = np.sum(counts, axis=0)
        estimate = mean([each.ravel().astype(np.float32) for each in sums], step) * len(held)
        used = total > 0
        centres = centres.copy()
        centres[used] = estimate.reshape(centres.shape)[used] / total[used, None]
        costs.append(_cost(points, centres))
    return costs


def power_iteration(held: list[Matrix], mean: Mean, rounds: int, rng: np.random.Generator) -> list[float]:
    """Return the distance of the vector to the first eigenvector of the covariance after 0, 1, ... rounds."""
    centre = np.concatenate(held).mean(axis=0)
    covariances = [(own - centre).T @ (own - centre) / len(own) for own in held]
    top = np.linalg.eigh(np.mean(covariances, axis=0))[1][:, -1]
    v = rng.standard_normal(len(top))
    v /= np.linalg.norm(v)
    errors = [_distance(v, top)]
    for step in range(rounds):
        found = mean([(covariance @ v).astype(np.float32) for covariance in covariances], step)
        v = found / np.linalg.norm(found)
        errors.append(_distance(v, top))
    return errors


def _squared_distances(points: Matrix, centres: Matrix) -> Matrix:
    cross = points @ centres.T
    return np.asarray((points**2).sum(1)[:, None] - 2 * cross + (centres**2).sum(1)[None])


def _cost(points: Matrix, centres: Matrix) -> float:
    return float(np.maximum(_squared_distances(points, centres).min(axis=1), 0).mean())


def _centre_sums(points: Matrix, centres: Matrix) -> tuple[Matrix, NDArray[np.int64]]:
    nearest = _squared_distances(points, centres).argmin(axis=1)
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, points)
    return sums, np.bincount(nearest, minlength=len(centres))


def _distance(v: Matrix, top: Matrix) -> float:
    """Return the distance of unit vectors, whichever way they point."""
    return float(min(np.linalg.norm(v - top), np.linalg.norm(v + top)))
