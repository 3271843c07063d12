# SPDX-License-Identifier: Apache-2.0
"""Expressions: each becomes a function from a packet's fields to a value, with the type of that value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopsum_tna.dump import Node, TnaError, UnsupportedNodeError
from hopsum_tna.record_layout import VALID, Fields, Number, Record, Truth, Type, Types

Read = Callable[[Fields], Any]
Call = Callable[["NameScope", Node], "Value"]


@dataclass(frozen=True)
class Value:
    """The value of an expression. `constant` is set when the value is known before any packet."""

    read: Read
    kind: Type
    constant: int | None = None


@dataclass(frozen=True)
class LValue:
    """The target of a write: a field, a record, or bits high..low of a field."""

    path: str
    kind: Type
    bits: tuple[int, int] | None = None


class NameScope:
    """The names of one parser or control: parameters and variables by path, instances and tables by `calls`."""

    def __init__(self, types: Types, names: Mapping[str, tuple[str, Type]], call: Call) -> None:
        self.types = types
        self.names = dict(names)
        self.call = call
        """A function that compiles a call with a value: isValid, execute, get, lookahead, a table's apply."""

    def inside(self, names: Mapping[str, tuple[str, Type]]) -> NameScope:
        """Return a new scope with these names besides. The names of this scope stay as they are."""
        return NameScope(self.types, {**self.names, **names}, self.call)

    def place(self, node: Node) -> LValue:
        """Return the target of a left-hand side. Raises UnsupportedNodeError."""
        match node["node"]:
            case "PathExpression":
                if node["path"] not in self.names:
                    raise UnsupportedNodeError(f"the name {node['path']} here", node)
                return LValue(*self.names[node["path"]])
            case "Member":
                whole = self.place(node["expr"])
                if not isinstance(whole.kind, Record):
                    raise UnsupportedNodeError(f"member {node['member']}", node)
                return LValue(f"{whole.path}.{node['member']}", whole.kind.field(node["member"]))
            case "Slice":
                whole = self.place(node["e0"])
                return LValue(whole.path, whole.kind, (node["e1"]["value"], node["e2"]["value"]))
        raise UnsupportedNodeError("a place to write to", node)

    def value(self, node: Node) -> Value:
        """Compile an expression. Raises UnsupportedNodeError."""
        kind = node["node"]
        if kind in ("PathExpression", "Member") and not _is_result(node):
            place = self.place(node)
            return Value(operator.itemgetter(place.path), place.kind)
        if kind in _BINARY:
            return _binary(kind, self.value(node["left"]), self.value(node["right"]))
        if kind in ("MethodCallExpression", "Member"):
            return self.call(self, node)
        if kind in _OTHER:
            return _OTHER[kind](self, node)
        raise UnsupportedNodeError("an expression", node)


def _is_result(node: Node) -> bool:
    """Return whether this is a member of a call's result: t.apply().hit."""
    return bool(node["node"] == "Member" and node["expr"]["node"] == "MethodCallExpression")


def constant(value: int, kind: Type) -> Value:
    """Return a value that is known before any packet, and always the same."""
    return Value(lambda _: value, kind, value)


def number_of(value: Value) -> Number:
    """Return the number type of a value, one bit for a bool. Raises TnaError for a record."""
    if isinstance(value.kind, Truth):
        return Number(1)
    if not isinstance(value.kind, Number):
        raise TnaError(f"{value.kind} where a number belongs")
    return value.kind


def as_width(value: Value, kind: Type) -> Value:
    """Return a constant without a width as one of type `kind`. Any other value is returned as it is."""
    if value.constant is not None and isinstance(kind, Number) and value.kind == Number(0):
        return constant(kind.wrap(value.constant), kind)
    return value


def _binary(name: str, left: Value, right: Value) -> Value:
    function, result = _BINARY[name]
    a, b = left.read, right.read
    if result == "truth":
        return _comparison(name, function, left, right)
    # A constant without a width takes that of the other side. Shifts have the width of the left side.
    kind = number_of(left if left.kind != Number(0) or name in ("Shl", "Shr") else right)
    if name == "Concat":
        low = number_of(right)
        joined = Number(kind.width + low.width, kind.signed)
        return Value(lambda f: joined.wrap((a(f) << low.width) | (b(f) & low.mask)), joined)
    if result == "saturate":
        bottom, top = (-(1 << kind.width - 1), kind.mask >> 1) if kind.signed else (0, kind.mask)
        return Value(lambda f: min(max(function(a(f), b(f)), bottom), top), kind)
    if result == "plain" and not kind.signed:
        return Value(lambda f: function(a(f), b(f)), kind)
    if kind.signed:
        return Value(lambda f: kind.wrap(function(a(f), b(f))), kind)
    mask = kind.mask
    return Value(lambda f: function(a(f), b(f)) & mask, kind)


def _comparison(name: str, function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    a, b = left.read, right.read
    if name == "LAnd":
        return Value(lambda f: a(f) and b(f), Truth())
    if name == "LOr":
        return Value(lambda f: a(f) or b(f), Truth())
    # Most conditions compare with a constant: one call less for each.
    if right.constant is not None:
        known = right.constant
        return Value(lambda f: function(a(f), known), Truth())
    return Value(lambda f: function(a(f), b(f)), Truth())


_BINARY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "Add": (operator.add, "wrap"),
    "Sub": (operator.sub, "wrap"),
    "Mul": (operator.mul, "wrap"),
    "AddSat": (operator.add, "saturate"),
    "SubSat": (operator.sub, "saturate"),
    "BAnd": (operator.and_, "plain"),
    "BOr": (operator.or_, "plain"),
    "BXor": (operator.xor, "plain"),
    "Shl": (operator.lshift, "wrap"),
    "Shr": (operator.rshift, "plain"),
    "Concat": (operator.or_, "wrap"),
    "Equ": (operator.eq, "truth"),
    "Neq": (operator.ne, "truth"),
    "Lss": (operator.lt, "truth"),
    "Leq": (operator.le, "truth"),
    "Grt": (operator.gt, "truth"),
    "Geq": (operator.ge, "truth"),
    "LAnd": (operator.and_, "truth"),
    "LOr": (operator.or_, "truth"),
}


def _constant(scope: NameScope, node: Node) -> Value:
    return constant(node["value"], scope.types.find(node["type"]))


def _truth(_: NameScope, node: Node) -> Value:
    return constant(node["value"], Truth())


def _slice(scope: NameScope, node: Node) -> Value:
    whole, high, low = scope.value(node["e0"]), node["e1"]["value"], node["e2"]["value"]
    kind, read = Number(high - low + 1), whole.read
    mask = kind.mask
    return Value(lambda f: (read(f) >> low) & mask, kind)


def _cast(scope: NameScope, node: Node) -> Value:
    inner, kind = scope.value(node["expr"]), scope.types.find(node["destType"])
    read = inner.read
    if isinstance(kind, Truth):
        return Value(lambda f: bool(read(f)), kind)
    if not isinstance(kind, Number):
        raise UnsupportedNodeError(f"a cast to {node['destType']}", node)
    if inner.constant is not None:
        return constant(kind.wrap(int(inner.constant)), kind)
    return Value(lambda f: kind.wrap(int(read(f))), kind)


def _negative(scope: NameScope, node: Node) -> Value:
    inner = scope.value(node["expr"])
    kind, read = number_of(inner), inner.read
    return Value(lambda f: kind.wrap(-read(f)), kind)


def _inverted(scope: NameScope, node: Node) -> Value:
    inner = scope.value(node["expr"])
    kind, read = number_of(inner), inner.read
    return Value(lambda f: kind.wrap(~read(f)), kind)


def _not(scope: NameScope, node: Node) -> Value:
    read = scope.value(node["expr"]).read
    return Value(lambda f: not read(f), Truth())


def _choice(scope: NameScope, node: Node) -> Value:
    which, yes, no = (scope.value(node[part]) for part in ("e0", "e1", "e2"))
    kind = no.kind if yes.kind == Number(0) else yes.kind
    test, one, other = which.read, as_width(yes, kind).read, as_width(no, kind).read
    return Value(lambda f: one(f) if test(f) else other(f), kind)


_OTHER: dict[str, Callable[[NameScope, Node], Value]] = {
    "Constant": _constant,
    "BoolLiteral": _truth,
    "Slice": _slice,
    "Cast": _cast,
    "Neg": _negative,
    "Cmpl": _inverted,
    "LNot": _not,
    "Mux": _choice,
}


def is_valid(scope: NameScope, node: Node) -> Value:
    """Compile header.isValid()."""
    return Value(operator.itemgetter(scope.place(node["method"]["expr"]).path + VALID), Truth())
