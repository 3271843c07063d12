# SPDX-License-Identifier: Apache-2.0
"""Order of codes and lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_wire import (
    CODE_GROUPS,
    LANE_GROUP_CODES,
    Drop,
    Op,
    WireError,
    down_bytes,
    pack_codes,
    unpack_codes,
    up_bytes,
)
from hopsum_wire.payload import SHAPES, lanes, pack_sums, unpack_sums


@pytest.mark.parametrize("lane_bits", [8, 16])
@given(
    st.lists(st.integers(0, 3), max_size=2), st.integers(1, 3), st.sampled_from(CODE_GROUPS), st.integers(0, 2**32 - 1)
)
def test_codes_there_and_back(lane_bits: int, lead: list[int], groups: int, group: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 16, (*lead, groups * group), dtype=np.uint8)
    packed = pack_codes(codes, lane_bits, group)
    assert packed.shape == (*lead, groups * group // 2)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_codes(packed, lane_bits, group), codes)


def test_groups_fill_chunks_and_words_fill_groups() -> None:
    assert LANE_GROUP_CODES in CODE_GROUPS
    for op, lane_bits in ((Op.LOOKUP_ADD8, 8), (Op.LOOKUP_ADD16, 16)):
        assert all(SHAPES[op].elements % group == group % (lane_bits // 4) == 0 for group in CODE_GROUPS)


@pytest.mark.parametrize("lane_bits", [8, 16])
@pytest.mark.parametrize("group", CODE_GROUPS)
def test_order_of_codes_in_any_group(lane_bits: int, group: int) -> None:
    """Word j of a group of W words: codes j, j + W, ..., the first in the highest nibble; said once more in a loop."""
    codes = np.random.default_rng(group).integers(0, 16, 1024, dtype=np.uint8)
    nibbles, expected = lane_bits // 4, b""
    for first in range(0, 1024, group):
        for j in range(group // nibbles):
            digits = [int(codes[first + j + nibble * (group // nibbles)]) for nibble in range(nibbles)]
            expected += bytes.fromhex("".join(f"{digit:x}" for digit in digits))
    assert pack_codes(codes, lane_bits, group).tobytes() == expected


def test_order_of_codes_for_wide_lanes() -> None:
    """16-bit word j: codes j, j + 128, j + 256, j + 384, the first in the highest nibble of the first byte."""
    codes = np.random.default_rng(2).integers(0, 16, 512, dtype=np.uint8)
    expected = bytearray()
    for j in range(128):
        expected.append(int(codes[j]) << 4 | int(codes[j + 128]))
        expected.append(int(codes[j + 256]) << 4 | int(codes[j + 384]))
    assert pack_codes(codes, 16).tobytes() == bytes(expected)


def test_sizes() -> None:
    assert {op: (up_bytes(op), down_bytes(op)) for op in Op} == {
        Op.LOOKUP_ADD8: (512, 1024),
        Op.LOOKUP_ADD16: (256, 1024),
        Op.LOOKUP_ADD6: (512, 768),
        **dict.fromkeys((Op.ADD8, Op.ADD16, Op.ADD32, Op.OR, Op.MAX32), (1024, 1024)),
    }


@pytest.mark.parametrize("op", Op)
def test_a_full_chunk_fills_its_lanes(op: Op) -> None:
    shape = SHAPES[op]
    element_bits = 1 if op is Op.OR else shape.sum_bits
    assert shape.elements * element_bits == shape.down_bytes * 8
    assert shape.up_bytes * 8 == shape.elements * (4 if shape.has_codes else element_bits)
    assert shape.sum_bits == (6 if op is Op.LOOKUP_ADD6 else shape.lane_bits)


@pytest.mark.parametrize("op", [0, 9, 200])
def test_other_ops_have_no_size(op: int) -> None:
    with pytest.raises(WireError, match=f"op {op} is none of the switch program's, which are LOOKUP_ADD8") as raised:
        up_bytes(op)
    assert raised.value.reason is Drop.BAD_OP


def test_refused_codes() -> None:
    with pytest.raises(WireError, match="code 16 does not fit in 4 bits"):
        pack_codes(np.full(512, 16, np.uint8))
    with pytest.raises(WireError, match="last axis must be a multiple of 512"):
        pack_codes(np.zeros((3, 511), np.uint8))
    with pytest.raises(WireError, match="must be uint8, not int64"):
        pack_codes(np.zeros(512, np.int64))  # type: ignore[arg-type]
    with pytest.raises(WireError, match="last axis must be a multiple of 256"):
        unpack_codes(np.zeros(255, np.uint8))
    with pytest.raises(WireError, match="last axis must be a multiple of 64"):
        pack_codes(np.zeros(1000, np.uint8), group=64)


@pytest.mark.parametrize("shape", [(1024,), (3, 1024), (2, 3, 1024)])
def test_packed_sums_come_back(shape: tuple[int, ...]) -> None:
    sums = np.random.default_rng(3).integers(0, 64, shape, dtype=np.uint8)
    packed = pack_sums(sums)
    assert packed.shape == (*shape[:-1], 768)
    assert np.array_equal(unpack_sums(packed), sums)
    assert np.array_equal(lanes(Op.LOOKUP_ADD6, packed), sums)
    assert np.shares_memory(lanes(Op.LOOKUP_ADD6, sums), sums), "those of a PARTIAL are not packed"


def test_order_of_packed_sums() -> None:
    """Byte j, 256 + j, 512 + j: its own lane, and two bits of lane 768 + j, the lowest first."""
    sums = np.random.default_rng(4).integers(0, 64, 1024, dtype=np.uint8)
    expected = [int(sums[i]) | (int(sums[768 + i % 256]) >> 2 * (i // 256) & 3) << 6 for i in range(768)]
    assert pack_sums(sums).tolist() == expected


@given(payload=st.binary(min_size=768, max_size=768))
def test_every_packed_payload_is_that_of_its_sums(payload: bytes) -> None:
    packed = np.frombuffer(payload, np.uint8)
    sums = unpack_sums(packed)
    assert int(sums.max()) < 64
    assert pack_sums(sums).tobytes() == payload


def test_lanes_are_views_in_element_order() -> None:
    payload = np.arange(1024, dtype=np.uint16).astype(np.uint8)
    words = lanes(Op.ADD32, payload)
    assert words.shape == (256,)
    assert int(words[1]) == 0x04050607
    words[0] = 0x01020304
    assert payload[:4].tolist() == [1, 2, 3, 4]
    assert lanes(Op.LOOKUP_ADD8, payload).tolist() == payload.tolist()
    assert lanes(Op.MAX32, np.zeros((2, 5, 1024), np.uint8)).shape == (2, 5, 256)
    with pytest.raises(WireError, match="no whole lanes of 4 bytes"):
        lanes(Op.ADD32, payload[:6])
