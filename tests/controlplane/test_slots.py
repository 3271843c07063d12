# SPDX-License-Identifier: Apache-2.0
"""The slot allocator against a set of single slots."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.resource_allocator import SlotAllocator, SlotRange

TOTAL = 24


class Slots(RuleBasedStateMachine):
    ranges = Bundle("ranges")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = SlotAllocator(TOTAL)
        self.taken: set[int] = set()

    @rule(target=ranges, count=st.integers(1, TOTAL))
    def allocate(self, count: int) -> SlotRange | None:
        fitting = [base for base in range(TOTAL - count + 1) if self.taken.isdisjoint(range(base, base + count))]
        if not fitting:
            with pytest.raises(ControlPlaneError):
                self.allocator.allocate(count)
            return None
        taken = self.allocator.allocate(count)
        assert taken == SlotRange(fitting[0], count)
        self.taken |= set(range(taken.base, taken.end))
        return taken

    @rule(taken=consumes(ranges))
    def free(self, taken: SlotRange | None) -> None:
        if taken is not None:
            self.allocator.free(taken)
            self.taken -= set(range(taken.base, taken.end))

    @invariant()
    def books_agree(self) -> None:
        assert {slot for taken in self.allocator.used for slot in range(taken.base, taken.end)} == self.taken
        free = [
            size
            for size in range(1, TOTAL + 1)
            if any(self.taken.isdisjoint(range(base, base + size)) for base in range(TOTAL - size + 1))
        ]
        assert self.allocator.largest_free == max(free, default=0)


TestSlots = Slots.TestCase
TestSlots.settings = settings(derandomize=True)


def test_a_refusal_has_the_numbers() -> None:
    allocator = SlotAllocator(10)
    first = allocator.allocate(3)
    allocator.allocate(3)
    allocator.free(first)
    with pytest.raises(ControlPlaneError) as error:
        allocator.allocate(5)
    assert str(error.value) == (
        "no 5 contiguous slots: the largest free range has 4 of 10 slots, 7 are free in all, "
        "1 ranges are in use; ask for fewer slots, or delete a job"
    )


def test_what_was_not_allocated_cannot_be_freed() -> None:
    allocator = SlotAllocator(10)
    allocator.allocate(4)
    with pytest.raises(ControlPlaneError, match="not an allocated range"):
        allocator.free(SlotRange(0, 3))


def test_no_slots_is_no_range() -> None:
    with pytest.raises(ControlPlaneError, match="0 slots"):
        SlotAllocator(10).allocate(0)
