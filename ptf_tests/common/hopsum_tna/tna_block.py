# SPDX-License-Identifier: Apache-2.0
"""One parser or control: its declarations, and the effects of its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopsum_tna.dump import Node, UnsupportedNodeError
from hopsum_tna.externs import CounterExtern, HashExtern, Register, Undefined, internet_checksum, join_bits
from hopsum_tna.record_layout import VALID, Fields, Number, Record, Truth, Type, Types, Wire, flat_fields, headers
from hopsum_tna.statements import Do, Statements, data_of, in_order, record_values
from hopsum_tna.tna_expressions import LValue, NameScope, Value, as_width, is_valid, number_of
from hopsum_tna.tna_tables import BoundAction, Key, Match, TnaTable

DATA, AT, OUT = "$data", "$at", "$out"
"""The paths of a packet's received bytes, of the number of extracted bytes, and of its emitted pieces."""


class TooShortError(Exception):
    """The frame ends before the bytes that the parser extracts."""


@dataclass(frozen=True)
class RegisterAction:
    """The effect of one action on a register's cell."""

    register: Register
    paths: tuple[str, ...]
    """The paths at which the body finds the fields of the cell."""
    result: tuple[str, Number] | None
    do: Do


@dataclass(frozen=True)
class ChecksumExtern:
    """A checksum unit. The sum of a packet is one of its fields."""

    path: str


@dataclass(frozen=True)
class RandomNumber:
    """The extern Random: a source of random numbers of one type."""

    kind: Type


# ---- calls that have a value ------------------------------------------------------------------------------


def call_value(block: Block, scope: NameScope, node: Node) -> Value:
    """Compile a call whose value is used. Raises UnsupportedNodeError."""
    if node["node"] == "Member":
        return _hit(block, node)
    method, given = node["method"], [argument["expression"] for argument in node["arguments"]]
    if method["node"] == "PathExpression":
        return _function(scope, method["path"], given)
    name = method["member"]
    if name == "isValid":
        return is_valid(scope, node)
    if name == "lookahead":
        return _lookahead(block, node)
    instance = block.instances.get(method["expr"].get("path"))
    if isinstance(instance, RegisterAction) and name == "execute":
        return _execute(block, instance, scope.value(given[0]))
    if isinstance(instance, Register) and name == "read":
        return _read(instance, scope.value(given[0]))
    if isinstance(instance, HashExtern) and name == "get":
        data, get = data_of(scope, given[0]), instance.get
        return Value(lambda f: get(join_bits([(read(f), width) for read, width in data])), instance.kind)
    if isinstance(instance, ChecksumExtern):
        return _checksum(scope, instance, name, given)
    if isinstance(instance, RandomNumber) and isinstance(instance.kind, Number):
        kind = instance.kind
        return Value(lambda _: block.undefined.draw(kind), kind)
    raise UnsupportedNodeError(f"the value of {name}()", node)


def _hit(block: Block, node: Node) -> Value:
    call, member = node["expr"], node["member"]
    table = block.tables.get(call["method"]["expr"].get("path"))
    if table is None or member not in ("hit", "miss"):
        raise UnsupportedNodeError(f"member {member} of a call's result", node)
    apply = _apply(block, table)
    return Value((lambda f: apply(f)[0]) if member == "hit" else (lambda f: not apply(f)[0]), Truth())


def _function(scope: NameScope, name: str, given: list[Node]) -> Value:
    if name not in ("max", "min"):
        raise UnsupportedNodeError(f"the function {name}()")
    left, right = (scope.value(part) for part in given)
    kind = number_of(left) if left.constant is None else number_of(right)
    a, b = as_width(left, kind).read, as_width(right, kind).read
    choose: Callable[[int, int], int] = max if name == "max" else min
    return Value(lambda f: choose(a(f), b(f)), kind)


def _lookahead(block: Block, node: Node) -> Value:
    kind = block.types.find(node["typeArguments"][0])
    if not isinstance(kind, Number) or kind.width % 8:
        raise UnsupportedNodeError(f"lookahead of {node['typeArguments'][0]}", node)
    size = kind.width // 8

    def look(fields: Fields) -> int:
        piece = fields[DATA][fields[AT] : fields[AT] + size]
        if len(piece) < size:
            raise TooShortError
        return kind.wrap(int.from_bytes(piece, "big"))

    return Value(look, kind)


def _execute(block: Block, action: RegisterAction, index: Value) -> Value:
    register, paths, do, where = action.register, action.paths, action.do, index.read
    at, kind = action.result or ("", Number(0))
    # A result that the body does not set is undefined: a drawn value shows a program that relies on it.
    unset = block.undefined.draw(kind) if kind.width else 0

    def run(fields: Fields) -> Any:
        cell = where(fields)
        fields.update(zip(paths, register.touch(cell, fields), strict=True))
        if at:
            fields[at] = unset
        do(fields)
        register.put(cell, fields, tuple([fields[path] for path in paths]))
        return fields[at] if at else 0

    return Value(run, kind)


def _read(register: Register, index: Value) -> Value:
    if not isinstance(register.kind, Number):
        raise UnsupportedNodeError(f"read() of {register.name}, whose cells are structs")
    where = index.read
    return Value(lambda f: register.touch(where(f), f)[0], register.kind)


def _checksum(scope: NameScope, unit: ChecksumExtern, name: str, given: list[Node]) -> Value:
    path = unit.path
    if name == "verify":
        # The compiler gives the parser's csum_err: true is an error, whatever its header's comment says.
        return Value(lambda f: internet_checksum(f.get(path, b"")) != 0, Truth())
    if name == "get":
        return Value(lambda f: internet_checksum(f.get(path, b"")), Number(16))
    if name == "update" and len(given) == 1:
        data = data_of(scope, given[0])
        return Value(lambda f: internet_checksum(join_bits([(read(f), width) for read, width in data])), Number(16))
    raise UnsupportedNodeError(f"{name}() of a checksum with {len(given)} arguments")


# ---- calls that are statements ----------------------------------------------------------------------------


def call_statement(block: Block, scope: NameScope, node: Node) -> Do:
    """Compile a call whose value is not used. Raises UnsupportedNodeError."""
    method, given = node["method"], [argument["expression"] for argument in node["arguments"]]
    if method["node"] == "PathExpression":
        return _call_action(block, scope, method["path"], given)
    name, target = method["member"], method["expr"]
    if name in ("setValid", "setInvalid"):
        return _validity(block, scope, target, name == "setValid")
    if name in ("extract", "advance", "emit"):
        return _PACKET[name](scope, given)
    if name == "apply" and target.get("path") in block.tables:
        return _apply(block, block.tables[target["path"]])
    return _extern(block, scope, name, block.instances.get(target.get("path")), given, node)


def _extern(block: Block, scope: NameScope, name: str, instance: Any, given: list[Node], node: Node) -> Do:
    if isinstance(instance, CounterExtern) and name == "count" and len(given) == 1:
        where, count = scope.value(given[0]).read, instance.count
        return lambda f: count(where(f))
    if isinstance(instance, ChecksumExtern) and name == "add":
        data, path = data_of(scope, given[0]), instance.path

        def add(fields: Fields) -> None:
            fields[path] = fields.get(path, b"") + join_bits([(read(fields), width) for read, width in data])

        return add
    if isinstance(instance, Register) and name == "write" and isinstance(instance.kind, Number):
        where, what = scope.value(given[0]).read, as_width(scope.value(given[1]), instance.kind).read

        def write(fields: Fields) -> None:
            instance.touch(where(fields), fields)
            instance.put(where(fields), fields, (what(fields),))

        return write
    if isinstance(instance, RegisterAction | Register):
        return call_value(block, scope, node).read
    raise UnsupportedNodeError(f"{name}()", node)


def switch_statement(block: Block, scope: NameScope, node: Node) -> Do:
    """Compile switch (table.apply().action_run). Raises UnsupportedNodeError for a switch over a value."""
    result = node["expression"]
    if result["node"] != "Member" or result["member"] != "action_run":
        raise UnsupportedNodeError("a switch over a value", node)
    apply = _apply(block, block.tables[result["expr"]["method"]["expr"]["path"]])
    cases: dict[str, Do] = {}
    names: list[str] = []
    for case in node["cases"]:
        label = case["label"] if isinstance(case["label"], dict) else {"node": "DefaultExpression"}
        names.append("$default" if label["node"] == "DefaultExpression" else label["path"])
        # A label without a statement shares that of the next label.
        if case.get("statement") is not None:
            do = block.statements.compile(scope, case["statement"])
            cases.update(dict.fromkeys(names, do))
            names = []
    other = cases.get("$default")

    def run(fields: Fields) -> None:
        do = cases.get(apply(fields)[1].action, other)
        if do is not None:
            do(fields)

    return run


def _apply(block: Block, table: TnaTable) -> Callable[[Fields], tuple[bool, BoundAction]]:
    ready: dict[int, tuple[BoundAction, Do]] = {}

    def run(fields: Fields) -> tuple[bool, BoundAction]:
        found = table.look_up(fields)
        bound = found[1]
        # Compiled once for each entry; the entry is kept with it, so that its id stays its own.
        known = ready.get(id(bound))
        if known is None:
            known = ready[id(bound)] = (bound, block.perform(bound))
        known[1](fields)
        return found

    return run


def _call_action(block: Block, scope: NameScope, name: str, given: list[Node]) -> Do:
    if name not in block.actions:
        raise UnsupportedNodeError(f"the function {name}()")
    action = block.actions[name]
    values = [
        (path, as_width(scope.value(part), kind).read)
        for (_, path, kind), part in zip(action.params, given, strict=True)
    ]

    def run(fields: Fields) -> None:
        fields.update([(path, read(fields)) for path, read in values])
        action.do(fields)

    return run if values else action.do


def _validity(block: Block, scope: NameScope, target: Node, valid: bool) -> Do:
    place = scope.place(target)
    key = place.path + VALID
    numbers = list(flat_fields(place.path, place.kind))
    draw = block.undefined.draw

    def set_valid(fields: Fields) -> None:
        # setValid leaves the fields undefined, and does nothing to a header that is valid.
        if not fields[key]:
            fields.update([(path, draw(kind)) for path, kind in numbers])
            fields[key] = True

    def set_invalid(fields: Fields) -> None:
        fields[key] = False

    return set_valid if valid else set_invalid


def _extract(scope: NameScope, given: list[Node]) -> Do:
    place = scope.place(given[0])
    if len(given) != 1 or not isinstance(place.kind, Record):
        raise UnsupportedNodeError("extract() of anything but a header of fixed size", given[0])
    wire = Wire(place.path, place.kind)
    size = wire.bytes

    def run(fields: Fields) -> None:
        at = fields[AT]
        piece = fields[DATA][at : at + size]
        if len(piece) < size:
            raise TooShortError
        wire.read(fields, piece)
        fields[AT] = at + size

    return run


def _advance(scope: NameScope, given: list[Node]) -> Do:
    bits = scope.value(given[0]).constant
    if bits is None or bits % 8:
        raise UnsupportedNodeError(f"advance() by {bits} bits", given[0])
    size = bits // 8

    def run(fields: Fields) -> None:
        if len(fields[DATA]) < fields[AT] + size:
            raise TooShortError
        fields[AT] += size

    return run


def _emit(scope: NameScope, given: list[Node]) -> Do:
    place = scope.place(given[0])
    wires = [Wire(path, kind) for path, kind in headers(place.path, place.kind)]

    def run(fields: Fields) -> None:
        fields[OUT].extend([wire.write(fields) for wire in wires])

    return run


_PACKET: dict[str, Callable[[NameScope, list[Node]], Do]] = {"extract": _extract, "advance": _advance, "emit": _emit}


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
    """An action of the program as a function, with the places of its parameters."""

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
    """A parser or control, its declarations compiled. Its tables, registers, counters and actions are put into `state`.

    Raises UnsupportedNodeError for a declaration that is not executed here.
    """

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
        self.scope = NameScope(types, {}, lambda scope, call: call_value(self, scope, call))
        self.statements = Statements(
            lambda scope, call: call_statement(self, scope, call),
            lambda scope, switch: switch_statement(self, scope, switch),
        )
        self._parameters(node)
        for item in node.get("parserLocals", []) + node.get("controlLocals", []):
            self._declare(item)

    def perform(self, bound: BoundAction) -> Do:
        """Return a function that runs an action on a packet with these parameters."""
        action = self.actions[bound.action]
        # P4 has no recursion, so the parameters of an action need one place only.
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
        # By their types: the order differs between parser, control and deparser.
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
        # Of the entries of a program the first that matches wins, so their ranks go down.
        for rank, entry in enumerate(told["entries"]["entries"] if "entries" in told else []):
            parts = zip(entry["keys"]["components"], keys, strict=True)
            table.add_constant_entry(
                [self._match(part, key) for part, key in parts], -rank, self._bound(entry["action"])
            )
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

    def _bound(self, call: Node) -> BoundAction:
        name = call["method"]["path"]
        kinds = [kind for _, _, kind in self.actions[name].params]
        given = [argument["expression"] for argument in call["arguments"]]
        return BoundAction(name, tuple(self._constant(part, kind) for part, kind in zip(given, kinds, strict=True)))

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
                return ChecksumExtern(f"$checksum.{self.name}.{item['name']}")
            case "Random":
                return RandomNumber(self.types.find(types[0]))
        raise UnsupportedNodeError(f"the extern {name}, {label}")

    def _register(self, label: str, kind: Type, given: list[Node]) -> Register:
        initial = (0,) * len(list(flat_fields("", kind)))
        if len(given) > 1:
            values = record_values(self.scope, LValue("", kind), given[1])
            initial = tuple(value.constant or 0 for _, value in values)
        register = self.state.registers[label] = Register(label, kind, given[0]["value"], initial)
        return register

    def _register_action(self, item: Node, kind: Type) -> RegisterAction:
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
        paths = tuple(path for path, _ in flat_fields(cell, kind))
        do = self.statements.compile(self.scope.inside(names), function["body"])
        return RegisterAction(register, paths, result, do)


def compile_states(block: Block, states: list[Node]) -> dict[str, tuple[Do, Callable[[Fields], str]]]:
    """Compile a parser's states. Return, by name, the function of its statements and the one that names the next state.

    A state without a case for a packet names "$no match".
    """
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
