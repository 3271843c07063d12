# SPDX-License-Identifier: Apache-2.0
"""Positions, slots and rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.errors import GenerationEndedError
from hopsum.protocol.stream import MAX_ROUND, SLOTS_LEAST, SLOTS_OF_SHARD_LEAST, SlotRound, Stream, slots_for
from hopsum_wire import MAX_SLOTS
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES

SLOTS = st.integers(1, 2048)


@given(SLOTS, st.integers(0, 2**43))
def test_place_and_position(slots: int, position: int) -> None:
    stream = Stream(slots)
    position %= stream.capacity
    place = stream.place(position)
    assert 0 <= place.slot < slots
    assert 1 <= place.round <= MAX_ROUND
    assert stream.position(*place) == position


@given(SLOTS, st.integers(0, 2**40), st.integers(0, 50))
def test_places(slots: int, first: int, count: int) -> None:
    stream = Stream(slots)
    slot_array, round_array = stream.places(first, count)
    assert list(zip(slot_array.tolist(), round_array.tolist(), strict=True)) == [
        tuple(stream.place(position)) for position in range(first, first + count)
    ]


def test_a_slots_rounds_alternate_versions() -> None:
    stream = Stream(3)
    assert [stream.place(position) for position in (0, 2, 3, 7)] == [
        SlotRound(0, 1),
        SlotRound(2, 1),
        SlotRound(0, 2),
        SlotRound(1, 3),
    ]


def test_a_generation_ends_before_its_rounds_wrap() -> None:
    stream = Stream(2)
    assert stream.place(stream.capacity - 1) == SlotRound(1, 2**32 - 2)
    stream.end = stream.capacity - 3
    with pytest.raises(GenerationEndedError, match=r"4 chunks do not fit.*Connect all ranks again"):
        stream.next_places(4)
    slots, rounds = stream.next_places(3)
    assert list(zip(slots.tolist(), rounds.tolist(), strict=True)) == [(1, 2**32 - 3), (0, 2**32 - 2), (1, 2**32 - 2)]


@pytest.mark.parametrize(("slot", "round_"), [(2, 1), (-1, 1), (0, 0), (0, 2**32 - 1), (0, 2**32)])
def test_no_position_is_there(slot: int, round_: int) -> None:
    with pytest.raises(ValueError, match=r"slots 0\.\.1, rounds 1\.\.4294967294"):
        Stream(2).position(slot, round_)


@pytest.mark.parametrize("slots", [0, 2049])
def test_slots_of_a_job(slots: int) -> None:
    with pytest.raises(ValueError, match="1 to 2048 slots"):
        Stream(slots)


def test_slots_fill_a_link_for_a_round_trip() -> None:
    packet_s = 8 * (FRAME_OVERHEAD_BYTES + 512) / 1e9  # 1,024 codes of 4 bits
    assert slots_for(1e9, 1000 * packet_s) == 1000
    assert slots_for(2e9, 500.5 * packet_s) == 1001
    assert slots_for(1e9, 1000 * packet_s, shards=2) == 500
    assert slots_for(1e9, 0.0) == SLOTS_LEAST == 2 * slots_for(1e9, 0.0, shards=2)
    assert slots_for(1e9, 0.0, shards=16) == SLOTS_OF_SHARD_LEAST
    assert slots_for(1e9, 1.0) == MAX_SLOTS
