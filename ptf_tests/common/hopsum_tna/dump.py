# SPDX-License-Identifier: Apache-2.0
"""The compiler's dump of its front end's result, made small: nothing is translated, only left out and written shorter.

p4c-barefoot writes it with --toJSON (or -g). There controls and parsers are inlined, names are unique, types are
checked, constants are folded, and control-plane names stand in annotations.

A node of the compiler is {"node": its class, and its own members}. Left out: source positions, ids (a node that was
named by its id is there itself), annotations but names, types of expressions that are no plain number.
Types are written as P4 does: bit<8>, int<8>, bool, or a name. Vectors are lists.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The exceptions of this package.


class TnaError(Exception):
    """A dump, an entry or a name that makes no sense here."""


class UnsupportedNodeError(TnaError):
    """The program uses something that is not executed here."""

    def __init__(self, what: str, node: Mapping[str, Any] | None = None) -> None:
        kind = f" ({node['node']})" if node is not None and "node" in node else ""
        super().__init__(f"not executed here: {what}{kind}; the program does without, or hopsum_tna learns it")


Node = dict[str, Any]

_LEFT_OUT = {"Node_ID", "Node_Type", "Source_Info", "declid", "declarations", "annotations", "structured", "base"}
_LEFT_OUT |= {"singleton", "typeParameters", "constructorParams"}
_TOP = {"P4Parser", "P4Control", "Declaration_Instance", "Type_Header", "Type_Struct", "Type_Typedef", "Type_SerEnum"}
# The nodes whose type is kept. The type of any other node follows from its parts.
_TYPED = {
    "Constant",
    "Function",
    "Parameter",
    "StructField",
    "Declaration_Instance",
    "Declaration_Variable",
    "Type_Typedef",
}


def shorten(dump: Node) -> Node:
    """Return a dump made small, as {"objects": [parsers, controls, instances, types in use]}. `dump` stays as it is."""
    nodes: dict[int, Node] = {}
    # p4c writes a node in full once and by its id afterwards, so all ids are collected first.
    _index(dump, nodes)
    cleaner = _Cleaner(nodes)
    objects = [cleaner.declaration(item) for item in dump["objects"]["vec"] if item["Node_Type"] in _TOP]
    return {"objects": _in_use(objects)}


def load_dump(path: Path) -> Node:
    """Read the compiler's output, and shorten it. Raises TnaError when it is not whole."""
    try:
        return shorten(json.loads(path.read_bytes()))
    except ValueError as error:
        raise TnaError(f"{path}: no whole dump of p4c's: {error}") from error


def save(program: Node, path: Path) -> None:
    """Write a shortened program into a file, gzip-compressed. The same program always gives the same bytes."""
    text = json.dumps(program, separators=(",", ":"), sort_keys=True)
    # mtime 0, so that git sees a change only where there is one.
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load(path: Path) -> Node:
    """Read a program that `save` wrote."""
    program: Node = json.loads(gzip.decompress(path.read_bytes()))
    return program


def _index(item: Any, nodes: dict[int, Node]) -> None:
    if isinstance(item, dict):
        if "Node_Type" in item and "Node_ID" in item:
            nodes[item["Node_ID"]] = item
        for value in item.values():
            _index(value, nodes)
    elif isinstance(item, list):
        for value in item:
            _index(value, nodes)


class _Cleaner:
    def __init__(self, nodes: dict[int, Node]) -> None:
        self._nodes = nodes

    def declaration(self, item: Node) -> Node:
        """Return a declaration with its members. Other places have only the name of a type."""
        return {"node": item["Node_Type"], **self._members(item)}

    def _clean(self, item: Any) -> Any:
        if isinstance(item, list):
            return [self._clean(value) for value in item]
        if not isinstance(item, dict):
            return item
        item = self._whole(item)
        kind = item.get("Node_Type")
        if kind is None:
            return {key: self._clean(value) for key, value in item.items()}
        if "vec" in item:
            return [self._clean(value) for value in item["vec"]]
        if kind.startswith("Type_") and kind not in ("Type_Method", "Type_Specialized"):
            return self._type(kind, item)
        if kind == "Path":
            return item["name"]
        return {"node": kind, **self._members(item)}

    def _type(self, kind: str, item: Node) -> str:
        if kind == "Type_Bits":
            return f"{'int' if item['isSigned'] else 'bit'}<{item['size']}>"
        if kind == "Type_Name":
            return str(self._clean(item["path"]))
        return {"Type_Boolean": "bool", "Type_InfInt": "infint"}.get(kind) or str(item.get("name", kind))

    def _members(self, item: Node) -> Node:
        kind = item["Node_Type"]
        left_out = _LEFT_OUT if kind in _TYPED else _LEFT_OUT | {"type"}
        members = {key: self._clean(value) for key, value in item.items() if key not in left_out}
        if kind in ("P4Parser", "P4Control"):
            members["parameters"] = self._clean(self._whole(item["type"])["applyParams"])
        name = self._control_plane_name(item)
        return members | ({"label": name} if name is not None else {})

    def _control_plane_name(self, item: Node) -> str | None:
        if "annotations" not in item:
            return None
        for annotation in map(self._whole, self._whole(item["annotations"])["vec"]):
            if annotation["name"] == "name":
                return str(self._clean(annotation["body"])["value"][0]["value"])
        return None

    def _whole(self, item: Node) -> Node:
        """Return a node for a mention of it by its id."""
        return self._nodes[item["Node_ID"]] if "Node_ID" in item and "Node_Type" not in item else item


def _in_use(objects: list[Node]) -> list[Node]:
    """Leave out types that nothing kept names: most of the architecture's."""
    kept = [item for item in objects if not item["node"].startswith("Type_")]
    types = {item["name"]: item for item in objects if item["node"].startswith("Type_")}
    wanted = _strings(kept)
    found: dict[str, Node] = {}
    while new := [name for name in types if name in wanted and name not in found]:
        found.update({name: types[name] for name in new})
        for name in new:
            wanted |= _strings(types[name])
    return [types[name] for name in types if name in found] + kept


def _strings(item: Any) -> set[str]:
    if isinstance(item, str):
        return {item}
    if isinstance(item, dict):
        item = [value for key, value in item.items() if key != "label"]
    return set().union(*map(_strings, item)) if isinstance(item, list) else set()
