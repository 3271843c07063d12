# SPDX-License-Identifier: Apache-2.0
"""The base of all codecs' all-reduces: the vector, its error feedback, and how they end.

state     meaning                                          residual
RANGES    ranges are to be summed (MAX32)                  as before
INDEX     the index is to be summed (OR), if there is one  as before
SUMS      codes or lanes are to be summed                  as before
DONE      there is a mean                                  what was not delivered
SKIPPED   some rank's vector is not finite                 as before
GONE      aborted, or not to be recovered                  residual + vector
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import (
    CodecError,
    CollectivePhase,
    OnNonfinite,
    ReductionContext,
    Tensors,
    nonfinite_error,
    require_on_nonfinite,
    require_out,
    require_vector,
)
from hopsum.codec.feedback import ErrorFeedback
from hopsum.codec.ranges import INFINITE


class ReductionState(Enum):
    """The state of an all-reduce. See the module."""

    RANGES = auto()
    INDEX = auto()
    SUMS = auto()
    DONE = auto()
    SKIPPED = auto()
    GONE = auto()


class VectorReduction(ABC):
    """One all-reduce of one vector. The contract is `hopsum.codec.base.Reduction`."""

    _own: NDArray[np.uint32]
    """Its ranges, made by `_first_phase`."""

    def __init__(
        self,
        x: NDArray[np.float32],
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        *,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: NDArray[np.float32] | None = None,
    ) -> None:
        """Take a vector, see `Codec.start`, and make the first phase. What that needs is set before."""
        require_vector(x)
        require_out(out, x)
        require_on_nonfinite(on_nonfinite)
        self.context = context
        self.state = ReductionState.RANGES
        self.elements = x.size
        self.mean: NDArray[np.float32] | None = None
        self.contributors = np.zeros(0, np.uint64)
        self._out = out
        self._feedback = feedback
        self._tensors = tensors
        self._on_nonfinite = on_nonfinite
        self._x = x if feedback is None else feedback.compensate(x)
        try:
            self.phase: CollectivePhase | None = self._first_phase()
        except BaseException:  # nobody has this reduction, so nobody could give it up
            self._rollback()
            raise

    @abstractmethod
    def take(
        self,
        results: NDArray[np.uint8],
        contributors: NDArray[np.uint64],
        lost: NDArray[np.bool_] | None = None,
    ) -> None:
        """Take the results of the current phase. See `Reduction`."""

    def encode_in_parts(self, part_chunks: int) -> None:  # noqa: B027  (most codecs have whole phases only)
        """Let the next phase begin with some of its payloads. See `Reduction`."""

    def encode_part(self) -> NDArray[np.uint8]:
        """Make the next payloads of the phase. See `Reduction`."""
        raise CodecError(f"the all-reduce is in state {self.state.name}: all payloads are made")

    def take_part(  # noqa: B027
        self, first: int, results: NDArray[np.uint8], contributors: NDArray[np.uint64]
    ) -> None:
        """Take results early. See `Reduction`. What is not taken here `take` has again."""

    @abstractmethod
    def _first_phase(self) -> CollectivePhase:
        """Return the ranges to share of the vector, which may be infinite."""

    @property
    def encoded(self) -> int:
        """Return the chunks of the phase whose payloads are made. See `Reduction`."""
        return 0 if self.phase is None else len(self.phase.payloads)

    def abort(self) -> None:
        """Abort. See `Reduction`."""
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: there is nothing to abort")
        if np.isfinite(self._x).all():
            self._commit(None)
        else:
            self._rollback()
        self._end(ReductionState.GONE)

    def _require_phase(self) -> CollectivePhase:
        """Return what results are for. Raises CodecError when it is over."""
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: it takes no results")
        return self.phase

    def _skip(self) -> None:
        """End without a mean, since some rank's vector is not finite. Raise an error if that was asked for."""
        error = None
        if self._on_nonfinite == "raise":
            large = bool(self._own.max(initial=0) >= INFINITE)
            error = nonfinite_error(self._x, self._tensors, self.context.rank, too_large=large)
        self._rollback()
        self._end(ReductionState.SKIPPED)
        if error is not None:
            raise error

    def _finish(self, mean: NDArray[np.float32], contributors: NDArray[np.uint64]) -> None:
        if self._out is not None and mean is not self._out:
            self._out[:] = mean
        self.mean, self.contributors = mean if self._out is None else self._out, contributors
        self._end(ReductionState.DONE)

    def _commit(self, delivered: NDArray[np.float32] | None) -> None:
        if self._feedback is not None:
            self._feedback.commit(delivered)

    def _rollback(self) -> None:
        if self._feedback is not None:
            self._feedback.rollback()

    def _end(self, state: ReductionState) -> None:
        self.state, self.phase = state, None
