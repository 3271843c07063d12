# SPDX-License-Identifier: Apache-2.0
"""The headers, metadata and arrays of a random program, and what its parts may read and write."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.builder import STANDARD_FIELDS, Json, expression, hexstr
from ..core.builder import field as field_json

REPORT = "report"
COPY = "copy"
"""A header of the first parsed header's type that no frame brings: it is assigned as a whole."""
METADATA = (("m1", 1), ("m8", 8), ("m16", 16), ("m32", 32), ("m64", 64), ("m130", 130), ("m600", 600), ("s24", 24))
PARSED_BITS = ("parsed_bits", 32)
"""Further metadata, in which the parser of a guarded program counts."""
SIGNED_METADATA = frozenset({"s24"})
STANDARD = ("ingress_port", "packet_length", "parser_error", "checksum_error", "instance_type")
EGRESS_STANDARD = (*STANDARD, "egress_port", "egress_rid")
MAX_HEADER_BYTES = 500  # of all headers together: bmv2 has 512 bytes for what a frame grows by
CHECKSUM = "sum"
STANDARD_BITS = {str(name): int(str(bits)) for name, bits, _ in STANDARD_FIELDS}


class Field(NamedTuple):
    """A field of a header; its width in bits."""

    name: str
    bits: int
    signed: bool = False


class Array(NamedTuple):
    """A register (with the width of a cell) or counter array (width 0); `size` is a power of 2."""

    name: str
    size: int
    bits: int


@dataclass
class Shape:
    """What a program consists of besides code; `favourites` are values that frames and entries share.

    A guarded program keeps from what bmv2 leaves undefined: lookaheads beyond the end of a frame, and indices beyond
    the end of an array, which its release builds do not check. Its egress writes no registers, since bmv2 runs the
    copies of a packet in threads, in any order. Its lpm keys fill bytes: bmv2's P4Runtime server takes
    a prefix's length as if the key were filled up with zeros in front, and refuses most prefixes of other keys.
    """

    headers: dict[str, list[Field]]
    registers: list[Array]
    counters: list[Array]
    hashes: list[str]
    guarded: bool
    favourites: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    @property
    def parsed(self) -> list[str]:
        """Return the headers that frames bring."""
        return [name for name in self.headers if name not in (REPORT, COPY)]

    def operands(self, *headers: str, egress: bool = False) -> list[Operand]:
        """Return what can be read where `headers` are valid."""
        found = [Operand(field_json("scalars", name), bits, name in SIGNED_METADATA) for name, bits in METADATA]
        names = EGRESS_STANDARD if egress else STANDARD
        found += [Operand(field_json("standard_metadata", name), STANDARD_BITS[name]) for name in names]
        return found + self.fields(*headers)

    def fields(self, *headers: str) -> list[Operand]:
        """Return the fields of headers."""
        return [Operand(field_json(name, f.name), f.bits, f.signed) for name in headers for f in self.headers[name]]

    def targets(self, *headers: str) -> list[Operand]:
        """Return what can be assigned where `headers` are valid."""
        found = [Operand(field_json("scalars", name), bits, name in SIGNED_METADATA) for name, bits in METADATA]
        return found + [operand for operand in self.fields(*headers) for _ in range(2)]


def header_bytes(fields: list[Field]) -> int:
    """Return how long a header is."""
    return sum(f.bits for f in fields) // 8


def random_shape(rng: random.Random, *, guarded: bool) -> Shape:
    """Return headers `h0` to `h3` of odd widths, at times one with a wide field, and arrays."""
    headers = {"h0": _fields(rng, 3, 40), "h1": _fields(rng, 4, 130)}
    headers["h1"].append(Field(CHECKSUM, 16))
    headers["h2"] = _fields(rng, 2, 70)
    wide = rng.choice([0, 512, 520, 1000, 2048])
    headers["h3"] = _padded([Field("wide", wide), Field("b", rng.choice([3, 8]))]) if wide else _fields(rng, 1, 20)
    headers[COPY] = headers["h0"]
    standard = [Field(name, STANDARD_BITS[name]) for name in EGRESS_STANDARD]
    headers[REPORT] = _padded([*standard, *(Field(name, bits, name in SIGNED_METADATA) for name, bits in METADATA)])
    assert sum(map(header_bytes, headers.values())) <= MAX_HEADER_BYTES
    registers = [Array(f"r{i}", rng.choice([2, 4, 16]), rng.choice([1, 8, 33, 64, 130, 600])) for i in range(2)]
    counters = [Array("c0", 4, 0), Array("c1", 8, 0)]
    shape = Shape(headers, registers, counters, [f"hash{i}" for i in range(2)], guarded)
    for name in shape.parsed:
        for each in headers[name]:
            few = [constant(rng, each.bits) for _ in range(2)]
            shape.favourites[name, each.name] = [0, (1 << each.bits) - 1, *few]
    return shape


def _fields(rng: random.Random, count: int, most_bits: int) -> list[Field]:
    fields = []
    for number in range(count):
        bits = rng.choice([1, 3, 7, 8, 9, 13, 16, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 130])
        signed = number > 0 and rng.random() < 0.2
        fields.append(Field(f"f{number}", max(2 if signed else 1, min(bits, most_bits)), signed))
    return _padded(fields)


def _padded(fields: list[Field]) -> list[Field]:
    rest = -sum(f.bits for f in fields) % 8
    return [*fields, Field("pad", rest)] if rest else fields


COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
MAX_PRODUCT_BITS, MAX_QUOTIENT_BITS = 120, 64


class Operand(NamedTuple):
    """A field or parameter that an expression may read; its width in bits."""

    json: Json
    bits: int
    signed: bool = False


def constant(rng: random.Random, bits: int) -> int:
    """Return a value of `bits` bits, one in two at an edge."""
    full = (1 << bits) - 1
    return rng.choice([0, 1 & full, full, full >> 1, 1 << rng.randrange(bits), *[rng.getrandbits(bits)] * 5])


def is_valid(header: str) -> Json:
    """Return the condition that a header is valid."""
    return expression("d2b", None, {"type": "field", "value": [header, "$valid$"]})


class ExpressionMaker:
    """Makes expressions over operands; `headers` may be asked for their validity.

    A `loose` maker leaves one mask in four away, so that intermediate values are negative or wider than their type.
    """

    def __init__(
        self, rng: random.Random, operands: Sequence[Operand], headers: Sequence[str], *, loose: bool = False
    ) -> None:
        self._rng, self._operands, self._headers, self._loose = rng, operands, headers, loose

    def value(self, bits: int, depth: int = 2) -> Json:
        """Return an expression of type bit<bits>."""
        kinds: list[Callable[[int, int], Json]] = [self._sum, self._sum]
        kinds += [self._bitwise, self._shifted, self._inverted, self._chosen, self._saturated]
        kinds += [self._leaf, self._joined, self._product, self._quotient, self._truth]
        return self._leaf(bits, depth) if depth == 0 else self._rng.choice(kinds)(bits, depth - 1)

    def signed(self, bits: int, depth: int = 2) -> Json:
        """Return an expression of type int<bits>."""
        same = [o.json for o in self._operands if o.signed and o.bits == bits]
        kind = self._rng.randrange(5)
        if depth and kind == 0:
            sides = self.signed(bits, depth - 1), self.signed(bits, depth - 1)
            return expression("sat_cast", expression(self._rng.choice("+-"), *sides), hexstr(bits))
        if depth and kind == 1:
            sides = self.signed(bits, depth - 1), self.signed(bits, depth - 1)
            return expression("two_comp_mod", expression(self._rng.choice("+-"), *sides), hexstr(bits))
        if depth and kind == 2:
            return expression(">>", self.signed(bits, depth - 1), hexstr(self._rng.randrange(bits + 3)))
        if depth and kind == 3:
            return expression("two_comp_mod", expression("-", None, self.signed(bits, depth - 1)), hexstr(bits))
        if same and self._rng.random() < 0.7:
            return self._rng.choice(same)
        return expression("two_comp_mod", self.value(bits, max(depth - 1, 0)), hexstr(bits))

    def condition(self, depth: int = 2) -> Json:
        """Return an expression of type bool."""
        kind, rng = self._rng.randrange(9), self._rng
        if depth and kind < 2:
            return expression(rng.choice(["and", "or"]), self.condition(depth - 1), self.condition(depth - 1))
        if depth and kind == 2:
            return expression("not", None, self.condition(depth - 1))
        if depth and kind == 3:
            return expression(rng.choice(["==", "!="]), self.condition(depth - 1), self.condition(depth - 1))
        if self._headers and kind == 4:
            return is_valid(rng.choice(self._headers))
        if kind == 5:
            return expression("d2b", None, self.value(1, max(depth - 1, 0)))
        operand, below = rng.choice(self._operands), max(depth - 1, 0)
        if operand.signed:
            return expression(rng.choice(COMPARISONS), operand.json, self.signed(operand.bits, below))
        return expression(rng.choice(COMPARISONS), operand.json, self.value(operand.bits, below))

    def balanced(self) -> Json:
        """Return a condition that is likely to hold for some frames and not for others."""
        operand = self._rng.choice([o for o in self._operands if not o.signed])
        return expression(self._rng.choice(["<", ">="]), operand.json, hexstr(constant(self._rng, operand.bits)))

    def index(self, size: int, *, inside: bool) -> Json:
        """Return the index of an array of `size` cells, a power of 2; one in eight may lie outside, unless `inside`."""
        bits = size.bit_length() - 1
        index = self.value(8 if self._rng.randrange(8) == 0 else bits, 1)
        return _masked(index, bits) if inside else index

    def _leaf(self, bits: int, _: int) -> Json:
        if self._rng.random() < 0.25:
            return hexstr(constant(self._rng, bits))
        same = [o for o in self._operands if o.bits == bits and not o.signed]
        operand = self._rng.choice(same if same and self._rng.random() < 0.5 else self._operands)
        return operand.json if operand.bits <= bits and not operand.signed else _masked(operand.json, bits)

    def _fit(self, json: Json, bits: int) -> Json:
        return json if self._loose and self._rng.random() < 0.25 else _masked(json, bits)

    def _sum(self, bits: int, depth: int) -> Json:
        sides = self.value(bits, depth), self.value(bits, depth)
        return self._fit(expression(self._rng.choice("+-"), *sides), bits)

    def _bitwise(self, bits: int, depth: int) -> Json:
        return expression(self._rng.choice("&|^"), self.value(bits, depth), self.value(bits, depth))

    def _inverted(self, bits: int, depth: int) -> Json:
        return self._fit(expression(self._rng.choice("~-"), None, self.value(bits, depth)), bits)

    def _chosen(self, bits: int, depth: int) -> Json:
        return expression("?", self.value(bits, depth), self.value(bits, depth), self.condition(depth))

    def _saturated(self, bits: int, depth: int) -> Json:
        sides = self.value(bits, depth), self.value(bits, depth)
        return expression("usat_cast", expression(self._rng.choice("+-"), *sides), hexstr(bits))

    def _shifted(self, bits: int, depth: int) -> Json:
        amount = hexstr(self._rng.choice([0, 1, 7, 8, 31, 63, 64, 65, max(bits - 1, 1), bits, bits + 1]))
        if self._rng.random() < 0.3:
            amount = _masked(self._leaf(8, 0), 8)
        if self._rng.random() < 0.5:
            return expression(">>", _masked(self.value(bits, depth), bits), amount)
        return self._fit(expression("<<", self.value(bits, depth), amount), bits)

    def _joined(self, bits: int, depth: int) -> Json:
        low = self._rng.randrange(bits)
        if low == 0:
            return self.value(bits, depth)
        high = expression("<<", _masked(self.value(bits - low, depth), bits - low), hexstr(low))
        return expression("|", _masked(high, bits), _masked(self.value(low, depth), low))

    def _product(self, bits: int, depth: int) -> Json:
        if bits > MAX_PRODUCT_BITS:
            return self._bitwise(bits, depth)
        sides = (_masked(self.value(bits, depth), bits) for _ in range(2))
        return self._fit(expression("*", *sides), bits)

    def _quotient(self, bits: int, depth: int) -> Json:
        if bits > MAX_QUOTIENT_BITS:
            return self._sum(bits, depth)
        by = hexstr(max(1, constant(self._rng, bits)))
        return expression(self._rng.choice("/%"), _masked(self.value(bits, depth), bits), by)

    def _truth(self, _: int, depth: int) -> Json:
        return expression("b2d", None, self.condition(depth))


def _masked(json: Json, bits: int) -> Json:
    return expression("&", json, hexstr((1 << bits) - 1))
