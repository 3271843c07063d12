# SPDX-License-Identifier: Apache-2.0
"""Externs: registers, counters, hashes, checksums, random numbers."""

from __future__ import annotations

import random
import zlib
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hopsum_tna.dump import TnaError, UnsupportedNodeError
from hopsum_tna.record_layout import PIPE, Fields, Number, Truth, Type, flat_fields


class Undefined:
    """Values that P4 leaves open: drawn at random, so that a program that relies on one is found out. Seeded."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def draw(self, kind: Number | Truth) -> Any:
        """Return a random value of a type."""
        if isinstance(kind, Truth):
            return bool(self._random.getrandbits(1))
        return kind.wrap(self._random.getrandbits(kind.width))


@dataclass
class Register:
    """An array of numbers or small structs, once in each pipe.

    A packet may touch it once in each half of its pass, as in hardware.
    """

    name: str
    kind: Type
    size: int
    initial: tuple[int, ...]
    cells: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """The cells that were written, by (pipe, index). All other cells hold `initial`."""
    _last: Fields | None = None

    # Cells are sparse: a register has thousands, and a test touches a few.
    def __post_init__(self) -> None:
        self.parts = [name for name, _ in flat_fields("", self.kind)]

    def touch(self, index: int, fields: Fields) -> tuple[int, ...]:
        """Return a cell of the packet's pipe, and note the packet.

        Raises TnaError when this packet was here before in this half, or there is no such cell.
        """
        # The hardware has one stateful unit for a register, which a packet passes once in each half of a pass.
        if self._last is fields:
            raise TnaError(f"register {self.name} is touched twice by one packet in one half of a pass")
        if not 0 <= index < self.size:
            raise TnaError(f"register {self.name} has {self.size} cells, none of index {index}")
        self._last = fields
        return self.cells.get((fields[PIPE], index), self.initial)

    def put(self, index: int, fields: Fields, value: tuple[int, ...]) -> None:
        """Write a cell of the packet's pipe, which the packet touched."""
        self.cells[fields[PIPE], index] = value

    def clear(self) -> None:
        """Put the initial value into all cells of all pipes."""
        self.cells.clear()
        self._last = None


@dataclass
class CounterExtern:
    """A counter of the program: packets by index."""

    name: str
    size: int
    packets: Tally[int] = field(default_factory=Tally)

    def count(self, index: int) -> None:
        """Count a packet. Raises TnaError when there is no such cell."""
        if not 0 <= index < self.size:
            raise TnaError(f"counter {self.name} has {self.size} cells, none of index {index}")
        self.packets[index] += 1


@dataclass
class HashExtern:
    """A hash of some fields, cut to a width. Raises UnsupportedNodeError for an algorithm but IDENTITY and CRC32."""

    algorithm: str
    kind: Number

    def __post_init__(self) -> None:
        if self.algorithm not in ("IDENTITY", "CRC32"):
            raise UnsupportedNodeError(f"the hash algorithm {self.algorithm}")

    def get(self, data: bytes) -> int:
        """Return the hash: IDENTITY the lowest bits, CRC32 that of Ethernet."""
        # zlib.crc32 is the CRC of Ethernet: reflected, with start and end complemented.
        value = int.from_bytes(data, "big") if self.algorithm == "IDENTITY" else zlib.crc32(data)
        return self.kind.wrap(value)


def internet_checksum(data: bytes) -> int:
    """Return the complement of the sum of 16-bit words. An odd byte is a word's upper half."""
    total = sum(int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def join_bits(values: Sequence[tuple[int, int]]) -> bytes:
    """Return the bits of (value, width) pairs in order, as bytes. Raises TnaError when they fill no whole bytes."""
    whole = bits = 0
    for value, width in values:
        whole, bits = (whole << width) | (value & ((1 << width) - 1)), bits + width
    if bits % 8:
        raise TnaError(f"{bits} bits of data for a checksum or a hash, no whole bytes")
    return whole.to_bytes(bits // 8, "big")
