# SPDX-License-Identifier: Apache-2.0
"""The controls of the JSON (tables, conditions, action calls) to the typed mirror."""

from __future__ import annotations

from .json_model import (
    ActionCallJson,
    ConditionalJson,
    DefaultEntryJson,
    EntryJson,
    ExpressionOperand,
    FieldOperand,
    KeyJson,
    MatchJson,
    NamedJson,
    NamedOperand,
    PipelineJson,
    TableJson,
)
from .json_node import Node, integer, parse_hex
from .json_operands import field_operand, operand


def read_pipeline(node: Node) -> PipelineJson:
    """Return the mirror of one control. Raises: ProgramError (wrong shape)."""
    return PipelineJson(
        name=node.text("name"),
        init_table=node.optional_text("init_table"),
        tables=tuple(_table(n) for n in node.nodes("tables")),
        conditionals=tuple(_conditional(n) for n in node.nodes("conditionals")),
        action_calls=tuple(_action_call(n) for n in node.nodes("action_calls")),
        action_profiles=tuple(NamedJson(n.text("name"), n.source()) for n in node.nodes("action_profiles")),
    )


def _table(node: Node) -> TableJson:
    return TableJson(
        name=node.text("name"),
        id=node.number("id"),
        type=node.text("type"),
        match_type=node.text("match_type"),
        max_size=node.number("max_size"),
        with_counters=node.flag("with_counters"),
        direct_meters=node.optional_text("direct_meters"),
        key=tuple(_key(n) for n in node.nodes("key")),
        action_ids=tuple(integer(i, f"{node.path}.action_ids") for i in node.array("action_ids")),
        next_tables={name: _name(value) for name, value in node.node("next_tables").data.items()},
        base_default_next=node.optional_text("base_default_next"),
        default_entry=_default_entry(node.node("default_entry")) if node.has("default_entry") else None,
        entries=tuple(_entry(n) for n in node.nodes("entries")) if node.has("entries") else None,
        source=node.source(),
    )


def _name(value: object) -> str | None:
    return None if value is None else str(value)


def _key(node: Node) -> KeyJson:
    kind = node.text("match_type")
    target: FieldOperand | NamedOperand | ExpressionOperand
    chosen = operand(node.data["target"], node.path) if isinstance(node.data.get("target"), dict) else None
    if isinstance(chosen, ExpressionOperand):  # a field of an element that is chosen at run time
        target, default_name = chosen, chosen.op
    elif kind == "valid":
        target = NamedOperand("header", node.text("target"))
        default_name = target.name
    else:
        target = field_operand(node.array("target"), node.path)
        default_name = f"{target.header}.{target.field}"
    mask = node.hex("mask") if node.has("mask") else None
    return KeyJson(kind, target, mask, node.optional_text("name") or default_name)


def _default_entry(node: Node) -> DefaultEntryJson:
    return DefaultEntryJson(
        action_id=node.number("action_id"),
        action_const=node.flag("action_const"),
        action_data=_action_data(node),
        action_entry_const=node.flag("action_entry_const"),
    )


def _entry(node: Node) -> EntryJson:
    call = node.node("action_entry")
    return EntryJson(
        match=tuple(_match(n) for n in node.nodes("match_key")),
        action_id=call.number("action_id"),
        action_data=_action_data(call),
        priority=node.number("priority"),
        source=node.source(),
    )


def _match(node: Node) -> MatchJson:
    kind = node.text("match_type")
    if kind == "range":
        return MatchJson(kind, node.hex("start"), node.hex("end"))
    if kind == "ternary":
        return MatchJson(kind, node.hex("key"), node.hex("mask"))
    if kind == "lpm":
        return MatchJson(kind, node.hex("key"), node.number("prefix_length"))
    return MatchJson(kind, node.hex("key") if kind == "exact" else int(node.flag("key")), 0)


def _action_data(node: Node) -> tuple[int, ...]:
    return tuple(parse_hex(str(item), f"{node.path}.action_data") for item in node.array("action_data"))


def _conditional(node: Node) -> ConditionalJson:
    return ConditionalJson(
        name=node.text("name"),
        expression=operand(node.node("expression").data, f"{node.path}.expression"),
        true_next=node.optional_text("true_next"),
        false_next=node.optional_text("false_next"),
        source=node.source(),
    )


def _action_call(node: Node) -> ActionCallJson:
    next_node = node.optional_text("next_node")
    return ActionCallJson(node.text("name"), node.number("action_id"), next_node, node.source())
