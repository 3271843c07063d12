# SPDX-License-Identifier: Apache-2.0
"""The parts of a `lossless` vector: the index, sketches and their sizes, and the kernels over whole vectors.

The index says which elements are not zero on some worker. The switch ORs it.
A bitmap has one bit per element. A Bloom filter is smaller below about 8 % density. Each of its false positives
is an element that everybody counts in and nobody sends, which costs the cells of one element. To look up all elements
in it takes longer than all other work on a thin vector, so "auto" wants an eighth of the bytes for it: it takes a
filter below about 4 % density.

All ranks must choose alike, so the choice follows from shared numbers by additions, multiplications and divisions of
float64 alone, which every machine rounds alike.

Sizes of the sketches are decided by all ranks alike before anything is sent.
Whether a sketch peels follows from the support and the hash functions alone, never from values. So every rank peels
the support that the index phase gave, grows a sketch that fails, and gives up on it after some attempts:

    1. The members are cut into segments of 65 536 to 131 071, or one smaller one. Each has a sketch of its own.
    2. Attempt t has ceil(gamma * members * (16 + t) / 16 / 3) cells per third, and hash functions of its own.
    3. At most a 64th of the members is left: these travel as they are ("packed"), behind all sketches.
    4. All attempts fail: the segment has no sketch, and all its members are packed.

gamma = 0 packs everything, which needs the fewest bytes of all: see docs/lossless.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Final

import numpy as np

from hopsum.codec.backends.threads import run_parallel
from hopsum.codec.hashing import derive_key
from hopsum.codec.interface import Bytes, CodecError, Doubles, Floats, Ints, Words, blocks_of
from hopsum.codec.lossless.sketch_kernels import EDGE_SHIFT, RANGE_BLOCK, Bloom, SketchKernels, SketchLayout
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

CHUNK_BITS: Final = SHAPES[Op.OR].elements
KINDS: Final = ("auto", "bitmap", "bloom")
_LANE_BITS: Final = 32
_WORTHWHILE: Final = 0.875
_MOST_HASHES: Final = 24
_MOST_BITS: Final = 1 << 32
_INVERSE_LN2: Final = 1.4426950408889634


def require_kind(kind: str) -> None:
    """Raise CodecError for an unknown kind of index."""
    if kind not in KINDS:
        raise CodecError(f"index {kind!r}: one of {', '.join(KINDS)}")


def expected_union(elements: int, nonzero: int, workers: int) -> float:
    """Return how many elements are expected in the union of `workers` independent supports of `nonzero` elements."""
    empty, share = 1.0, 1.0 - nonzero / elements
    # Multiplied out, and not by a power: pow rounds differently from machine to machine, and ranks must choose alike.
    for _ in range(workers):
        empty *= share
    return elements * (1.0 - empty)


def choose_index(kind: str, elements: int, union: float, gamma: float, key: int) -> Bloom | None:
    """Return the Bloom filter to use as the index, or None for a bitmap.

    Args:
        kind: "bitmap"; "bloom": the filter that costs least; "auto": that filter if it saves an eighth of all bytes.
        elements: of the vector.
        union: elements to expect in the index, more than 0.
        gamma: cells that an element costs.
        key: of the filter's hash functions.
    """
    if kind == "bitmap":
        return None
    # All numbers of hashes are tried: 24 are quick, and no logarithm is needed, which machines round differently.
    costs = [_bloom_bits(elements, union, gamma, hashes) for hashes in range(1, _MOST_HASHES + 1)]
    hashes = 1 + costs.index(min(costs))
    # The bytes of the sums count as well: a false positive of the filter costs cells there.
    cells = _LANE_BITS * gamma * union
    if kind == "auto" and min(costs) + cells > _WORTHWHILE * (CHUNK_BITS * blocks_of(elements, CHUNK_BITS) + cells):
        return None
    return Bloom(_filter_bits(union, hashes), hashes, key)


def index_bits(elements: int, bloom: Bloom | None) -> int:
    """Return the size of an index in bits: of the filter, or with None of a bitmap of the elements."""
    return elements if bloom is None else bloom.bits


def _filter_bits(union: float, hashes: int) -> int:
    """Return the size at which half of the bits are set, in whole chunks."""
    # Half of the bits are set at ln 2 elements a bit and hash: there a filter of this size errs least.
    bits = CHUNK_BITS * blocks_of(int(hashes * union * _INVERSE_LN2) + 1, CHUNK_BITS)
    return min(bits, _MOST_BITS)


def _bloom_bits(elements: int, union: float, gamma: float, hashes: int) -> float:
    """Return the bits that a filter and its false positives cost. Each probe halves these."""
    # At half full each probe of an element that is not in it hits with probability 1/2.
    false = (elements - union) / (1 << hashes)
    return _filter_bits(union, hashes) + _LANE_BITS * gamma * false


# ---- sizes -------------------------------------------------------------------------------------------------

GAMMA: Final = 1.25
BLOCK_ELEMENTS: Final = 1024
"""Consecutive elements that share their hashes, a power of two. They are fewer in small sketches."""
_ATTEMPTS: Final = 4
SEGMENT_MEMBERS: Final = 1 << 16
_GROWTH: Final = 16
_PACKED_SHARE: Final = 64
_MOST_GAMMA: Final = 8.0


def require_gamma(gamma: float) -> None:
    """Raise CodecError unless sketches can have so many cells per member."""
    if not 0 <= gamma <= _MOST_GAMMA:
        raise CodecError(f"gamma {gamma}: 0, or cells per non-zero element up to {_MOST_GAMMA}")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of members and their sketch."""

    members: slice
    """The place of its members in the list of all members."""
    layout: SketchLayout | None
    """None: no sketch, all members are packed."""
    order: Words
    """The peeling order of its sketch, in the form of the backend that peeled it."""
    rest: Words
    """Members that are packed, counted from the segment's first, ascending."""
    first_cell: int
    """The first cell of its sketch, in the lanes of the phase."""


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """The lanes of the sum phase: `cells` cells of all sketches, then the packed members."""

    segments: list[Segment]
    cells: int
    packed: Words
    """Places in the list of members, ascending."""

    @property
    def lanes(self) -> int:
        """Return the lanes that carry something: cells of sketches and packed members."""
        return self.cells + self.packed.size


def make_plan(kernels: SketchKernels, members: Words, gamma: float, key: int, threads: int = 1) -> SketchPlan:
    """Size the sketches of members, uint32[members] ascending, and return the plan. All ranks make the same.

    Args:
        gamma: cells per member in the first attempt at a sketch, the same on all ranks. 0 packs everything.
        key: of the hash functions, the same on all ranks.
        threads: that peel segments, the calling one among them. The plan does not depend on it.
    """
    bounds = _bounds(members.size)
    # By place, as threads end in any order and the plan must be the same on all ranks.
    found: list[Segment | None] = [None] * len(bounds)

    def size(place: int) -> None:
        found[place] = _size_segment(kernels, members, bounds[place], gamma, key)

    # A segment peels by itself: threads share nothing but the list of results.
    run_parallel([partial(size, place) for place in range(len(bounds))], threads)
    return _lay_out([segment for segment in found if segment is not None])


def _bounds(members: int) -> list[slice]:
    # Segments peel in the second-level cache, each on a thread of its own.
    segments = max(1, members // SEGMENT_MEMBERS)
    ends = [members * segment // segments for segment in range(segments + 1)]
    return [slice(ends[segment], ends[segment + 1]) for segment in range(segments)]


def _size_segment(kernels: SketchKernels, members: Words, run: slice, gamma: float, key: int) -> Segment:
    part = members[run]
    order = np.empty(part.size, np.uint32)
    for attempt in range(_ATTEMPTS if gamma and part.size else 0):
        # A sixteenth of gamma more at each attempt, and other hash functions.
        third = ceil(gamma * part.size * (_GROWTH + attempt) / _GROWTH / 3)
        layout = SketchLayout.with_blocks(third, BLOCK_ELEMENTS, derive_key(key, attempt))
        peeled = kernels.peel(part, layout, order)
        # Few that do not peel are cheaper as packed lanes than a larger sketch is for all.
        if part.size - peeled <= part.size // _PACKED_SHARE:
            return Segment(run, layout, order[:peeled], order[peeled:] >> np.uint32(EDGE_SHIFT), 0)
    return Segment(run, None, order[:0], np.arange(part.size, dtype=np.uint32), 0)


def _lay_out(segments: list[Segment]) -> SketchPlan:
    placed, cell = [], 0
    for segment in segments:
        placed.append(Segment(segment.members, segment.layout, segment.order, segment.rest, cell))
        # Sketches follow each other, packed members come last: lanes are in one order on all ranks.
        cell += 0 if segment.layout is None else segment.layout.cells
    packed = np.concatenate([segment.rest + np.uint32(segment.members.start) for segment in placed])
    return SketchPlan(placed, cell, packed)


# ---- whole vectors, in runs that several threads take ------------------------------------------------------

_RUN: Final = 1 << 20
"""Elements, or members, of a job, a multiple of RANGE_BLOCK."""
_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class ParallelKernels:
    """Kernels over whole vectors, run by several threads. Returned arrays are new."""

    def __init__(self, kernels: SketchKernels, threads: int) -> None:
        self.kernels = kernels
        self.threads = threads

    def scan(self, x: Floats) -> tuple[Words, int]:
        """Return the bits of the largest magnitude per run of 1024 elements, and how many elements are not zero."""
        peaks = np.empty(blocks_of(x.size, RANGE_BLOCK), np.uint32)
        counts: list[int] = []

        def scan(run: slice) -> None:
            # list.append is atomic: runs end in any order, and only the sum counts.
            counts.append(self.kernels.scan(x[run], peaks[_scaled(run, RANGE_BLOCK)]))

        self._each(x.size, scan)
        return peaks, sum(counts)

    def mark(self, x: Floats, scales: Floats) -> Bytes:
        """Return the bitmap of the elements that are sent, uint8[ceil(elements / 8)]."""
        bits = np.empty(blocks_of(x.size, 8), np.uint8)

        def mark(run: slice) -> None:
            self.kernels.mark(x[run], scales[_scaled(run, RANGE_BLOCK)], bits[_scaled(run, 8)])

        self._each(x.size, mark)
        return bits

    def query(self, elements: int, bloom: Bloom, held: Bytes) -> Bytes:
        """Return the bitmap of the elements that a filter, with the bits `held`, holds, uint8[ceil(elements / 8)]."""
        bits = np.empty(blocks_of(elements, 8), np.uint8)

        def query(run: slice) -> None:
            self.kernels.bloom_query(run.start, run.stop - run.start, bloom, held, bits[_scaled(run, 8)])

        self._each(elements, query)
        return bits

    def select(self, bits: Bytes) -> Words:
        """Return the numbers of the bits that are set, ascending."""
        runs = [_scaled(run, 8) for run in _runs(8 * bits.size)]
        counts = np.zeros(len(runs), np.int64)

        def count(place: int) -> None:
            counts[place] = _ONES[bits[runs[place]]].sum(dtype=np.int64)

        run_parallel([partial(count, place) for place in range(len(runs))], self.threads)
        # Counted first, so that each thread knows where its members go.
        ends = [0, *np.cumsum(counts).tolist()]
        members = np.empty(ends[-1], np.uint32)

        def select(place: int) -> None:
            self.kernels.select(bits[runs[place]], 8 * runs[place].start, members[ends[place] : ends[place + 1]])

        run_parallel([partial(select, place) for place in range(len(runs))], self.threads)
        return members

    def quantise(self, x: Floats, scales: Floats, members: Words) -> Ints:
        """Return the integers rint(x * scale) of members, int32[members]. Scales are those of runs of 1024 elements."""
        values = np.empty(members.size, np.int32)
        self._each(members.size, lambda run: self.kernels.quantise(x, scales, members[run], values[run]))
        return values

    def spread(self, values: Ints, members: Words, divisors: Doubles, out: Floats) -> None:
        """Set members of `out` to value / divisor. Divisors are those of runs of 1024 elements."""
        self._each(members.size, lambda run: self.kernels.spread(values[run], members[run], divisors, out))

    def add(self, values: Ints, members: Words, plan: SketchPlan, lanes: Words) -> None:
        """Add the values of all members to the lanes of a plan, which are 0: sketches, then packed members."""
        lanes[plan.cells :] = values[plan.packed].view(np.uint32)

        def add(place: int) -> None:
            segment = plan.segments[place]
            if segment.layout is None:
                return
            part = values[segment.members]
            if segment.rest.size:
                # The values of packed members travel by themselves, and are left out of the sketch.
                part = part.copy()
                part[segment.rest] = 0
            cells = lanes[segment.first_cell : segment.first_cell + segment.layout.cells]
            self.kernels.add(part, members[segment.members], segment.layout, cells)

        run_parallel([partial(add, place) for place in range(len(plan.segments))], self.threads)

    def solve(self, lanes: Words, members: Words, plan: SketchPlan) -> Ints | None:
        """Return the values of all members, int32[members], None if the lanes contradict each other. Lanes change."""
        values = np.empty(members.size, np.int32)
        values[plan.packed] = lanes[plan.cells :].view(np.int32)

        def solve(place: int) -> None:
            segment = plan.segments[place]
            if segment.layout is None:
                return
            cells = lanes[segment.first_cell : segment.first_cell + segment.layout.cells]
            part = members[segment.members]
            self.kernels.solve(cells, part, segment.layout, segment.order, values[segment.members])

        run_parallel([partial(solve, place) for place in range(len(plan.segments))], self.threads)
        # A cell that is not 0 in the end belies the sums: packets of different all-reduces, or a switch that erred.
        return None if lanes[: plan.cells].any() else values

    def _each(self, size: int, work: Callable[[slice], None]) -> None:
        run_parallel([partial(work, run) for run in _runs(size)], self.threads)


def _runs(size: int) -> list[slice]:
    return [slice(start, min(start + _RUN, size)) for start in range(0, size, _RUN)]


def _scaled(run: slice, unit: int) -> slice:
    """Return the run in units. Runs begin at whole ones."""
    return slice(run.start // unit, blocks_of(run.stop, unit))
