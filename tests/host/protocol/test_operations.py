# SPDX-License-Identifier: Apache-2.0
"""The oracle's lanes: every op, at the edges of its lanes, beside neighbours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from hopsum_oracle.aggregator import Aggregator, PacketOutcome
from hopsum_wire import Drop, Op, pack_codes
from hopsum_wire.payload import SHAPES, lanes

from .jobs import TABLE, TABLE16, job, update, worker

STEEP6 = (0, 1, 2, 3, 4, 7, 8, 15, 16, 21, 31, 32, 42, 47, 62, 63)


def payload_of(op: int, values: ArrayLike) -> NDArray[np.uint8]:
    """A payload whose lanes are these, repeated to fill it."""
    dtype = np.dtype(SHAPES[op].lane_dtype)
    return np.resize(np.asarray(values, np.uint64), 1024 // dtype.itemsize).astype(dtype).view(np.uint8)


def sum_of(op: int, *payloads: NDArray[np.uint8], **settings: Any) -> list[int]:
    """Let one worker send each payload; return the lanes of the result."""
    aggregator = Aggregator(jobs=[job(workers=len(payloads), **settings)])
    outcome = PacketOutcome()
    for rank, payload in enumerate(payloads):
        where, header = worker(rank), update(rank, op=op)
        data = header.pack() + payload.tobytes()
        outcome = aggregator.receive(where.port, where.ip, where.udp_port, data)
    summed: list[int] = lanes(op, np.frombuffer(outcome.outputs[0].payload, np.uint8)).tolist()
    return summed


def test_a_top_bit_is_refused_in_a_maximum_and_nowhere_else() -> None:
    aggregator = Aggregator(jobs=[job(slots=9)])
    where = worker(0)
    for op in Op:
        header = update(0, op=op, slot=op)
        data = header.pack() + bytes([0x80]) + bytes(header.length - 1)
        outcome = aggregator.receive(where.port, where.ip, where.udp_port, data)
        assert outcome.drop is (Drop.BAD_VALUE if op is Op.MAX32 else Drop.NONE)


@pytest.mark.parametrize(
    ("op", "table", "bits"), [(Op.LOOKUP_ADD8, TABLE, 8), (Op.LOOKUP_ADD16, TABLE16, 16), (Op.LOOKUP_ADD6, STEEP6, 8)]
)
def test_lookups_put_every_element_in_its_lane(op: Op, table: tuple[int, ...], bits: int) -> None:
    """With one worker, lane i is the table's value of code i; every code in every place by rotation."""
    elements = SHAPES[op].elements
    for rotation in range(16):
        codes = ((np.arange(elements) + np.arange(elements) // 128 + rotation) % 16).astype(np.uint8)
        assert sum_of(op, pack_codes(codes, bits), table6=STEEP6) == np.asarray(table)[codes].tolist()


def test_what_leaves_a_packed_lane_spoils_its_neighbours_in_one_known_way() -> None:
    """The controller proves that no lane exceeds 63; the oracle says what the program does with one that does."""
    codes = np.zeros(1024, np.uint8)
    codes[[0, 1, 768, 770]] = (15, 1, 15, 15)
    payload = pack_codes(codes)
    summed = sum_of(Op.LOOKUP_ADD6, payload, payload, table6=STEEP6)
    expected = np.zeros(1024, np.int64)
    expected[[0, 1, 768, 770]] = (126 & 63, 2, 126 & 63 | 126 >> 6 & 3, 126 & 63)
    assert summed == expected.tolist()


def in_python(op: Op) -> Callable[[int, int], int]:
    """The op on two lanes, without numpy."""
    bits = 8 * np.dtype(SHAPES[op].lane_dtype).itemsize
    if op is Op.MAX32:
        return max
    return (lambda a, b: a | b) if op is Op.OR else (lambda a, b: (a + b) % (1 << bits))


@given(st.sampled_from([op for op in Op if not SHAPES[op].has_codes]), st.integers(2, 4), st.data())
def test_lanes_are_independent(op: Op, workers: int, data: st.DataObject) -> None:
    bits = 31 if op is Op.MAX32 else 8 * np.dtype(SHAPES[op].lane_dtype).itemsize
    edges = st.sampled_from([0, 1, (1 << bits) - 1, (1 << bits) - 2, 1 << bits - 1])
    row = st.lists(edges | st.integers(0, (1 << bits) - 1), min_size=8, max_size=8)
    values = data.draw(st.lists(row, min_size=workers, max_size=workers))
    expected = [functools.reduce(in_python(op), column) for column in zip(*values, strict=True)]
    assert sum_of(op, *(payload_of(op, row) for row in values))[:8] == expected
