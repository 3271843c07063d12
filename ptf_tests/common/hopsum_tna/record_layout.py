# SPDX-License-Identifier: Apache-2.0
"""Types of a program, and where a packet's fields are.

All fields of a packet, headers and metadata, are in one dict, by full name: "hdr.ipv4.ttl". A header that is there has
"hdr.ipv4.$valid" True. Numbers are Python ints, signed types' as well: always within their type's range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hopsum_tna.dump import Node, TnaError, UnsupportedNodeError

Fields = dict[str, Any]
VALID = ".$valid"
PIPE = "$pipe"
"""The pipe that runs the packet's present half. Each pipe has registers of its own."""


@dataclass(frozen=True)
class Number:
    """The type bit<width> or int<width>. Width 0 stands for a compile-time constant without a width."""

    width: int
    signed: bool = False

    @property
    def mask(self) -> int:
        """Return the largest unsigned value of the width: all bits 1."""
        return (1 << self.width) - 1

    def wrap(self, value: int) -> int:
        """Return `value` modulo 2**width, within the type's range."""
        value &= self.mask
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) else value


@dataclass(frozen=True)
class Truth:
    """The type bool."""


@dataclass(frozen=True)
class Record:
    """A struct, or a header: which has a valid bit, and whose fields are numbers."""

    name: str
    fields: tuple[tuple[str, Type], ...]
    header: bool

    def field(self, name: str) -> Type:
        """Return the type of one of the record's fields."""
        return dict(self.fields)[name]

    @property
    def bits(self) -> int:
        """The width of a header on the wire, in bits."""
        return sum(kind.width for _, kind in self.fields if isinstance(kind, Number))


Type = Number | Truth | Record


class Types:
    """All types that a program declares."""

    def __init__(self, program: Node) -> None:
        self._declared = {item["name"]: item for item in program["objects"] if item["node"].startswith("Type_")}

    def find(self, name: Any) -> Type:
        """Return a type by its reference in the dump. Raises UnsupportedNodeError for stacks, varbits and the like."""
        if not isinstance(name, str):
            raise UnsupportedNodeError(f"type {name}")
        if found := re.fullmatch(r"(bit|int)<(\d+)>", name):
            return Number(int(found[2]), found[1] == "int")
        if name in ("bool", "infint"):
            return Truth() if name == "bool" else Number(0)
        item = self._declared.get(name)
        if item is None:
            raise UnsupportedNodeError(f"type {name}")
        if item["node"] in ("Type_Typedef", "Type_SerEnum"):
            return self.find(item["type"])
        fields = tuple((field["name"], self.find(field["type"])) for field in item["fields"])
        return Record(name, fields, item["node"] == "Type_Header")


def flat_fields(path: str, kind: Type) -> Iterator[tuple[str, Number | Truth]]:
    """Yield all fields below `path`, valid bits left out, in the order of their declaration."""
    if not isinstance(kind, Record):
        yield path, kind
        return
    for name, inner in kind.fields:
        yield from flat_fields(f"{path}.{name}", inner)


def headers(path: str, kind: Type) -> Iterator[tuple[str, Record]]:
    """Yield the headers at or below `path` in the order of their declaration."""
    if isinstance(kind, Record):
        if kind.header:
            yield path, kind
            return
        for name, inner in kind.fields:
            yield from headers(f"{path}.{name}", inner)


class Wire:
    """The conversion between a header's bytes and its fields."""

    def __init__(self, path: str, kind: Record) -> None:
        if kind.bits % 8:
            raise TnaError(f"header {kind.name} has {kind.bits} bits, no whole bytes")
        self.bytes = kind.bits // 8
        self._valid = path + VALID
        self._parts: list[tuple[str, int, Number]] = []
        left = kind.bits
        for name, number in kind.fields:
            assert isinstance(number, Number)
            left -= number.width
            self._parts.append((f"{path}.{name}", left, number))

    def read(self, fields: Fields, data: bytes) -> None:
        """Make the header valid, with the fields in `data`, which has the header's length."""
        # One conversion for the header, then a shift and a mask for each field.
        whole = int.from_bytes(data, "big")
        for name, shift, number in self._parts:
            value = (whole >> shift) & number.mask
            fields[name] = number.wrap(value) if number.signed else value
        fields[self._valid] = True

    def write(self, fields: Mapping[str, Any]) -> bytes:
        """Return the header's bytes, or no bytes when it is not valid."""
        if not fields[self._valid]:
            return b""
        whole = 0
        for name, shift, number in self._parts:
            whole |= (fields[name] & number.mask) << shift
        return whole.to_bytes(self.bytes, "big")
