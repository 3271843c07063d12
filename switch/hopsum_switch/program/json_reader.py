# SPDX-License-Identifier: Apache-2.0
"""JSON text to the typed mirror: headers, parser, state, actions. Controls are read in json_pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..errors import ProgramError
from .json_model import (
    ActionJson,
    CalculationJson,
    ChecksumJson,
    CounterJson,
    DeparserJson,
    FieldJson,
    FieldOperand,
    HeaderJson,
    HeaderTypeJson,
    NamedJson,
    Operand,
    ParserJson,
    ParserOpJson,
    ParseStateJson,
    PrimitiveJson,
    ProgramJson,
    RegisterJson,
    RuntimeDataJson,
    TransitionJson,
)
from .json_node import Node, integer
from .json_objects import read_field_list, read_learn_list, read_meter, read_stack, read_union
from .json_operands import field_operand, operand
from .json_pipeline import read_pipeline

SUPPORTED_MAJOR = 2

# Sections of the file that are refused whole, if they list anything.
_REFUSED_SECTIONS = {
    "header_union_stacks": "header union",
    "parse_vsets": "value set",
    "extern_instances": "extern",
}


def read_program(text: str) -> ProgramJson:
    """Return the mirror of a compiled program. Raises: ProgramError (not the JSON of a v1model program)."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ProgramError(f"not JSON: {error}; expected the output of p4c-bm2-ss") from None
    root = Node(data, "program")
    return ProgramJson(
        name=root.optional_text("program") or "",
        version=_version(root),
        header_types=tuple(_header_type(n) for n in root.nodes("header_types")),
        headers=tuple(_header(n) for n in root.nodes("headers")),
        stacks=tuple(read_stack(n) for n in root.nodes("header_stacks")),
        unions=tuple(read_union(n) for n in root.nodes("header_unions")),
        field_lists=tuple(read_field_list(n) for n in root.nodes("field_lists")),
        learn_lists=tuple(read_learn_list(n) for n in root.nodes("learn_lists")),
        meters=tuple(read_meter(n) for n in root.nodes("meter_arrays")),
        errors=dict(_error(item, root.path) for item in root.array("errors")),
        parsers=tuple(_parser(n) for n in root.nodes("parsers")),
        deparsers=tuple(_deparser(n) for n in root.nodes("deparsers")),
        counters=tuple(_counter(n) for n in root.nodes("counter_arrays")),
        registers=tuple(_register(n) for n in root.nodes("register_arrays")),
        calculations=tuple(_calculation(n) for n in root.nodes("calculations")),
        checksums=tuple(_checksum(n) for n in root.nodes("checksums")),
        actions=tuple(_action(n) for n in root.nodes("actions")),
        pipelines=tuple(read_pipeline(n) for n in root.nodes("pipelines")),
        field_aliases=dict(_alias(item, root.path) for item in root.array("field_aliases")),
        refused=tuple(_refused(root)),
    )


def _version(root: Node) -> tuple[int, int] | None:
    if not root.has("__meta__"):
        return None
    version = root.node("__meta__").array("version")
    if len(version) != 2 or version[0] != SUPPORTED_MAJOR:
        raise root.error(f"JSON format {version} is not {SUPPORTED_MAJOR}.x; compile with a current p4c")
    return SUPPORTED_MAJOR, integer(version[1], "program.__meta__.version")


def _refused(root: Node) -> Iterator[tuple[str, NamedJson]]:
    for section, construct in _REFUSED_SECTIONS.items():
        for node in root.nodes(section):
            yield construct, NamedJson(node.optional_text("name") or section, node.source())


def _header_type(node: Node) -> HeaderTypeJson:
    max_bytes = node.number("max_length") if node.has("max_length") else 0
    return HeaderTypeJson(node.text("name"), tuple(_field(f, node) for f in node.array("fields")), max_bytes)


def _field(item: object, node: Node) -> FieldJson:
    if not isinstance(item, list) or len(item) < 2:
        raise node.error(f"fields: expected [name, width, ...], found {item!r}")
    bits = None if item[1] == "*" else integer(item[1], f"{node.path}.fields")
    signed = len(item) > 2 and bool(item[2])
    return FieldJson(str(item[0]), bits, signed, len(item) > 3 and bool(item[3]))


def _header(node: Node) -> HeaderJson:
    metadata = node.flag("metadata")
    return HeaderJson(node.text("name"), node.number("id"), node.text("header_type"), metadata, node.source())


def _error(item: object, path: str) -> tuple[str, int]:
    if not isinstance(item, list) or len(item) != 2:
        raise ProgramError(f"{path}.errors: expected [name, number], found {item!r}")
    return str(item[0]), integer(item[1], f"{path}.errors")


def _alias(item: object, path: str) -> tuple[str, FieldOperand]:
    if not isinstance(item, list) or len(item) != 2:
        raise ProgramError(f"{path}.field_aliases: expected [name, [header, field]], found {item!r}")
    return str(item[0]), field_operand(item[1], path)


def _parser(node: Node) -> ParserJson:
    states = tuple(_state(n) for n in node.nodes("parse_states"))
    return ParserJson(node.text("name"), node.optional_text("init_state"), states)


def _state(node: Node) -> ParseStateJson:
    return ParseStateJson(
        name=node.text("name"),
        ops=tuple(_parser_op(n) for n in node.nodes("parser_ops")),
        key=_operands(node, "transition_key"),
        transitions=tuple(_transition(n) for n in node.nodes("transitions")),
        source=node.source(),
    )


def _parser_op(node: Node) -> ParserOpJson:
    op = node.text("op")
    if op == "primitive":
        primitives = node.nodes("parameters")
        if len(primitives) != 1:
            raise node.error(f"parameters: expected one primitive, found {len(primitives)}")
        call = _primitive(primitives[0])
        return ParserOpJson(op, (), call, call.source or node.source())
    if op == "shift":  # bytes as a plain number; refused by name later
        return ParserOpJson(op, (), None, node.source())
    return ParserOpJson(op, _operands(node, "parameters"), None, node.source())


def _transition(node: Node) -> TransitionJson:
    kind = node.text("type")
    return TransitionJson(
        type=kind,
        value=node.hex("value") if kind == "hexstr" else 0,
        mask=node.hex("mask") if node.has("mask") else None,
        next_state=node.optional_text("next_state"),
    )


def _deparser(node: Node) -> DeparserJson:
    primitives = tuple(_primitive(n) for n in node.nodes("primitives"))
    return DeparserJson(node.text("name"), tuple(str(name) for name in node.array("order")), primitives)


def _counter(node: Node) -> CounterJson:
    direct = node.flag("is_direct")
    binding = node.text("binding") if direct else None
    size = node.number("size") if node.has("size") else 0
    return CounterJson(node.text("name"), node.number("id"), size, binding, node.source())


def _register(node: Node) -> RegisterJson:
    size, bits = node.number("size"), node.number("bitwidth")
    return RegisterJson(node.text("name"), node.number("id"), size, bits, node.source())


def _calculation(node: Node) -> CalculationJson:
    inputs = node.nodes("input")
    payload = [n for n in inputs if n.text("type") == "payload"]
    operands = tuple(operand(n.data, n.path) for n in inputs if n.text("type") != "payload")
    return CalculationJson(node.text("name"), node.text("algo"), operands, bool(payload), node.source())


def _checksum(node: Node) -> ChecksumJson:
    return ChecksumJson(
        name=node.text("name"),
        type=node.text("type"),
        target=field_operand(node.array("target"), node.path),
        calculation=node.optional_text("calculation") or "",
        condition=operand(node.data["if_cond"], node.path) if node.has("if_cond") else None,
        verify=node.flag("verify", True),
        update=node.flag("update", True),
        source=node.source(),
    )


def _action(node: Node) -> ActionJson:
    params = node.nodes("runtime_data")
    runtime_data = tuple(RuntimeDataJson(n.text("name"), n.number("bitwidth")) for n in params)
    primitives = tuple(_primitive(n) for n in node.nodes("primitives"))
    return ActionJson(node.text("name"), node.number("id"), runtime_data, primitives, node.source())


def _primitive(node: Node) -> PrimitiveJson:
    return PrimitiveJson(node.text("op"), _operands(node, "parameters"), node.source())


def _operands(node: Node, key: str) -> tuple[Operand, ...]:
    return tuple(operand(item, f"{node.path}.{key}[{i}]") for i, item in enumerate(node.array(key)))
