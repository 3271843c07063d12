# SPDX-License-Identifier: Apache-2.0
"""Selections and negations by lane masks, and what only looks like them: machine code against the interpreter."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopsum_switch.native.function_scope import Value
from hopsum_switch.native.integer_code import LANE_BITS, MaskedSelections

from ..core.builder import Json, assign, build, expression, field, hexstr
from .agreement import Pair

pytestmark = pytest.mark.system
SETTINGS = settings(
    max_examples=24, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
BITS = 2048
W, X, Y = (field("h", name) for name in "wxy")
B, M, N = (field("scalars", name) for name in ("bit", "mask", "rest"))
FRAME = st.binary(min_size=3 * BITS // 8, max_size=3 * BITS // 8)


def ones(lane_bits: int, at: int = 0) -> int:
    return sum(1 << (i + at) for i in range(0, BITS, lane_bits))


def mask_of(value: Json, lane_bits: int) -> Json:
    return expression("-", expression("<<", value, hexstr(lane_bits)), value)


def selection(orders: tuple[bool, bool, bool], mask: Json, complement: Json) -> Json:
    """Return (x & complement) | (y & mask), with the operands of each operator in either order."""
    outer, left, right = orders
    keep = expression("&", complement, X) if left else expression("&", X, complement)
    take = expression("&", mask, Y) if right else expression("&", Y, mask)
    return expression("|", take, keep) if outer else expression("|", keep, take)


def steps(lane_bits: int, kept: int, shift: int, separate: bool, orders: tuple[bool, bool, bool]) -> list[Json]:
    """Return assignments that select by bit `shift` of each lane of w."""
    body = [
        assign(B, expression("&", expression(">>", W, hexstr(shift)), hexstr(kept))),
        assign(M, mask_of(B, lane_bits)),
        assign(N, expression("~", None, M)),
        assign(B, X),  # the mask is of what b was
    ]
    return [*body, assign(W, selection(orders, M, N if separate else expression("~", None, M)))]


def pair_of(body: list[Json]) -> Pair:
    builder = build(("w", BITS), ("x", BITS), ("y", BITS))
    for name in ("bit", "mask", "rest"):
        builder.data["header_types"][3]["fields"].append([name, BITS, False])
    builder.primitives += [*body, assign(field("standard_metadata", "egress_spec"), hexstr(1))]
    return Pair(builder.load())


@SETTINGS
@given(
    lane_bits=st.sampled_from([*LANE_BITS, *LANE_BITS, 4, 64]),
    extra=st.sampled_from([0, 0, 0, 1 << 1, 1 << 2047, 1 << 1031]),
    shift=st.integers(0, 40),
    separate=st.booleans(),
    orders=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    frames=st.lists(FRAME, min_size=3, max_size=3),
)
def test_selections(
    lane_bits: int, extra: int, shift: int, separate: bool, orders: tuple[bool, bool, bool], frames: list[bytes]
) -> None:
    """An extra bit makes lanes that are neither 0 nor 1; the mask's identity does not hold for them."""
    pair = pair_of(steps(lane_bits, ones(lane_bits) | extra, shift, separate, orders))
    for frame in frames:
        pair.process(1, frame)


@pytest.mark.parametrize("lane_bits", LANE_BITS)
def test_a_selection_is_found(lane_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would hold if none were."""
    found, select = [], MaskedSelections.select

    def noted(self: MaskedSelections, *args: Value) -> Value:
        found.append(args[0].lane_bits)
        return select(self, *args)

    monkeypatch.setattr(MaskedSelections, "select", noted)
    pair_of(steps(lane_bits, ones(lane_bits), 0, True, (True, False, True)))
    assert set(found) == {lane_bits}
    found.clear()
    pair_of(steps(lane_bits, ones(lane_bits) | 2, 0, True, (True, False, True)))
    pair_of(steps(4, ones(4), 0, True, (True, False, True)))
    assert not found
