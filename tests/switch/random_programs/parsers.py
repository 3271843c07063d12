# SPDX-License-Identifier: Apache-2.0
"""Random parsers: state `s0` extracts `h0`, and states lead only to later ones.

A lookahead beyond the end of a frame is undefined in bmv2, which reads what its memory holds there. A guarded parser
therefore counts the bits that it has passed, and verifies before a lookahead that the frame is long enough.
"""

from __future__ import annotations

import random

from ..core.builder import ERRORS, Json, expression, field, hexstr
from .shape import CHECKSUM, METADATA, PARSED_BITS, SIGNED_METADATA, ExpressionMaker, Shape, header_bytes
from .statements import operand

OWN_ERROR = len(ERRORS) + 1  # after ParserInvalidArgument


def random_parser(rng: random.Random, shape: Shape) -> Json:
    """Return the parser as JSON; a guarded one is what it is without, and checks."""
    names = [f"s{number}" for number in range(len(shape.parsed))]
    states = [_state(rng, shape, number, names) for number in range(len(names))]
    for state in states if shape.guarded else ():
        key = [_op("select", part) for part in state["transition_key"]]
        ops = [guard for op in (*state["parser_ops"], *key) for guard in _guard(shape, op)]
        state["parser_ops"] = [op for op in ops if op["op"] != "select"]
    return {"name": "parser", "id": 0, "init_state": "s0", "parse_states": states}


def _state(rng: random.Random, shape: Shape, number: int, names: list[str]) -> Json:
    header = shape.parsed[number]
    ops: list[Json] = [_op("extract", {"type": "regular", "value": header})]
    ops += [_random_op(rng, shape, header) for _ in range(rng.randrange(3))]
    if number == 0:  # metadata that differs from frame to frame, for conditions and keys
        ops += _copies(rng, shape, header)
    key, transitions = _select(rng, shape, header, names[number + 1 :])
    return {"name": names[number], "id": number, "parser_ops": ops, "transition_key": key, "transitions": transitions}


def _copies(rng: random.Random, shape: Shape, header: str) -> list[Json]:
    make = ExpressionMaker(rng, shape.fields(header), [])
    chosen = [(name, bits) for name, bits in METADATA if rng.random() < 0.7]
    values = [(name, make.signed(bits, 1) if name in SIGNED_METADATA else make.value(bits)) for name, bits in chosen]
    return [_op("set", field("scalars", name), operand(value)) for name, value in values]


def _op(op: str, *parameters: Json) -> Json:
    return {"op": op, "parameters": list(parameters)}


def _guard(shape: Shape, op: Json) -> list[Json]:
    """Return an operation with the checks around it."""
    passed, last = field("scalars", PARSED_BITS[0]), op["parameters"][-1]
    if last["type"] == "lookahead":
        needed = expression("+", passed, hexstr(sum(last["value"])))
        bits = expression("<<", field("standard_metadata", "packet_length"), hexstr(3))
        return [_op("verify", expression(">=", bits, needed), hexstr(OWN_ERROR)), op]
    if op["op"] == "extract":
        bits = hexstr(8 * header_bytes(shape.headers[last["value"]]))
    elif op["op"] == "advance":
        bits = last
    else:
        return [op]
    return [op, _op("set", passed, operand(expression("+", passed, bits)))]


def _random_op(rng: random.Random, shape: Shape, header: str) -> Json:
    make = ExpressionMaker(rng, shape.operands(header)[: len(METADATA)] + shape.fields(header), shape.parsed)
    kind, (name, bits) = rng.randrange(10), rng.choice([m for m in METADATA if m[0] not in SIGNED_METADATA])
    if kind < 4:
        return _op("set", field("scalars", name), operand(make.value(bits)))
    if kind < 7:
        ahead = [rng.choice([0, 0, 3, 8]), min(bits, rng.choice([5, 8, 16, 33, 130]))]
        return _op("set", field("scalars", name), {"type": "lookahead", "value": ahead})
    if kind < 9:
        # Holds unless two values meet, so that most frames continue.
        check = make.condition(0) if rng.random() < 0.1 else _differs(rng, shape, header)
        return _op("verify", check, hexstr(OWN_ERROR))
    return _op("advance", hexstr(8 * rng.randrange(1, 3)))


def _differs(rng: random.Random, shape: Shape, header: str) -> Json:
    chosen = shape.headers[header][0]
    value = rng.choice(shape.favourites[header, chosen.name])
    inner = {"op": "!=", "left": field(header, chosen.name), "right": hexstr(value)}
    return {"type": "expression", "value": inner}


def _select(rng: random.Random, shape: Shape, header: str, later: list[str]) -> tuple[list[Json], list[Json]]:
    """Return a key of fields and lookaheads with its cases: values, masks, and ranges cut into masks."""
    default = {"type": "default", "value": None, "mask": None, "next_state": rng.choice([*later, *later[:2], None])}
    fields = [f for f in shape.headers[header] if not f.signed and f.bits <= 130 and f.name != CHECKSUM]
    if not later or not fields:
        return [], [default]
    parts: list[tuple[Json, int]] = []
    for chosen in rng.sample(fields, min(len(fields), rng.choice([1, 1, 2]))):
        parts.append((field(header, chosen.name), chosen.bits))
    if rng.random() < 0.3:
        bits = rng.choice([3, 8, 12])
        parts.append(({"type": "lookahead", "value": [rng.choice([0, 0, 5]), bits]}, bits))
    cases = []
    for target in [*later, *([None] if rng.random() < 0.3 else [])]:
        pieces = [_piece(rng, shape, json, bits) for json, bits in parts]
        cases += [_case(parts, combined, target) for combined in _product(pieces)]
    rng.shuffle(cases)
    return [json for json, _ in parts], cases + ([default] if rng.random() < 0.8 else [])


def _piece(rng: random.Random, shape: Shape, json: Json, bits: int) -> list[tuple[int, int]]:
    """Return (value, mask) pairs of one part of a key, one of which has to fit."""
    full = (1 << bits) - 1
    kind, value = rng.randrange(4), rng.getrandbits(bits)
    if json["type"] == "field" and rng.random() < 0.5:
        value = rng.choice(shape.favourites[json["value"][0], json["value"][1]])
    if kind == 0:
        mask = rng.getrandbits(bits)
        return [(value & mask, mask)]
    if kind == 1 and bits > 1:
        low, high = sorted((value, rng.getrandbits(bits)))
        return prefixes(low, high, bits)[:4]
    return [(value, full)]


def prefixes(low: int, high: int, bits: int) -> list[tuple[int, int]]:
    """Return (value, mask) pairs that together are low..high, as p4c cuts a range."""
    pairs, full = [], (1 << bits) - 1
    while low <= high:
        size = low & -low if low else 1 << bits
        while low + size - 1 > high:
            size >>= 1
        pairs.append((low, full & ~(size - 1)))
        low += size
    return pairs


def _product(pieces: list[list[tuple[int, int]]]) -> list[tuple[tuple[int, int], ...]]:
    found: list[tuple[tuple[int, int], ...]] = [()]
    for options in pieces:
        found = [(*before, option) for before in found for option in options]
    return found[:6]


def _case(parts: list[tuple[Json, int]], pairs: tuple[tuple[int, int], ...], target: str | None) -> Json:
    value = mask = b""
    for (_, bits), (part_value, part_mask) in zip(parts, pairs, strict=True):
        size = (bits + 7) // 8
        value, mask = value + part_value.to_bytes(size, "big"), mask + part_mask.to_bytes(size, "big")
    return {"type": "hexstr", "value": f"0x{value.hex()}", "mask": f"0x{mask.hex()}", "next_state": target}
