# SPDX-License-Identifier: Apache-2.0
"""Error feedback for any codec, and one all-reduce of one vector as a state machine without I/O.

    state    input                            next     also
    RANGES   take_ranges(no block infinite)   SUMS     returns payloads to sum
    RANGES   take_ranges(some block infinite) SKIPPED  returns None, on all ranks alike; residual as before
    SUMS     take_sums                        DONE     returns the mean; residual settled, chunk by chunk
    RANGES   abandon                          GONE     residual + vector is the new residual
    SUMS     abandon                          GONE     the same

Settlement: only a RESULT's contributors decide. Own bit set: only the quantisation error of that chunk stays.
Clear: the whole contribution goes back. The residual changes at settlement and at no other time, so a skipped
bucket leaves it untouched.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import (
    INFINITE,
    Codec,
    CodecError,
    Context,
    SharedRanges,
    blocks_of,
    pack_ranges,
    read_ranges,
    require_vector,
)


class ErrorFeedback:
    """What all-reduces of one vector have not delivered yet. One all-reduce at a time."""

    def __init__(self, elements: int) -> None:
        self.residual = np.zeros(elements, np.float32)
        """float32[elements]; set it to restore a checkpoint, between all-reduces."""
        self._pending: NDArray[np.float32] | None = None
        self._spare = np.empty(elements, np.float32)

    def compensate(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return x + residual, which is to be sent; this object's, valid until it is settled.

        Raises:
            CodecError: another length, or an earlier vector is neither settled nor withdrawn.
        """
        require_vector(x)
        if x.shape != self.residual.shape:
            raise CodecError(f"vector of {x.size} elements for an error feedback of {self.residual.size}")
        if self._pending is not None:
            raise CodecError("the vector before is neither settled nor withdrawn; finish its all-reduce first")
        with np.errstate(over="ignore", invalid="ignore"):
            self._pending = np.add(x, self.residual, out=self._spare)
        return self._pending

    def settle(self, delivered: NDArray[np.float32] | None) -> None:
        """Keep of the compensated vector what was not delivered; None: nothing was. Raises CodecError without one."""
        if self._pending is None:
            raise CodecError("nothing to settle: no vector was compensated")
        if delivered is not None:
            np.subtract(self._pending, delivered, out=self._pending)
        self.residual, self._spare = self._pending, self.residual
        self._pending = None

    def withdraw(self) -> None:
        """Forget the compensated vector: the residual stays as it was."""
        self._pending = None


class State(Enum):
    """Where an all-reduce stands; see the module."""

    RANGES = auto()
    SUMS = auto()
    DONE = auto()
    SKIPPED = auto()
    GONE = auto()


class Reduction:
    """One all-reduce of one vector, from its ranges to its mean."""

    def __init__(
        self, codec: Codec, x: NDArray[np.float32], context: Context, feedback: ErrorFeedback | None = None
    ) -> None:
        """Take a vector, float32[elements]; without feedback it must stay as it is until `take_ranges` returns.

        Raises:
            CodecError: no float32 vector, or the feedback is busy or of another length.
        """
        require_vector(x)
        self.codec = codec
        self.context = context
        self.state = State.RANGES
        self.elements = x.size
        self._feedback = feedback
        self._x = x if feedback is None else feedback.compensate(x)
        try:
            self._own = codec.ranges(self._x)
        except BaseException:  # nobody has this reduction, so nobody could give it up
            if feedback is not None:
                feedback.withdraw()
            raise
        self._shared: SharedRanges | None = None
        self._payloads: NDArray[np.uint8] | None = None

    def range_payloads(self) -> NDArray[np.uint8]:
        """Return the payloads to sum with MAX32, uint8[chunks, 1024]."""
        return pack_ranges(self._own)

    def take_ranges(self, results: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """Take the MAX32 results; return the payloads to sum with codec.op, or None: skip, as all ranks do.

        Raises:
            CodecError: called twice, or results of another shape; nothing was changed.
        """
        self._require(State.RANGES)
        shared = read_ranges(results, blocks_of(self.elements, self.codec.block_elements))
        if shared.skipped:
            if self._feedback is not None:
                self._feedback.withdraw()
            self.state = State.SKIPPED
            return None
        self._drop_infinite()
        self._payloads = self.codec.encode(self._x, self._own, shared, self.context)
        self._shared = shared
        self.state = State.SUMS
        return self._payloads

    def take_sums(self, results: NDArray[np.uint8], contributors: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Take the results of codec.op with their contributors, settle, and return the mean, float32[elements].

        Raises:
            CodecError: not asked for, results of another shape, or impossible contributors; nothing was changed.
        """
        self._require(State.SUMS)
        assert self._shared is not None
        mean = self.codec.decode(results, contributors, self._shared, self.elements, self.context)
        if self._feedback is not None:
            self._feedback.settle(self._delivered(contributors))
        self.state = State.DONE
        return mean

    def abandon(self) -> None:
        """Give up: there will be no result, so the whole vector goes back to the error feedback.

        A vector that is not finite is forgotten instead, as if it had been skipped.

        Raises:
            CodecError: the all-reduce is over already.
        """
        if self.state not in (State.RANGES, State.SUMS):
            raise CodecError(f"the all-reduce is in state {self.state.name}: there is nothing to give up")
        if self._feedback is not None and np.isfinite(self._x).all():
            self._feedback.settle(None)
        elif self._feedback is not None:
            self._feedback.withdraw()
        self.state = State.GONE

    def _drop_infinite(self) -> None:
        """Treat own blocks that are not finite as zero: their ranges came too late to make all ranks skip."""
        bad = np.flatnonzero(self._own >= INFINITE)
        if not bad.size:
            return
        old = None if self._feedback is None else self._feedback.residual
        self._x = self._x.copy() if old is None else self._x
        for block in bad:
            start = int(block) * self.codec.block_elements
            rows = slice(start, start + self.codec.block_elements)
            self._x[rows] = 0 if old is None else old[rows]
        self._own = self.codec.ranges(self._x)

    def _delivered(self, contributors: NDArray[np.uint64]) -> NDArray[np.float32] | None:
        assert self._payloads is not None
        assert self._shared is not None
        included = (contributors >> np.uint64(self.context.rank) & np.uint64(1)).astype(np.bool_)
        if not included.any():
            return None
        delivered = self.codec.contribution(self._payloads, self._shared, self.elements, self.context)
        for chunk in np.flatnonzero(~included):
            start = int(chunk) * self.codec.block_elements
            delivered[start : start + self.codec.block_elements] = 0
        return delivered

    def _require(self, state: State) -> None:
        if self.state is not state:
            raise CodecError(f"the all-reduce is in state {self.state.name}, this needs {state.name}")
