# SPDX-License-Identifier: Apache-2.0
"""The resources of the jobs of one switch: job indices and slot ranges, taken, reserved and free.

    free -- reserve --> reserved -- take --> taken -- free --> free
                        reserved -- release --> free
    free -- take --> taken

A taken allocation is free again only when the switch has confirmed that its generation is gone (rule S1).
"""

from __future__ import annotations

from typing import NamedTuple

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.slots import SlotAllocator, SlotRange
from hopsum_wire import MAX_JOBS


class Allocation(NamedTuple):
    """A place for one job on a switch: its job index, 0 .. 63, and its slots."""

    job_index: int
    region: SlotRange


class FreeCapacity(NamedTuple):
    """What is neither taken nor reserved: slots in all, the largest range of them, and job indices."""

    slots: int
    largest_range: int
    jobs: int


class ResourceAllocator:
    """The allocations of a switch of which `slots` slots may be used."""

    def __init__(self, slots: int) -> None:
        self._slots = SlotAllocator(slots)
        self._reserved: set[Allocation] = set()
        self._taken: set[Allocation] = set()

    @property
    def free_capacity(self) -> FreeCapacity:
        """Return what is left."""
        jobs = MAX_JOBS - len(self._reserved) - len(self._taken)
        return FreeCapacity(self._slots.free_slots, self._slots.largest_free, jobs)

    def reserve(self, slots: int, at: Allocation | None = None) -> Allocation:
        """Set a place aside: the lowest free index and range of `slots` slots, or exactly `at`.

        Raises ControlPlaneError when there is no such place.
        """
        allocation = self._claim(slots, None if at is None else at.job_index, None if at is None else at.region)
        self._reserved.add(allocation)
        return allocation

    def release(self, allocation: Allocation) -> None:
        """Give a reservation up. Raises ControlPlaneError when it is none."""
        if allocation not in self._reserved:
            raise ControlPlaneError(f"{_show(allocation)} are not reserved", hint="release what reserve returned")
        self._reserved.remove(allocation)
        self._slots.free(allocation.region)

    def take(self, slots: int, job_index: int | None, region: SlotRange | None) -> tuple[Allocation, bool]:
        """Take a place for a job: a reservation of exactly this, or what is free.

        Returns it, and whether it was reserved. Raises ControlPlaneError when there is no such place.
        """
        if region is not None and region.size != slots:
            raise ControlPlaneError(
                f"a range of {region.size} slots for a job of {slots}", hint="give a range of the job's size"
            )
        for allocation in self._reserved:
            if (job_index, region) == allocation:
                self._reserved.remove(allocation)
                self._taken.add(allocation)
                return allocation, True
        allocation = self._claim(slots, job_index, region)
        self._taken.add(allocation)
        return allocation, False

    def free(self, allocation: Allocation, *, keep_reserved: bool = False) -> None:
        """Give a taken place back, or turn it into a reservation again."""
        self._taken.remove(allocation)
        if keep_reserved:
            self._reserved.add(allocation)
        else:
            self._slots.free(allocation.region)

    def _claim(self, slots: int, job_index: int | None, region: SlotRange | None) -> Allocation:
        index = self._free_index(job_index)
        if region is None:
            region = self._slots.allocate(slots)
        else:
            self._slots.take(region)
        return Allocation(index, region)

    def _free_index(self, wanted: int | None) -> int:
        used = {allocation.job_index for allocation in (*self._reserved, *self._taken)}
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


def _show(allocation: Allocation) -> str:
    base, size = allocation.region
    return f"job index {allocation.job_index} and slots {base} .. {base + size - 1}"
