# SPDX-License-Identifier: Apache-2.0
"""The kernels over whole vectors, in runs that several threads take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.threads import run_parallel
from hopsum.codec.interface import blocks_of
from hopsum.codec.lossless.kernels import RANGE_BLOCK, Bloom, SketchKernels
from hopsum.codec.lossless.sizing import SketchPlan

_RUN: Final = 1 << 20
"""Elements, or members, of a job, a multiple of RANGE_BLOCK."""
_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class ParallelKernels:
    """Kernels over whole vectors, run by several threads. Returned arrays are new."""

    def __init__(self, kernels: SketchKernels, threads: int) -> None:
        self.kernels = kernels
        self.threads = threads

    def scan(self, x: NDArray[np.float32]) -> tuple[NDArray[np.uint32], int]:
        """Return the bits of the largest magnitude per run of 1024 elements, and how many elements are not zero."""
        peaks = np.empty(blocks_of(x.size, RANGE_BLOCK), np.uint32)
        counts: list[int] = []

        def scan(run: slice) -> None:
            counts.append(self.kernels.scan(x[run], peaks[_scaled(run, RANGE_BLOCK)]))

        self._each(x.size, scan)
        return peaks, sum(counts)

    def mark(self, x: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the bitmap of the elements that are sent, uint8[ceil(elements / 8)]."""
        bits = np.empty(blocks_of(x.size, 8), np.uint8)

        def mark(run: slice) -> None:
            self.kernels.mark(x[run], scales[_scaled(run, RANGE_BLOCK)], bits[_scaled(run, 8)])

        self._each(x.size, mark)
        return bits

    def query(self, elements: int, bloom: Bloom, held: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bitmap of the elements that a filter holds."""
        bits = np.empty(blocks_of(elements, 8), np.uint8)

        def query(run: slice) -> None:
            self.kernels.bloom_query(run.start, run.stop - run.start, bloom, held, bits[_scaled(run, 8)])

        self._each(elements, query)
        return bits

    def select(self, bits: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """Return the numbers of the bits that are set, ascending."""
        runs = [_scaled(run, 8) for run in _runs(8 * bits.size)]
        counts = np.zeros(len(runs), np.int64)

        def count(place: int) -> None:
            counts[place] = _ONES[bits[runs[place]]].sum(dtype=np.int64)

        run_parallel([partial(count, place) for place in range(len(runs))], self.threads)
        ends = [0, *np.cumsum(counts).tolist()]
        members = np.empty(ends[-1], np.uint32)

        def select(place: int) -> None:
            self.kernels.select(bits[runs[place]], 8 * runs[place].start, members[ends[place] : ends[place + 1]])

        run_parallel([partial(select, place) for place in range(len(runs))], self.threads)
        return members

    def quantise(
        self, x: NDArray[np.float32], scales: NDArray[np.float32], members: NDArray[np.uint32]
    ) -> NDArray[np.int32]:
        """Return the integers of members."""
        values = np.empty(members.size, np.int32)
        self._each(members.size, lambda run: self.kernels.quantise(x, scales, members[run], values[run]))
        return values

    def spread(
        self,
        values: NDArray[np.int32],
        members: NDArray[np.uint32],
        divisors: NDArray[np.float64],
        out: NDArray[np.float32],
    ) -> None:
        """Set members of a vector to value / divisor."""
        self._each(members.size, lambda run: self.kernels.spread(values[run], members[run], divisors, out))

    def add(
        self, values: NDArray[np.int32], members: NDArray[np.uint32], plan: SketchPlan, lanes: NDArray[np.uint32]
    ) -> None:
        """Add the values of all members to the lanes of a plan, which are 0: sketches, then packed members."""
        lanes[plan.cells :] = values[plan.packed].view(np.uint32)

        def add(place: int) -> None:
            segment = plan.segments[place]
            if segment.layout is None:
                return
            part = values[segment.members]
            if segment.rest.size:
                part = part.copy()
                part[segment.rest] = 0
            cells = lanes[segment.first_cell : segment.first_cell + segment.layout.cells]
            self.kernels.add(part, members[segment.members], segment.layout, cells)

        run_parallel([partial(add, place) for place in range(len(plan.segments))], self.threads)

    def solve(
        self, lanes: NDArray[np.uint32], members: NDArray[np.uint32], plan: SketchPlan
    ) -> NDArray[np.int32] | None:
        """Return the values of all members, or None: the lanes contradict each other. Lanes are used up."""
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
        return None if lanes[: plan.cells].any() else values

    def _each(self, size: int, work: Callable[[slice], None]) -> None:
        run_parallel([partial(work, run) for run in _runs(size)], self.threads)


def _runs(size: int) -> list[slice]:
    return [slice(start, min(start + _RUN, size)) for start in range(0, size, _RUN)]


def _scaled(run: slice, unit: int) -> slice:
    """Return the run in units. Runs begin at whole ones."""
    return slice(run.start // unit, blocks_of(run.stop, unit))
