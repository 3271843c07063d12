# SPDX-License-Identifier: Apache-2.0
"""The resources of the jobs of one switch: job indices, slot ranges and generations.

A taken place is free again only when the switch has confirmed that its generation is gone (rule S1). The slots of
a job are a contiguous range out of the slots of the switch, first fit.
"""

from __future__ import annotations

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
        """Count `generation` as taken, because it was found on a switch: `allot` returns higher ones from now on."""
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
        """Return the first slot after the range."""
        return self.base + self.size


class Allocation(NamedTuple):
    """A place for one job on a switch: its job index, 0 .. 63, and its slots."""

    job_index: int
    region: SlotRange


class FreeCapacity(NamedTuple):
    """The free part of a switch: its number of slots, of slots in the largest range, and of job indices."""

    slots: int
    largest_range: int
    jobs: int


class ResourceAllocator:
    """The allocations of a switch of which `slots` slots may be used.

    An allocation is free again only when `free` says so (rule S1).
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: set[Allocation] = set()

    @property
    def free_capacity(self) -> FreeCapacity:
        """Return the capacity that no allocation has."""
        gaps = [gap.size for gap in self._gaps()]
        return FreeCapacity(sum(gaps), max(gaps), MAX_JOBS - len(self._taken))

    def allocate(self, slots: int, job_index: int | None = None, region: SlotRange | None = None) -> Allocation:
        """Allocate a job index and `slots` slots: the lowest free ones, or exactly those that are given.

        Raises ControlPlaneError when they are not free, or do not exist. Nothing is allocated then.
        """
        if region is not None and region.size != slots:
            raise ControlPlaneError(
                f"a range of {region.size} slots for a job of {slots}", hint="give a range of the job's size"
            )
        index = self._free_index(job_index)
        if region is None:
            region = self._free_range(slots)
        else:
            self._check_range(region)
        taken = Allocation(index, region)
        self._taken.add(taken)
        return taken

    def free(self, allocation: Allocation) -> None:
        """Free an allocation. Raises KeyError when nothing has it."""
        self._taken.remove(allocation)

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

    def _free_range(self, count: int) -> SlotRange:
        if count < 1:
            raise ControlPlaneError(f"{count} slots asked for", hint="ask for at least 1")
        # First fit keeps the ranges at the low end together, so that large jobs find room at the high end.
        for gap in self._gaps():
            if gap.size >= count:
                return SlotRange(gap.base, count)
        free = self.free_capacity
        raise ControlPlaneError(
            f"no {count} contiguous slots: the largest free range has {free.largest_range} of {self._slots} "
            f"slots, {free.slots} are free in all, {len(self._taken)} ranges are in use",
            hint="ask for fewer slots, or delete a job",
        )

    def _check_range(self, wanted: SlotRange) -> None:
        if wanted.size < 1 or wanted.base < 0 or wanted.end > self._slots:
            raise ControlPlaneError(
                f"slots {wanted.base} .. {wanted.end - 1} of a switch that has {self._slots}",
                hint=f"slots are 0 .. {self._slots - 1}",
            )
        for _, taken in self._taken:
            if taken.base < wanted.end and wanted.base < taken.end:
                raise ControlPlaneError(
                    f"slots {wanted.base} .. {wanted.end - 1} are asked for, {taken.base} .. {taken.end - 1} are taken",
                    hint="ask for others, or free that range first",
                )

    def _gaps(self) -> list[SlotRange]:
        """List the free ranges in ascending order, empty ones between neighbours included."""
        used = sorted(region for _, region in self._taken)
        starts = [0, *(taken.end for taken in used)]
        ends = [*(taken.base for taken in used), self._slots]
        return [SlotRange(start, end - start) for start, end in zip(starts, ends, strict=True)]
