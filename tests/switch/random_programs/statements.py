# SPDX-License-Identifier: Apache-2.0
"""Random bodies of actions."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..core.builder import Json, assign, expression, field, hexstr, primitive
from .shape import COPY, METADATA, Array, ExpressionMaker, Operand, Shape

GROUPS = 3
PORTS = 8


def operand(json: Json) -> Json:
    """Return an expression in the form that bmv2 wants where it is an argument, wrapped once more."""
    if json["type"] == "local":
        return {**json, "type": "runtime_data"}
    return {"type": "expression", "value": json} if json["type"] == "expression" else json


def standard(name: str) -> Json:
    """Return a field of the architecture's metadata."""
    return field("standard_metadata", name)


class BodyMaker:
    """Makes the primitives of one action, which runs where `headers` are valid and has `params`."""

    def __init__(
        self, rng: random.Random, shape: Shape, headers: Sequence[str], params: Sequence[int], *, egress: bool
    ) -> None:
        self._rng, self._shape, self._headers, self._egress = rng, shape, headers, egress
        self._params = [Operand({"type": "local", "value": i}, bits) for i, bits in enumerate(params)]
        known = shape.operands(*headers, egress=egress) + 2 * self._params
        self._make = ExpressionMaker(rng, known, list(shape.headers), loose=rng.random() < 0.3)
        self._targets = shape.targets(*headers)
        self.primitives: list[Json] = []

    def run(self, count: int) -> list[Json]:
        """Return `count` statements and their parts."""
        for _ in range(count):
            self._statement(1)
        self._closing()
        return self.primitives

    def _add(self, op: str, *arguments: Json) -> None:
        self.primitives.append(primitive(op, *map(operand, arguments)))

    def _assign(self, target: Operand, depth: int = 2) -> None:
        value = self._make.signed(target.bits, depth) if target.signed else self._make.value(target.bits, depth)
        self.primitives.append(assign(target.json, operand(value)))

    def _statement(self, depth: int) -> None:
        kinds = [lambda: self._assign(self._rng.choice(self._targets))] * 6
        kinds += [self._register, self._register, self._count, self._count, self._hash, self._truncate]
        kinds += [] if self._egress else [self._send, self._send, self._multicast]
        kinds += [lambda: self._conditional(depth), lambda: self._conditional(depth)] if depth else []
        self._rng.choice(kinds)()

    def _conditional(self, depth: int) -> None:
        """Add an `if` of an action: a jump over the first branch, and one over the second."""
        at, drops = len(self.primitives), self._rng.random() < 0.3
        condition = self._make.balanced() if drops else self._make.condition()
        self._add("_jump_if_zero", expression("b2d", None, condition), hexstr(0))
        if drops:
            self._add("mark_to_drop", {"type": "header", "value": "standard_metadata"})
        else:
            self._statement(depth - 1)
        if self._rng.random() < 0.5:
            over = len(self.primitives)
            self._add("_jump", hexstr(0))
            self._aim(at)
            self._statement(depth - 1)
            self._aim(over)
        else:
            self._aim(at)

    def _aim(self, jump: int) -> None:
        self.primitives[jump]["parameters"][-1] = hexstr(len(self.primitives))

    def _register(self) -> None:
        array = self._rng.choice(self._shape.registers)
        named = {"type": "register_array", "value": array.name}
        if self._rng.random() < 0.5 or (self._egress and self._shape.guarded):
            target = self._rng.choice([t for t in self._targets if not t.signed])
            self._add("register_read", target.json, named, self._index(array))
        else:
            self._add("register_write", named, self._index(array), self._make.value(array.bits, 1))

    def _index(self, array: Array) -> Json:
        return self._make.index(array.size, inside=self._shape.guarded)

    def _count(self) -> None:
        array = self._rng.choice(self._shape.counters)
        self._add("count", {"type": "counter_array", "value": array.name}, self._index(array))

    def _hash(self) -> None:
        target = field("scalars", self._rng.choice([name for name, bits in METADATA if 8 <= bits <= 64][:4]))
        calculation = {"type": "calculation", "value": self._rng.choice(self._shape.hashes)}
        base, size = self._rng.choice([0, 0, 5]), self._rng.choice([1, 7, 256, 65536, 2**32])
        self._add("modify_field_with_hash_based_offset", target, hexstr(base), calculation, hexstr(size))

    def _truncate(self) -> None:
        if self._rng.random() < 0.3:
            self._add("truncate", expression("+", self._make.value(7, 0), hexstr(100)))

    def _send(self) -> None:
        value = self._make.value(PORTS.bit_length() - 1, 1)
        if self._params and self._rng.random() < 0.6:
            value = expression("&", self._rng.choice(self._params).json, hexstr(PORTS - 1))
        self._add("assign", standard("egress_spec"), value)

    def _multicast(self) -> None:
        self._add("assign", standard("mcast_grp"), hexstr(self._rng.randrange(GROUPS + 2)))

    def _closing(self) -> None:
        """Change which headers are valid; after this, nothing reads them."""
        chance = self._rng.random()
        if "h0" in self._headers and chance < 0.15:
            self._add("assign_header", {"type": "header", "value": COPY}, {"type": "header", "value": "h0"})
        elif self._headers and chance < 0.3:
            self._add("remove_header", {"type": "header", "value": self._rng.choice(self._headers)})
        elif chance > 0.97:
            self._add("exit")


def adding(rng: random.Random, shape: Shape, header: str, *, egress: bool) -> list[Json]:
    """Return a body that makes a header valid and gives each of its fields a value."""
    make = ExpressionMaker(rng, shape.operands(egress=egress), list(shape.headers))
    body = [primitive("add_header", {"type": "header", "value": header})]
    for target in shape.fields(header):
        value = make.signed(target.bits, 1) if target.signed else make.value(target.bits, 1)
        body.append(assign(target.json, operand(value)))
    return body
