# SPDX-License-Identifier: Apache-2.0
"""The error of a method on some vectors, compared with theory: many all-reduces, each with randomness of its own.

NMSE is ||mean' - mean||^2 / ||mean||^2 in float64: mean' is what the workers end with, mean that of their float32
vectors. NMSE is averaged over the all-reduces, and has the standard error of that average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import hypot

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import HopsumError
from hopsum_evaluation.compare.methods import Bits, MeanMethod, MethodCandidate, Vectors
from hopsum_evaluation.compare.vectors import make_vectors

AGREEMENT_SE = 6.0
"""Standard errors by which measurement and theory may differ: about one cell in 7,000 does, the errors themselves
being known from a few all-reduces only."""
AGREEMENT_SHARE = 0.02
"""The share of theory by which they may differ, however small the standard errors happen to be."""


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """Methods, vectors and numbers of workers of a comparison."""

    candidates: Sequence[MethodCandidate]
    vectors: Sequence[str]
    workers: Sequence[int]
    elements: int
    """The elements of random vectors."""
    steps: int
    """All-reduces per cell, at least 2."""
    seed: int
    identical: bool
    """True where all workers have the same vector."""

    @property
    def cell_count(self) -> int:
        """Number of cells that `measure_all` yields."""
        return len(self.candidates) * len(self.vectors) * len(self.workers)


@dataclass(frozen=True, slots=True)
class Cell:
    """One method on one kind of vectors with one number of workers."""

    vectors: str
    method: str
    family: str
    workers: int
    nmse: float | None = None
    """None: it cannot be measured, for `reason`."""
    nmse_se: float | None = None
    bits_up: float | None = None
    bits_down: float | None = None
    theory: float | None = None
    theory_se: float | None = None
    reason: str | None = None

    @property
    def agrees(self) -> bool | None:
        """True if measurement and theory differ by no more than chance, None without theory."""
        if self.nmse is None or self.nmse_se is None or self.theory is None or self.theory_se is None:
            return None
        chance = AGREEMENT_SE * hypot(self.nmse_se, self.theory_se)
        return abs(self.nmse - self.theory) <= max(chance, AGREEMENT_SHARE * self.theory)


def measure_all(plan: ComparisonPlan) -> Iterator[Cell]:
    """Yield every cell of the plan, in order. A cell that cannot be measured has a reason instead of figures.

    On one thread: the interpreter lock makes two of them slower than one.
    """
    for kind, workers, candidate in product(plan.vectors, plan.workers, plan.candidates):
        yield measure(plan, candidate, kind, workers)


def measure(plan: ComparisonPlan, candidate: MethodCandidate, kind: str, workers: int) -> Cell:
    """Measure a method on one kind of vectors with so many workers. Where that fails, the cell has a reason instead."""
    place = (kind, candidate.label, candidate.family, workers)
    try:
        vectors = make_vectors(kind, workers, plan.elements, plan.seed, identical=plan.identical)
        method = candidate.make(workers)
        errors, bits = _errors(method, vectors, plan)
        # Formulas hold for equal vectors: how errors of different vectors add up depends on all of them.
        expected = method.theory(vectors[0], workers, plan.seed) if plan.identical else None
    except ModuleNotFoundError as error:
        return Cell(*place, reason=f"needs the module {error.name}")
    except (HopsumError, ValueError) as error:
        return Cell(*place, reason=str(error))
    return Cell(
        *place,
        nmse=float(errors.mean()),
        nmse_se=float(errors.std(ddof=1) / errors.size**0.5),
        **{f"bits_{name}": count for name, count in bits._asdict().items()},
        theory=None if expected is None else expected.nmse,
        theory_se=None if expected is None else expected.se,
    )


def _errors(method: MeanMethod, vectors: Vectors, plan: ComparisonPlan) -> tuple[NDArray[np.float64], Bits]:
    """Do the all-reduces of a cell. Return the error of each, and their mean bits."""
    mean: NDArray[np.float64] = np.mean(vectors, axis=0, dtype=np.float64)
    energy = float(mean @ mean)
    # A relative error of a mean of zeros does not exist.
    if energy == 0.0:
        raise ValueError("the mean is zero, and no error relative to it exists")
    errors, bits = [], []
    for step in range(1, plan.steps + 1):
        outcome = method.run(vectors, plan.seed, step)
        error = outcome.mean.astype(np.float64) - mean
        # float64: an exact method's error would drown in the rounding of float32 sums.
        errors.append(float(error @ error) / energy)
        bits.append(outcome.bits)
    return np.array(errors), Bits(*(float(each) for each in np.mean(bits, axis=0)))
