# SPDX-License-Identifier: Apache-2.0
"""Header stacks and unions against models of a few lines: parsing, moving, copying, and one valid member at most."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.errors import ProgramError
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact

from .builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

SIZE = 3
COUNT = {"type": "header_stack", "value": "s"}
OTHER = {"type": "header_stack", "value": "t"}


def element(number: int, stack: str = "s") -> Json:
    return {"type": "header", "value": f"{stack}[{number}]"}


def stacking(size: int = SIZE) -> ProgramBuilder:
    """Stacks `s` and `t` of (value, more); `s` is parsed behind `h` until `more` is 0. Emits h, s, t, extra."""
    builder = build()
    types, headers = builder.data["header_types"], builder.data["headers"]
    types.append({"name": "e_t", "id": 9, "fields": [["value", 7, False], ["more", 1, False]]})
    builder.data["header_stacks"] = []
    for number, name in enumerate("st"):
        ids = [10 + 10 * number + i for i in range(size)]
        headers += [
            {"name": f"{name}[{i}]", "id": ids[i], "header_type": "e_t", "metadata": False} for i in range(size)
        ]
        stack = {"name": name, "id": number, "header_type": "e_t", "size": size, "header_ids": ids, "source_info": None}
        builder.data["header_stacks"].append(stack)
    order = ["h", *(f"{name}[{i}]" for name in "st" for i in range(size)), "extra"]
    builder.data["deparsers"][0]["order"] = order
    builder.states[0]["transitions"][0]["next_state"] = "loop"
    builder.states.append(
        {
            "name": "loop",
            "id": 1,
            "parser_ops": [{"op": "extract", "parameters": [{"type": "stack", "value": "s"}]}],
            "transition_key": [{"type": "stack_field", "value": ["s", "more"]}],
            "transitions": [
                {"type": "hexstr", "value": "0x01", "mask": None, "next_state": "loop"},
                {"type": "default", "value": None, "mask": None, "next_state": None},
            ],
        }
    )
    return builder


def chosen(index: Json) -> Json:
    """The value of the element of `s` that an index chooses."""
    header = expression("dereference_header_stack", COUNT, index)
    return {"type": "expression", "value": {"op": "access_field", "left": header, "right": 0}}


def frame(*values: int, rest: bytes = b"") -> bytes:
    """A frame with a stack of these values."""
    return b"\0\0" + bytes(2 * v + (i < len(values) - 1) for i, v in enumerate(values)) + rest


def test_the_parser_fills_a_stack_in_order() -> None:
    builder = stacking()
    builder.primitives += [
        assign(field("h", "a"), expression("size_stack", None, COUNT)),
        assign(field("h", "b"), expression("last_stack_index", None, COUNT)),
        assign(field("s[1]", "value"), {"type": "stack_field", "value": ["s", "value"]}),
        primitive("remove_header", element(2)),
    ]
    engine = builder.engine()
    assert engine.process(0, frame(10, 20, rest=b"rest")) == [(1, b"\x02\x01" + bytes([21, 40]) + b"rest")]
    assert engine.process(0, frame(10, 20, 30)) == [(1, b"\x03\x02" + bytes([21, 61]))]


def test_more_elements_than_the_stack_holds_are_an_error() -> None:
    builder = stacking()
    error = field("standard_metadata", "parser_error")
    builder.primitives += [
        assign(field("h", "a"), error),
        assign(field("h", "b"), expression("size_stack", None, COUNT)),
    ]
    got = builder.engine().process(0, frame(1, 2, 3, 4, rest=b"rest"))
    assert got == [(1, b"\x03\x03" + frame(1, 2, 3, 4)[2:] + b"rest")]


def test_a_short_frame_leaves_the_element_out() -> None:
    builder = stacking()
    builder.primitives.append(assign(field("h", "b"), expression("size_stack", None, COUNT)))
    assert builder.engine().process(0, b"\0\0\x05") == [(1, b"\0\x01\x05")]
    builder.primitives.insert(0, assign(field("h", "a"), expression("last_stack_index", None, COUNT)))
    builder.primitives.insert(1, assign(field("h", "b"), {"type": "stack_field", "value": ["s", "value"]}))
    assert builder.engine().process(0, b"\0\0") == [(1, b"\xff\x00")], "nothing is there: index -1, value 0"


@pytest.mark.parametrize(("index", "value"), [(0, 10), (1, 20), (2, 0), (3, 0), (255, 0)])
def test_an_element_is_read_by_a_computed_index(index: int, value: int) -> None:
    builder = stacking()
    builder.primitives += [assign(field("h", "b"), hexstr(index)), assign(field("h", "a"), chosen(field("h", "b")))]
    assert builder.engine().process(0, frame(10, 20))[0].frame[0] == value


@pytest.mark.parametrize("index", [0, 1, 2, 3, 255])
def test_an_element_is_written_by_a_computed_index(index: int) -> None:
    builder = stacking()
    builder.primitives += [
        assign(field("h", "b"), hexstr(index)),
        assign(chosen(field("h", "b")), expression("+", chosen(field("h", "b")), hexstr(200))),
    ]
    values = [10, 20, 30]
    if index < SIZE:
        values[index] = (values[index] + 200) % 128
    assert builder.run(frame(10, 20, 30)) == bytes([0, index]) + frame(*values)[2:]


def test_an_element_chosen_by_a_computed_index_is_a_key() -> None:
    builder = stacking()
    key = {"match_type": "exact", "name": "s[b]", "target": chosen(field("h", "b")), "mask": None}
    builder.ingress["tables"][0].update(key=[key], default_entry=None)
    builder.primitives.append(assign(field("h", "a"), hexstr(0xEE)))
    engine = builder.engine()
    engine.tables["tbl_in"].insert([Exact(20)], "act", [])
    outputs = [engine.process(0, b"\0" + bytes([index]) + frame(10, 20, 30)[2:])[0] for index in range(4)]
    assert [output.frame[0] for output in outputs] == [0, 0xEE, 0, 0]
    key["target"] = {"type": "expression", "value": {"op": "+", "left": hexstr(1), "right": hexstr(1)}}
    with pytest.raises(ProgramError, match=r"operator \+ as a key"):
        builder.load()


class StackModel:
    """Elements as (valid, byte), and how many are in use."""

    def __init__(self, values: list[int]) -> None:
        self.elements = [(True, byte) for byte in frame(*values)[2:]] + [(False, 0)] * (SIZE - len(values))
        self.used = len(values)

    def push(self, by: int) -> None:
        for i in range(SIZE - 1, by - 1, -1):
            self.elements[i], self.elements[i - by] = self.elements[i - by], self.elements[i]
        for i in range(min(by, SIZE)):
            self.elements[i] = (False, self.elements[i][1])
        self.used = min(self.used + by, SIZE)

    def pop(self, by: int) -> None:
        for i in range(SIZE - by):
            self.elements[i], self.elements[i + by] = self.elements[i + by], self.elements[i]
        for i in range(max(SIZE - by, 0), SIZE):
            self.elements[i] = (False, self.elements[i][1])
        self.used = max(self.used - by, 0)

    def set_valid(self, number: int) -> None:
        if not self.elements[number][0]:
            self.elements[number] = (True, 0)

    def add_one(self, number: int) -> None:
        valid, byte = self.elements[number]
        self.elements[number] = (valid, (byte + 2) & 0xFF)

    def emitted(self) -> bytes:
        return bytes(byte for valid, byte in self.elements if valid)


def random_calls(rng: random.Random) -> list[tuple[str, int]]:
    kinds = ["push", "pop", "set_valid", "add_one"]
    return [
        (kind, rng.randrange(SIZE + 3) if kind in ("push", "pop") else rng.randrange(SIZE))
        for kind in rng.choices(kinds, k=rng.randrange(1, 8))
    ]


def calls_of(calls: list[tuple[str, int]]) -> list[Json]:
    made: dict[str, Any] = {
        "push": lambda n: primitive("push", COUNT, hexstr(n)),
        "pop": lambda n: primitive("pop", COUNT, hexstr(n)),
        "set_valid": lambda n: primitive("add_header", element(n)),
        "add_one": lambda n: assign(field(f"s[{n}]", "value"), expression("+", field(f"s[{n}]", "value"), hexstr(1))),
    }
    copy = primitive("assign_header_stack", OTHER, COUNT)
    used = expression("+", expression("size_stack", None, COUNT), expression("size_stack", None, OTHER))
    return [made[kind](number) for kind, number in calls] + [copy, assign(field("h", "a"), used)]


@pytest.mark.parametrize("seed", range(40))
def test_pushes_and_pops_move_elements_as_a_list(seed: int) -> None:
    rng = random.Random(seed)
    calls = random_calls(rng)
    builder = stacking()
    builder.primitives += calls_of(calls)
    engine = builder.engine()
    for length in range(1, SIZE + 1):
        values = [rng.randrange(128) for _ in range(length)]
        model = StackModel(values)
        for kind, number in calls:
            getattr(model, kind)(number)
        expected = bytes([2 * model.used, 0]) + 2 * model.emitted() + b"rest"
        assert engine.process(0, frame(*values, rest=b"rest")) == [(1, expected)], calls


def test_a_stack_goes_with_an_egress_clone() -> None:
    builder = stacking()
    builder.data["field_lists"] = [{"id": 1, "name": "none", "elements": []}]
    count = assign(field("h", "a"), expression("size_stack", None, COUNT))
    builder.egress_primitives += [count, primitive("clone_egress_pkt_to_egress", hexstr(1), hexstr(1))]
    engine = builder.engine()
    engine.clones.insert(1, [PortCopy(2, 0)])
    outputs = engine.process(0, frame(10, 20))
    assert {output.frame for output in outputs} == {b"\x02\x00" + frame(10, 20)[2:]}


def test_wrong_stacks_are_refused() -> None:
    wrong: list[tuple[str, Any]] = [
        ("unknown header stack", primitive("push", {"type": "header_stack", "value": "x"}, hexstr(1))),
        ("not a constant", primitive("push", COUNT, field("h", "a"))),
        ("cannot move by -1", primitive("push", COUNT, hexstr(-1))),
        ("no field nothing", assign(field("h", "a"), {"type": "stack_field", "value": ["s", "nothing"]})),
        ("expected a header stack", primitive("pop", element(0), hexstr(1))),
    ]
    for message, call in wrong:
        builder = stacking()
        builder.primitives.append(call)
        with pytest.raises(ProgramError, match=message):
            Engine(builder.load())
    builder = stacking()
    builder.data["header_stacks"][0]["header_ids"][0] = 0
    with pytest.raises(ProgramError, match="not of its type"):
        builder.load()


U, W = ({"type": "header_union", "value": name} for name in "uw")
MEMBERS = 2


def member(number: int, union: str = "u") -> Json:
    return {"type": "header", "value": f"{union}.{number}"}


def uniting() -> ProgramBuilder:
    """Unions `u` and `w` of two one-byte headers; `u.0` is parsed behind `h`. Emits h, u, w."""
    builder = build()
    builder.data["header_types"].append({"name": "e_t", "id": 9, "fields": [["value", 8, False]]})
    builder.data["header_unions"] = []
    order = ["h"]
    for number, name in enumerate("uw"):
        ids = [10 + MEMBERS * number + i for i in range(MEMBERS)]
        names = [f"{name}.{i}" for i in range(MEMBERS)]
        builder.data["headers"] += [
            {"name": member_name, "id": i, "header_type": "e_t", "metadata": False}
            for i, member_name in zip(ids, names, strict=True)
        ]
        builder.data["header_unions"].append({"name": name, "id": number, "union_type": "u_t", "header_ids": ids})
        order += names
    builder.data["deparsers"][0]["order"] = order
    builder.states[0]["parser_ops"].append({"op": "extract", "parameters": [{"type": "regular", "value": "u.0"}]})
    return builder


class UnionModel:
    """The valid member of each union, with its value; values stay when a member becomes invalid."""

    def __init__(self, value: int) -> None:
        self.values: dict[str, list[int]] = {"u": [value, 0], "w": [0, 0]}
        self.valid: dict[str, int | None] = {"u": 0, "w": None}

    def add(self, union: str, number: int) -> None:
        if self.valid[union] != number:
            self.valid[union], self.values[union][number] = number, 0

    def remove(self, union: str, number: int) -> None:
        if self.valid[union] == number:
            self.valid[union] = None

    def set(self, union: str, number: int) -> None:
        self.values[union][number] = 0x30 + number

    def copy(self, union: str, number: int) -> None:
        """Copy the whole union to the other one."""
        other = "w" if union == "u" else "u"
        self.valid[other] = self.valid[union]
        chosen = self.valid[union]
        if chosen is not None:
            self.values[other][chosen] = self.values[union][chosen]

    def copy_member(self, union: str, number: int) -> None:
        """Copy one member to the same member of the other union."""
        other = "w" if union == "u" else "u"
        if self.valid[union] == number:
            self.valid[other], self.values[other][number] = number, self.values[union][number]
        elif self.valid[other] == number:
            self.valid[other] = None

    def emitted(self) -> bytes:
        return bytes(self.values[union][n] for union in "uw" if (n := self.valid[union]) is not None)

    def equal(self) -> bool:
        chosen = self.valid["u"]
        same = chosen is not None and chosen == self.valid["w"]
        return same and self.values["u"][chosen or 0] == self.values["w"][chosen or 0]


CALLS: dict[str, Any] = {
    "add": lambda union, number: primitive("add_header", member(number, union)),
    "remove": lambda union, number: primitive("remove_header", member(number, union)),
    "set": lambda union, number: assign(field(f"{union}.{number}", "value"), hexstr(0x30 + number)),
    "copy": lambda union, number: primitive("assign_union", *((W, U) if union == "u" else (U, W))),
    "copy_member": lambda union, number: primitive(
        "assign_header", member(number, "w" if union == "u" else "u"), member(number, union)
    ),
}


def random_union_calls(rng: random.Random) -> list[tuple[str, str, int]]:
    return [(rng.choice([*CALLS]), rng.choice("uw"), rng.randrange(MEMBERS)) for _ in range(rng.randrange(1, 9))]


def union_calls_of(calls: list[tuple[str, str, int]]) -> list[Json]:
    flag = expression("b2d", None, expression("==u", U, W))
    valid = expression("b2d", None, expression("valid_union", None, U))
    made = [CALLS[kind](union, number) for kind, union, number in calls]
    return [*made, assign(field("h", "a"), flag), assign(field("h", "b"), valid)]


@pytest.mark.parametrize("seed", range(60))
def test_one_member_is_valid_at_most(seed: int) -> None:
    rng = random.Random(seed)
    calls = random_union_calls(rng)
    builder = uniting()
    builder.primitives += union_calls_of(calls)
    model = UnionModel(0x55)
    for kind, union, number in calls:
        getattr(model, kind)(union, number)
    expected = bytes([model.equal(), model.valid["u"] is not None]) + model.emitted() + b"rest"
    assert builder.run(b"\0\0\x55rest") == expected, calls


def test_extracting_a_member_makes_the_others_invalid() -> None:
    builder = uniting()
    builder.states[0]["parser_ops"].append({"op": "extract", "parameters": [{"type": "regular", "value": "u.1"}]})
    assert builder.run(b"\0\0\x55\x66rest") == b"\0\0\x66rest"


def test_a_member_is_named_by_its_number_too() -> None:
    builder = uniting()
    chosen = {"type": "expression", "value": {"op": "access_union_header", "left": U, "right": 1}}
    builder.primitives.append(primitive("add_header", chosen))
    assert builder.run(b"\0\0\x55rest") == b"\0\0\0rest"
    builder = uniting()
    chosen["value"]["right"] = 2  # type: ignore[index]
    builder.primitives.append(primitive("add_header", chosen))
    with pytest.raises(ProgramError, match="u has no member 2"):
        builder.load()


def test_different_unions_do_not_mix() -> None:
    builder = uniting()
    builder.data["header_unions"][1]["union_type"] = "other"
    builder.primitives.append(primitive("assign_union", U, W))
    with pytest.raises(ProgramError, match="mixes header unions"):
        builder.load()
