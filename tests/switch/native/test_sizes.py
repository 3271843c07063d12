# SPDX-License-Identifier: Apache-2.0
"""Programs whose sizes grow: every engine runs them or refuses them by name, and no recursion follows a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.errors import ProgramError
from hopsum_switch.observe.trace import Trace
from hopsum_switch.program import load_program
from hopsum_switch.program.p4c_json import MAX_EXPRESSION_DEPTH

from ..core.builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive
from ..core.test_stacks import chosen, stacking

pytestmark = pytest.mark.system
T = TypeVar("T")
Grow = Callable[[Json, int], Json]
# A caller's own depth: pytest and hypothesis have about as much, a thread of gRPC has less.
FRAMES_BELOW = 150
FRAME = bytes(range(1, 200))
A, B, W = field("h", "a"), field("h", "b"), field("h", "w")
TRUE = {"type": "bool", "value": True}
# A chain's step, by the number of levels that it adds.
CHAINS: dict[str, tuple[int, Grow]] = {
    "left": (1, lambda e, i: expression("+", e, B)),
    "right": (1, lambda e, i: expression("-", W, e)),
    "wide": (2, lambda e, i: expression("&", expression("+", e, W), hexstr((1 << 512) - 1))),
    "shifts": (2, lambda e, i: expression("&", expression("<<", e, hexstr(1)), hexstr(255))),
    "casts": (1, lambda e, i: expression("two_comp_mod", e, hexstr(9 + i % 7))),
    "choices": (1, lambda e, i: expression("?", B, e, expression("==", A, hexstr(i % 256)))),
    "conditions": (3, lambda e, i: expression("b2d", None, expression("or", expression("==", e, A), TRUE))),
    "negations": (3, lambda e, i: expression("b2d", None, expression("not", None, expression("d2b", None, e)))),
}


def deeper(frames: int, call: Callable[[], T]) -> T:
    return call() if frames == 0 else deeper(frames - 1, call)


def outcome(program: str, make: Callable[..., object]) -> object:
    """Return the frames of an engine, or the words "refused" and the reason."""
    try:
        engine = make(load_program(program))
    except ProgramError as error:
        return "refused", str(error)
    return engine.process(5, FRAME)  # type: ignore[attr-defined]


def outcomes(builder: ProgramBuilder) -> list[object]:
    builder.primitives.append(assign(field("standard_metadata", "egress_spec"), hexstr(1)))
    text = builder.text()
    makers = [
        engine_maker(Backend.INTERPRETER),
        engine_maker(Backend.INTERPRETER, observer=Trace(lambda text: None, values=True)),
        engine_maker(Backend.NATIVE),
    ]
    return [deeper(FRAMES_BELOW, lambda make=make: outcome(text, make)) for make in makers]  # type: ignore[misc]


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.sampled_from(sorted(CHAINS)), min_size=1, max_size=3),
    st.integers(MAX_EXPRESSION_DEPTH // 2, MAX_EXPRESSION_DEPTH + 5),
)
def test_expressions_of_any_depth_run_everywhere_or_are_refused_when_loaded(kinds: list[str], depth: int) -> None:
    builder, tree, step, levels = build(("a", 8), ("b", 8), ("w", 512)), A, 0, 0
    while levels < depth:
        added, grow = CHAINS[kinds[step % len(kinds)]]
        tree, step, levels = grow(tree, step), step + 1, levels + added
    builder.primitives.append(assign(W, tree))
    found = outcomes(builder)
    assert found[0] == found[1] == found[2], kinds
    assert isinstance(found[0], tuple) == (levels > MAX_EXPRESSION_DEPTH)
    if isinstance(found[0], tuple):
        assert "an expression is nested too deeply" in found[0][1]


def _unions(size: int) -> ProgramBuilder:
    builder, union = build(), {"type": "header_union", "value": "u"}
    headers = [{"name": f"u{i}", "id": 10 + i, "header_type": "extra_t", "metadata": False} for i in range(size)]
    builder.data["headers"] += headers
    builder.data["header_unions"] = [
        {"name": "u", "id": 0, "union_type": "u", "header_ids": [h["id"] for h in headers]}
    ]
    builder.primitives.append(assign(A, expression("b2d", None, expression("valid_union", None, union))))
    builder.primitives.append(assign(B, expression("b2d", None, expression("==u", union, union))))
    return builder


def _stack(size: int) -> ProgramBuilder:
    builder = stacking(size)
    builder.primitives.append(assign(A, chosen(B)))
    return builder


def _states(size: int) -> ProgramBuilder:
    builder = build()
    states = [builder.state(f"s{i}", None, None) | {"transition_key": [A]} for i in range(size)]
    for number, state in enumerate(states[:-1]):
        case = {"type": "hexstr", "value": "0x01", "mask": None, "next_state": f"s{number + 1}"}
        state["transitions"].insert(0, case)
    builder.states[:] = [builder.state("start", "h", "s0"), *states]
    return builder


def _conditions(size: int) -> ProgramBuilder:
    builder = build()
    names = [*(f"n{i}" for i in range(size)), "tbl_in"]
    builder.ingress["conditionals"] = [
        {"name": name, "id": i, "expression": expression("==", A, hexstr(1)), "true_next": names[i + 1]}
        for i, name in enumerate(names[:-1])
    ]
    builder.ingress["init_table"] = names[0]
    return builder


def _jumps(size: int) -> ProgramBuilder:
    builder = build()
    builder.primitives += [
        primitive("_jump_if_zero", expression("-", A, hexstr(i % 256)), hexstr(size)) for i in range(size)
    ]
    return builder


def _tables(size: int) -> ProgramBuilder:
    builder = build()
    first = builder.ingress["tables"][0]
    following = [first | {"name": f"t{i}", "id": 100 + i, "next_tables": {"act": f"t{i + 1}"}} for i in range(size)]
    builder.ingress["tables"] = [first | {"next_tables": {"act": "t0"}}, *following]
    following[-1]["next_tables"] = {"act": None}
    return builder


@pytest.mark.parametrize("grow", [_tables, _unions, _stack, _states, _conditions, _jumps])
@pytest.mark.parametrize("size", [16, 1025])
def test_large_programs_run_in_the_interpreter_and_compile_or_are_refused(
    grow: Callable[[int], ProgramBuilder], size: int
) -> None:
    interpreted, traced, native = outcomes(grow(size))
    assert isinstance(interpreted, list)
    assert traced == interpreted
    # LLVM aborts the process where it is given the longest of these, so the compiler refuses first.
    refused = size > 16 and grow not in (_tables, _unions)
    assert native == interpreted or (refused and "only interpreted: a" in native[1])  # type: ignore[index]
