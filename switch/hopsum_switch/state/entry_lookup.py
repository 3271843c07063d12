# SPDX-License-Identifier: Apache-2.0
"""Search structures, one per kind of table.

Keys and entries have been checked before they come here. A key is one integer per key field.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import InvalidArgumentError
from ..program.ir import ActionCall, KeyIR, MatchKind, TableIR
from .meter import MeterCell

# Match values of table entries, one per key field, and their check against the table's keys.


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
    """The field is in the range from `low` to `high`, both included."""

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
    """Return the mask of a prefix of a `bits`-wide field: its first `prefix_len` bits are 1."""
    return ((1 << prefix_len) - 1) << (bits - prefix_len)


@dataclass(slots=True, eq=False)
class Entry:
    """One entry of a table. `packets` and `bytes` are its direct counter, `meter` its direct meter once configured."""

    handle: int
    match: tuple[Match, ...]
    call: ActionCall
    priority: int
    is_const: bool
    packets: int = 0
    bytes: int = 0
    meter: MeterCell | None = None


class Lookup(Protocol):
    """A set of entries that can be searched by key and by identity."""

    def add(self, entry: Entry) -> None:
        """Add an entry. None with the same match and priority may be there."""

    def remove(self, entry: Entry) -> None:
        """Remove an entry that was added."""

    def find(self, match: tuple[Match, ...], priority: int) -> Entry | None:
        """Return the entry with exactly this match and priority, or None. Exact and lpm tables ignore the priority."""

    def match(self, key: tuple[int, ...]) -> Entry | None:
        """Return the winning entry for key values, or None if no entry matches."""


class ExactLookup(Lookup):
    """A dictionary from key values to entries."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[int, ...], Entry] = {}

    def add(self, entry: Entry) -> None:
        self._by_key[_exact_key(entry.match)] = entry

    def remove(self, entry: Entry) -> None:
        del self._by_key[_exact_key(entry.match)]

    def find(self, match: tuple[Match, ...], priority: int) -> Entry | None:
        """Return the entry with this key, or None. The priority is ignored."""
        del priority  # exact tables have none
        return self._by_key.get(_exact_key(match))

    def match(self, key: tuple[int, ...]) -> Entry | None:
        return self._by_key.get(key)


class LpmLookup(Lookup):
    """One dictionary per prefix length, tried from the longest."""

    def __init__(self, table: TableIR) -> None:
        self._position = next(i for i, k in enumerate(table.keys) if k.kind is MatchKind.LPM)
        self._bits = table.keys[self._position].bits
        self._by_length: dict[int, dict[tuple[int, ...], Entry]] = {}
        self._order: list[tuple[int, dict[tuple[int, ...], Entry]]] = []  # (mask, entries), longest first

    def add(self, entry: Entry) -> None:
        length, key = self._split(entry.match)
        self._by_length.setdefault(length, {})[key] = entry
        self._reorder()

    def remove(self, entry: Entry) -> None:
        length, key = self._split(entry.match)
        del self._by_length[length][key]
        if not self._by_length[length]:
            del self._by_length[length]
        self._reorder()

    def find(self, match: tuple[Match, ...], priority: int) -> Entry | None:
        """Return the entry with this key and prefix length, or None. The priority is ignored."""
        del priority  # the prefix length decides
        length, key = self._split(match)
        return self._by_length.get(length, {}).get(key)

    def match(self, key: tuple[int, ...]) -> Entry | None:
        position = self._position
        # The other fields of the key are exact, so one look into a dictionary decides for each prefix length.
        before, value, after = key[:position], key[position], key[position + 1 :]
        for mask, entries in self._order:
            entry = entries.get((*before, value & mask, *after))
            if entry is not None:
                return entry
        return None

    def _split(self, match: tuple[Match, ...]) -> tuple[int, tuple[int, ...]]:
        prefix = match[self._position]
        assert isinstance(prefix, Lpm)
        return prefix.prefix_len, tuple(m[0] or 0 for m in match)

    def _reorder(self) -> None:
        lengths = sorted(self._by_length, reverse=True)
        self._order = [(prefix_mask(self._bits, n), self._by_length[n]) for n in lengths]


class OrderedLookup(Lookup):
    """Entries of ternary and range tables, best first: larger priority, then older."""

    def __init__(self, table: TableIR) -> None:
        self._bits = tuple(key.bits for key in table.keys)
        self._entries: list[tuple[tuple[int, int], Entry]] = []  # ((-priority, handle), entry), sorted
        # Each write asks `find`: a scan would make a controller that fills a table quadratic.
        self._known: dict[tuple[tuple[Match, ...], int], Entry] = {}

    def add(self, entry: Entry) -> None:
        # Kept sorted at the write, since packets search far more often than a controller writes.
        insort(self._entries, (_rank(entry), entry), key=lambda item: item[0])
        self._known[entry.match, entry.priority] = entry

    def remove(self, entry: Entry) -> None:
        self._entries.remove((_rank(entry), entry))
        del self._known[entry.match, entry.priority]

    def find(self, match: tuple[Match, ...], priority: int) -> Entry | None:
        """Return the entry with this key and priority, or None."""
        return self._known.get((match, priority))

    def match(self, key: tuple[int, ...]) -> Entry | None:
        for _, entry in self._entries:
            fields = zip(entry.match, key, self._bits, strict=True)
            if all(_matches(m, value, bits) for m, value, bits in fields):
                return entry
        return None


def lookup_for(table: TableIR) -> Lookup:
    """Return an empty search structure for a table."""
    if table.match_kind is MatchKind.EXACT:
        return ExactLookup()
    if table.match_kind is MatchKind.LPM:
        return LpmLookup(table)
    return OrderedLookup(table)


def _matches(match: Match, value: int, bits: int) -> bool:
    if isinstance(match, Ternary):
        return value & match.mask == match.value
    if isinstance(match, Range):
        return match.low <= value <= match.high
    if isinstance(match, Lpm):
        return value & prefix_mask(bits, match.prefix_len) == match.value
    assert isinstance(match, Exact)
    return value == match.value


def _exact_key(match: tuple[Match, ...]) -> tuple[int, ...]:
    return tuple(m[0] or 0 for m in match)


def _rank(entry: Entry) -> tuple[int, int]:
    return -entry.priority, entry.handle
