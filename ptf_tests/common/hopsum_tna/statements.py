# SPDX-License-Identifier: Apache-2.0
"""Statements: each becomes a function that changes a packet's fields."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from hopsum_tna.dump import Node, TnaError, UnsupportedNodeError
from hopsum_tna.record_layout import VALID, Fields, Number, Record, flat_fields, headers
from hopsum_tna.tna_expressions import LValue, NameScope, Value, as_width, constant

Do = Callable[[Fields], object]
"""A compiled statement. Its result means nothing."""
Case = Callable[[NameScope, Node], Do]


class ExitError(Exception):
    """The packet leaves this control."""


def in_order(steps: Iterable[Do]) -> Do:
    """Return one function that runs several statements in order."""
    done = tuple(steps)
    if len(done) == 1:
        return done[0]

    def run(fields: Fields) -> None:
        for step in done:
            step(fields)

    return run


class Statements:
    """Compiler of statements. `call` compiles a statement that is a call."""

    def __init__(self, call: Case, switch: Case) -> None:
        self._call = call
        self._switch = switch
        """A function that compiles switch (table.apply().action_run)."""

    def compile(self, scope: NameScope, node: Node) -> Do:
        """Compile a statement. Raises UnsupportedNodeError."""
        match node["node"]:
            case "BlockStatement":
                return self.block(scope, node["components"])
            case "AssignmentStatement":
                return assign(scope, node["left"], node["right"])
            case "IfStatement":
                return self._if(scope, node)
            case "MethodCallStatement":
                return self._call(scope, node["methodCall"])
            case "SwitchStatement":
                return self._switch(scope, node)
            case "ExitStatement":
                return _exit
            case "EmptyStatement":
                return in_order(())
        raise UnsupportedNodeError("a statement", node)

    def block(self, scope: NameScope, nodes: Iterable[Node]) -> Do:
        """Compile statements and the declarations among them, whose names are added to the scope."""
        steps = []
        for node in nodes:
            if node["node"] == "Declaration_Variable":
                scope.names[node["name"]] = (f"$local.{node['name']}", scope.types.find(node["type"]))
                if node.get("initializer") is not None:
                    place = {"node": "PathExpression", "path": node["name"]}
                    steps.append(assign(scope, place, node["initializer"]))
                continue
            steps.append(self.compile(scope, node))
        return in_order(steps)

    def _if(self, scope: NameScope, node: Node) -> Do:
        test, yes = scope.value(node["condition"]).read, self.compile(scope, node["ifTrue"])
        no = self.compile(scope, node["ifFalse"]) if node.get("ifFalse") is not None else None

        def run(fields: Fields) -> None:
            if test(fields):
                yes(fields)
            elif no is not None:
                no(fields)

        return run


def _exit(_: Fields) -> None:
    raise ExitError


def assign(scope: NameScope, left: Node, right: Node) -> Do:
    """Compile left = right, where both may be records."""
    place = scope.place(left)
    if isinstance(place.kind, Record):
        return _assign_record(scope, place, right)
    value = as_width(scope.value(right), place.kind)
    if place.bits is not None:
        return _assign_bits(place, value)
    path, read = place.path, value.read
    if value.constant is not None:
        known = value.constant

        def put(fields: Fields) -> None:
            fields[path] = known

        return put

    def run(fields: Fields) -> None:
        fields[path] = read(fields)

    return run


def _assign_bits(place: LValue, value: Value) -> Do:
    if not isinstance(place.kind, Number) or place.bits is None:
        raise TnaError(f"bits of {place.path}, which is no number")
    high, low = place.bits
    path, read, kind = place.path, value.read, place.kind
    mask = (1 << (high - low + 1)) - 1
    # The bits outside of the slice keep their values.
    rest = kind.mask & ~(mask << low)

    def run(fields: Fields) -> None:
        fields[path] = kind.wrap((fields[path] & rest) | ((read(fields) & mask) << low))

    return run


def _assign_record(scope: NameScope, place: LValue, right: Node) -> Do:
    if right["node"] in ("PathExpression", "Member"):
        source = scope.place(right)
        # A header is copied with its valid bit.
        pairs = [(place.path + name, source.path + name) for name in _all_names(place)]

        def copy(fields: Fields) -> None:
            fields.update([(to, fields[of]) for to, of in pairs])

        return copy
    values = record_values(scope, place, right)

    def run(fields: Fields) -> None:
        fields.update([(path, value.read(fields)) for path, value in values])

    return run


def _all_names(place: LValue) -> list[str]:
    names = [name for name, _ in flat_fields("", place.kind)]
    return names + [path + VALID for path, _ in headers("", place.kind)]


def record_values(scope: NameScope, place: LValue, node: Node) -> list[tuple[str, Value]]:
    """Return path and value of every field that a list or struct expression gives to a record."""
    if not isinstance(place.kind, Record):
        return [(place.path, as_width(scope.value(node), place.kind))]
    if node["node"] not in ("StructExpression", "ListExpression"):
        raise UnsupportedNodeError(f"what is put into {place.path}", node)
    found: list[tuple[str, Value]] = []
    for (name, kind), part in zip(place.kind.fields, node["components"], strict=True):
        inner = part["expression"] if part["node"] == "NamedExpression" else part
        found += record_values(scope, LValue(f"{place.path}.{name}", kind), inner)
    if place.kind.header:
        found.append((place.path + VALID, constant(True, Number(1))))
    return found


def data_of(scope: NameScope, node: Node) -> list[tuple[Callable[[Fields], Any], int]]:
    """Return the fields, with widths, of a list that is given to a hash or a checksum."""
    if node["node"] in ("ListExpression", "StructExpression"):
        parts = [part["expression"] if part["node"] == "NamedExpression" else part for part in node["components"]]
        return [item for part in parts for item in data_of(scope, part)]
    value = scope.value(node)
    if isinstance(value.kind, Record):
        place = scope.place(node)
        names = flat_fields(place.path, place.kind)
        return [(operator.itemgetter(path), kind.width) for path, kind in names if isinstance(kind, Number)]
    if not isinstance(value.kind, Number) or not value.kind.width:
        raise UnsupportedNodeError("data without a width for a hash or a checksum", node)
    return [(value.read, value.kind.width)]
