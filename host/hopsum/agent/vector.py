# SPDX-License-Identifier: Apache-2.0
"""A vector to be summed, in numpy's memory or on a device.

With error feedback, statistics measure the codec's error: the vector to send is x + residual, and the residual
afterwards is its error. Both are measured in a sample of at most RUNS * RUN_ELEMENTS elements, whose position changes
with every all-reduce, because a pass over whole vectors would cost time.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import Codec, CodecError, ErrorFeedback, ReductionContext
from hopsum.codec.interface import OnNonfinite, Reduction, Tensors, require_vector

RUNS: Final = 16
"""Parts of a vector, each with one run of elements in the sample."""
RUN_ELEMENTS: Final = 256
# Multiples of the golden ratio modulo 1 fill 0 .. 1 evenly for every count of vectors, without a random number.
_GOLDEN: Final = 0.6180339887498949


class Vector(Protocol):
    """The interface of a submitted vector. The engine's thread calls its methods in the order below."""

    elements: int
    feedback: Any
    """The error feedback, or None. Two vectors with the same error feedback never overlap."""

    def start(
        self, codec: Codec, context: ReductionContext, *, tensors: Tensors, on_nonfinite: OnNonfinite
    ) -> Reduction:
        """Begin the all-reduce, with payloads of this codec. See `Codec.start`.

        The position of the sample depends on the step.
        """

    def rollback(self) -> None:
        """Add the vector to the error feedback without `start`. A vector that is not finite is dropped."""

    def squares(self) -> tuple[float, float]:
        """Return the summed squares of the sample: of the residual, and of the vector with the earlier residual.

        Without error feedback both are 0.
        """

    def all_nan(self) -> Any:
        """Return a new vector like this one, all NaN."""


class HostVector:
    """A `Vector` of numpy. `Communicator.submit` describes the arguments.

    Raises:
        CodecError: x is no contiguous float32 vector, or feedback or `out` have another length.
    """

    def __init__(
        self, x: NDArray[np.float32], feedback: ErrorFeedback | None = None, out: NDArray[np.float32] | None = None
    ) -> None:
        require_vector(x, out)
        if feedback is not None and feedback.residual.shape != x.shape:
            raise CodecError(f"vector of {x.size} elements with an error feedback of {feedback.residual.size}")
        self.elements = x.size
        self.feedback = feedback
        self.x, self.out = x, out
        self._step = 0
        self._vector_squares = 0.0

    def start(
        self, codec: Codec, context: ReductionContext, *, tensors: Tensors, on_nonfinite: OnNonfinite
    ) -> Reduction:
        self._step = context.step
        if self.feedback is not None:
            # Before `start`, which may change the residual in place.
            with np.errstate(over="ignore", invalid="ignore"):
                compensated = sample(self.x, context.step) + sample(self.feedback.residual, context.step)
            self._vector_squares = sum_squares(compensated)
        return codec.start(self.x, context, self.feedback, tensors=tensors, on_nonfinite=on_nonfinite, out=self.out)

    def rollback(self) -> None:
        if self.feedback is None:
            return
        # First the residual as before the reduction; then the sum with x is checked.
        self.feedback.rollback()
        finite = bool(np.isfinite(self.feedback.compensate(self.x)).all())
        self.feedback.commit(None) if finite else self.feedback.rollback()

    def squares(self) -> tuple[float, float]:
        if self.feedback is None:
            return 0.0, 0.0
        return sum_squares(sample(self.feedback.residual, self._step)), self._vector_squares

    def all_nan(self) -> NDArray[np.float32]:
        return np.full(self.elements, np.nan, np.float32)


def require_host_vector(vector: Vector) -> HostVector:
    """Return the vector if it is one of numpy. Raises CodecError for a vector on a device."""
    if not isinstance(vector, HostVector):
        raise CodecError(
            f"this communicator sums vectors in the host's memory, and was handed a {type(vector).__name__}: encode on "
            'the host, codec_on="host"'
        )
    return vector


def sample(vector: NDArray[np.float32], step: int) -> NDArray[np.float32]:
    """Return the sample of a vector in an all-reduce of this step, as a view.

    float32[RUNS, RUN_ELEMENTS], one run at the same position of each of RUNS equal parts; a shorter vector whole.
    """
    if vector.size <= RUNS * RUN_ELEMENTS:
        return vector
    part = vector.size // RUNS
    return vector[: RUNS * part].reshape(RUNS, part)[:, sample_place(vector.size, step)]


def sample_place(elements: int, step: int) -> slice:
    """Return the position of the run in each part, for a vector of more than RUNS * RUN_ELEMENTS elements."""
    first = int(step * _GOLDEN % 1.0 * (elements // RUNS - RUN_ELEMENTS + 1))
    return slice(first, first + RUN_ELEMENTS)


def sum_squares(vector: NDArray[np.float32]) -> float:
    """Return the sum of the squares of a vector, as float64. Not finite if the vector is not."""
    # float64: squares of float32 overflow at 1e19.
    doubles = vector.astype(np.float64)
    return float(np.vdot(doubles, doubles))
