# SPDX-License-Identifier: Apache-2.0
"""The resources of the jobs of one switch: job indices, slot ranges and generations.

A taken place is free again only when the switch has confirmed that its generation is gone (rule S1). The slots of
a job are a contiguous range out of the slots of the switch, first fit.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_wire import MAX_JOBS

MAX_GENERATION = (1 << 32) - 1


class GenerationAllocator:
    """Allots generations, for all jobs of all switches of one controller.

    A generation is the name of a job's incarnation on the wire: max(last, unix seconds) + 1, never 0 and never the
    same twice. The clock covers a lost record of the last one: a controller that starts anew allots generations above
    all that an earlier one allotted, as long as that one allotted fewer than one a second.
    """

    def __init__(self) -> None:
        self._last = 0

    @property
    def last(self) -> int:
        """Return the highest generation known to be taken, or 0 for none."""
        return self._last

    def observe(self, generation: int) -> None:
        """Count `generation` as taken: it was found on a switch."""
        self._last = max(self._last, generation)

    def allot(self, now: float) -> int:
        """Return the next generation at `now` (unix seconds).

        Raises ControlPlaneError when it does not fit 32 bits. Nothing is allotted then.
        """
        # Above the clock: a controller whose record of the last generation is lost allots above it all the same.
        generation = max(self._last, int(now)) + 1
        if generation > MAX_GENERATION:
            raise ControlPlaneError(
                f"generation {generation} does not fit 32 bits (last {self._last}, clock {int(now)} s)",
                hint="check the clock of this machine",
            )
        self._last = generation
        return generation


class SlotRange(NamedTuple):
    """Slots `base` .. `end - 1`, which are `size` slots."""

    base: int
    size: int

    @property
    def end(self) -> int:
        """Return the first slot behind the range."""
        return self.base + self.size


class SlotAllocator:
    """Hands out ranges of `total` slots. A range is free again only when `free` says so (rule S1)."""

    def __init__(self, total: int) -> None:
        self._total = total
        # In ascending order, disjoint.
        self._used: list[SlotRange] = []

    @property
    def used(self) -> tuple[SlotRange, ...]:
        """Return the ranges in use in ascending order."""
        return tuple(self._used)

    @property
    def largest_free(self) -> int:
        """Return the size of the largest free range."""
        return max(gap.size for gap in self._gaps())

    @property
    def free_slots(self) -> int:
        """Return how many slots are free in all."""
        return self._total - sum(taken.size for taken in self._used)

    def allocate(self, count: int) -> SlotRange:
        """Take the lowest free range of `count` slots.

        Raises ControlPlaneError when there is none: ask for fewer slots, or free a range.
        """
        if count < 1:
            raise ControlPlaneError(f"{count} slots asked for", hint="ask for at least 1")
        # First fit keeps the ranges at the low end together, so that large jobs find room at the high end.
        for gap in self._gaps():
            if gap.size >= count:
                taken = SlotRange(gap.base, count)
                bisect.insort(self._used, taken)
                return taken
        raise ControlPlaneError(
            f"no {count} contiguous slots: the largest free range has {self.largest_free} of {self._total} "
            f"slots, {self.free_slots} are free in all, {len(self._used)} ranges are in use",
            hint="ask for fewer slots, or delete a job",
        )

    def take(self, wanted: SlotRange) -> None:
        """Take these slots and no others. Raises ControlPlaneError when one of them is taken, or does not exist."""
        if wanted.size < 1 or wanted.base < 0 or wanted.end > self._total:
            raise ControlPlaneError(
                f"slots {wanted.base} .. {wanted.end - 1} of a switch that has {self._total}",
                hint=f"slots are 0 .. {self._total - 1}",
            )
        for taken in self._used:
            if taken.base < wanted.end and wanted.base < taken.end:
                raise ControlPlaneError(
                    f"slots {wanted.base} .. {wanted.end - 1} are asked for, {taken.base} .. {taken.end - 1} are taken",
                    hint="ask for others, or free that range first",
                )
        bisect.insort(self._used, wanted)

    def free(self, taken: SlotRange) -> None:
        """Give a range back. Raises ControlPlaneError when it was not allocated as it is."""
        if taken not in self._used:
            raise ControlPlaneError(
                f"slots {taken.base} .. {taken.end - 1} are not an allocated range",
                hint="free what allocate returned",
            )
        self._used.remove(taken)

    def _gaps(self) -> list[SlotRange]:
        starts = [0, *(taken.end for taken in self._used)]
        ends = [*(taken.base for taken in self._used), self._total]
        return [SlotRange(start, end - start) for start, end in zip(starts, ends, strict=True)]


class Allocation(NamedTuple):
    """A place for one job on a switch: its job index, 0 .. 63, and its slots."""

    job_index: int
    region: SlotRange


class FreeCapacity(NamedTuple):
    """The free part of a switch: slots in all, the largest range of them, and job indices."""

    slots: int
    largest_range: int
    jobs: int


class ResourceAllocator:
    """The allocations of a switch of which `slots` slots may be used."""

    def __init__(self, slots: int) -> None:
        self._slots = SlotAllocator(slots)
        self._taken: set[Allocation] = set()

    @property
    def free_capacity(self) -> FreeCapacity:
        """Return the free part."""
        return FreeCapacity(self._slots.free_slots, self._slots.largest_free, MAX_JOBS - len(self._taken))

    def take(self, slots: int, job_index: int | None = None, region: SlotRange | None = None) -> Allocation:
        """Take a place for a job: the lowest free index and range of `slots` slots, or exactly what is given.

        Raises ControlPlaneError when there is no such place.
        """
        if region is not None and region.size != slots:
            raise ControlPlaneError(
                f"a range of {region.size} slots for a job of {slots}", hint="give a range of the job's size"
            )
        # The index is checked first: a range that was taken for an index that is not free would have to be given
        # back.
        index = self._free_index(job_index)
        if region is None:
            region = self._slots.allocate(slots)
        else:
            self._slots.take(region)
        self._taken.add(Allocation(index, region))
        return Allocation(index, region)

    def free(self, allocation: Allocation) -> None:
        """Give a taken place back. Raises KeyError when it is none."""
        self._taken.remove(allocation)
        self._slots.free(allocation.region)

    def _free_index(self, wanted: int | None) -> int:
        used = {allocation.job_index for allocation in self._taken}
        if wanted is None:
            index = next((index for index in range(MAX_JOBS) if index not in used), None)
            if index is None:
                raise ControlPlaneError(f"all {MAX_JOBS} jobs of the switch are taken", hint="delete a job first")
            return index
        if not 0 <= wanted < MAX_JOBS:
            raise ControlPlaneError(f"job index {wanted}", hint=f"job indices are 0 .. {MAX_JOBS - 1}")
        if wanted in used:
            raise ControlPlaneError(f"job index {wanted} is taken", hint="use another, or end the job that has it")
        return wanted
