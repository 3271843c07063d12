# SPDX-License-Identifier: Apache-2.0
"""The oracle's lanes: every op, at the edges of its lanes, next to neighbours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from hopsum_oracle.aggregator import Aggregator, PacketOutcome
from hopsum_wire import Drop, Event, Header, Kind, Op, pack_codes
from hopsum_wire.payload import SHAPES, lanes

from ...support.jobs import TABLE, TABLE3, TABLE16, job, update, worker
from ...support.simulated_network import SPINE, jobs_of

AGAIN = [Op.LOOKUP_ADD_LOOKUP4, Op.LOOKUP_ADD_LOOKUP3, Op.LOOKUP_ADD_LOOKUP2]
"""The ops whose sums are looked up again."""


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
    aggregator = Aggregator(jobs=[job(slots=12)])
    where = worker(0)
    for op in Op:
        header = update(0, op=op, slot=op)
        data = header.pack() + bytes([0x80]) + bytes(header.length - 1)
        outcome = aggregator.receive(where.port, where.ip, where.udp_port, data)
        assert outcome.drop is (Drop.BAD_VALUE if op is Op.MAX32 else Drop.NONE)


@pytest.mark.parametrize(("op", "table", "bits"), [(Op.LOOKUP_ADD8, TABLE, 8), (Op.LOOKUP_ADD16, TABLE16, 16)])
def test_lookups_put_every_element_in_its_lane(op: Op, table: tuple[int, ...], bits: int) -> None:
    """With one worker, lane i is the table's value of code i; every code in every place by rotation."""
    elements = SHAPES[op].elements
    for rotation in range(16):
        codes = ((np.arange(elements) + np.arange(elements) // 128 + rotation) % 16).astype(np.uint8)
        assert sum_of(op, pack_codes(codes, bits)) == np.asarray(table)[codes].tolist()


@pytest.mark.parametrize("op", AGAIN)
def test_the_code_of_a_value_is_its_rank_if_thresholds_are_between(op: Op) -> None:
    """With one worker and a threshold at each value but the lowest. All codes are in every place by rotation."""
    bits = SHAPES[op].code_bits
    values = [-128, 127, -2, 0, -64, 62, 4, -90, 30, -31, 98, -8, 78, -50, 14, -110][: 1 << bits]
    ranks = [sorted(values).index(value) for value in values]
    table = (*values, *((value + 128) // 2 for value in sorted(values)[1:]))
    for rotation in range(1 << bits):
        codes = ((np.arange(1024) + np.arange(1024) // 128 + rotation) % (1 << bits)).astype(np.uint8)
        summed = sum_of(op, pack_codes(codes, bits=bits), **{f"table{bits}": table})
        assert summed == np.asarray(ranks)[codes].tolist()


@pytest.mark.parametrize("op", AGAIN)
def test_a_sum_that_leaves_its_lane_wraps(op: Op) -> None:
    """The controller proves that none does; the oracle says what the program does with one that does."""
    bits = SHAPES[op].code_bits
    count = 1 << bits
    table = (*[0] * (count - 2), -100, 100, *range(64, 63 + count))
    codes = np.zeros(1024, np.uint8)
    codes[[0, 300, 600, 1000]] = count - 1
    codes[1] = count - 2
    payload = pack_codes(codes, bits=bits)
    summed = sum_of(op, payload, payload, **{f"table{bits}": table})
    expected = np.ones(1024, np.int64)
    # 200 is -56, below all thresholds. -200 is 56, above: the upper seven bits of its biased sum are 92.
    expected[[0, 300, 600, 1000]] = 0
    expected[1] = min(count - 1, 92 - 63)
    assert summed == expected.tolist()


@pytest.mark.parametrize("op", AGAIN)
def test_a_root_without_thresholds_completes_and_says_nothing(op: Op) -> None:
    """Only the controller's fault could make one: a root takes the sums of leaves without a table of its own."""
    if op is not Op.LOOKUP_ADD_LOOKUP4:
        with pytest.raises(ValueError, match="table3 and table2 are for no tree"):
            replace(jobs_of(7, ((0,), (1,)))[SPINE], table3=TABLE3)
        return
    root = replace(jobs_of(7, ((0,), (1,)))[SPINE], table4=None)
    aggregator = Aggregator(jobs=[root])
    for number, events in ((0, (Event.ADDED,)), (1, (Event.ADDED, Event.COMPLETED)), (0, (Event.ANSWERED,))):
        sender = root.leaves[number]
        header = Header(
            kind=Kind.PARTIAL, op=op, worker=sender.rank, generation=7, round=1, contributors=1 << number, length=1024
        )
        outcome = aggregator.receive(sender.port, sender.ip, sender.udp_port, header.pack() + bytes(1024))
        assert (outcome.events, outcome.outputs) == (events, ())
        assert outcome.drop is (Drop.NONE if events == (Event.ADDED,) else Drop.NO_TABLE)
    assert aggregator.drops == {Drop.NO_TABLE: 2}


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
