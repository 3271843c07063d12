# SPDX-License-Identifier: Apache-2.0
"""Match values of table entries, one per key field, and their check against the table's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InvalidArgumentError
from ..program.ir import KeyIR, MatchKind, TableIR


class Exact(NamedTuple):
    """The field equals `value`."""

    value: int


class Lpm(NamedTuple):
    """The first `prefix_len` bits of the field equal those of `value`. The other bits of `value` are 0."""

    value: int
    prefix_len: int


class Ternary(NamedTuple):
    """field & mask == value. `value` is 0 outside `mask`. Mask 0 matches everything."""

    value: int
    mask: int


class Range(NamedTuple):
    """low <= field <= high."""

    low: int
    high: int


class Optional(NamedTuple):
    """The field equals `value`, or has any value where `value` is None. For keys of kind ternary."""

    value: int | None


Match = Exact | Lpm | Ternary | Range | Optional


def normalise(table: TableIR, match: Sequence[Match]) -> tuple[Match, ...]:
    """Return the match as Exact, Lpm, Ternary or Range values that fit the keys. Optional becomes Ternary.

    Raises: InvalidArgumentError.
    """
    if len(match) != len(table.keys):
        raise InvalidArgumentError(f"{table.name}: {len(match)} match values for {len(table.keys)} key fields")
    return tuple(_normalise_one(table.name, key, value) for key, value in zip(table.keys, match, strict=True))


def _normalise_one(table: str, key: KeyIR, value: Match) -> Match:
    where = f"{table}.{key.name} (bit<{key.bits}>, {key.kind.value})"
    limit = 1 << key.bits
    if key.kind is MatchKind.TERNARY and isinstance(value, Optional):
        value = Ternary(0, 0) if value.value is None else Ternary(value.value, limit - 1)
    if not isinstance(value, _ACCEPTED[key.kind]):
        raise InvalidArgumentError(f"{where}: a match of kind {type(value).__name__.lower()} does not fit")
    numbers = (value.value,) if isinstance(value, Lpm) else tuple(value)
    for number in numbers:
        if number is None or not 0 <= number < limit:
            raise InvalidArgumentError(f"{where}: {number} is not a value of {key.bits} bits")
    _check_shape(where, key, value)
    return value


_ACCEPTED: dict[MatchKind, type] = {
    MatchKind.EXACT: Exact,
    MatchKind.LPM: Lpm,
    MatchKind.TERNARY: Ternary,
    MatchKind.RANGE: Range,
}


def _check_shape(where: str, key: KeyIR, value: Match) -> None:
    if isinstance(value, Lpm):
        if not 0 <= value.prefix_len <= key.bits:
            raise InvalidArgumentError(f"{where}: prefix length {value.prefix_len} is outside 0..{key.bits}")
        if value.value & ~prefix_mask(key.bits, value.prefix_len):
            raise InvalidArgumentError(
                f"{where}: {value.value:#x} has bits beyond its prefix of {value.prefix_len}; clear them"
            )
    elif isinstance(value, Ternary) and value.value & ~value.mask:
        raise InvalidArgumentError(f"{where}: {value.value:#x} has bits outside its mask {value.mask:#x}; clear them")
    elif isinstance(value, Range) and value.low > value.high:
        raise InvalidArgumentError(f"{where}: the range {value.low}..{value.high} is empty")


def prefix_mask(bits: int, prefix_len: int) -> int:
    """Return the mask of a prefix of a `bits`-wide field."""
    return ((1 << prefix_len) - 1) << (bits - prefix_len)
