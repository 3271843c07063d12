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
from hopsum.agent.vector import Vector, host_vector
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
    """Another one was promised, and the promise was not taken back."""
    awaited: bool = False
    """Its caller waits for it, and may help to serve."""
    future: Future[AllReduceResult] = field(default_factory=Future)
    number: int = 0
    step: int = 0
    given_step: int | None = None
    """The step that was submitted; None: `step` follows from the number."""
    started_s: float = 0.0
    reduction: Reduction | None = None
    begun: bool = False
    """Its first phase is in the stream."""
    waiting: bool = False
    """The reduction's phase is in the stream and has not been taken."""
    fully_submitted: bool = False
    """All its phases are in the stream."""
    arrived: AllReduceDone | None = None
    """Results of a phase that its reduction has not taken."""
    handles: list[int] = field(default_factory=list)
    """The handles of the phase that it put into the stream last, by part."""
    first: dict[int, AllReduceDone] = field(default_factory=dict)
    """The parts of its first, signed phase that are here, by number."""
    signature: bytes = b""
    """The signature in that phase (signature.py)."""
    parts: int = 0
    """The number of that phase's parts. 0 before the phase is in the stream and once it was handed over."""
    codes: AllReduceEvent | None = None
    """The end of its codes, where that came before its ranges were here."""
    error: BaseException | None = None
    is_over: bool = False
    """Its future is done. It is among the tasks only while its zeros have yet to enter the stream."""
    zeros: CollectivePhase | None = None
    """The phase that is in the stream in the place of codes that all ranks skip (O5)."""
    follower: Task | None = None
    """The one submitted next, also when that one is over already."""

    promised: bool = field(init=False)
    """Another one was promised when this one was submitted, as all ranks need to have it."""

    def __post_init__(self) -> None:
        self.promised = self.more

    @property
    def feedback(self) -> Any:
        """Return the object that keeps what is not delivered, or None."""
        return self.vector.feedback

    @property
    def x(self) -> NDArray[np.float32]:
        """Return the vector of numpy. Raises CodecError for a vector that lies elsewhere."""
        return host_vector(self.vector).x

    @property
    def out(self) -> NDArray[np.float32] | None:
        """Return the memory for the mean of a vector of numpy. Raises CodecError for a vector that lies elsewhere."""
        return host_vector(self.vector).out

    def rollback(self, error: BaseException) -> None:
        """Put all of the vector into the error feedback. One that is not finite is dropped, as if skipped.

        Args:
            error: that the future gets next. A failure of the error feedback is added to it, and not raised.
        """
        try:
            if self.reduction is not None and self.reduction.phase is not None:
                # The reduction may have written the mean over x already, so only it still has the vector.
                self.reduction.abort()
            else:
                self.vector.rollback()
        except BaseException as failure:  # whoever waits for the future hears of both
            error.add_note(f"its error feedback did not take the vector back: {failure!r}")
            _log.exception("the error feedback of all-reduce %d is lost", self.number)
