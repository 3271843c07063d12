# SPDX-License-Identifier: Apache-2.0
"""Frames for a random program: valid ones, made by a walk through its parser, and mutations of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from hopsum_switch.interp.calculations import ALGORITHMS

from ..core.builder import Json
from .programs import checksum_inputs
from .shape import CHECKSUM, Shape, constant, header_bytes
from .statements import PORTS

UNCHANGED_ONE_IN = 11


class Place(NamedTuple):
    """Where a field lies in a frame, in bits from its beginning."""

    name: str
    at: int
    bits: int


class Frame:
    """A frame under construction."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.places: list[Place] = []

    def set(self, at: int, bits: int, value: int, mask: int) -> None:
        """Set the bits of a mask; bits beyond the end are left out."""
        for number in range(bits):
            bit, weight = at + number, bits - 1 - number
            if mask >> weight & 1 and bit // 8 < len(self.data):
                one = 0x80 >> bit % 8
                self.data[bit // 8] = self.data[bit // 8] & ~one | (one if value >> weight & 1 else 0)

    def get(self, place: Place) -> int:
        """Return a field's value."""
        end = place.at + place.bits
        number = int.from_bytes(self.data[: (end + 7) // 8], "big") >> -end % 8
        return number & ((1 << place.bits) - 1)


def valid_frame(rng: random.Random, shape: Shape, parser: Json) -> Frame:
    """Return a frame that takes a random way through the parser, and has what that way asks for."""
    frame, patches = Frame(), []
    states = {state["name"]: state for state in parser["parse_states"]}
    name: str | None = parser["init_state"]
    while name is not None:
        state = states[name]
        for op in state["parser_ops"]:
            if op["op"] == "extract":
                _append(rng, shape, frame, op["parameters"][0]["value"])
            elif op["op"] == "advance":
                frame.data += rng.randbytes(int(op["parameters"][0]["value"], 16) // 8)
        transition = rng.choice(state["transitions"])
        if transition["type"] != "default":
            patches += list(_conditions(frame, state["transition_key"], transition))
        name = transition["next_state"]
    frame.data += rng.randbytes(rng.choice([0, 1, 20, 40, 90]))
    for patch in patches:
        frame.set(*patch)
    if rng.random() < 0.6:
        _correct(frame, shape)
    return frame


def _append(rng: random.Random, shape: Shape, frame: Frame, header: str) -> None:
    at = 8 * len(frame.data)
    frame.data += bytes(header_bytes(shape.headers[header]))
    for field in shape.headers[header]:
        few = shape.favourites[header, field.name]
        value = rng.choice(few) if rng.random() < 0.7 else constant(rng, field.bits)
        frame.set(at, field.bits, value, (1 << field.bits) - 1)
        frame.places.append(Place(f"{header}.{field.name}", at, field.bits))
        at += field.bits


def _conditions(frame: Frame, key: list[Json], transition: Json) -> Iterator[tuple[int, int, int, int]]:
    """Yield (place, width, value, mask) of what a transition asks for; a key's parts fill whole bytes."""
    value, mask = int(transition["value"], 16), int(transition["mask"], 16)
    for part in reversed(key):
        if part["type"] == "lookahead":
            at, bits = 8 * len(frame.data) + part["value"][0], part["value"][1]
        else:
            _, at, bits = next(p for p in reversed(frame.places) if p.name == ".".join(part["value"]))
        yield at, bits, value, mask & ((1 << bits) - 1)
        width = 8 * ((bits + 7) // 8)
        value, mask = value >> width, mask >> width


def _correct(frame: Frame, shape: Shape) -> None:
    """Set the checksum of `h1`, if there is one, to what is right."""
    places = {place.name: place for place in frame.places}
    target = places.get(f"h1.{CHECKSUM}")
    if target is None:
        return
    word = bits = 0
    for name in checksum_inputs(shape):
        place = places[f"h1.{name}"]
        word, bits = word << place.bits | frame.get(place), bits + place.bits
    size = (bits + 7) // 8
    right = ALGORITHMS["csum16"]((word << (8 * size - bits)).to_bytes(size, "big"))
    frame.set(target.at, target.bits, right, 0xFFFF)


def mutated(rng: random.Random, frame: Frame) -> bytes:
    """Return a frame that differs: flipped bits, fields at extremes, cuts, wrong lengths; at least one byte long."""
    start = bytes(frame.data)
    while True:
        kinds = [_flip, _flip, _flip, _extreme, _extreme, _extreme, _cut, _lengthen, _shift]
        changed = Frame()
        changed.data, changed.places = bytearray(start), frame.places
        for _ in range(rng.choice([1, 1, 2])):
            rng.choice(kinds)(rng, changed)
        if changed.data and bytes(changed.data) != start:
            return bytes(changed.data)


def _flip(rng: random.Random, frame: Frame) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        bit = rng.randrange(8 * max(1, len(frame.data)))
        frame.set(bit, 1, rng.randrange(2), 1)


def _extreme(rng: random.Random, frame: Frame) -> None:
    place = rng.choice(frame.places)
    full = (1 << place.bits) - 1
    value = rng.choice([0, full, full >> 1, 1, full ^ 1, full ^ full >> 1])
    frame.set(place.at, place.bits, value, full)


def _cut(rng: random.Random, frame: Frame) -> None:
    """Cut anywhere, or at the edge of a field."""
    edge = rng.choice(frame.places).at // 8
    del frame.data[rng.choice([edge, edge + 1, rng.randrange(len(frame.data) + 1)]) :]


def _lengthen(rng: random.Random, frame: Frame) -> None:
    frame.data += rng.randbytes(rng.choice([1, 2, 18, 700]))


def _shift(rng: random.Random, frame: Frame) -> None:
    """Insert or take out bytes, so that all behind is in the wrong place."""
    at = rng.randrange(len(frame.data) + 1)
    if rng.random() < 0.5:
        frame.data[at:at] = rng.randbytes(rng.choice([1, 2, 8]))
    else:
        del frame.data[at : at + rng.choice([1, 2, 8])]


def random_frames(rng: random.Random, shape: Shape, parser: Json, count: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return (port, frame) pairs, and how many of them are mutations of valid frames."""
    frames, changed = [], 0
    for number in range(count):
        frame = valid_frame(rng, shape, parser)
        whole = number % UNCHANGED_ONE_IN == 0
        changed += not whole
        frames.append((rng.randrange(PORTS), bytes(frame.data) if whole else mutated(rng, frame)))
    return frames, changed
