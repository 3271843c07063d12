# SPDX-License-Identifier: Apache-2.0
"""Header unions: at most one member is valid, however it became so."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hopsum_switch.errors import ProgramError

from .builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

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


class Model:
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


def random_calls(rng: random.Random) -> list[tuple[str, str, int]]:
    return [(rng.choice([*CALLS]), rng.choice("uw"), rng.randrange(MEMBERS)) for _ in range(rng.randrange(1, 9))]


def calls_of(calls: list[tuple[str, str, int]]) -> list[Json]:
    flag = expression("b2d", None, expression("==u", U, W))
    valid = expression("b2d", None, expression("valid_union", None, U))
    made = [CALLS[kind](union, number) for kind, union, number in calls]
    return [*made, assign(field("h", "a"), flag), assign(field("h", "b"), valid)]


@pytest.mark.parametrize("seed", range(60))
def test_one_member_is_valid_at_most(seed: int) -> None:
    rng = random.Random(seed)
    calls = random_calls(rng)
    builder = uniting()
    builder.primitives += calls_of(calls)
    model = Model(0x55)
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
