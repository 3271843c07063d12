# SPDX-License-Identifier: Apache-2.0
"""Random expressions, runs of assignments and selections by lane masks: machine code against the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hopsum_switch.errors import ProgramError, UnsupportedError
from hopsum_switch.native.function_scope import Value
from hopsum_switch.native.integer_code import LANE_BITS, MaskedSelections

from ..core.builder import Json, assign, build, expression, field, hexstr, primitive
from ..core.test_expressions import bool_trees
from .agreement import Pair

pytestmark = pytest.mark.system
WIDTHS = {"a": 8, "b": 16, "c": 100, "v": 512, "w": 2048, "x": 1000, "y": 600, "s": 8, "t": 72, "z": 4}
SIGNED = ("s", "t")
ARITHMETIC = ["+", "-", "&", "|", "^"]
SETTINGS = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def leaves() -> st.SearchStrategy[Json]:
    lane = st.sampled_from([8, 16, 32]).map(lambda bits: hexstr(sum(1 << i for i in range(0, 2048, bits))))
    fields = st.sampled_from([field("h", name) for name in WIDTHS])
    return st.one_of(fields, st.integers(-(2**70), 2**70).map(hexstr), st.integers(0, 255).map(hexstr), lane)


def data_trees(depth: int) -> st.SearchStrategy[Json]:
    if depth == 0:
        return leaves()
    data, condition = data_trees(depth - 1), bool_trees(depth - 1, data_trees)
    unsigned = st.sampled_from([field("h", "a"), field("h", "b")])
    positive = st.integers(1, 2**40).map(hexstr)
    return st.one_of(
        leaves(),
        st.builds(expression, st.sampled_from(ARITHMETIC), data, data),
        st.builds(expression, st.sampled_from(ARITHMETIC), data, data),
        st.builds(expression, st.just("*"), data, unsigned),
        st.builds(expression, st.sampled_from(["<<", ">>"]), data, st.integers(0, 1100).map(hexstr)),
        st.builds(expression, st.sampled_from(["<<", ">>"]), data, st.just(field("h", "a"))),
        st.builds(expression, st.sampled_from(["/", "%"]), unsigned, positive),
        st.builds(expression, st.just("~"), st.none(), data),
        st.builds(expression, st.just("-"), st.none(), data),
        st.builds(
            expression, st.sampled_from(["two_comp_mod", "usat_cast", "sat_cast"]), data, st.integers(1, 80).map(hexstr)
        ),
        st.builds(expression, st.just("?"), data, data, condition),
        st.builds(expression, st.just("b2d"), st.none(), condition),
    )


def pair_for(*primitives: Json) -> Pair:
    builder = build(*((name, bits, name in SIGNED) for name, bits in WIDTHS.items()))
    for name in ("p", "q"):  # scratch of one action
        builder.data["header_types"][3]["fields"].append([name, 2048, False])
    arrays = builder.data["register_arrays"]
    arrays.append({**arrays[0], "name": "wide", "id": 1, "bitwidth": 2000})
    builder.primitives += [*primitives, assign(field("standard_metadata", "egress_spec"), hexstr(1))]
    try:
        return Pair(builder.load())
    except UnsupportedError as error:
        assume(": big " not in str(error))
        raise
    except ProgramError:
        assume(False)
        raise


SIZE = sum(WIDTHS.values()) // 8
FRAMES = st.one_of(st.binary(min_size=SIZE, max_size=SIZE), st.sampled_from([bytes(SIZE), b"\xff" * SIZE]))


def run(pair: Pair, frames: list[bytes]) -> None:
    for frame in frames:
        pair.process(1, frame)
        pair.process(2, frame[::-1])
    pair.same_state()


@SETTINGS
@given(trees=st.lists(data_trees(3), min_size=5, max_size=5), frames=st.lists(FRAMES, min_size=6, max_size=6))
def test_expressions(trees: list[Json], frames: list[bytes]) -> None:
    targets = ("b", "c", "w", "s", "t")
    run(pair_for(*(assign(field("h", name), tree) for name, tree in zip(targets, trees, strict=True))), frames)


def wide_trees(depth: int) -> st.SearchStrategy[Json]:
    names = [field("h", "w"), field("h", "x"), field("h", "v"), field("scalars", "p"), field("scalars", "q")]
    lane = st.sampled_from([8, 32, 64]).flatmap(
        lambda bits: st.sampled_from([0, bits - 1]).map(
            lambda at: hexstr(sum(1 << i + at for i in range(0, 2048, bits)))
        )
    )
    leaf = st.one_of(st.sampled_from(names), st.sampled_from(names), lane)
    if depth == 0:
        return leaf
    tree = wide_trees(depth - 1)
    amounts = st.sampled_from([1, 8, 31, 64, 65, 512, 777]).map(hexstr)
    spread = st.builds(lambda x, k: expression("-", expression("<<", x, k), x), tree, amounts)
    return st.one_of(
        leaf,
        spread,
        st.builds(expression, st.sampled_from(ARITHMETIC), tree, tree),
        st.builds(expression, st.sampled_from(["<<", ">>"]), tree, amounts),
        st.builds(expression, st.just("~"), st.none(), tree),
    )


@SETTINGS
@given(data=st.data(), frames=st.lists(FRAMES, min_size=6, max_size=6))
def test_runs_of_wide_assignments(data: Any, frames: list[bytes]) -> None:
    steps = [assign(field("scalars", "p"), field("h", "w")), assign(field("scalars", "q"), field("h", "x"))]
    targets = st.sampled_from([("h", "w"), ("h", "x"), ("scalars", "p"), ("scalars", "q"), ("h", "v")])
    for _ in range(6):
        steps.append(assign(field(*data.draw(targets)), data.draw(wide_trees(3))))
    cells = {"type": "register_array", "value": "wide"}
    steps.insert(4, primitive("register_write", cells, hexstr(1), field("h", "w")))
    steps.append(primitive("register_read", field("h", "x"), cells, hexstr(1)))
    run(pair_for(*steps), frames)


@pytest.mark.parametrize("op", ["+", "-"])
@pytest.mark.parametrize("low", [0, 1, 63, 64, 511, 512, 1024, 2047])
def test_carries_ripple_as_far_as_they_must(op: str, low: int) -> None:
    pair = pair_for(assign(field("h", "w"), expression(op, field("h", "w"), hexstr(1 << low))))
    for value in (0, (1 << 2048) - 1, ((1 << 2048) - 1) ^ (1 << 1500), 1 << 2047, (1 << 2000) - 1 & ~((1 << low) - 1)):
        below = 8 * SIZE - sum(WIDTHS[name] for name in ("a", "b", "c", "v", "w"))
        pair.process(1, (value << below).to_bytes(SIZE, "big"))


LANE_SETTINGS = settings(
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


@LANE_SETTINGS
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
