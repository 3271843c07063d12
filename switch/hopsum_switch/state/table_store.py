# SPDX-License-Identifier: Apache-2.0
"""Table entries and default actions.

Priorities have P4Runtime's sense: they are positive, and the larger one wins. Among equal priorities the older entry
wins. Exact and lpm tables take priority 0 only. In lpm tables the longest prefix wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, OutOfSpaceError, ReadOnlyError
from ..program.ir import ActionCall, MatchKind, ProgramIR, TableIR
from .entry_lookup import Entry, Exact, Lookup, Lpm, Match, Range, Ternary, lookup_for, normalise

# P4Runtime has priorities as int32.
MAX_PRIORITY = 2**31 - 1


class TableState:
    """The entries and the default action of one table."""

    def __init__(self, ir: TableIR, changed: set[str] | None = None) -> None:
        """Start with the entries of the program. This and every change add the table's name to `changed`."""
        self.ir = ir
        self._changed = set() if changed is None else changed
        self._entries: dict[int, Entry] = {}
        self._lookup: Lookup = lookup_for(ir)
        self._next_handle = 1
        self.default: ActionCall | None = ir.default
        self._is_constant, self._max_size = ir.immutable, ir.max_size
        self._changed.add(ir.name)
        for const in ir.const_entries:
            match = tuple(_const_match(key.kind, pair) for key, pair in zip(ir.keys, const.values, strict=True))
            self._add(normalise(ir, match), const.call, const.priority, is_const=True)

    def make_writable(self, max_size: int) -> None:
        """Make the entries writable that the program gives the table, and let it hold at least `max_size` entries.

        P4Info says so. The JSON has initial and constant entries in one form, and their number as the table's size.
        """
        self._is_constant, self._max_size = False, max(max_size, self._max_size)

    def insert(self, match: Sequence[Match], action: str, params: Sequence[int], priority: int = 0) -> int:
        """Add an entry and return its handle.

        Raises: InvalidArgumentError (key, priority, action or parameters do not fit), AlreadyExistsError
        (same key and priority), OutOfSpaceError (table full), ReadOnlyError (entries are constant).
        """
        self._require_writable()
        key = normalise(self.ir, match)
        self._check_priority(priority)
        call = self._call(action, params)
        if self._lookup.find(key, priority) is not None:
            raise AlreadyExistsError(f"{self.ir.name}: an entry {key} with priority {priority} exists; modify it")
        if len(self._entries) >= self._max_size:
            raise OutOfSpaceError(f"{self.ir.name} is full ({self._max_size} entries); delete some first")
        return self._add(key, call, priority, is_const=False)

    def modify(self, handle: int, action: str, params: Sequence[int]) -> None:
        """Replace an entry's action. Its counter keeps counting.

        Raises: NotFoundError, InvalidArgumentError, ReadOnlyError.
        """
        self._require_writable()
        entry = self.entry(handle)
        # The match stays, so the lookup needs no change. Engines in machine code build their arrays anew.
        entry.call = self._call(action, params)
        self._changed.add(self.ir.name)

    def delete(self, handle: int) -> None:
        """Remove an entry. Raises: NotFoundError, ReadOnlyError."""
        self._require_writable()
        entry = self.entry(handle)
        self._lookup.remove(entry)
        del self._entries[handle]
        self._changed.add(self.ir.name)

    def find(self, match: Sequence[Match], priority: int = 0) -> int:
        """Return the handle of the entry with exactly this key and priority.

        Raises: NotFoundError, InvalidArgumentError.
        """
        key = normalise(self.ir, match)
        entry = self._lookup.find(key, priority)
        if entry is None:
            raise NotFoundError(f"{self.ir.name}: no entry {key} with priority {priority}")
        return entry.handle

    def entry(self, handle: int) -> Entry:
        """Return an entry itself, not a copy. Callers must not change it. Raises: NotFoundError."""
        try:
            return self._entries[handle]
        except KeyError:
            raise NotFoundError(f"{self.ir.name}: no entry with handle {handle}") from None

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries themselves, not copies, oldest first."""
        return tuple(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, key: tuple[int, ...]) -> Entry | None:
        """Return the entry that key values (one per key field, in range) hit, or None."""
        return self._lookup.match(key)

    def get_default(self) -> ActionCall | None:
        """Return the present action of a miss, or None where there is none."""
        return self.default

    def set_default(self, action: str, params: Sequence[int]) -> None:
        """Replace the default action. Raises: InvalidArgumentError, ReadOnlyError."""
        call = self._call(action, params)
        current = self.ir.default
        if current is not None and (self.ir.const_default_action or self.ir.const_default_entry):
            same = call.action.name == current.action.name
            if not same or (self.ir.const_default_entry and call.args != current.args):
                raise ReadOnlyError(f"{self.ir.name}: the default action is constant ({current.action.name})")
        self.default = call
        self._changed.add(self.ir.name)

    def reset_default(self) -> None:
        """Replace the default action by the one that the program declares, or by None where it declares none."""
        self.default = self.ir.default
        self._changed.add(self.ir.name)

    def _add(self, key: tuple[Match, ...], call: ActionCall, priority: int, is_const: bool) -> int:
        # Handles of deleted entries are not used again: a stale one finds nothing.
        handle = self._next_handle
        self._next_handle += 1
        entry = Entry(handle, key, call, priority, is_const)
        self._entries[handle] = entry
        self._lookup.add(entry)
        self._changed.add(self.ir.name)
        return handle

    def _call(self, action: str, params: Sequence[int]) -> ActionCall:
        ir = self.ir.actions.get(action)
        if ir is None:
            allowed = ", ".join(sorted(self.ir.actions))
            raise InvalidArgumentError(f"{self.ir.name}: action {action!r} is not one of: {allowed}")
        if len(params) != len(ir.params):
            raise InvalidArgumentError(f"{action}: {len(params)} parameters given, {len(ir.params)} needed")
        for param, value in zip(ir.params, params, strict=True):
            if not 0 <= value < 1 << param.bits:
                raise InvalidArgumentError(f"{action}.{param.name}: {value} is not a value of {param.bits} bits")
        return ActionCall(ir, tuple(params))

    def _check_priority(self, priority: int) -> None:
        if self.ir.needs_priority and not 0 < priority <= MAX_PRIORITY:
            raise InvalidArgumentError(f"{self.ir.name}: priority {priority} is outside 1..{MAX_PRIORITY}")
        if not self.ir.needs_priority and priority != 0:
            raise InvalidArgumentError(
                f"{self.ir.name}: a {self.ir.match_kind.value} table takes no priority, but {priority} is given"
            )

    def _require_writable(self) -> None:
        if not self.ir.keys:
            raise InvalidArgumentError(f"{self.ir.name} has no key: set its default action instead")
        if self._is_constant:
            raise ReadOnlyError(f"{self.ir.name}: the entries are constant in the program")


class TableStore(Mapping[str, TableState]):
    """All tables of a program, by fully qualified name."""

    def __init__(self, program: ProgramIR) -> None:
        self._changed: set[str] = set()
        self._tables = {name: TableState(ir, self._changed) for name, ir in program.tables.items()}

    def __getitem__(self, name: str) -> TableState:
        """Return a table. Raises: NotFoundError."""
        try:
            return self._tables[name]
        except KeyError:
            raise NotFoundError(f"the program has no table {name!r}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def pop_changed(self) -> list[str]:
        """Return and forget the names of the tables that changed since the last call. The first call returns all."""
        changed = list(self._changed)
        self._changed.clear()
        return changed


def _const_match(kind: MatchKind, pair: tuple[int, int]) -> Match:
    first, second = pair
    if kind is MatchKind.EXACT:
        return Exact(first)
    if kind is MatchKind.LPM:
        return Lpm(first, second)
    return Ternary(first, second) if kind is MatchKind.TERNARY else Range(first, second)
