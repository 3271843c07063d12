# SPDX-License-Identifier: Apache-2.0
"""Expressions against a model on random trees, and the parser: operations, transitions and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_switch.errors import ProgramError
from hopsum_switch.interp.expressions import ExpressionWriter, compile_condition, compile_data
from hopsum_switch.interp.packet import ValueLayout
from hopsum_switch.program import load_program
from hopsum_switch.program.ir_expressions import MAX_SHIFT, IntType
from hopsum_switch.program.lower_expressions import ExpressionContext, ProgramScope, lower_bool, lower_data
from hopsum_switch.program.p4c_json import read_operand

from .builder import ERRORS, Json, ProgramBuilder, assign, build, expression, field, hexstr

WIDTHS = {"a": 8, "b": 16, "w": 2048, "s": 8}
BUILDER = build(("a", 8), ("b", 16), ("w", 2048), ("s", 8, True))
PROGRAM = BUILDER.load()
LAYOUT = ValueLayout(PROGRAM)
SCOPE = ProgramScope()
SCOPE.headers.update(PROGRAM.headers)
SCOPE.fields.update({(f.header, f.name): f for f in PROGRAM.fields})
PLACE = ExpressionContext(SCOPE, (), None)

ARITHMETIC = ["+", "-", "*", "&", "|", "^"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]


def data_trees(depth: int) -> st.SearchStrategy[Json]:
    leaves = st.one_of(
        st.sampled_from([field("h", name) for name in WIDTHS]),
        st.integers(-(2**70), 2**70).map(hexstr),
        st.integers(0, 255).map(hexstr),
    )
    if depth == 0:
        return leaves
    data, condition = data_trees(depth - 1), bool_trees(depth - 1)
    width = st.integers(1, 80).map(hexstr)
    positive = st.integers(1, 2**70).map(hexstr)
    unsigned = st.sampled_from([field("h", "a"), field("h", "b"), field("h", "w")])
    return st.one_of(
        leaves,
        st.builds(expression, st.sampled_from(ARITHMETIC), data, data),
        st.builds(expression, st.sampled_from(["<<", ">>"]), data, st.integers(0, 100).map(hexstr)),
        st.builds(expression, st.sampled_from(["<<", ">>"]), data, st.just(field("h", "a"))),
        st.builds(expression, st.sampled_from(["/", "%"]), unsigned, positive),
        st.builds(expression, st.just("~"), st.none(), data),
        st.builds(expression, st.just("-"), st.none(), data),
        st.builds(expression, st.sampled_from(["two_comp_mod", "usat_cast", "sat_cast"]), data, width),
        st.builds(expression, st.just("?"), data, data, condition),
        st.builds(expression, st.just("b2d"), st.none(), condition),
    )


def bool_trees(depth: int, trees: Callable[[int], st.SearchStrategy[Json]] | None = None) -> st.SearchStrategy[Json]:
    """Return conditions over `trees`, which are `data_trees` if left out."""
    leaves: st.SearchStrategy[Json] = st.booleans().map(lambda value: {"type": "bool", "value": value})
    if depth == 0:
        return leaves
    data, condition = (trees or data_trees)(depth - 1), bool_trees(depth - 1, trees)
    return st.one_of(
        leaves,
        st.builds(expression, st.sampled_from(COMPARISONS), data, data),
        st.builds(expression, st.sampled_from(["and", "or", "==", "!="]), condition, condition),
        st.builds(expression, st.just("not"), st.none(), condition),
        st.builds(expression, st.just("d2b"), st.none(), data),
        st.builds(expression, st.just("?"), condition, condition, condition),
    )


def model(tree: Json | None, values: dict[str, int]) -> Any:
    """Evaluate the JSON as its format describes it: integers without limit."""
    if tree is None:
        return 0
    if tree["type"] == "field":
        return values[tree["value"][1]]
    if tree["type"] == "hexstr":
        return int(tree["value"], 16)
    if tree["type"] == "bool":
        return tree["value"]
    inner = tree["value"]
    op, right = inner["op"], model(inner["right"], values)
    if op in UNARY_MODEL:
        return UNARY_MODEL[op](right)
    left = model(inner["left"], values)
    if op == "?":
        return left if model(inner["cond"], values) else right
    return BINARY_MODEL[op](left, right)


def wrap(value: int, bits: int) -> int:
    value %= 2**bits
    return value - 2**bits if value >= 2 ** (bits - 1) else value


UNARY_MODEL: dict[str, Any] = {"~": lambda x: -1 - x, "not": lambda x: not x, "d2b": lambda x: x != 0, "b2d": int}
BINARY_MODEL: dict[str, Any] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<<": lambda x, y: x * 2**y,
    ">>": lambda x, y: x // 2**y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "and": lambda x, y: x and y,
    "or": lambda x, y: x or y,
    "two_comp_mod": wrap,
    "usat_cast": lambda x, y: sorted((0, x, 2**y - 1))[1],
    "sat_cast": lambda x, y: sorted((-(2 ** (y - 1)), x, 2 ** (y - 1) - 1))[1],
}

FIELD_VALUES = st.fixed_dictionaries(
    {
        "a": st.integers(0, 2**8 - 1),
        "b": st.integers(0, 2**16 - 1),
        "w": st.one_of(st.integers(0, 2**2048 - 1), st.just(2**2048 - 1)),
        "s": st.integers(-(2**7), 2**8 - 1),
    }
)


def slots(values: dict[str, int]) -> list[int]:
    result = LAYOUT.initial_values()
    for name, value in values.items():
        result[PROGRAM.field("h", name).slot] = value
    return result


def holds(kind: IntType, value: int) -> bool:
    low = -(1 << (kind.bits - 1)) if kind.signed else 0
    return low <= value < low + (1 << kind.bits)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data_trees(4), FIELD_VALUES)
def test_integer_expressions_equal_the_model_and_stay_in_their_type(tree: Json, values: dict[str, int]) -> None:
    expr = lower_data(read_operand(tree), PLACE)
    result = compile_data(expr, ExpressionWriter(LAYOUT), "test")(slots(values))
    assert result == model(tree, values)
    assert holds(expr.type, result)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(bool_trees(4), FIELD_VALUES)
def test_conditions_equal_the_model(tree: Json, values: dict[str, int]) -> None:
    condition = compile_condition(lower_bool(read_operand(tree), PLACE), ExpressionWriter(LAYOUT), "test")
    assert bool(condition(slots(values))) == model(tree, values)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data_trees(3), FIELD_VALUES, st.sampled_from(["a", "b", "w", "s"]))
def test_a_store_wraps_to_the_field(tree: Json, values: dict[str, int], target: str) -> None:
    builder = build(("a", 8), ("b", 16), ("w", 2048), ("s", 8, True))
    builder.primitives.append(assign(field("h", target), tree))
    frame = b"".join((values[name] % 2**bits).to_bytes(bits // 8, "big") for name, bits in WIDTHS.items())
    out = builder.run(frame)
    read = {**values, "s": wrap(values["s"], 8)}
    expected = model(tree, read) % 2 ** WIDTHS[target]
    offset = sum(bits // 8 for bits in list(WIDTHS.values())[: list(WIDTHS).index(target)])
    assert int.from_bytes(out[offset : offset + WIDTHS[target] // 8], "big") == expected


@pytest.mark.parametrize(
    ("stored", "read_back"),
    [(127, 127), (-128, -128), (128, 128), (255, 255), (256, 0), (-129, 127), (300, 44), (511, -1)],
)
def test_a_signed_field_wraps_only_outside_its_double_range(stored: int, read_back: int) -> None:
    builder = build(("s", 8, True), ("pad", 56))
    builder.primitives += [
        assign(field("h", "s"), hexstr(stored)),
        assign(field("scalars", "n"), field("h", "s")),
        assign(field("h", "pad"), expression("+", field("scalars", "n"), hexstr(1000))),
    ]
    assert int.from_bytes(builder.run(bytes(8))[1:], "big") == read_back + 1000


def test_a_hostile_shift_amount_costs_nothing() -> None:
    builder = build(("w", 64))
    amount = expression("+", field("h", "w"), hexstr(2**40))
    builder.primitives += [
        assign(field("scalars", "m"), expression("<<", field("h", "w"), amount)),
        assign(field("h", "w"), expression("+", field("scalars", "m"), expression(">>", field("h", "w"), amount))),
    ]
    assert builder.run(b"\xff" * 8) == bytes(8)


def test_shift_types_are_bounded() -> None:
    tree = expression("<<", field("h", "a"), field("h", "w"))
    assert lower_data(read_operand(tree), PLACE).type.bits == 8 + MAX_SHIFT


def test_deep_expressions_run_where_python_would_refuse_to_nest() -> None:
    tree = field("h", "a")
    for step in range(150):
        tree = expression("+", tree, hexstr(step))
    builder = build(("a", 32))
    builder.primitives.append(assign(field("h", "a"), tree))
    assert int.from_bytes(builder.run((7).to_bytes(4, "big")), "big") == 7 + sum(range(150))


def test_absurdly_deep_expressions_are_refused() -> None:
    text = build().text().replace('"primitives": []', '"primitives": [PLACE]', 1)
    deep = '{"type":"expression","value":{"op":"~","left":null,"right":' * 3000
    deep += '{"type":"field","value":["h","a"]}' + "}}" * 3000
    call = '{"op":"assign","parameters":[{"type":"field","value":["h","a"]},' + deep + "]}"
    with pytest.raises(ProgramError, match="nested too deeply"):
        load_program(text.replace("PLACE", call, 1))


def test_header_comparison_needs_both_valid() -> None:
    builder = build()
    same = expression("==", {"type": "header", "value": "h"}, {"type": "header", "value": "g"})
    other = expression("!=", {"type": "header", "value": "h"}, {"type": "header", "value": "h"})
    report = expression("+", expression("b2d", None, same), expression("b2d", None, other))
    builder.primitives.append(assign(field("h", "a"), report))
    assert builder.run(b"\x05\x06") == b"\x00\x06"
    builder.primitives.insert(0, {"op": "assign_header", "parameters": [HEADER_G, HEADER_H]})
    assert builder.run(b"\x05\x06") == b"\x01\x06" + b"\x05\x06"


HEADER_H = {"type": "header", "value": "h"}
HEADER_G = {"type": "header", "value": "g"}


@pytest.mark.parametrize(("header", "expected"), [("h", 1), ("g", 0), ("scalars", 1)])
def test_validity_as_operator_and_as_field(header: str, expected: int) -> None:
    builder = build()
    operator = expression("b2d", None, expression("valid", None, {"type": "header", "value": header}))
    builder.primitives += [assign(field("h", "a"), operator), assign(field("h", "b"), field(header, "$valid$"))]
    assert builder.run(b"\xff\xff") == bytes([expected, expected])


TOO_SHORT = ERRORS.index("PacketTooShort")
INVALID_ARGUMENT = 6


def reporting(builder: ProgramBuilder) -> ProgramBuilder:
    """Put the parser error into extra.x, so that every frame shows it."""
    builder.primitives += [
        {"op": "add_header", "parameters": [{"type": "header", "value": "extra"}]},
        assign(field("extra", "x"), field("standard_metadata", "parser_error")),
    ]
    return builder


def op(kind: str, *parameters: Any) -> Json:
    return {"op": kind, "parameters": list(parameters)}


def lookahead(offset: int, bits: int) -> Json:
    return {"type": "lookahead", "value": [offset, bits]}


def error(number: int) -> bytes:
    return number.to_bytes(2, "big")


@pytest.mark.parametrize("size", [0, 1])
def test_a_frame_shorter_than_its_header_continues_unparsed(size: int) -> None:
    frame = b"\x55\x66"[:size]
    assert reporting(build()).run(frame) == error(TOO_SHORT) + frame


def test_headers_before_the_error_stay_valid() -> None:
    builder = reporting(build())
    builder.states[0]["parser_ops"].append(op("extract", {"type": "regular", "value": "g"}))
    assert builder.run(b"\x01\x02\x03") == b"\x01\x02" + error(TOO_SHORT) + b"\x03"
    assert builder.run(b"\x01\x02\x03\x04") == b"\x01\x02\x03\x04" + error(0)


@pytest.mark.parametrize(("first", "expected"), [(1, 0), (2, 33)])
def test_verify_stops_with_the_given_error(first: int, expected: int) -> None:
    builder = reporting(build())
    condition = expression("==", field("h", "a"), hexstr(1))
    builder.states[0]["parser_ops"] += [
        op("verify", condition, hexstr(33)),
        op("extract", {"type": "regular", "value": "g"}),
    ]
    out = builder.run(bytes([first, 0, 7, 7]))
    assert out == (bytes([first, 0, 7, 7]) + error(0) if expected == 0 else bytes([first, 0]) + error(33) + b"\x07\x07")


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(0, error(0) + b"wxyz"), (16, error(0) + b"yz"), (32, error(0)), (40, error(TOO_SHORT) + b"wxyz")],
)
@pytest.mark.parametrize("kind", ["hexstr", "field", "expression"])
def test_advance(bits: int, expected: bytes, kind: str) -> None:
    builder = reporting(build())
    amounts = {
        "hexstr": hexstr(bits),
        "field": field("h", "b"),
        "expression": expression("+", field("h", "b"), hexstr(0)),
    }
    builder.states[0]["parser_ops"].append(op("advance", amounts[kind]))
    assert builder.run(bytes([1, bits]) + b"wxyz") == bytes([1, bits]) + expected


def test_advance_by_part_of_a_byte_is_an_error() -> None:
    builder = reporting(build())
    builder.states[0]["parser_ops"].append(op("advance", hexstr(12)))
    assert builder.run(b"\x01\x02wxyz") == b"\x01\x02" + error(INVALID_ARGUMENT) + b"wxyz"


@pytest.mark.parametrize(
    ("offset", "bits", "value"), [(0, 8, 0xA5), (0, 16, 0xA5C3), (4, 8, 0x5C), (3, 3, 0b001), (8, 8, 0xC3)]
)
def test_lookahead_reads_without_consuming(offset: int, bits: int, value: int) -> None:
    builder = build(("a", 16))
    builder.states[0]["parser_ops"].append(op("set", field("scalars", "m"), lookahead(offset, bits)))
    builder.primitives.append(assign(field("h", "a"), field("scalars", "m")))
    assert builder.run(b"\0\0\xa5\xc3") == value.to_bytes(2, "big") + b"\xa5\xc3"


def test_lookahead_of_the_fields_own_width_is_signed() -> None:
    builder = build(("a", 8), ("b", 64))
    builder.data["header_types"][3]["fields"] = [["m", 64, False], ["n", 8, True]]
    builder.states[0]["parser_ops"].append(op("set", field("scalars", "n"), lookahead(0, 8)))
    builder.primitives.append(assign(field("h", "b"), field("scalars", "n")))
    assert builder.run(bytes(9) + b"\xfe")[1:9] == b"\xff" * 7 + b"\xfe"


def test_lookahead_past_the_end_is_an_error() -> None:
    builder = reporting(build())
    builder.states[0]["parser_ops"].append(op("set", field("scalars", "m"), lookahead(0, 16)))
    assert builder.run(b"\x01\x02\x03") == b"\x01\x02" + error(TOO_SHORT) + b"\x03"


def test_set_from_field_constant_and_expression() -> None:
    builder = build()
    builder.states[0]["parser_ops"] += [
        op("set", field("h", "a"), field("h", "b")),
        op("set", field("h", "b"), expression("*", field("h", "a"), hexstr(3))),
        op("set", field("scalars", "m"), hexstr(0x1234)),
    ]
    assert builder.run(b"\x01\x70") == b"\x70\x50"


def test_primitives_run_in_states() -> None:
    builder = build()
    copy = {"op": "assign_header", "parameters": [{"type": "header", "value": n} for n in ("g", "h")]}
    builder.states[0]["parser_ops"].append(op("primitive", copy))
    assert builder.run(b"\x01\x02") == b"\x01\x02\x01\x02"


def branching(key: list[Json], transitions: list[tuple[int, int | None]], *fields: tuple[str, int]) -> ProgramBuilder:
    """States start -> s0, s1, ...: state number n sets extra.x to n + 1; the default sets nothing."""
    builder = build(*fields)
    builder.primitives.append({"op": "add_header", "parameters": [{"type": "header", "value": "extra"}]})
    builder.primitives.append(assign(field("extra", "x"), field("scalars", "m")))
    cases = []
    for number, (value, mask) in enumerate(transitions):
        state = builder.state(f"s{number}", extract=None)
        state["parser_ops"].append(op("set", field("scalars", "m"), hexstr(number + 1)))
        builder.states.append(state)
        mask_text = None if mask is None else hex(mask)
        cases.append({"type": "hexstr", "value": hex(value), "mask": mask_text, "next_state": f"s{number}"})
    start = builder.states[0]
    start["transition_key"] = key
    start["transitions"] = [*cases, *start["transitions"]]
    return builder


@pytest.mark.parametrize(("first", "state"), [(0x11, 1), (0x12, 0), (0x25, 2), (0xB5, 2), (0x95, 3), (0x00, 4)])
def test_transitions_are_tried_in_order_with_masks(first: int, state: int) -> None:
    builder = branching([field("h", "a")], [(0x11, None), (0xFF, 0x20), (0x95, None), (0x01, 0xFE)])
    assert builder.run(bytes([first, 0]))[2:] == error(state)


def test_key_parts_are_padded_to_bytes() -> None:
    builder = branching(
        [field("h", "a"), field("h", "b"), lookahead(4, 3)],
        [(0x0ABA_03_05, None), (0x0ABA_00_00, 0xFFFF_00_00)],
        ("a", 12),
        ("b", 2),
        ("c", 2),
    )
    word = (0xABA << 4 | 3 << 2).to_bytes(2, "big")
    assert builder.run(word + b"\x0a") == word + error(1) + b"\x0a"
    assert builder.run(word + b"\x00") == word + error(2) + b"\x00"


def test_a_key_past_the_end_is_an_error() -> None:
    builder = branching([lookahead(0, 8)], [(7, None)])
    builder.primitives.append(assign(field("extra", "x"), field("standard_metadata", "parser_error")))
    assert builder.run(b"\x01\x02") == b"\x01\x02" + error(TOO_SHORT)
    assert builder.run(b"\x01\x02\x07") == b"\x01\x02" + error(0) + b"\x07"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s["transitions"][0].update(next_state="nowhere"), "leads to an unknown state nowhere"),
        (lambda s: s["parser_ops"][0]["parameters"][0].update(value="nothing"), "unknown header 'nothing'"),
        (lambda s: s["parser_ops"][0]["parameters"][0].update(value="scalars"), "extracts metadata scalars"),
        (lambda s: s["parser_ops"].append(op("set", field("h", "a"))), "set lacks argument 2"),
        (lambda s: s["parser_ops"].append(op("set", hexstr(1), hexstr(2))), "not a field"),
        (lambda s: s["transition_key"].append(hexstr(1)), "neither field nor lookahead"),
        (lambda s: s["transition_key"].append(lookahead(0, 0)), "looks ahead by nothing"),
    ],
)
def test_broken_states_are_refused(spoil: Any, message: str) -> None:
    builder = build()
    spoil(builder.states[0])
    with pytest.raises(ProgramError, match=message):
        builder.load()


def test_a_transition_wider_than_its_key_is_refused() -> None:
    with pytest.raises(ProgramError, match="wider than its key"):
        branching([field("h", "a")], [(0x100, None)]).load()
    builder = branching([], [(0, None)])
    with pytest.raises(ProgramError, match="selects without a key"):
        builder.load()
