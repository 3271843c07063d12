# SPDX-License-Identifier: Apache-2.0
"""Error feedback of vectors that are put together from parameters, in ways that change.

A residual belongs to a parameter. It lives in the error feedback of the bucket that the parameter was last in, so
that nothing is copied while buckets stay as they are; when parameters come in other company (DDP rebuilds its
buckets after the first iteration, a checkpoint is loaded), they bring their residuals along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback

Layout = tuple[str, ...]


class _Place(NamedTuple):
    """Where the residual of a parameter is."""

    layout: Layout
    elements: slice


class Residuals:
    """What each parameter's all-reduces have not delivered yet. Between all-reduces only."""

    def __init__(self) -> None:
        self._feedback: dict[Layout, ErrorFeedback] = {}
        self._places: dict[str, _Place] = {}

    def feedback(self, names: Sequence[str], sizes: Sequence[int]) -> ErrorFeedback:
        """Return the error feedback of these parameters, one after the other; it is theirs until the next call."""
        layout = tuple(names)
        if not all(name in self._places and self._places[name].layout == layout for name in layout):
            self._move(layout, sizes)
        return self._feedback[layout]

    def as_dict(self) -> dict[str, NDArray[np.float32]]:
        """Return a copy of each parameter's residual, float32[elements]."""
        return {name: self._read(name).copy() for name in self._places}

    def load(self, residuals: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace everything by these residuals, float32[elements] each; they are copied."""
        self._feedback.clear()
        self._places.clear()
        for name, residual in residuals.items():
            self._move((name,), (residual.size,))
            self._feedback[name,].residual[:] = residual

    def _read(self, name: str) -> NDArray[np.float32]:
        place = self._places[name]
        return self._feedback[place.layout].residual[place.elements]

    def _move(self, layout: Layout, sizes: Sequence[int]) -> None:
        made, places, first = ErrorFeedback(sum(sizes)), {}, 0
        for name, size in zip(layout, sizes, strict=True):
            places[name] = _Place(layout, slice(first, first + size))
            first += size
            if name in self._places:
                made.residual[places[name].elements] = self._read(name)
        self._places.update(places)
        self._feedback[layout] = made
        inhabited = {place.layout for place in self._places.values()}
        self._feedback = {layout: each for layout, each in self._feedback.items() if layout in inhabited}
