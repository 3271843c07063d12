# SPDX-License-Identifier: Apache-2.0
"""JSON "type value" objects to operands."""

from __future__ import annotations

from typing import Any

from ..errors import ProgramError
from .json_model import (
    BoolOperand,
    ExpressionOperand,
    FieldOperand,
    HexOperand,
    LocalOperand,
    LookaheadOperand,
    NamedOperand,
    Operand,
    OtherOperand,
    StackFieldOperand,
    StringOperand,
    VectorOperand,
)
from .json_node import Node, integer, parse_hex

_NAMED = frozenset(
    {
        "calculation",
        "counter_array",
        "header",
        "header_stack",
        "header_union",
        "meter_array",
        "register_array",
        "regular",
        "stack",
    }
)


def operand(data: object, path: str) -> Operand:
    """Return the operand that a type-value object describes. Raises: ProgramError (wrong shape)."""
    node = Node(data, path)
    kind = node.text("type")
    if kind == "expression":
        return _expression(node)
    if kind == "field":
        return field_operand(node.array("value"), path)
    if kind == "hexstr":
        text = node.text("value")
        digits = text.lstrip("-").removeprefix("0x")
        bits = node.number("bitwidth") if node.has("bitwidth") else 4 * len(digits)
        return HexOperand(parse_hex(text, path), bits)
    if kind == "bool":
        return BoolOperand(node.flag("value"))
    if kind in ("local", "runtime_data"):
        return LocalOperand(node.number("value"))
    if kind == "lookahead":
        offset, bits = _pair(node.array("value"), path)
        return LookaheadOperand(integer(offset, path), integer(bits, path))
    if kind == "string":
        return StringOperand(node.text("value"))
    if kind == "parameters_vector":
        items = enumerate(node.array("value") if node.data.get("value") else [])  # {} stands for none
        return VectorOperand(tuple(operand(item, f"{path}.value[{i}]") for i, item in items))
    if kind == "stack_field":
        stack, name = _pair(node.array("value"), path)
        return StackFieldOperand(str(stack), str(name))
    if kind in _NAMED:
        return NamedOperand({"regular": "header", "stack": "header_stack"}.get(kind, kind), node.text("value"))
    return OtherOperand(kind)


def field_operand(value: list[Any], path: str) -> FieldOperand:
    """Return the field that a [header, field] pair names."""
    header, name = _pair(value, path)
    return FieldOperand(str(header), str(name))


def _expression(node: Node) -> Operand:
    value = node.node("value")
    if "op" not in value.data:  # an operand wrapped once more
        return operand(value.data, value.path)
    sides = {
        side: operand(value.data[side], f"{value.path}.{side}") if _is_operand(value, side) else None
        for side in ("left", "right", "cond")
    }
    if value.text("op") in ("access_field", "access_union_header"):  # a plain number stands on the right
        number = integer(value.data.get("right"), f"{value.path}.right")
        sides["right"] = HexOperand(number, max(1, number.bit_length()))
    return ExpressionOperand(value.text("op"), sides["left"], sides["right"], sides["cond"])


def _is_operand(value: Node, side: str) -> bool:
    return isinstance(value.data.get(side), dict)


def _pair(value: list[Any], path: str) -> tuple[Any, Any]:
    if len(value) != 2:
        raise ProgramError(f"{path}: expected a pair, found {len(value)} items")
    return value[0], value[1]
