# SPDX-License-Identifier: Apache-2.0
"""The best table as a shortest path over the integers 0..g with 2^bits - 1 steps, solved exactly.

A step from l to h costs C(l, h), the integral of (h - a)(a - l) phi(a) over the gap. Everything that is added up
here is positive, so a cost is right to about 1e-14 of itself however fine the grid is. Closed forms by Phi and phi
would cancel.

C satisfies the quadrangle inequality C(a,c) + C(b,d) <= C(a,d) + C(b,c) for a <= b <= c <= d, point by point of
the integral: right minus left is (d-c)(b-a) for a point in [b,c], (d-c)(x-a) in [a,b] and (b-a)(d-x) in [c,d], and
none is negative. So the best step into j starts no lower than the best step into j - 1, and half of all targets
narrow down the other half: O(g log g) a step instead of O(g^2), worth its overhead on fine grids (the same
structure as in Ben Basat et al., "Optimal and approximate adaptive stochastic quantization", NeurIPS 2024).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_BITS: Final = 8
MAX_GRANULARITY: Final = 4095
"""The costs of all steps are held at once: some 800 MB at this size."""
TIE: Final = 1e-12
"""Paths that differ by less than this, relatively, are equally good: mirror images, on every machine."""
_PLAIN_GRANULARITY: Final = 511
_NODES: Final = 64
"""The nodes of Gauss and Legendre, exact to the last bits for a gap of 10 standard deviations."""
_FINE_NODES: Final = 16
"""The same for gaps below one standard deviation."""


def shortest_table(granularity: int, bound: float, entries: int) -> tuple[int, ...]:
    """Return the best table of `entries` values. Of equal ones it is the table whose values, from the end, are least.

    Args:
        granularity: entries - 1 to MAX_GRANULARITY. There are at least 2 entries.
        bound: t, positive.
    """
    costs = grid_costs(granularity, bound)
    relax = relax_all if granularity <= _PLAIN_GRANULARITY else relax_narrowed
    start = np.full(granularity + 1, np.inf)
    start[0] = 0.0
    layers = [start]
    for _ in range(entries - 2):
        layers.append(relax(layers[-1], costs))
    values = [granularity]
    for layer in reversed(layers):
        paths = layer + costs[:, values[-1]]
        values.append(int(np.argmax(paths <= paths.min() * (1 + TIE))))
    return tuple(reversed(values))


def relax_all(best: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least cost of every grid point after one more step, float64[g + 1], from all pairs."""
    least: NDArray[np.float64] = (best[:, None] + costs).min(axis=0)
    return least


def relax_narrowed(best: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what `relax_all` does, by way of ever closer targets whose origins lie between their neighbours'."""
    size = best.size
    least = np.full(size, np.inf)
    origins = np.zeros(size + 2, np.intp)  # of target j at j + 1; fences at both ends
    origins[-1] = size - 1
    stride = 1 << size.bit_length() - 1
    while stride:
        targets = np.arange(stride - 1, size, 2 * stride)
        low = origins[targets + 1 - stride]
        high = np.minimum(origins[np.minimum(targets + 1 + stride, size + 1)], targets - 1)
        lengths = np.maximum(high - low, 0) + 1
        firsts = np.cumsum(lengths) - lengths
        sources = np.arange(firsts[-1] + lengths[-1]) + np.repeat(low - firsts, lengths)
        paths = best[sources] + costs[sources, np.repeat(targets, lengths)]
        least[targets] = np.minimum.reduceat(paths, firsts)
        hits = np.flatnonzero(paths == np.repeat(least[targets], lengths))
        origins[targets + 1] = sources[hits[np.searchsorted(hits, firsts)]]
        stride //= 2
    return least


@lru_cache(maxsize=2)
def grid_costs(granularity: int, bound: float) -> NDArray[np.float64]:
    """Return C(l, h) for all grid points as float64[g + 1, g + 1], read-only, with inf where h <= l.

    A grid point further on, every point of the gap costs its distance to l more, times one grid step.
    """
    width = 2 * bound / granularity
    nodes, weights = _rule(_NODES if width > 1 else _FINE_NODES)
    density = _density(-bound + width * (np.arange(granularity)[:, None] + nodes)) * weights * width
    mass, first, inner = density.sum(axis=1), density @ nodes, density @ (nodes * (1 - nodes))
    steps = np.arange(granularity)[None, :] - np.arange(granularity)[:, None]
    inside = steps >= 0
    distance = np.where(inside, steps * mass + first, 0.0)
    grown = np.cumsum(distance, axis=1) - distance
    costs = np.full((granularity + 1, granularity + 1), np.inf)
    costs[:-1, 1:] = np.cumsum(np.where(inside, grown + steps * (mass - first) + inner, 0.0), axis=1) * width**2
    costs[:-1, 1:][~inside] = np.inf
    costs.setflags(write=False)
    return costs


def cell_errors_between(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the integral of (h - a)(a - l) phi(a) over each gap between ascending points, float64[points - 1]."""
    nodes, weights = _rule(_NODES)
    widths = np.diff(points)[:, None]
    errors: NDArray[np.float64] = _density(points[:-1, None] + widths * nodes) @ (nodes * (1 - nodes) * weights)
    return errors * widths[:, 0] ** 3


def _density(a: NDArray[np.float64]) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-a * a / 2) / np.sqrt(2 * np.pi)
    return density


@lru_cache(maxsize=2)
def _rule(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights of Gauss and Legendre's rule over 0..1."""
    at, weights = np.polynomial.legendre.leggauss(nodes)
    return (at + 1) / 2, weights / 2
