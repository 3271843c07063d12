# SPDX-License-Identifier: Apache-2.0
"""Slots against a set of single slots, generations that rise, the lane proof and the lookup table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.lanes import check_lane_overflow, check_table
from hopsum_controlplane.resource_allocator import (
    MAX_GENERATION,
    Allocation,
    GenerationAllocator,
    ResourceAllocator,
    SlotRange,
)

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
                self.allocator.allocate(count)
            return None
        taken = self.allocator.allocate(count)
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
    allocator = ResourceAllocator(10)
    allocator.allocate(4)
    with pytest.raises(KeyError):
        allocator.free(Allocation(0, SlotRange(0, 3)))


def test_no_slots_is_no_range() -> None:
    with pytest.raises(ControlPlaneError, match="0 slots"):
        ResourceAllocator(10).allocate(0)


NOW = 1_700_000_000


@settings(derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.9]), st.booleans(), st.integers(0, MAX_GENERATION // 2))))
def test_a_generation_is_above_the_clock_and_all_before(events: list[tuple[float, bool, int]]) -> None:
    generations, last = GenerationAllocator(), 0
    for part_of_second, is_observed, number in events:
        if is_observed:
            generations.observe(number)
            last = max(last, number)
        else:
            last = max(last, number) + 1
            assert generations.allot(number + part_of_second) == last
        assert generations.last == last


def test_the_last_generation_is_the_last() -> None:
    generations = GenerationAllocator()
    generations.observe(MAX_GENERATION - 1)
    assert generations.allot(NOW) == MAX_GENERATION
    with pytest.raises(ControlPlaneError, match="does not fit 32 bits"):
        generations.allot(NOW)


IDENTITY = tuple(range(16))


@pytest.mark.parametrize(("workers", "granularity"), [(17, 15), (8, 31), (1, 255), (5, 51)])
def test_the_largest_sum_fits(workers: int, granularity: int) -> None:
    check_lane_overflow(workers, granularity)
    with pytest.raises(ControlPlaneError):
        check_lane_overflow(workers, granularity + 1 if workers > 1 else 256)


def test_a_refusal_has_all_the_numbers() -> None:
    with pytest.raises(ControlPlaneError) as error:
        check_lane_overflow(10, 30)
    assert str(error.value) == (
        "n * g = 10 workers * granularity 30 = 300 may overflow a lane of 8 bits, whose maximum is 255: "
        "granularity 30 allows 8 workers, 10 workers allow granularity 25; "
        "use fewer workers or a coarser table"
    )


def test_a_refusal_says_when_no_table_is_coarse_enough() -> None:
    with pytest.raises(ControlPlaneError) as error:
        check_lane_overflow(300, 15)
    assert "granularity 15 allows 17 workers, 300 workers allow no table (at least 1)" in str(error.value)


def test_other_widths() -> None:
    check_lane_overflow(64, 1023, lane_bits=16)
    with pytest.raises(ControlPlaneError, match="maximum is 65535"):
        check_lane_overflow(64, 1024, lane_bits=16)


def test_the_granularity_is_the_last_value() -> None:
    assert check_table(IDENTITY) == 15
    assert check_table((*range(15), 200)) == 200
    assert check_table((0, 2, 3, 5, *[5] * 12)) == 5
    assert check_table((*range(15), 14)) == 14, "15 codes"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (IDENTITY[:15], "15 entries"),
        ((*IDENTITY, 16), "17 entries"),
        ((1, *range(2, 17)), "T[0] = 1"),
        ((*range(15), 13), "T[15] = 13 is not above T[14] = 14"),
        ((0, 1, 1, *range(2, 15)), "T[2] = 1 is not above T[1] = 1"),
        ((0,) * 16, "T[1] = 0 is not above T[0] = 0"),
        ((*range(15), 15.0), "T[15] = 15.0 is not an int"),
        ((False, *range(1, 16)), "T[0] = False is not an int"),
    ],
)
def test_a_wrong_table_is_refused(table: tuple[int, ...], message: str) -> None:
    with pytest.raises(ControlPlaneError) as error:
        check_table(table)
    assert message in str(error.value)
