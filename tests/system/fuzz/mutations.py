# SPDX-License-Identifier: Apache-2.0
"""Mutations of valid frames, thousands at a time: each takes rows and changes one thing in every one of them.

    flip in headers, flip anywhere     1 to 3 bits
    field                              of any layer: extremes, neighbours, anything
    hopsum field                       a number that may mean something
    cut, tail                          an end at the edge of a layer or anywhere; bytes behind the frame
    lengths                            one or all of IPv4, UDP and hopsum length differ from what is there
    resize                             a payload of another size, all lengths right
    port                               another one

A fifth of the frames get a second mutation; the IPv4 checksum follows four in five.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hopsum_wire._layout import (
    ARP_FIELDS,
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    HOPSUM_FIELDS,
    ICMP_FIELDS,
    IPV4_BYTES,
    IPV4_FIELDS,
    UDP_BYTES,
    UDP_FIELDS,
    Field,
)
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES

from .corpus import HOPSUM_AT, ROW_BYTES, Frames, Ints, Layers
from .fields import read, write

IPV4_AT: Final = ETHERNET_BYTES
UDP_AT: Final = IPV4_AT + IPV4_BYTES
LAYERS: Final = {
    Layers.HOPSUM: (
        (0, ETHERNET_FIELDS), (IPV4_AT, IPV4_FIELDS), (UDP_AT, UDP_FIELDS), (HOPSUM_AT, HOPSUM_FIELDS),
        (HOPSUM_AT, HOPSUM_FIELDS),
    ),
    Layers.ARP: ((0, ETHERNET_FIELDS), (IPV4_AT, ARP_FIELDS)),
    Layers.PING: ((0, ETHERNET_FIELDS), (IPV4_AT, IPV4_FIELDS), (UDP_AT, ICMP_FIELDS)),
    Layers.PLAIN: ((0, ETHERNET_FIELDS),),
}  # fmt: skip
"""The places of headers. The hopsum header is there twice, so that it is mutated twice as often."""
MEANINGFUL: Final = np.array((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 255), np.uint64)
PORTS: Final = np.array((0, 1, 3, 10, 11, 12, 17, 510))
SIZES: Final = np.array((0, 1, 255, 256, 257, 511, 512, 513, 767, 768, 769, 1023, 1024, 1025, 1200))
CHANGES: Final = np.array((-1024, -256, -20, -8, -1, 1, 8, 20, 256, 512))
TAIL_MAX: Final = ROW_BYTES - FRAME_OVERHEAD_BYTES - 1200
ROUND: Final = next((HOPSUM_AT, field) for field in HOPSUM_FIELDS if field.name == "round")
LENGTHS: Final = tuple(
    (at, next(field for field in fields if field.name == name))
    for at, fields, name in (
        (IPV4_AT, IPV4_FIELDS, "total_length"), (UDP_AT, UDP_FIELDS, "length"), (HOPSUM_AT, HOPSUM_FIELDS, "length"),
    )
)  # fmt: skip


class Mutator:
    """Changes frames in place. All randomness is numpy's `rng`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._fields = {layers: _field_table(places) for layers, places in LAYERS.items()}
        self._kinds = (
            (self._flip_in_headers, 16), (self._flip_anywhere, 10), (self._field, 22), (self._hopsum_field, 18),
            (self._cut, 9), (self._tail, 5), (self._lengths, 8), (self._resize, 6), (self._port, 6),
        )  # fmt: skip

    def mutate(self, frames: Frames, at: Ints) -> None:
        """Mutate the frames with these numbers; the others stay as they are."""
        weights = np.array([weight for _, weight in self._kinds], float)
        second = at[self._rng.random(len(at)) < 0.2]
        for some in (at, second):
            kind = self._rng.choice(len(self._kinds), len(some), p=weights / weights.sum())
            for number, (change, _) in enumerate(self._kinds):
                chosen = some[kind == number]
                if len(chosen):
                    change(frames, chosen)
        right = at[(self._rng.random(len(at)) < 0.8) & (frames.lengths[at] >= UDP_AT)]
        set_checksums(frames, right[np.isin(frames.layers[right], (Layers.HOPSUM, Layers.PING))])

    def damp(self, frames: Frames, rounds: Ints, farthest: int, kept: float) -> None:
        """Take back most changes that make a round a far one: the others find its copy taken ever after."""
        number, field = ROUND
        now = read(frames.rows, np.arange(len(rounds)), number, field).astype(np.int64)
        far = (frames.layers == Layers.HOPSUM) & (now > rounds + farthest) & (self._rng.random(len(rounds)) >= kept)
        at = np.flatnonzero(far)
        write(frames.rows, at, number, field, rounds[at].astype(np.uint64))

    def _flip_in_headers(self, frames: Frames, at: Ints) -> None:
        self._flip(frames, at, np.minimum(frames.lengths[at], FRAME_OVERHEAD_BYTES))

    def _flip_anywhere(self, frames: Frames, at: Ints) -> None:
        self._flip(frames, at, frames.lengths[at])

    def _flip(self, frames: Frames, at: Ints, limits: Ints) -> None:
        times = self._rng.choice((1, 2, 3), len(at), p=(0.5, 0.25, 0.25))
        for time in range(3):
            some = times > time
            bit = (self._rng.random(some.sum()) * 8 * np.maximum(limits[some], 1)).astype(np.int64)
            frames.rows[at[some], bit // 8] ^= (1 << bit % 8).astype(np.uint8)

    def _field(self, frames: Frames, at: Ints) -> None:
        for layers, table in self._fields.items():
            some = at[frames.layers[at] == layers]
            chosen = table[self._rng.integers(0, len(table), len(some))]
            self._set_extreme(frames, some, chosen)

    def _set_extreme(self, frames: Frames, at: Ints, chosen: Ints) -> None:
        """Set one field of each frame; `chosen` has rows of byte, shift and width, as `_field_table`."""
        rng, count = self._rng, len(at)
        start, offset, bits = chosen.T
        top = np.uint64(0xFFFFFFFFFFFFFFFF) >> (64 - bits).astype(np.uint64)
        old = read(frames.rows, at, start, (offset, bits))
        one, anything = np.uint64(1), rng.integers(0, 1 << 64, count, dtype=np.uint64)
        half = one << (bits - 1).astype(np.uint64)
        zero = np.zeros(count, np.uint64)
        values = (zero, zero + one, top, top - one, half, old ^ one, old + one, old - one, anything)
        new = np.choose(rng.integers(0, len(values), count), values) & top
        write(frames.rows, at, start, (offset, bits), new)

    def _hopsum_field(self, frames: Frames, at: Ints) -> None:
        some = at[frames.layers[at] == Layers.HOPSUM]
        self._field(frames, at[frames.layers[at] != Layers.HOPSUM])
        table = _field_table(((HOPSUM_AT, HOPSUM_FIELDS),))
        chosen = table[self._rng.integers(0, len(table), len(some))]
        write(frames.rows, some, chosen[:, 0], (chosen[:, 1], chosen[:, 2]), self._rng.choice(MEANINGFUL, len(some)))

    def _cut(self, frames: Frames, at: Ints) -> None:
        rng = self._rng
        below = (0, 1, 13, 14, 15, 33, 34, 35, 37, 38, 41, 42, 43, 73, 74, 75)
        edges = np.array((*below, 329, 330, 585, 586, 841, 842, 1097))
        anywhere = (rng.random(len(at)) * frames.lengths[at]).astype(np.int64)
        size = np.where(rng.random(len(at)) < 0.5, rng.choice(edges, len(at)), anywhere)
        frames.lengths[at] = np.minimum(frames.lengths[at], size)

    def _tail(self, frames: Frames, at: Ints) -> None:
        frames.lengths[at] = np.minimum(frames.lengths[at] + self._rng.integers(1, TAIL_MAX, len(at)), ROW_BYTES)

    def _lengths(self, frames: Frames, at: Ints) -> None:
        rng = self._rng
        at = at[np.isin(frames.layers[at], (Layers.HOPSUM, Layers.PING))]
        change = rng.choice(CHANGES, len(at))
        all_of_them, which = rng.random(len(at)) < 0.4, rng.integers(0, len(LENGTHS), len(at))
        for number, (start, field) in enumerate(LENGTHS):
            some = (all_of_them | (which == number)) & ((frames.layers[at] == Layers.HOPSUM) | (number == 0))
            old = read(frames.rows, at[some], start, field).astype(np.int64)
            write(frames.rows, at[some], start, field, (old + change[some] & 0xFFFF).astype(np.uint64))

    def _resize(self, frames: Frames, at: Ints) -> None:
        at = at[(frames.layers[at] == Layers.HOPSUM) & (frames.lengths[at] >= FRAME_OVERHEAD_BYTES)]
        size = self._rng.choice(SIZES, len(at))
        frames.lengths[at] = FRAME_OVERHEAD_BYTES + size
        for (start, field), more in zip(LENGTHS, (FRAME_OVERHEAD_BYTES - IPV4_AT, UDP_BYTES + 32, 0), strict=True):
            write(frames.rows, at, start, field, (size + more).astype(np.uint64))

    def _port(self, frames: Frames, at: Ints) -> None:
        frames.ports[at] = self._rng.choice(PORTS, len(at))


def set_checksums(frames: Frames, at: Ints) -> None:
    """Give the IPv4 headers of these frames their right checksum."""
    header = frames.rows[at, IPV4_AT:UDP_AT].copy()
    header[:, 10:12] = 0
    total = header.view(">u2").astype(np.int64).sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    frames.rows[at, IPV4_AT + 10] = (~total >> 8 & 0xFF).astype(np.uint8)
    frames.rows[at, IPV4_AT + 11] = (~total & 0xFF).astype(np.uint8)


def _field_table(places: tuple[tuple[int, tuple[Field, ...]], ...]) -> Ints:
    """Return a row for each field: where its header starts, its offset in that and its width, in bits."""
    return np.array([(at, field.offset_bits, field.bits) for at, fields in places for field in fields])
