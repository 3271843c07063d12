# SPDX-License-Identifier: Apache-2.0
"""The base of all codecs' all-reduces, on the host and on devices: a vector, its ranges, its error feedback, its end.

state     meaning                                          residual
RANGES    ranges are to be summed (MAX32)                  as before
INDEX     the index is to be summed (OR), if there is one  as before
SUMS      codes or lanes are to be summed                  as before
DONE      there is a mean                                  what was not delivered
SKIPPED   some rank's vector is not finite                 as before
GONE      aborted, or not to be recovered                  residual + vector

Ranges say how large each block of a vector is, as MAX32 lanes, so that all ranks agree on a scale:

own    = bits of non-negative float32, one lane per block; +inf: "my block is not finite"
shared = read_ranges(results of MAX32 over pack_ranges(own), len(own))
shared.skipped: no rank goes on, on all ranks alike

MAX32 compares lanes as integers. The bits of non-negative floats have the order of the floats, and +inf is above all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    ChunkStream,
    CodecError,
    CollectivePhase,
    Floats,
    OnNonfinite,
    ReductionContext,
    Tensors,
    Words,
    blocks_of,
    nonfinite_error,
    require_on_nonfinite,
    require_out,
    require_rows,
    require_vector,
)
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

INFINITE: Final = 0x7F800000
"""Bits of the float32 +inf: as a range it says that a block must not be summed."""
RANGE_LANES: Final = SHAPES[Op.MAX32].elements


class ReductionState(Enum):
    """The state of an all-reduce: the table above has the meanings."""

    RANGES = auto()
    INDEX = auto()
    SUMS = auto()
    DONE = auto()
    SKIPPED = auto()
    GONE = auto()


class VectorReduction(ABC):
    """One all-reduce of one vector. The contract is `hopsum.codec.interface.Reduction`."""

    _own: Words
    """Its ranges, made by `_first_phase`."""

    def __init__(
        self,
        x: Any,
        context: ReductionContext,
        feedback: Any = None,
        *,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: Any = None,
    ) -> None:
        """Take a vector, see `Codec.start`, and make the first phase. Subclasses set what that needs beforehand."""
        require_on_nonfinite(on_nonfinite)
        self.context = context
        self.state = ReductionState.RANGES
        self.mean: Any = None
        self.contributors: Bitmaps = np.zeros(0, np.uint64)
        self._out = out
        self._feedback = feedback
        self._tensors = tensors
        self._on_nonfinite = on_nonfinite
        self._x = self._compensated(x)
        # Checked by now: what has no length is refused as no vector.
        self.elements = len(x)
        try:
            self.phase: CollectivePhase | None = self._first_phase()
        # Nobody has this reduction, so nobody could abort it, and the feedback would stay busy.
        except BaseException:
            self._rollback()
            raise

    def _compensated(self, x: Any) -> Any:
        """Return the vector to encode: x, or x + residual. Raises CodecError for no vector of the host."""
        require_vector(x)
        require_out(self._out, x)
        return x if self._feedback is None else self._feedback.compensate(x)

    @abstractmethod
    def take(self, results: Bytes, contributors: Bitmaps) -> None:
        """Take the results of the current phase. See `Reduction`."""

    @property
    def stream(self) -> ChunkStream | None:
        """None: most codecs have no machine code for a part of a vector."""
        return None

    def encode_in_parts(self, part_chunks: int, *, compiled: bool = False) -> None:  # noqa: B027
        """Let the next phase begin with some of its payloads, where the codec can. See `Reduction`."""

    def encode_part(self) -> Bytes:
        raise CodecError(f"the all-reduce is in state {self.state.name}: all payloads are made")

    def take_part(  # noqa: B027
        self, first: int, results: Bytes, contributors: Bitmaps
    ) -> None:
        """Take results early. See `Reduction`. Codecs without parts do nothing here: `take` has all results."""

    @abstractmethod
    def _first_phase(self) -> CollectivePhase:
        """Return the ranges to share of the vector, which may be infinite."""

    @property
    def encoded(self) -> int:
        return 0 if self.phase is None else len(self.phase.payloads)

    def abort(self) -> None:
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: there is nothing to abort")
        # A vector with NaN must not enter the residual: every later step would have it.
        if self._is_finite():
            self._commit(None)
        else:
            self._rollback()
        self._end(ReductionState.GONE)

    def _is_finite(self) -> bool:
        return bool(np.isfinite(self._x).all())

    def _require_phase(self) -> CollectivePhase:
        """Return the phase whose results are due. Raises CodecError when the all-reduce is over."""
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: it takes no results")
        return self.phase

    def _skip(self) -> None:
        """End without a mean, since some rank's vector is not finite. Raise an error if that was asked for."""
        error = None
        # The error is made before the feedback gives the vector back: its message reads the vector.
        if self._on_nonfinite == "raise":
            large = bool(self._own.max(initial=0) >= INFINITE)
            error = nonfinite_error(self._on_host(), self._tensors, self.context.rank, too_large=large)
        self._rollback()
        self._end(ReductionState.SKIPPED)
        if error is not None:
            raise error

    def _on_host(self) -> Floats:
        """Return the vector in the host's memory."""
        x: Floats = self._x
        return x

    def _finish(self, mean: Any, contributors: Bitmaps) -> None:
        if self._out is not None and mean is not self._out:
            # Written at the very end, so that `out` may be x itself: until here x was still needed.
            self._out[:] = mean
        self.mean, self.contributors = mean if self._out is None else self._out, contributors
        self._end(ReductionState.DONE)

    def _commit(self, delivered: Floats | None) -> None:
        if self._feedback is not None:
            self._feedback.commit(delivered)

    def _rollback(self) -> None:
        if self._feedback is not None:
            self._feedback.give_back()

    def _end(self, state: ReductionState) -> None:
        self.state, self.phase = state, None


class BlockReduction(VectorReduction):
    """One all-reduce in two phases, RANGES and SUMS, of a codec with one range for each block."""

    codec: Any
    """A `RangeCodec`, or its form for a device: `block_elements`, `chunk_blocks`."""

    def take(self, results: Bytes, contributors: Bitmaps) -> None:
        self._require_phase()
        if self.state is ReductionState.RANGES:
            self._take_ranges(results)
        else:
            self._take_sums(results, contributors)

    @abstractmethod
    def _take_ranges(self, results: Bytes) -> None:
        """Take the shared ranges, and make the phase SUMS, or skip."""

    @abstractmethod
    def _take_sums(self, results: Bytes, contributors: Bitmaps) -> None:
        """Take the sums, and finish."""

    @property
    def _blocks(self) -> int:
        return blocks_of(self.elements, self.codec.block_elements)

    def _lanes(self, chunks: int) -> int:
        """Return the lanes in use of so many chunks. Where a lane carries two sums, the first block's are all of it."""
        before = (chunks - 1) * self.codec.block_elements
        rest = self.elements - before * self.codec.chunk_blocks
        return int(before + min(rest, self.codec.block_elements))

    def _by_block(self, of_chunks: NDArray[Any]) -> NDArray[Any]:
        """Return for each block what there is for its chunk."""
        if self.codec.chunk_blocks == 1:
            return of_chunks
        return of_chunks.repeat(self.codec.chunk_blocks)[: self._blocks]


# ---- ranges -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedRanges:
    """The maximum over the workers of each block's range."""

    values: Floats
    """[blocks], non-negative or +inf."""

    @property
    def skipped(self) -> bool:
        """True where some rank announced a block that is not finite: then no rank sends anything."""
        return bool(self.values.max(initial=0) == np.inf)


def require_ranges(ranges: NDArray[Any], blocks: int, what: str) -> None:
    """Raise CodecError unless there is one range per block."""
    if ranges.shape != (blocks,):
        raise CodecError(f"{what} ranges: {list(ranges.shape)} for {blocks} blocks")


def require_finite(own: Words) -> None:
    """Raise CodecError for own ranges with a block that is not finite."""
    if own.max(initial=0) >= INFINITE:
        bad = np.flatnonzero(own >= INFINITE)
        raise CodecError(f"{bad.size} blocks to encode are not finite, the first is block {int(bad[0])}")


def require_usable(shared: SharedRanges) -> None:
    """Raise CodecError for ranges of a bucket that must be skipped."""
    if shared.skipped:
        blocks = np.flatnonzero(np.isinf(shared.values))
        raise CodecError(
            f"{blocks.size} of {shared.values.size} blocks are not finite on some rank, the first is block "
            f"{int(blocks[0])}: skip this all-reduce on all ranks (SharedRanges.skipped)"
        )


def pack_ranges(ranges: Words) -> Bytes:
    """Return the MAX32 payloads of ranges, uint8[chunks, 1024]. Lanes beyond the last block are 0."""
    chunks = blocks_of(ranges.size, RANGE_LANES)
    # Lanes beyond the last block are 0, which no maximum is below.
    lanes = np.zeros(chunks * RANGE_LANES, ">u4")
    lanes[: ranges.size] = ranges
    return lanes.view(np.uint8).reshape(chunks, -1)


def read_ranges(results: Bytes, blocks: int) -> SharedRanges:
    """Read the ranges of `blocks` blocks from MAX32 RESULT payloads, uint8[chunks, 1024].

    Raises:
        CodecError: another number of chunks than these blocks have.
    """
    chunks = blocks_of(blocks, RANGE_LANES)
    require_rows(results, chunks, RANGE_LANES * 4, f"ranges of {blocks} blocks")
    bits = results.reshape(-1).view(">u4")[:blocks].astype(np.uint32)
    # NaN has bits above infinity. One value for both, so that all ranks skip alike.
    return SharedRanges(np.minimum(bits, np.uint32(INFINITE)).view(np.float32))
