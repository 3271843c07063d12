# SPDX-License-Identifier: Apache-2.0
"""The slots of each job: contiguous ranges out of the slots of one switch, first fit."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from hopsum_controlplane.errors import ControlPlaneError


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
        self._used: list[SlotRange] = []  # in ascending order, disjoint

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
