# SPDX-License-Identifier: Apache-2.0
"""Ranges: how large each block of a vector is, as MAX32 lanes, so that all ranks agree on a scale.

own    = bits of non-negative float32, one lane per block; +inf: "my block is not finite"
shared = read_ranges(results of MAX32 over pack_ranges(own), len(own))
shared.skipped: no rank goes on, on all ranks alike
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CodecError, blocks_of, require_rows
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

INFINITE: Final = 0x7F800000
"""Bits of the float32 +inf: as a range it says that a block must not be summed."""
RANGE_LANES: Final = SHAPES[Op.MAX32].elements


@dataclass(frozen=True, slots=True)
class SharedRanges:
    """The maximum over the workers of each block's range."""

    values: NDArray[np.float32]
    """[blocks], non-negative or +inf."""

    @property
    def skipped(self) -> bool:
        """True where some rank announced a block that is not finite: then no rank sends anything."""
        return bool(self.values.max(initial=0) == np.inf)


def require_ranges(ranges: NDArray[Any], blocks: int, what: str) -> None:
    """Raise CodecError unless there is one range per block."""
    if ranges.shape != (blocks,):
        raise CodecError(f"{what} ranges: {list(ranges.shape)} for {blocks} blocks")


def require_finite(own: NDArray[np.uint32]) -> None:
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


def pack_ranges(ranges: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the MAX32 payloads of ranges, uint8[chunks, 1024]. Lanes beyond the last block are 0."""
    chunks = blocks_of(ranges.size, RANGE_LANES)
    lanes = np.zeros(chunks * RANGE_LANES, ">u4")
    lanes[: ranges.size] = ranges
    return lanes.view(np.uint8).reshape(chunks, -1)


def read_ranges(results: NDArray[np.uint8], blocks: int) -> SharedRanges:
    """Read the ranges of `blocks` blocks from MAX32 RESULT payloads, uint8[chunks, 1024].

    Raises:
        CodecError: another number of chunks than these blocks have.
    """
    chunks = blocks_of(blocks, RANGE_LANES)
    require_rows(results, chunks, RANGE_LANES * 4, f"ranges of {blocks} blocks")
    bits = results.reshape(-1).view(">u4")[:blocks].astype(np.uint32)
    return SharedRanges(np.minimum(bits, np.uint32(INFINITE)).view(np.float32))
