# SPDX-License-Identifier: Apache-2.0
"""One submitted vector, and the results that arrive for it."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.allreduce_results import AllReduceResult
from hopsum.agent.vector import Vector, require_host_vector
from hopsum.codec.interface import CollectivePhase, OnNonfinite, Reduction, Tensors
from hopsum.protocol.worker_state import AllReduceDone, AllReduceEvent

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Task:
    """One submitted vector, from `submit` to the end of its future."""

    vector: Vector
    tensors: Tensors
    on_nonfinite: OnNonfinite
    more: bool
    """Whether another vector of the group is to follow."""
    awaited: bool = False
    """Whether the caller blocks, and so may run the engine."""
    future: Future[AllReduceResult] = field(default_factory=Future)
    number: int = 0
    step: int = 0
    given_step: int | None = None
    """The step that was submitted; None: `step` follows from the number."""
    started_s: float = 0.0
    reduction: Reduction | None = None
    waiting: bool = False
    """Whether the reduction's phase is in the stream, and the reduction lacks its results."""
    fully_submitted: bool = False
    """Whether all phases are in the stream."""
    arrived: AllReduceDone | None = None
    """Results of a phase that the reduction has not processed yet."""
    handles: list[int] = field(default_factory=list)
    """The handles of the latest phase in the stream, by part. Empty before the first one."""
    # Set with `handles`, from which it follows: it is read some fifteen times a vector, and a property is a call.
    begun: bool = False
    """Whether the first phase is in the stream."""
    first: dict[int, AllReduceDone] = field(default_factory=dict)
    """The results of the first, signed phase that have arrived, by part."""
    signature: bytes = b""
    """The signature in the first phase (signature.py)."""
    parts: int = 0
    """The number of the first phase's parts; 0 before the phase is in the stream and after its results are complete."""
    codes: AllReduceEvent | None = None
    """The end of the codes, if it came before the results of the ranges."""
    error: BaseException | None = None
    has_ended: bool = False
    """Whether the future is done. Then the task is kept only until its zeros are in the stream."""
    zeros: CollectivePhase | None = None
    """The phase in place of codes that all ranks skip (O5)."""
    follower: Task | None = None
    """The next submitted task, which may have ended already."""

    promised: bool = field(init=False)
    """The value of `more` at submission, which all ranks need in common."""

    def __post_init__(self) -> None:
        self.promised = self.more

    @property
    def feedback(self) -> Any:
        """Return the error feedback, or None."""
        return self.vector.feedback

    @property
    def x(self) -> NDArray[np.float32]:
        """Return the vector as a numpy array. Raises CodecError for a vector on a device."""
        return require_host_vector(self.vector).x

    @property
    def out(self) -> NDArray[np.float32] | None:
        """Return the caller's memory for the mean, or None. Raises CodecError for a vector on a device."""
        return require_host_vector(self.vector).out

    def rollback(self, error: BaseException) -> None:
        """Return the whole vector to the error feedback. A vector that is not finite is dropped, as if skipped.

        Args:
            error: the future's error. A failure of the error feedback is added to it as a note, and not raised.
        """
        try:
            if self.reduction is not None and self.reduction.phase is not None:
                # The reduction may already have overwritten x with the mean, and can restore the vector.
                self.reduction.abort()
            else:
                self.vector.rollback()
        except BaseException as failure:
            error.add_note(f"its error feedback did not take the vector back: {failure!r}")
            _log.exception("the error feedback of all-reduce %d is lost", self.number)
