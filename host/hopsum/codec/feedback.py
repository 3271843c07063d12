# SPDX-License-Identifier: Apache-2.0
"""Error feedback for any codec: the undelivered part of a vector is added to the next one.

An all-reduce is a transaction: `compensate` begins it, `commit` keeps what was not delivered, `rollback` keeps the old
residual.

Residual after a vector x: residual + x - delivered. It changes when an all-reduce is committed and at no other time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CodecError, require_vector


class ErrorFeedback:
    """The undelivered part of one vector's all-reduces. One all-reduce at a time."""

    def __init__(self, elements: int) -> None:
        self.residual = np.zeros(elements, np.float32)
        """float32[elements]; set it to restore a checkpoint, between all-reduces."""
        self._pending: NDArray[np.float32] | None = None
        self._spare = np.empty(elements, np.float32)

    def compensate(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return x + residual, which is to be sent; this object's, valid until it is committed.

        Raises:
            CodecError: another length, or an earlier vector is neither committed nor rolled back.
        """
        require_vector(x)
        if x.shape != self.residual.shape:
            raise CodecError(f"vector of {x.size} elements for an error feedback of {self.residual.size}")
        if self._pending is not None:
            raise CodecError("the vector before is neither committed nor rolled back; finish its all-reduce first")
        with np.errstate(over="ignore", invalid="ignore"):
            self._pending = np.add(x, self.residual, out=self._spare)
        return self._pending

    def commit(self, delivered: NDArray[np.float32] | None) -> None:
        """Keep of the compensated vector what was not delivered; None: nothing was. Raises CodecError without one."""
        if self._pending is None:
            raise CodecError("nothing to commit: no vector was compensated")
        if delivered is not None:
            np.subtract(self._pending, delivered, out=self._pending)
        self.residual, self._spare = self._pending, self.residual
        self._pending = None

    def rollback(self) -> None:
        """Drop the compensated vector: the residual stays as it was."""
        self._pending = None
