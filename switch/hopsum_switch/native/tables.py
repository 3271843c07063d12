# SPDX-License-Identifier: Apache-2.0
"""The stores of the control plane as the arrays that native code searches. They are rebuilt after a write."""

from __future__ import annotations

from collections.abc import Sequence

from ..program.ir import ActionCall, MatchKind
from ..state.copies import MulticastStore
from ..state.lookup import Entry, Exact, Lpm, Match, Range, Ternary, prefix_mask
from ..state.tables import TableState
from .control import HASH_FACTOR, HASH_SHIFT
from .layout import NO_ACTION, RECORD_HEADER, ControlWord, TableWord, key_words, params, record_words
from .memory import Words, put, words
from .pipeline import MAX_GROUPS

_WORD = (1 << 64) - 1


class NativeTable:
    """The arrays of one table."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._key_words = key_words(state.ir)
        self._record_words = record_words(state.ir)
        self._entries: list[Entry] = []
        self._hits = words(0)
        self._arrays: list[Words] = []

    def build(self, control: Words, at: int) -> None:
        """Build the arrays anew and put their addresses into the table's words of the control block."""
        self._entries = self._ordered()
        count, stride = len(self._entries), self._record_words
        records, self._hits = words((count + 1) * stride), words(2 * count)
        for number, entry in enumerate(self._entries):
            _write_record(records, number * stride, entry.call)
        _write_record(records, count * stride, self._state.default)
        exact = self._state.ir.match_kind is MatchKind.EXACT
        keys, slots = self._exact_arrays() if exact else (self._pairs(), words(0))
        self._arrays = [keys, slots, records]
        control[at + TableWord.SLOTS] = slots.ctypes.data
        control[at + TableWord.SLOT_MASK] = len(slots) - 1
        control[at + TableWord.KEYS] = keys.ctypes.data
        control[at + TableWord.RECORDS] = records.ctypes.data
        control[at + TableWord.COUNT] = count
        control[at + TableWord.HITS] = self._hits.ctypes.data
        control[at + TableWord.DEFAULT] = count

    def collect_hits(self) -> None:
        """Move the counts of native code into the entries."""
        if not self._hits.any():
            return
        for number, entry in enumerate(self._entries):
            entry.packets += int(self._hits[2 * number])
            entry.bytes += int(self._hits[2 * number + 1])
        self._hits[:] = 0

    def _ordered(self) -> list[Entry]:
        """Return entries in the order in which native code tries them."""
        entries, kind = self._state.entries(), self._state.ir.match_kind
        if kind is MatchKind.EXACT:
            return list(entries)
        if kind is MatchKind.LPM:
            return sorted(entries, key=lambda entry: -_prefix_len(entry.match))
        return sorted(entries, key=lambda entry: (-entry.priority, entry.handle))

    def _exact_arrays(self) -> tuple[Words, Words]:
        total, size = sum(self._key_words), 2
        while size < 2 * len(self._entries):
            size *= 2
        keys, slots = words(total * len(self._entries)), words(size)
        for number, entry in enumerate(self._entries):
            parts = self._split([match[0] or 0 for match in entry.match])
            keys[number * total : (number + 1) * total] = parts
            slot = _hash(parts) & (size - 1)
            while slots[slot]:
                slot = (slot + 1) & (size - 1)
            slots[slot] = number + 1
        return keys, slots

    def _pairs(self) -> Words:
        """Return (value, mask) or (low, high) per word of the key, entry by entry."""
        total = 2 * sum(self._key_words)
        keys = words(total * len(self._entries))
        for number, entry in enumerate(self._entries):
            bits = [key.bits for key in self._state.ir.keys]
            pairs = [_pair(match, width) for match, width in zip(entry.match, bits, strict=True)]
            first, second = (self._split([pair[side] for pair in pairs]) for side in (0, 1))
            keys[number * total : (number + 1) * total : 2] = first
            keys[number * total + 1 : (number + 1) * total : 2] = second
        return keys

    def _split(self, values: Sequence[int]) -> list[int]:
        counted = zip(values, self._key_words, strict=True)
        return [value >> (64 * i) & _WORD for value, count in counted for i in range(count)]


def write_groups(multicast: MulticastStore, control: Words) -> list[Words]:
    """Put all multicast groups into arrays, and their addresses into the control block. Return the arrays to keep."""
    groups = multicast.groups()
    index, replicas = words(MAX_GROUPS), words(2 * sum(len(members) for members in groups.values()))
    at = 0
    for group, members in groups.items():
        index[group] = at << 32 | len(members)
        for replica in members:
            replicas[2 * at], replicas[2 * at + 1] = replica.port, replica.instance
            at += 1
    control[ControlWord.GROUPS], control[ControlWord.REPLICAS] = index.ctypes.data, replicas.ctypes.data
    control[ControlWord.MAX_COPIES] = max(1, *(len(members) for members in groups.values()), 1)
    return [index, replicas]


def _write_record(records: Words, at: int, call: ActionCall | None) -> None:
    if call is None:
        records[at] = NO_ACTION & _WORD
        return
    records[at] = call.action.id
    for place, value in zip(params(call.action), call.args, strict=True):
        put(records, at + RECORD_HEADER + place.offset, value, place.words)


def _hash(parts: Sequence[int]) -> int:
    value = 0
    for part in parts:
        value = (value ^ part) * HASH_FACTOR & _WORD
        value ^= value >> HASH_SHIFT
    return value


def _prefix_len(match: Sequence[Match]) -> int:
    return next(part.prefix_len for part in match if isinstance(part, Lpm))


def _pair(match: Match, bits: int) -> tuple[int, int]:
    if isinstance(match, Ternary | Range):
        return match[0], match[1]
    if isinstance(match, Lpm):
        return match.value, prefix_mask(bits, match.prefix_len)
    assert isinstance(match, Exact)
    return match.value, (1 << bits) - 1
