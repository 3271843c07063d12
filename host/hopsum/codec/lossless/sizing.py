# SPDX-License-Identifier: Apache-2.0
"""The sizes of the sketches, decided by all ranks alike before anything is sent.

Whether a sketch peels follows from the support and the hash functions alone, never from values. So every rank peels
the support that the index phase gave, grows a sketch that fails, and gives up on it after some attempts:

    1. The members are cut into segments of 65 536 to 131 071, or one smaller one. Each has a sketch of its own.
    2. Attempt t has ceil(gamma * members * (16 + t) / 16 / 3) cells per third, and hash functions of its own.
    3. At most a 64th of the members is left: these travel as they are ("packed"), behind all sketches.
    4. All attempts fail: the segment has no sketch, and all its members are packed.

gamma = 0 packs everything, which needs the fewest bytes of all: see docs/lossless.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.threads import run_parallel
from hopsum.codec.hashing import derive_key
from hopsum.codec.interface import CodecError
from hopsum.codec.lossless.kernels import EDGE_SHIFT, MAX_EDGES, SketchKernels
from hopsum.codec.lossless.layout import SketchLayout

GAMMA: Final = 1.25
BLOCK_ELEMENTS: Final = 1024
ATTEMPTS: Final = 4
SEGMENT_MEMBERS: Final = 1 << 16
MOST_BLOCK_ELEMENTS: Final = 1 << 16
_GROWTH: Final = 16
_PACKED_SHARE: Final = 64
_MOST_GAMMA: Final = 8.0


@dataclass(frozen=True, slots=True)
class Sizing:
    """Options of the sketches. They are the same on all ranks."""

    gamma: float = GAMMA
    """Cells per member of the first attempt. 0 packs everything."""
    block_elements: int = BLOCK_ELEMENTS
    """Consecutive elements that share their hashes, a power of two. It is smaller in small sketches."""
    attempts: int = ATTEMPTS
    """Sizes to try per segment."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= _MOST_GAMMA:
            raise CodecError(f"gamma {self.gamma}: 0, or cells per non-zero element up to {_MOST_GAMMA}")
        if self.block_elements not in {1 << shift for shift in range(MOST_BLOCK_ELEMENTS.bit_length())}:
            raise CodecError(f"blocks of {self.block_elements} elements: a power of two up to {MOST_BLOCK_ELEMENTS}")
        if self.attempts < 1:
            raise CodecError(f"{self.attempts} attempts to size a sketch: at least 1")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of members and their sketch."""

    members: slice
    """The place of its members in the list of all members."""
    layout: SketchLayout | None
    """None: no sketch, all members are packed."""
    order: NDArray[np.uint32]
    """The peeling order of its sketch, in the form of the backend that peeled it."""
    rest: NDArray[np.uint32]
    """Members that are packed, counted from the segment's first, ascending."""
    first_cell: int
    """The first cell of its sketch, in the lanes of the phase."""


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """The lanes of the sum phase: `cells` cells of all sketches, then the packed members."""

    segments: list[Segment]
    cells: int
    packed: NDArray[np.uint32]
    """Places in the list of members, ascending."""

    @property
    def lanes(self) -> int:
        """In use."""
        return self.cells + self.packed.size


def make_plan(
    kernels: SketchKernels, members: NDArray[np.uint32], sizing: Sizing, key: int, threads: int = 1
) -> SketchPlan:
    """Return the plan for members, uint32[members] ascending, and the job's key. All ranks make the same."""
    bounds = _bounds(members.size)
    found: list[Segment | None] = [None] * len(bounds)

    def size(place: int) -> None:
        found[place] = _size_segment(kernels, members, bounds[place], sizing, key)

    run_parallel([partial(size, place) for place in range(len(bounds))], threads)
    return _lay_out([segment for segment in found if segment is not None])


def unpeeled(
    kernels: SketchKernels, members: NDArray[np.uint32], gamma: float, *, block_elements: int = 1024, key: int = 0
) -> int:
    """Return how many members do not peel in one sketch of gamma cells per member.

    This is what becomes of a sketch whose size is fixed beforehand: below about 1.22 cells per member most of the
    members stay, all at once. `make_plan` finds that out in time. This function is for measuring it.

    Args:
        members: uint32[members], ascending, at most 2^24.
        gamma: more than 0.
        block_elements: a power of two.
        key: of the hash functions.
    """
    if members.size > MAX_EDGES:
        raise CodecError(f"{members.size} members in one sketch: at most {MAX_EDGES}")
    layout = SketchLayout.of(max(1, ceil(gamma * members.size / 3)), block_elements, key)
    return members.size - kernels.peel(members, layout, np.empty(members.size, np.uint32))


def _bounds(members: int) -> list[slice]:
    segments = max(1, members // SEGMENT_MEMBERS)
    ends = [members * segment // segments for segment in range(segments + 1)]
    return [slice(ends[segment], ends[segment + 1]) for segment in range(segments)]


def _size_segment(kernels: SketchKernels, members: NDArray[np.uint32], run: slice, sizing: Sizing, key: int) -> Segment:
    part = members[run]
    order = np.empty(part.size, np.uint32)
    attempts = sizing.attempts if sizing.gamma and part.size else 0
    for attempt in range(attempts):
        third = ceil(sizing.gamma * part.size * (_GROWTH + attempt) / _GROWTH / 3)
        layout = SketchLayout.of(third, sizing.block_elements, derive_key(key, attempt))
        peeled = kernels.peel(part, layout, order)
        if part.size - peeled <= part.size // _PACKED_SHARE:
            return Segment(run, layout, order[:peeled], order[peeled:] >> np.uint32(EDGE_SHIFT), 0)
    return Segment(run, None, order[:0], np.arange(part.size, dtype=np.uint32), 0)


def _lay_out(segments: list[Segment]) -> SketchPlan:
    placed, cell = [], 0
    for segment in segments:
        placed.append(Segment(segment.members, segment.layout, segment.order, segment.rest, cell))
        cell += 0 if segment.layout is None else segment.layout.cells
    packed = np.concatenate([segment.rest + np.uint32(segment.members.start) for segment in placed])
    return SketchPlan(placed, cell, packed)
