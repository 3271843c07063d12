# SPDX-License-Identifier: Apache-2.0
"""The vectors that methods are compared on: one per worker, or one that all workers have.

Gradients were recorded from the demo's model: 32 minibatches at the same parameters, one per worker, early and late in
a training. The file says from which seed. Commit 16b5ed28 has the command that recorded them.
Random vectors are drawn anew for each worker, so that their mean is smaller than they are. The same seed draws the
same ones, and fewer workers have the first of those that more have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GRADIENTS: Final = Path(__file__).with_name("gradients.npz")
"""early, late: float32[32, 10067]; origin: JSON of how they came about."""
DENSITY: Final = 0.05
"""Share of a sparse vector's elements that are not zero."""
DEGREES: Final = 3
"""The degrees of freedom of the heavy-tailed elements (Student's t)."""


def _gaussian(rng: np.random.Generator, elements: int) -> NDArray[np.float32]:
    return rng.standard_normal(elements, dtype=np.float32)


def _heavy(rng: np.random.Generator, elements: int) -> NDArray[np.float32]:
    return rng.standard_t(DEGREES, elements).astype(np.float32)


def _sparse(rng: np.random.Generator, elements: int) -> NDArray[np.float32]:
    x = np.zeros(elements, np.float32)
    # An exact number of elements: the density of a short vector would vary otherwise, and its error with it.
    used = rng.choice(elements, max(1, round(DENSITY * elements)), replace=False)
    x[used] = rng.standard_normal(used.size, dtype=np.float32)
    return x


_DRAWS: Final[dict[str, Callable[[np.random.Generator, int], NDArray[np.float32]]]] = {
    "gaussian": _gaussian,
    "heavy": _heavy,
    "sparse": _sparse,
}
_RECORDED: Final = {"gradient": "early", "gradient-late": "late"}
TITLES: Final = {
    "gradient": "gradient, early",
    "gradient-late": "gradient, late",
    "gaussian": "Gaussian",
    "heavy": f"heavy-tailed, t{DEGREES}",
    "sparse": f"sparse, {DENSITY:.0%}",
}
VECTORS: Final = tuple(TITLES)


def make_vectors(kind: str, workers: int, elements: int, seed: int, *, identical: bool) -> list[NDArray[np.float32]]:
    """Return one vector per worker, float32[elements]. Gradients have as many elements as were recorded.

    Args:
        kind: one of VECTORS.
        workers: at most 32 for gradients.
        identical: all workers have the first worker's, the same array.

    Raises:
        ValueError: more workers than recorded gradients.
    """
    different = 1 if identical else workers
    if kind in _RECORDED:
        rows = _recorded()[_RECORDED[kind]]
        if different > len(rows):
            raise ValueError(f"gradients of {len(rows)} workers were recorded, not of {workers}")
        found = list(rows[:different])
    else:
        number = VECTORS.index(kind)
        found = [_DRAWS[kind](np.random.default_rng([seed, number, rank]), elements) for rank in range(different)]
    return found * workers if identical else found


def recorded_origin() -> dict[str, Any]:
    """Return the origin of the recorded gradients: model, seed, batch, steps_before, versions."""
    origin: dict[str, Any] = json.loads(str(_recorded()["origin"]))
    return origin


@cache
def _recorded() -> dict[str, NDArray[Any]]:
    with np.load(GRADIENTS) as file:
        return dict(file)
