# SPDX-License-Identifier: Apache-2.0
"""The control plane's side of a switch: entries, groups and counters, by name.

A name is the one in the P4Info without the pipe ("Ingress.slot.admit"), or as much of its end as names one thing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hopsum_tna.errors import TnaError
from hopsum_tna.externs import CounterExtern
from hopsum_tna.switch import Switch
from hopsum_tna.tables import Bound, Key, Match, TnaTable

MatchValue = int | tuple[int, int]
"""The value of an exact match, value and mask of a ternary one, or value and prefix length in bits of an lpm one."""


class TnaControl:
    """The control plane of a switch: writes and reads of its state."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._state = switch.state

    def write(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str,
        params: Mapping[str, int] | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Insert an entry, or replace the one with the same key. Keys that are left out of `match` match anything.

        Raises TnaError when a name, a number of parameters or a value does not fit, or the table is full.
        """
        found = self.table(table)
        bound = self._bound(found, action, params or {})
        matches = _matches(found, match)
        length = sum(mask.bit_count() for (_, mask), key in zip(matches, found.keys, strict=True) if key.match == "lpm")
        found.change(matches, priority or length, bound)

    def delete(self, table: str, match: Mapping[str, MatchValue]) -> None:
        """Take an entry away. Raises TnaError when it is not there."""
        found = self.table(table)
        found.change(_matches(found, match), 0, None)

    def set_default(self, table: str, action: str, params: Mapping[str, int] | None = None) -> None:
        """Change the default action of a table."""
        found = self.table(table)
        found.set_default(self._bound(found, action, params or {}))

    def set_group(self, group: int, replicas: Iterable[tuple[int, int]]) -> None:
        """Make a multicast group of (port, rid) pairs. No pairs remove the group."""
        told = tuple(replicas)
        self._switch.groups.pop(group, None)
        if told:
            self._switch.groups[group] = told

    def counter(self, name: str) -> dict[int, int]:
        """Return packets by index, without cells of 0."""
        return dict(self._counter(name).packets)

    def counter_size(self, name: str) -> int:
        """Return how many cells a counter has."""
        return self._counter(name).size

    def table(self, name: str) -> TnaTable:
        """Return a table by its name. Raises TnaError when none or several have it."""
        return self._state.tables[_one(name, self._state.tables)]

    def has(self, table: str) -> bool:
        """Return whether the program has a table of this name."""
        return any(_ends(name, table) for name in self._state.tables)

    def _counter(self, name: str) -> CounterExtern:
        return self._state.counters[_one(name, self._state.counters)]

    def _bound(self, table: TnaTable, action: str, params: Mapping[str, int]) -> Bound:
        name = table.actions[_one(action, table.actions)]
        wanted = self._state.actions[name].params
        if sorted(params) != sorted(label for label, _, _ in wanted):
            raise TnaError(f"{action} of {table.name} takes {[label for label, _, _ in wanted]}, not {sorted(params)}")
        values = []
        for label, _, kind in wanted:
            low = -(1 << kind.width - 1) if kind.signed else 0
            if not low <= params[label] <= kind.mask:
                raise TnaError(f"{action} of {table.name}: {label} = {params[label]} does not fit {kind.width} bits")
            values.append(kind.wrap(params[label]))
        return Bound(name, tuple(values))


def _matches(table: TnaTable, match: Mapping[str, MatchValue]) -> list[Match]:
    names = [key.name for key in table.keys]
    told = {_one(name, names): value for name, value in match.items()}
    return [_match(table, key, told.get(key.name)) for key in table.keys]


def _match(table: TnaTable, key: Key, value: MatchValue | None) -> Match:
    if value is None:
        if key.match == "exact":
            raise TnaError(f"table {table.name}: no value for its exact key {key.name}")
        return 0, 0
    if isinstance(value, int):
        if not 0 <= value <= key.mask:
            raise TnaError(f"table {table.name}: {key.name} = {value} does not fit {key.mask.bit_length()} bits")
        return value, key.mask
    if key.match == "exact":
        raise TnaError(f"table {table.name}: {key.name} is exact, and takes no mask")
    width = key.mask.bit_length()
    mask = value[1] if key.match == "ternary" else key.mask >> (width - value[1]) << (width - value[1])
    return value[0] & mask, mask


def _one(name: str, names: Collection[str]) -> str:
    if name in names:
        return name
    found = [full for full in names if _ends(full, name)]
    if len(found) != 1:
        raise TnaError(f"{name} names {found or 'nothing'}: it should name one of {sorted(names)}")
    return found[0]


def _ends(full: str, name: str) -> bool:
    return full == name or full.endswith("." + name)
