# SPDX-License-Identifier: Apache-2.0
"""Ranges, and the base of all-reduces in two phases, of codecs with one range for each block.

Ranges say how large each block of a vector is, as MAX32 lanes, so that all ranks agree on a scale:

own    = bits of non-negative float32, one lane per block; +inf: "my block is not finite"
shared = read_ranges(results of MAX32 over pack_ranges(own), len(own))
shared.skipped: no rank continues, on all ranks alike

MAX32 compares lanes as integers. The bits of non-negative floats have the order of the floats, and +inf is above all.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    CodecError,
    CollectivePhase,
    Floats,
    Reduction,
    ReductionState,
    Words,
    require_rows,
)
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

INFINITE: Final = 0x7F800000
"""Bits of the float32 +inf: as a range it says that a block must not be summed."""
RANGE_LANES: Final = SHAPES[Op.MAX32].elements


class BlockReduction(Reduction):
    """One all-reduce in two phases, RANGES and SUMS, of a codec with one range for each block."""

    codec: Any
    """A `RangeCodec`, or its form for a device: `block_elements`. A block is a chunk."""

    def on_results(self, results: Bytes, contributors: Bitmaps) -> None:
        if self.state is ReductionState.RANGES:
            self._on_ranges(results)
        elif self.state is ReductionState.SUMS:
            self._on_sums(results, contributors)
        else:
            self._require_phase()

    @property
    def zero_phase(self) -> CollectivePhase | None:
        return self._codes_phase() if self.state is ReductionState.SKIPPED else None

    def _codes_phase(self) -> CollectivePhase:
        """Return the phase SUMS with payloads of zeros."""
        payloads = np.zeros((self._blocks, SHAPES[self.codec.op].up_bytes), np.uint8)
        return CollectivePhase(self.codec.op, payloads, self._lanes, last=True)

    @abstractmethod
    def _on_ranges(self, results: Bytes) -> None:
        """Take the shared ranges, and make the phase SUMS, or skip."""

    @abstractmethod
    def _on_sums(self, results: Bytes, contributors: Bitmaps) -> None:
        """Take the sums, and finish."""

    def _share(self, own: Words) -> CollectivePhase:
        """Return the phase that shares the ranges of the vector."""
        # Not those of `own`: a codec may have one range for all blocks.
        self._own, self._blocks = own, -(-self.elements // self.codec.block_elements)
        self._lanes: int = self.elements
        return CollectivePhase(Op.MAX32, pack_ranges(own), own.size)


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
    """Raise CodecError, which calls them "`what` ranges", unless the array has the shape [blocks]."""
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
    chunks = -(-ranges.size // RANGE_LANES)
    # Lanes beyond the last block are 0, which no maximum is below.
    lanes = np.zeros(chunks * RANGE_LANES, ">u4")
    lanes[: ranges.size] = ranges
    return lanes.view(np.uint8).reshape(chunks, -1)


def read_ranges(results: Bytes, blocks: int) -> SharedRanges:
    """Read the ranges of `blocks` blocks from MAX32 RESULT payloads, uint8[chunks, 1024].

    Raises:
        CodecError: another number of chunks than these blocks have.
    """
    require_rows(results, -(-blocks // RANGE_LANES), RANGE_LANES * 4, f"ranges of {blocks} blocks")
    bits = results.reshape(-1).view(">u4")[:blocks].astype(np.uint32)
    # NaN has bits above infinity. One value for both, so that all ranks skip alike.
    return SharedRanges(np.minimum(bits, np.uint32(INFINITE)).view(np.float32))
