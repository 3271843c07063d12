# SPDX-License-Identifier: Apache-2.0
"""The effects of calls of tables, actions, headers, packets and externs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsum_tna.actions import Do, data_of
from hopsum_tna.dump import Node
from hopsum_tna.errors import UnsupportedNodeError
from hopsum_tna.externs import CounterExtern, HashExtern, Register, internet_checksum, joined
from hopsum_tna.layout import VALID, Fields, Number, Record, Truth, Type, Wire, flat, headers
from hopsum_tna.tables import Bound, TnaTable
from hopsum_tna.values import NameScope, Value, as_width, is_valid, number_of

if TYPE_CHECKING:
    from hopsum_tna.block import Block

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
    """A source of random numbers."""

    kind: Type


# ---- calls that have a value ------------------------------------------------------------------------------


def value(block: Block, scope: NameScope, node: Node) -> Value:
    """Compile a call whose value is used. Raises UnsupportedError."""
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
        return Value(lambda f: get(joined([(read(f), width) for read, width in data])), instance.kind)
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
        return Value(lambda f: internet_checksum(joined([(read(f), width) for read, width in data])), Number(16))
    raise UnsupportedNodeError(f"{name}() of a checksum with {len(given)} arguments")


# ---- calls that are statements ----------------------------------------------------------------------------


def statement(block: Block, scope: NameScope, node: Node) -> Do:
    """Compile a call whose value is not used. Raises UnsupportedError."""
    method, given = node["method"], [argument["expression"] for argument in node["arguments"]]
    if method["node"] == "PathExpression":
        return _call_action(block, scope, method["path"], given)
    name, target = method["member"], method["expr"]
    if name in ("setValid", "setInvalid"):
        return _validity(block, scope, target, name == "setValid")
    if name in ("extract", "advance", "emit"):
        return _PACKET[name](scope, given)
    if name == "apply" and target.get("path") in block.tables:
        apply = _apply(block, block.tables[target["path"]])

        def run(fields: Fields) -> None:
            apply(fields)

        return run
    return _extern(block, scope, name, block.instances.get(target.get("path")), given, node)


def _extern(block: Block, scope: NameScope, name: str, instance: Any, given: list[Node], node: Node) -> Do:
    if isinstance(instance, CounterExtern) and name == "count" and len(given) == 1:
        where, count = scope.value(given[0]).read, instance.count
        return lambda f: count(where(f))
    if isinstance(instance, ChecksumExtern) and name == "add":
        data, path = data_of(scope, given[0]), instance.path

        def add(fields: Fields) -> None:
            fields[path] = fields.get(path, b"") + joined([(read(fields), width) for read, width in data])

        return add
    if isinstance(instance, Register) and name == "write" and isinstance(instance.kind, Number):
        where, what = scope.value(given[0]).read, as_width(scope.value(given[1]), instance.kind).read

        def write(fields: Fields) -> None:
            instance.touch(where(fields), fields)
            instance.put(where(fields), fields, (what(fields),))

        return write
    if isinstance(instance, RegisterAction | Register):
        read = value(block, scope, node).read

        def run(fields: Fields) -> None:
            read(fields)

        return run
    raise UnsupportedNodeError(f"{name}()", node)


def switch(block: Block, scope: NameScope, node: Node) -> Do:
    """Compile switch (table.apply().action_run)."""
    result = node["expression"]
    if result["node"] != "Member" or result["member"] != "action_run":
        raise UnsupportedNodeError("a switch over a value", node)
    apply = _apply(block, block.tables[result["expr"]["method"]["expr"]["path"]])
    cases: dict[str, Do] = {}
    names: list[str] = []
    for case in node["cases"]:
        label = case["label"] if isinstance(case["label"], dict) else {"node": "DefaultExpression"}
        names.append("$default" if label["node"] == "DefaultExpression" else label["path"])
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


def _apply(block: Block, table: TnaTable) -> Callable[[Fields], tuple[bool, Bound]]:
    ready: dict[int, tuple[Bound, Do]] = {}

    def run(fields: Fields) -> tuple[bool, Bound]:
        found = table.look_up(fields)
        bound = found[1]
        # Compiled once for each entry; the entry is kept beside it, so that its id stays its own.
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
    numbers = list(flat(place.path, place.kind))
    draw = block.undefined.draw

    def set_valid(fields: Fields) -> None:
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
