# SPDX-License-Identifier: Apache-2.0
"""The parser: operations, transitions, and errors, which end parsing but not the packet."""

from __future__ import annotations

from typing import Any

import pytest

from hopsum_switch.errors import ProgramError

from .builder import ERRORS, Json, ProgramBuilder, assign, build, expression, field, hexstr

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
def test_a_frame_shorter_than_its_header_goes_on_unparsed(size: int) -> None:
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
