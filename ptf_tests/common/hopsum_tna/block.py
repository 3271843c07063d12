# SPDX-License-Identifier: Apache-2.0
"""One parser or control: its declarations. `calls` has the effects of its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopsum_tna import calls
from hopsum_tna.actions import Do, Statements, in_order, record_values
from hopsum_tna.dump import Node
from hopsum_tna.errors import UnsupportedNodeError
from hopsum_tna.externs import CounterExtern, HashExtern, Register, Undefined
from hopsum_tna.layout import Fields, Number, Type, Types, flat
from hopsum_tna.tables import Bound, Key, Match, TnaTable
from hopsum_tna.values import LValue, NameScope, as_width, number_of

_ROOTS = {
    "packet_in": "$packet",
    "packet_out": "$packet",
    "ingress_intrinsic_metadata_t": "in",
    "egress_intrinsic_metadata_t": "in",
    "ingress_intrinsic_metadata_for_tm_t": "tm",
    "ingress_intrinsic_metadata_from_parser_t": "parser",
    "egress_intrinsic_metadata_from_parser_t": "parser",
    "ingress_intrinsic_metadata_for_deparser_t": "deparser",
    "egress_intrinsic_metadata_for_deparser_t": "deparser",
    "egress_intrinsic_metadata_for_output_port_t": "port",
}
"""The roots of parameters, by their types. The two other parameters are headers and metadata."""
_TABLE_PROPERTIES = {"key", "actions", "default_action", "size", "entries"}


@dataclass(frozen=True)
class CompiledAction:
    """A compiled action."""

    params: tuple[tuple[str, str, Number], ...]
    """Control-plane name, path and type of each parameter."""
    do: Do


@dataclass
class BlockState:
    """The state that lasts from packet to packet, by name in the control plane. Actions are by name in the program."""

    tables: dict[str, TnaTable] = field(default_factory=dict)
    registers: dict[str, Register] = field(default_factory=dict)
    counters: dict[str, CounterExtern] = field(default_factory=dict)
    actions: dict[str, CompiledAction] = field(default_factory=dict)


class Block:
    """A parser or control, its declarations compiled."""

    def __init__(self, node: Node, types: Types, state: BlockState, undefined: Undefined) -> None:
        self.name = node["name"]
        self.types = types
        self.state = state
        self.undefined = undefined
        self.tables: dict[str, TnaTable] = {}
        self.actions: dict[str, CompiledAction] = {}
        self.instances: dict[str, Any] = {}
        self.roots: dict[str, Type] = {}
        """The types of the packet fields of the block, by path."""
        self._labels: dict[str, str] = {}
        self.scope = NameScope(types, {}, lambda scope, call: calls.value(self, scope, call))
        self.statements = Statements(
            lambda scope, call: calls.statement(self, scope, call),
            lambda scope, switch: calls.switch(self, scope, switch),
        )
        self._parameters(node)
        for item in node.get("parserLocals", []) + node.get("controlLocals", []):
            self._declare(item)

    def perform(self, bound: Bound) -> Do:
        """Return a function that puts the parameters where the action looks for them, and runs it."""
        action = self.actions[bound.action]
        values = [(path, value) for (_, path, _), value in zip(action.params, bound.params, strict=True)]
        do = action.do
        if not values:
            return do

        def run(fields: Fields) -> None:
            fields.update(values)
            do(fields)

        return run

    def _parameters(self, node: Node) -> None:
        ordinary = iter(("hdr", "meta"))
        for parameter in node["parameters"]["parameters"]:
            root = _ROOTS.get(parameter["type"]) or next(ordinary)
            kind = Number(0) if root == "$packet" else self.types.find(parameter["type"])
            self.scope.names[parameter["name"]] = (root, kind)
            if root != "$packet":
                self.roots[root] = kind

    def _declare(self, item: Node) -> None:
        name = str(item["name"])
        self._labels[name] = str(item.get("label", name))
        match item["node"]:
            case "Declaration_Variable":
                # Names are unique within a block only.
                path, kind = f"$local.{self.name}.{name}", self.types.find(item["type"])
                self.scope.names[name], self.roots[path] = (path, kind), kind
            case "Declaration_Instance":
                self.instances[name] = self._instance(item)
            case "P4Action":
                self.actions[name] = self.state.actions[name] = self._action(item)
            case "P4Table":
                self.tables[name] = self._table(item)
            case _:
                raise UnsupportedNodeError(f"the declaration of {name}", item)

    def _action(self, item: Node) -> CompiledAction:
        names, params = {}, []
        for parameter in item["parameters"]["parameters"]:
            name, kind = parameter["name"], self.types.find(parameter["type"])
            if parameter["direction"] not in ("", "in") or not isinstance(kind, Number):
                raise UnsupportedNodeError(f"parameter {name} of action {item['name']}", parameter)
            names[name] = (f"$action.{name}", kind)
            params.append((parameter.get("label", name), f"$action.{name}", kind))
        return CompiledAction(tuple(params), self.statements.compile(self.scope.inside(names), item["body"]))

    # ---- tables -------------------------------------------------------------------------------------------

    def _table(self, item: Node) -> TnaTable:
        told = {entry["name"]: entry["value"] for entry in item["properties"]["properties"]}
        if unknown := sorted(set(told) - _TABLE_PROPERTIES):
            raise UnsupportedNodeError(f"{', '.join(unknown)} of table {item['label']}")
        keys = tuple(self._key(key) for key in (told["key"]["keyElements"] if "key" in told else []))
        names = [entry["expression"]["method"]["path"] for entry in told["actions"]["actionList"]]
        table = TnaTable(
            item["label"],
            keys,
            {self._labels[name]: name for name in names},
            self._bound(told["default_action"]["expression"]),
            told["size"]["expression"]["value"] if "size" in told else 512,
        )
        for rank, entry in enumerate(told["entries"]["entries"] if "entries" in told else []):
            parts = zip(entry["keys"]["components"], keys, strict=True)
            table.program([self._match(part, key) for part, key in parts], -rank, self._bound(entry["action"]))
            table.constant = True
        self.state.tables[table.name] = table
        return table

    def _key(self, key: Node) -> Key:
        match = key["matchType"]["path"]
        if match not in ("exact", "ternary", "lpm"):
            raise UnsupportedNodeError(f"a key that matches by {match}", key)
        return Key(key["label"], self.scope.value(key["expression"]), match)

    def _match(self, part: Node, key: Key) -> Match:
        if part["node"] == "DefaultExpression":
            return 0, 0
        if part["node"] == "Mask":
            value, mask = (self._constant(part[side], number_of(key.value)) for side in ("left", "right"))
            return value & mask & key.mask, mask & key.mask
        return self._constant(part, number_of(key.value)) & key.mask, key.mask

    def _bound(self, call: Node) -> Bound:
        name = call["method"]["path"]
        kinds = [kind for _, _, kind in self.actions[name].params]
        given = [argument["expression"] for argument in call["arguments"]]
        return Bound(name, tuple(self._constant(part, kind) for part, kind in zip(given, kinds, strict=True)))

    def _constant(self, node: Node, kind: Number) -> int:
        value = as_width(self.scope.value(node), kind)
        if value.constant is None:
            raise UnsupportedNodeError("a value of an entry that is not constant", node)
        return value.constant

    # ---- instances ----------------------------------------------------------------------------------------

    def _instance(self, item: Node) -> Any:
        kind, label = item["type"], str(item.get("label", item["name"]))
        name = kind if isinstance(kind, str) else kind["baseType"]
        given = [argument["expression"] for argument in item["arguments"]]
        types = [] if isinstance(kind, str) else kind["arguments"]
        match name:
            case "Register":
                return self._register(label, self.types.find(types[0]), given)
            case "RegisterAction":
                return self._register_action(item, self.types.find(types[0]))
            case "Counter":
                self.state.counters[label] = CounterExtern(label, given[0]["value"])
                return self.state.counters[label]
            case "Hash":
                result = self.types.find(types[0])
                assert isinstance(result, Number)
                return HashExtern(given[0]["member"], result)
            case "Checksum":
                return calls.ChecksumExtern(f"$checksum.{self.name}.{item['name']}")
            case "Random":
                return calls.RandomNumber(self.types.find(types[0]))
        raise UnsupportedNodeError(f"the extern {name}, {label}")

    def _register(self, label: str, kind: Type, given: list[Node]) -> Register:
        initial = (0,) * len(list(flat("", kind)))
        if len(given) > 1:
            values = record_values(self.scope, LValue("", kind), given[1])
            initial = tuple(value.constant or 0 for _, value in values)
        register = self.state.registers[label] = Register(label, kind, given[0]["value"], initial)
        return register

    def _register_action(self, item: Node, kind: Type) -> calls.RegisterAction:
        register = self.instances[item["arguments"][0]["expression"]["path"]]
        (function,) = item["initializer"]["components"]
        cell = f"$cell.{item['name']}"
        result: tuple[str, Number] | None = None
        names: dict[str, tuple[str, Type]] = {}
        for parameter in function["type"]["parameters"]["parameters"]:
            if parameter["direction"] == "inout":
                names[parameter["name"]] = (cell, kind)
                continue
            out = self.types.find(parameter["type"])
            if result is not None or not isinstance(out, Number):
                raise UnsupportedNodeError(f"the results of {item['label']}", parameter)
            result = (f"$result.{item['name']}", out)
            names[parameter["name"]] = result
        paths = tuple(path for path, _ in flat(cell, kind))
        do = self.statements.compile(self.scope.inside(names), function["body"])
        return calls.RegisterAction(register, paths, result, do)


def compile_states(block: Block, states: list[Node]) -> dict[str, tuple[Do, Callable[[Fields], str]]]:
    """Compile a parser's states: their statements and transitions."""
    return {
        state["name"]: (
            in_order([block.statements.compile(block.scope, step) for step in state["components"]]),
            _transition(block, state.get("selectExpression")),
        )
        for state in states
        if state["name"] not in ("accept", "reject")
    }


def _transition(block: Block, node: Node | None) -> Callable[[Fields], str]:
    if node is None:
        return lambda _: "reject"
    if node["node"] == "PathExpression":
        only = str(node["path"])
        return lambda _: only
    values = [block.scope.value(part) for part in node["select"]["components"]]
    keys = [Key("", value, "ternary") for value in values]
    cases = []
    for case in node["selectCases"]:
        keyset = case["keyset"]
        parts = keyset["components"] if keyset["node"] == "ListExpression" else [keyset] * len(keys)
        if keyset["node"] not in ("ListExpression", "DefaultExpression") and len(keys) > 1:
            raise UnsupportedNodeError("a case of a select with several keys", keyset)
        matches = [block._match(part, key) for part, key in zip(parts, keys, strict=True)]
        cases.append((matches, case["state"]["path"]))
    reads = [(value.read, number_of(value).mask) for value in values]

    def follow(fields: Fields) -> str:
        found = [read(fields) & mask for read, mask in reads]
        for matches, state in cases:
            if all(value == part & mask for part, (value, mask) in zip(found, matches, strict=True)):
                return str(state)
        return "$no match"

    return follow
