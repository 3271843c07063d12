# SPDX-License-Identifier: Apache-2.0
"""Generations: rising, never twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.resource_allocator import MAX_GENERATION, GenerationAllocator

NOW = 1_700_000_000


def test_a_generation_is_above_the_clock_and_the_last() -> None:
    generations = GenerationAllocator()
    assert generations.allot(NOW + 0.9) == NOW + 1
    assert generations.allot(NOW) == NOW + 2
    assert generations.allot(NOW + 100) == NOW + 101


@settings(derandomize=True)
@given(st.lists(st.integers(0, MAX_GENERATION // 2)))
def test_generations_rise_whatever_the_clock_does(clock: list[int]) -> None:
    generations = GenerationAllocator()
    allotted = [generations.allot(now) for now in clock]
    assert all(generation > 0 for generation in allotted)
    assert allotted == sorted(set(allotted))


def test_an_observed_generation_is_taken() -> None:
    generations = GenerationAllocator()
    generations.observe(NOW + 50)
    assert generations.allot(NOW) == NOW + 51
    generations.observe(3)
    assert generations.last == NOW + 51


def test_the_last_generation_is_the_last() -> None:
    generations = GenerationAllocator()
    generations.observe(MAX_GENERATION - 1)
    assert generations.allot(NOW) == MAX_GENERATION
    with pytest.raises(ControlPlaneError, match="does not fit 32 bits"):
        generations.allot(NOW)
