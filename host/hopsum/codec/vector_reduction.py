# SPDX-License-Identifier: Apache-2.0
"""Ranges, and the base of all-reduces in two phases, of codecs with one range for each block.

Ranges say how large each block of a vector is, as MAX32 lanes, so that all ranks agree on a scale:

own    = bits of non-negative float32, one lane per block; +inf: "my block is not finite"
shared = read_ranges(results of MAX32 over pack_ranges(own), len(own))
shared.skipped: no rank goes on, on all ranks alike

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
    blocks_of,
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
    """A `RangeCodec`, or its form for a device: `block_elements`, `chunk_blocks`."""

    def take(self, results: Bytes, contributors: Bitmaps) -> None:
        self._require_phase()
        if self.state is ReductionState.RANGES:
            self._take_ranges(results)
        else:
            self._take_sums(results, contributors)

    @property
    def left_out(self) -> CollectivePhase | None:
        return self._codes_phase() if self.state is ReductionState.SKIPPED else None

    def _codes_phase(self) -> CollectivePhase:
        """Return the phase SUMS with payloads of zeros."""
        payloads = np.zeros((self._chunks, SHAPES[self.codec.op].up_bytes), np.uint8)
        return CollectivePhase(self.codec.op, payloads, self._lanes(len(payloads)), last=True)

    @abstractmethod
    def _take_ranges(self, results: Bytes) -> None:
        """Take the shared ranges, and make the phase SUMS, or skip."""

    @abstractmethod
    def _take_sums(self, results: Bytes, contributors: Bitmaps) -> None:
        """Take the sums, and finish."""

    @property
    def _blocks(self) -> int:
        return blocks_of(self.elements, self.codec.block_elements)

    @property
    def _chunks(self) -> int:
        return blocks_of(self._blocks, self.codec.chunk_blocks)

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
