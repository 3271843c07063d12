# SPDX-License-Identifier: Apache-2.0
"""Entries of the model's tables as commands of its harness, each with a place that the adapter chose.

The harness puts an exact entry into the first way that has room and moves none, so that a table which is nearly full
refuses entries. Here an entry in the way moves to another way. The harness has no command that takes an entry away.

- A ternary entry becomes one for a key that no packet has.
- The version of an exact entry becomes 0, in pipe 0 alone: the harness writes no other memory. The other pipes keep the
  entry until another one gets its place. A key that comes again gets the place that it had, so that no pipe has it
  twice. What is gone in pipe 0 does no harm in other pipes: pipe 0, where frames enter, drops those that it matched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hopsum_model.chip_context import ContextTable, Json, Slot, find_table
from hopsum_model.chips import ModelError

Key = tuple[tuple[str, int], ...]
_MOST_MOVES: Final = 5000


class _Exact:
    """The places of an exact table's entries. An entry in the way of a new one moves."""

    def __init__(self, table: ContextTable) -> None:
        self._table = table
        self._at: dict[Slot, Key] = {}
        self._of: dict[Key, Slot] = {}
        self._commands: dict[Key, str] = {}
        self._last: dict[Key, Slot] = {}
        self._turn = 0

    def add(self, key: Key, text: str) -> Iterator[str]:
        """Yield commands that add an entry. `text` is the entry without its place."""
        waiting = [(key, text)]
        for _ in range(_MOST_MOVES):
            if not waiting:
                return
            moved, command = waiting.pop()
            slots = list(self._table.slots(dict(moved)))
            free = [each for each in slots if each not in self._at]
            slot = self._last[moved] if self._last.get(moved) in free else next(iter(free), None)
            if slot is None:
                # Another slot each time: an entry that always took the same place could push one other entry back and
                # forth for ever.
                self._turn += 1
                slot = slots[self._turn % len(slots)]
                waiting.append((self._at[slot], self._commands[self._at[slot]]))
                yield from self.clear(self._at[slot])
            self._at[slot], self._of[moved], self._commands[moved] = moved, slot, command
            self._last[moved] = slot
            yield command.format(address=slot.address)
        raise ModelError(f"{self._table.name}: no room for an entry, {len(self._of)} are there")

    def clear(self, key: Key) -> Iterator[str]:
        """Yield commands that take an entry away."""
        slot = self._of.pop(key)
        del self._at[slot], self._commands[key]
        word, low, width = self._table.stage(slot.stage).version_bits(slot.entry)
        if low == 0:
            raise ModelError(f"{self._table.name}: a version at bit 0, where the harness writes wrong bits")
        yield f"write_raw_sram {slot.stage}:{slot.units[word]}:{slot.row} 0 & {(1 << width) - 1:x} << {low}"


class _Ternary:
    """The rows of a ternary table's entries. No two entries match one packet: any row is right."""

    def __init__(self, table: ContextTable, never: Mapping[str, int]) -> None:
        self._table = table
        self._never = {name: value for name, value in table.shift_keys(never).items() if name in table.low_bits}
        # popitem takes the row that was put in last, so rows are used from 0 on.
        self._free = dict.fromkeys(reversed(range(table.tcam_rows())))
        self._of: dict[Key, tuple[int, str]] = {}

    def add(self, key: Key, text: str) -> Iterator[str]:
        """Yield the command that adds an entry. `text` is the entry without its place."""
        if not self._free:
            raise ModelError(f"{self._table.name}: no room for an entry, {len(self._of)} are there")
        address, _ = self._free.popitem()
        self._of[key] = address, text
        yield text.format(address=address)

    def clear(self, key: Key) -> Iterator[str]:
        """Yield the command that makes an entry one that matches no packet."""
        if not self._never:
            raise ModelError(f"{self._table.name}: no key has a value that no packet has, so no entry can go")
        address, text = self._of.pop(key)
        self._free[address] = None
        for name, value in key:
            text = text.replace(f" {name}:{value:#x}", f" {name}:{self._never.get(name, value):#x}")
        yield text.format(address=address)


class ModelTables:
    """All tables of one program that have been written. `never` has, by key, a value that no packet has."""

    def __init__(self, context: Json, never: Mapping[str, int]) -> None:
        self._context = context
        self._never = never
        self._tables: dict[str, tuple[ContextTable, _Exact | _Ternary]] = {}

    def add(self, table: str, match: Mapping[str, int], action: str, params: Mapping[str, int]) -> list[str]:
        """Note a new entry, and return the commands that add it, which may move others. Raises ModelError: no room."""
        told, entries = self._table(table)
        shifted = told.shift_keys(match)
        keys = " ".join(f"{name}:{value:#x}" for name, value in shifted.items())
        values = ", ".join(f"{name}:{value:#x}" for name, value in params.items())
        return list(entries.add(_key(shifted), f"add {told.name} {{address}} {keys} {action}({values})"))

    def delete(self, table: str, match: Mapping[str, int]) -> list[str]:
        """Forget an entry, and return the commands that take it away.

        Raises KeyError when there is no such entry, and ModelError when the harness cannot take it away.
        """
        told, entries = self._table(table)
        return list(entries.clear(_key(told.shift_keys(match))))

    def _table(self, name: str) -> tuple[ContextTable, _Exact | _Ternary]:
        if name not in self._tables:
            told = ContextTable(find_table(self._context, name))
            self._tables[name] = told, _Exact(told) if told.exact else _Ternary(told, self._never)
        return self._tables[name]


def _key(match: Mapping[str, int]) -> Key:
    return tuple(sorted(match.items()))
