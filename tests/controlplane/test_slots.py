# SPDX-License-Identifier: Apache-2.0
"""The allocator of slots against a set of single slots."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.resource_allocator import Allocation, ResourceAllocator, SlotRange

TOTAL = 24


class Slots(RuleBasedStateMachine):
    ranges = Bundle("ranges")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = ResourceAllocator(TOTAL)
        self.taken: set[int] = set()

    @rule(target=ranges, count=st.integers(1, TOTAL))
    def allocate(self, count: int) -> Allocation | None:
        fitting = [base for base in range(TOTAL - count + 1) if self.taken.isdisjoint(range(base, base + count))]
        if not fitting:
            with pytest.raises(ControlPlaneError):
                self.allocator.take(count)
            return None
        taken = self.allocator.take(count)
        assert taken.region == SlotRange(fitting[0], count)
        self.taken |= set(range(fitting[0], taken.region.end))
        return taken

    @rule(taken=consumes(ranges))
    def free(self, taken: Allocation | None) -> None:
        if taken is not None:
            self.allocator.free(taken)
            self.taken -= set(range(taken.region.base, taken.region.end))

    @invariant()
    def books_agree(self) -> None:
        fitting = [
            size
            for size in range(1, TOTAL + 1)
            if any(self.taken.isdisjoint(range(base, base + size)) for base in range(TOTAL - size + 1))
        ]
        free = self.allocator.free_capacity
        assert (free.slots, free.largest_range) == (TOTAL - len(self.taken), max(fitting, default=0))


TestSlots = Slots.TestCase
TestSlots.settings = settings(derandomize=True)


def test_a_refusal_has_the_numbers() -> None:
    allocator = ResourceAllocator(10)
    first = allocator.take(3)
    allocator.take(3)
    allocator.free(first)
    with pytest.raises(ControlPlaneError) as error:
        allocator.take(5)
    assert str(error.value) == (
        "no 5 contiguous slots: the largest free range has 4 of 10 slots, 7 are free in all, "
        "1 ranges are in use; ask for fewer slots, or delete a job"
    )


def test_what_was_not_allocated_cannot_be_freed() -> None:
    allocator = ResourceAllocator(10)
    allocator.take(4)
    with pytest.raises(KeyError):
        allocator.free(Allocation(0, SlotRange(0, 3)))


def test_no_slots_is_no_range() -> None:
    with pytest.raises(ControlPlaneError, match="0 slots"):
        ResourceAllocator(10).take(0)
