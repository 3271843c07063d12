# SPDX-License-Identifier: Apache-2.0
"""The headers, metadata and arrays of a random program, and what its parts may read and write."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.builder import STANDARD_FIELDS
from ..core.builder import field as field_json
from .expressions import Operand, constant

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
