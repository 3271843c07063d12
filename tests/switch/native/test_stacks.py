# SPDX-License-Identifier: Apache-2.0
"""Header stacks and unions: machine code against the interpreter, on random calls and frames."""

from __future__ import annotations

import random

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.state.copies import PortCopy

from ..core.builder import Json, assign, expression, field, hexstr, primitive
from ..core.test_stacks import (
    COUNT,
    OTHER,
    SIZE,
    U,
    W,
    calls_of,
    chosen,
    element,
    frame,
    member,
    random_calls,
    random_union_calls,
    stacking,
    union_calls_of,
    uniting,
)
from .agreement import Pair, mutate

pytestmark = pytest.mark.system


# Everything goes to a group: what egress does to one copy must not show in the next.
MULTICAST = assign(field("standard_metadata", "mcast_grp"), hexstr(1))


def replicate(engine: Engine) -> None:
    engine.multicast.insert(1, [PortCopy(port, port) for port in range(4)])


@pytest.mark.parametrize("wide_bytes", [0, 65])
@pytest.mark.parametrize("seed", range(6))
def test_stacks_agree(seed: int, wide_bytes: int) -> None:
    """Wide elements are cleared when they are needed; what tells whether they were moves with them."""
    rng = random.Random(seed)
    builder = stacking()
    if wide_bytes:
        builder.data["header_types"][-1]["fields"].insert(0, ["wide", 8 * wide_bytes, False])
    last = {"type": "stack_field", "value": ["s", "value"]}
    builder.primitives += [
        *calls_of(random_calls(rng)),
        assign(field("scalars", "m"), expression("size_stack", None, COUNT)),
        assign(field("standard_metadata", "egress_spec"), field("scalars", "m")),
        *([MULTICAST] if seed % 2 else []),
    ]
    builder.egress_primitives += [
        assign(field("h", "b"), last),
        *calls_of(random_calls(rng)),
        assign(chosen(field("h", "a")), expression("-", chosen(field("h", "a")), field("h", "b"))),
        primitive("assign_header_stack", COUNT, OTHER),
        *calls_of(random_calls(rng)),
    ]
    pair = Pair(builder.load())
    pair.both(replicate)
    stacks = [frame(*(rng.randrange(128) for _ in range(n))) for n in range(1, SIZE + 3)]
    elements = [[rng.randbytes(wide_bytes) + bytes([byte]) for byte in stack[2:]] for stack in stacks]
    starts = [bytes(2) + b"".join(each) + b"rest" for each in elements]
    sent = sum(len(pair.process(0, mutate(rng.choice(starts), rng))) for _ in range(300))
    assert sent > 100
    pair.process_batch([(0, mutate(rng.choice(starts), rng)) for _ in range(300)])


@pytest.mark.parametrize("calls", [[("push", 1), ("add_one", 1)], [("push", 2), ("pop", 1), ("add_one", 1)]])
def test_a_moved_element_keeps_its_wide_field(calls: list[tuple[str, int]]) -> None:
    builder = stacking()
    builder.data["header_types"][-1]["fields"].insert(0, ["wide", 520, False])
    only = [{"type": "default", "value": None, "mask": None, "next_state": None}]
    builder.states[1] |= {"transition_key": [], "transitions": only}
    builder.primitives += [*calls_of(calls)[:-2], assign(field("standard_metadata", "egress_spec"), hexstr(1))]
    output = Pair(builder.load()).process(0, bytes(2) + b"\xaa" * 65 + b"\x04")[0]
    assert output.frame == bytes(2) + b"\xaa" * 65 + b"\x06"


@pytest.mark.parametrize("seed", range(4))
def test_unions_agree(seed: int) -> None:
    rng = random.Random(seed)
    builder = uniting()
    builder.primitives += [*union_calls_of(random_union_calls(rng)), *([MULTICAST] if seed % 2 else [])]
    builder.egress_primitives += union_calls_of(random_union_calls(rng))
    pair = Pair(builder.load())
    pair.both(replicate)
    sent = sum(len(pair.process(0, mutate(b"\0\0\x55rest", rng))) for _ in range(200))
    assert sent > 100


WIDE = ["wide", 1024, False]
VALID_U, VALID_W = (expression("b2d", None, expression("valid_union", None, union)) for union in (U, W))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "calls",
    [
        [primitive("push", COUNT, hexstr(1))],
        [primitive("pop", COUNT, hexstr(1))],
        [primitive("assign_header_stack", OTHER, COUNT), primitive("pop", COUNT, hexstr(2))],
        [primitive("push", COUNT, hexstr(1)), primitive("add_header", element(0))],
        [primitive("add_header", element(2, "t")), primitive("push", OTHER, hexstr(1))],
        [
            primitive("add_header", element(0, "t")),
            primitive("pop", OTHER, hexstr(1)),
            primitive("add_header", element(2, "t")),
        ],
    ],
)
def test_copies_do_not_share_a_stack(calls: list[Json], wide: bool) -> None:
    builder = stacking()
    if wide:
        builder.data["header_types"][-1]["fields"].insert(0, WIDE)
    builder.primitives.append(MULTICAST)
    size = expression("+", expression("size_stack", None, COUNT), expression("size_stack", None, OTHER))
    builder.egress_primitives += [assign(field("h", "a"), size), *calls, assign(field("h", "b"), size)]
    pair = Pair(builder.load())
    pair.both(replicate)
    rng = random.Random(9)
    for values in ([1], [1, 2], [1, 2, 3]):
        parts = [rng.randbytes(128 * wide) + bytes([part]) for part in frame(*values)[2:]]
        assert len(pair.process(0, bytes(2) + b"".join(parts) + b"rest")) == 4


@pytest.mark.parametrize(
    "calls",
    [
        [primitive("assign_union", W, U)],
        [assign(field("h", "a"), VALID_W), primitive("assign_union", W, U), primitive("assign_union", U, W)],
        [assign(field("h", "a"), VALID_U), primitive("add_header", member(1)), primitive("remove_header", member(1))],
        [primitive("assign_header", member(0, "w"), member(0)), primitive("add_header", member(1, "w"))],
    ],
)
def test_copies_do_not_share_a_union(calls: list[Json]) -> None:
    builder = uniting()
    builder.primitives.append(MULTICAST)
    equal = expression("b2d", None, expression("==u", U, W))
    builder.egress_primitives += [assign(field("h", "b"), equal), *calls]
    pair = Pair(builder.load())
    pair.both(replicate)
    assert len(pair.process(0, b"\0\0\x55rest")) == 4


@pytest.mark.parametrize("move", ["push", "pop"])
def test_wide_elements_keep_their_values_when_they_move(move: str) -> None:
    """Also next to elements that were not parsed, and behind frames that left other values in the state."""
    builder = stacking()
    builder.data["header_types"][-1]["fields"].insert(0, WIDE)
    wide = [expression("&", field(f"s[{number}]", "wide"), hexstr(255)) for number in range(SIZE)]
    sums = expression("+", expression("+", wide[0], wide[1]), wide[2])
    builder.primitives += [
        primitive(move, COUNT, hexstr(1)),
        assign(field("h", "a"), sums),
        primitive("add_header", element(1)),
        primitive("add_header", element(2)),
        assign(field("h", "b"), sums),
        assign(field("standard_metadata", "egress_spec"), hexstr(1)),
    ]
    pair, rng = Pair(builder.load()), random.Random(10)
    for _ in range(50):
        values = [rng.randrange(128) for _ in range(rng.randrange(1, SIZE + 1))]
        parts = [rng.randbytes(128) + bytes([part]) for part in frame(*values)[2:]]
        assert len(pair.process(0, bytes(2) + b"".join(parts) + b"rest")) == 1
