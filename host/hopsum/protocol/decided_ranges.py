# SPDX-License-Identifier: Apache-2.0
"""Ranges of positions whose results a generation change has decided (committed), looked up in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum_wire.generations import Decided

_BEHIND: Final = (1 << 62) - 1


class DecidedRanges:
    """The decided ranges of a generation, and the workers that hold their results.

    Raises:
        ValueError: a run is empty, has no ranks, or begins before the end of the previous one.
    """

    def __init__(self, runs: Sequence[Decided]) -> None:
        # Sorted and disjoint, because both lookups are binary searches.
        last = 0
        for run in runs:
            if not last <= run.first < run.end or not run.ranks:
                raise ValueError(f"decided runs are sorted, disjoint, not empty, and held by a rank, not {run}")
            last = run.end
        self.end = last
        """The end of the last run, 0 without runs."""
        self._firsts = np.array([*(run.first for run in runs), _BEHIND], np.int64)
        self._ends = np.array([*(run.end for run in runs), _BEHIND], np.int64)
        self._named = [sum(1 << rank for rank in run.ranks) for run in runs]

    def covers(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each position whether it is decided."""
        at = self._firsts.searchsorted(positions, side="right") - 1
        inside: NDArray[np.bool_] = (at >= 0) & (positions < self._ends[at])
        return inside

    def holders(self, position: int) -> int:
        """Return the bitmap of the workers that hold a decided position."""
        return self._named[int(self._firsts.searchsorted(position, side="right")) - 1]
