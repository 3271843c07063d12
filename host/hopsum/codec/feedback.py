# SPDX-License-Identifier: Apache-2.0
"""Error feedback for any codec: the undelivered part of a vector is added to the next one.

An all-reduce is a transaction: `compensate` begins it, `commit` keeps what was not delivered, `rollback` keeps the old
residual.

Residual after a vector x: residual + x - delivered. It changes when an all-reduce is committed and at no other time.

Memory: a residual for each error feedback, and a second vector for each all-reduce in progress. Error feedbacks of
one length share the second vectors.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CodecError, require_vector


class SpareVectors:
    """Vectors of one length that no error feedback uses now. Lists are appended to and popped from in one step."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._spare: list[NDArray[np.float32]] = []

    def take(self) -> NDArray[np.float32]:
        """Return a vector, float32[elements], with any content."""
        try:
            return self._spare.pop()
        except IndexError:
            return np.empty(self._elements, np.float32)

    def give(self, vector: NDArray[np.float32]) -> None:
        """Take a vector back that nobody uses any more."""
        self._spare.append(vector)


_SPARES: Final[WeakValueDictionary[int, SpareVectors]] = WeakValueDictionary()
"""The spare vectors by length. The last error feedback of a length takes them with it."""


class ErrorFeedback:
    """The undelivered part of one vector's all-reduces. One all-reduce at a time."""

    def __init__(self, elements: int) -> None:
        self.residual = np.zeros(elements, np.float32)
        """float32[elements]. Set it to restore a checkpoint, between all-reduces. A commit replaces the array, and
        the old one serves other error feedbacks: copy what is to be kept."""
        self._pending: NDArray[np.float32] | None = None
        self._spares = _SPARES.setdefault(elements, SpareVectors(elements))

    def compensate(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return x + residual, which is to be sent. This object's, valid until it is committed.

        Raises:
            CodecError: another length, or an earlier vector is neither committed nor rolled back.
        """
        require_vector(x)
        if x.shape != self.residual.shape:
            raise CodecError(f"vector of {x.size} elements for an error feedback of {self.residual.size}")
        if self._pending is not None:
            raise CodecError("the vector before is neither committed nor rolled back; finish its all-reduce first")
        with np.errstate(over="ignore", invalid="ignore"):
            self._pending = np.add(x, self.residual, out=self._spares.take())
        return self._pending

    def commit(self, delivered: NDArray[np.float32] | None) -> None:
        """Keep of the compensated vector what was not delivered.

        None stands for nothing. Raises CodecError without one.
        """
        if self._pending is None:
            raise CodecError("nothing to commit: no vector was compensated")
        if delivered is not None:
            np.subtract(self._pending, delivered, out=self._pending)
        before, self.residual, self._pending = self.residual, self._pending, None
        self._let_go(before)

    def rollback(self) -> None:
        """Drop the compensated vector: the residual stays as it was."""
        if self._pending is not None:
            self._spares.give(self._pending)
        self._pending = None

    def _let_go(self, before: NDArray[np.float32]) -> None:
        """Let go of the residual from before a commit."""
        self._spares.give(before)
