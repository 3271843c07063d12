# SPDX-License-Identifier: Apache-2.0
"""What a codec is: two exchanges through the switch, then a mean.

    own     = codec.ranges(x)                          one lane per block; +inf: "my block is not finite"
    shared  = read_ranges(results of MAX32 over pack_ranges(own), len(own))
              shared.skipped: no rank goes on, on all ranks alike; the all-reduce has no mean
    up      = codec.encode(x, own, shared, context)    payloads of codec.op, one row per chunk
    mean    = codec.decode(results, contributors, shared, elements, context)
    mine    = codec.contribution(up, shared, elements, context)      what `up` added, for error feedback

Laws, held by tests: x = contribution + quantisation error, up to float32; decode of one contributor is its
contribution; the mean is unbiased where nothing is truncated; lane sums never overflow; equal arguments give
equal bytes, whatever the backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import HopsumError
from hopsum.wire import MAX_WORKERS, Op
from hopsum.wire.payload import SHAPES

INFINITE: Final = 0x7F800000
"""Bits of the float32 +inf: as a range it says that a block must not be summed."""
RANGE_LANES: Final = SHAPES[Op.MAX32].elements


class CodecError(HopsumError):
    """A codec cannot be made so, or was handed what does not fit together. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where the randomness of one all-reduce comes from.

    Rotations follow from seed and step, roundings from seed, step and rank: ranks rotate alike and round apart.
    """

    seed: int
    """Shared by the job."""
    step: int
    """Number of the all-reduce, the same on all ranks; a number used twice repeats its randomness."""
    rank: int


@dataclass(frozen=True, slots=True)
class SharedRanges:
    """The maximum over the workers of each block's range."""

    values: NDArray[np.float32]
    """[blocks], non-negative or +inf."""

    @property
    def skipped(self) -> bool:
        """Whether some rank announced a block that is not finite: then no rank sends anything."""
        return bool(np.isinf(self.values).any())


class Codec(Protocol):
    """Turns a vector into chunks whose sum a switch can make. Holds parameters only: any thread may use it."""

    name: str
    backend: str
    workers: int
    op: Op
    """What the switch does with the chunks; ranges always take MAX32."""
    block_elements: int
    """Elements of a chunk, and of a block with a range of its own."""
    lookup: tuple[int, ...] | None
    """The table that the job's switch needs; None where it needs none."""

    def ranges(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the range of each block, uint32[blocks]: bits of non-negative float32."""

    def encode(
        self, x: NDArray[np.float32], own: NDArray[np.uint32], shared: SharedRanges, context: Context
    ) -> NDArray[np.uint8]:
        """Return UPDATE payloads, uint8[chunks, up_bytes(op)], a new array.

        Args:
            x: float32[elements], contiguous and finite; only read.
            own: what `ranges` returned for it. A block whose own range exceeds the shared one (its ranges came
                too late for the quorum) is made to fit; the rest of it is quantisation error.
            shared: not skipped.
        """

    def decode(
        self,
        results: NDArray[np.uint8],
        contributors: NDArray[np.uint64],
        shared: SharedRanges,
        elements: int,
        context: Context,
    ) -> NDArray[np.float32]:
        """Return the mean of the contributions, float32[elements], a new array.

        Args:
            results: RESULT payloads, uint8[chunks, down_bytes(op)].
            contributors: [chunks], bitmap of the workers in each sum; divides by their number.
        """

    def contribution(
        self, payloads: NDArray[np.uint8], shared: SharedRanges, elements: int, context: Context
    ) -> NDArray[np.float32]:
        """Return what these UPDATE payloads add to the sum, float32[elements], a new array."""


def require_workers(workers: int) -> None:
    """Raise CodecError unless a job can have this many workers."""
    if not 1 <= workers <= MAX_WORKERS:
        raise CodecError(f"{workers} workers: a job has 1 to {MAX_WORKERS}")


def require_vector(x: NDArray[Any]) -> None:
    """Raise CodecError unless x is float32[elements], contiguous, with at least one element."""
    plain = x.flags.c_contiguous and x.flags.aligned
    if x.dtype != np.float32 or x.ndim != 1 or not x.size or not plain:
        raise CodecError(
            f"a codec takes a contiguous float32 vector of at least one element, not {x.dtype}{list(x.shape)}"
            f"{'' if plain else ', not contiguous or not aligned'}; flatten it first"
        )


def require_rows(array: NDArray[Any], rows: int, columns: int, what: str) -> None:
    """Raise CodecError unless array is uint8[rows, columns] and contiguous."""
    if array.dtype != np.uint8 or array.shape != (rows, columns):
        raise CodecError(
            f"{what}: expected uint8[{rows}, {columns}], got {array.dtype}{list(array.shape)}; "
            "all phases of an all-reduce take the same number of elements"
        )
    if not array.flags.c_contiguous:
        raise CodecError(f"{what}: rows lie {array.strides} bytes apart; pass a contiguous array")


def require_ranges(ranges: NDArray[Any], blocks: int, what: str) -> None:
    """Raise CodecError unless there is one range per block."""
    if ranges.shape != (blocks,):
        raise CodecError(f"{what} ranges: {list(ranges.shape)} for {blocks} blocks")


def require_finite(own: NDArray[np.uint32]) -> None:
    """Raise CodecError for own ranges with a block that is not finite."""
    bad = np.flatnonzero(own >= INFINITE)
    if bad.size:
        raise CodecError(f"{bad.size} blocks to encode are not finite, the first is block {int(bad[0])}")


def require_usable(shared: SharedRanges) -> None:
    """Raise CodecError for ranges of a bucket that must be skipped."""
    if shared.skipped:
        blocks = np.flatnonzero(np.isinf(shared.values))
        raise CodecError(
            f"{blocks.size} of {shared.values.size} blocks are not finite on some rank, the first is block "
            f"{int(blocks[0])}: skip this all-reduce on all ranks (SharedRanges.skipped)"
        )


def blocks_of(elements: int, block_elements: int) -> int:
    """Return the number of blocks of a vector; the last one may be padded."""
    return -(-elements // block_elements)


def padded_rows(x: NDArray[np.float32], columns: int) -> list[NDArray[np.float32]]:
    """Return the whole blocks of x as a view [blocks, columns], then any rest as a padded copy [1, columns]."""
    whole = x.size // columns
    parts = [x[: whole * columns].reshape(whole, columns)]
    if x.size % columns:
        tail = np.zeros((1, columns), np.float32)
        tail[0, : x.size % columns] = x[whole * columns :]
        parts.append(tail)
    return parts


def contributor_counts(contributors: NDArray[np.uint64], workers: int) -> NDArray[np.int32]:
    """Return the number of workers in each sum, int32[chunks].

    Raises:
        CodecError: a sum of nobody, or of a worker that the job does not have.
    """
    bitmaps = contributors.astype(np.uint64)
    counts = np.zeros(bitmaps.shape, np.int32)
    for worker in range(workers):
        counts += (bitmaps >> np.uint64(worker) & np.uint64(1)).astype(np.int32)
    beyond = bitmaps >> np.uint64(workers - 1) > 1
    bad = np.flatnonzero((counts == 0) | beyond)
    if bad.size:
        chunk = int(bad[0])
        raise CodecError(f"chunk {chunk}: contributors {int(bitmaps[chunk]):#x} of a job of {workers} workers")
    return counts


def pack_ranges(ranges: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the MAX32 payloads of ranges, uint8[chunks, 1024]; lanes beyond the last block are 0."""
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
