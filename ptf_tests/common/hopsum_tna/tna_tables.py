# SPDX-License-Identifier: Apache-2.0
"""Tables: keys, entries of the program and of the control plane, and the match of a packet.

Entries of the program keep its order and are the only entries of their table. Other entries have a priority. The larger
priority wins, as in P4Runtime. The longer prefix (lpm) wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopsum_tna.dump import TnaError
from hopsum_tna.record_layout import Fields
from hopsum_tna.tna_expressions import Value, number_of

Match = tuple[int, int]
"""Value and mask."""


@dataclass
class BoundAction:
    """An action with its control-plane parameters."""

    action: str
    params: tuple[int, ...] = ()


@dataclass(frozen=True)
class Key:
    """One key of a table, by its name in the control plane."""

    name: str
    value: Value
    match: str

    @property
    def mask(self) -> int:
        """A number of as many one bits as the key is wide."""
        return number_of(self.value).mask


@dataclass
class TnaTable:
    """One match-action table of a program, with its entries and its default action."""

    name: str
    keys: tuple[Key, ...]
    actions: Mapping[str, str]
    """The actions' names in the program, by their names in the control plane."""
    default: BoundAction
    size: int
    constant: bool = False
    exact: dict[tuple[int, ...], BoundAction] = field(default_factory=dict)
    masked: dict[tuple[Match, ...], tuple[int, BoundAction]] = field(default_factory=dict)
    """The masked entries with their ranks. The largest rank wins. Of several entries with that rank the first wins."""
    _found: dict[tuple[int, ...], tuple[bool, BoundAction]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reads = tuple(key.value.read for key in self.keys)
        self._signed = any(number_of(key.value).signed for key in self.keys)
        self._masks = tuple(key.mask for key in self.keys)
        self.only_exact = all(key.match == "exact" for key in self.keys)

    def look_up(self, fields: Fields) -> tuple[bool, BoundAction]:
        """Return True and the action of the entry that fits the packet, or False and the default action."""
        key = tuple([read(fields) for read in self._reads])
        if self._signed:
            key = tuple(value & mask for value, mask in zip(key, self._masks, strict=True))
        # A search over masked entries is slow, and most packets of a test have a key that was seen before.
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._search(key)
        return found

    def set_entry(self, matches: Sequence[Match], rank: int, bound: BoundAction | None) -> None:
        """Write an entry, in place of one with the same key. None removes the entry.

        Raises TnaError when the table is the program's own or full, or an entry to be removed does not exist.
        """
        if self.constant:
            raise TnaError(f"table {self.name} has the program's own entries")
        key = tuple(value for value, _ in matches)
        there: bool = key in self.exact if self.only_exact else tuple(matches) in self.masked
        if bound is None and not there:
            raise TnaError(f"table {self.name} has no entry {matches}")
        if bound is not None and not there and len(self.exact) + len(self.masked) >= self.size:
            raise TnaError(f"table {self.name} is full: {self.size} entries")
        self._put(key, tuple(matches), rank, bound)

    def add_constant_entry(self, matches: Sequence[Match], rank: int, bound: BoundAction) -> None:
        """Add an entry of the program, whose rank goes down from entry to entry. A second one for a key is left out."""
        if tuple(matches) not in self.masked:
            self._put(tuple(value for value, _ in matches), tuple(matches), rank, bound)

    def set_default(self, bound: BoundAction) -> None:
        """Change the default action of the table."""
        self.default = bound
        self._found.clear()

    def _put(self, key: tuple[int, ...], matches: tuple[Match, ...], rank: int, bound: BoundAction | None) -> None:
        # Any change may give another answer to any key.
        self._found.clear()
        if self.only_exact:
            self.exact.pop(key, None)
            if bound is not None:
                self.exact[key] = bound
            return
        self.masked.pop(matches, None)
        if bound is not None:
            self.masked[matches] = (rank, bound)

    def _search(self, key: tuple[int, ...]) -> tuple[bool, BoundAction]:
        if self.only_exact:
            bound = self.exact.get(key)
            return (True, bound) if bound is not None else (False, self.default)
        best: tuple[int, BoundAction] | None = None
        for matches, entry in self.masked.items():
            fits = all(value == part & mask for part, (value, mask) in zip(key, matches, strict=True))
            if fits and (best is None or entry[0] > best[0]):
                best = entry
        return (True, best[1]) if best is not None else (False, self.default)
