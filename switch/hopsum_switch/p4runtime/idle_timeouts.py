# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts of table entries: which entries no packet has hit for their time. The gate guards it.

An entry is idle when its count of packets has not changed for its timeout. `sweep` looks at the counts, so a hit is
known at the next sweep only. A write of the entry's direct counter counts as a hit. An entry is reported once and again
when it has been hit and is idle again, as on bmv2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from hopsum_switch.state.table_store import TableStore

Name: TypeAlias = tuple[str, int]
"""An entry's table and handle."""
_LONGEST_S, _SHORTEST_S = 1.0, 0.05
_SWEEPS: Final = 4
"""In the shortest timeout."""


@dataclass(slots=True)
class _Tracked:
    timeout_ns: int
    packets: int
    hit_at_ns: int
    is_told: bool = False


class IdleTimeouts:
    """The entries of tables with `support_timeout` that a client has written. A timeout of 0 is none."""

    def __init__(self, tables: TableStore) -> None:
        self._tables = tables
        self._tracked: dict[Name, _Tracked] = {}

    def start(self, table: str, handle: int, timeout_ns: int, now_ns: int) -> None:
        """Track an entry that a client has written. Its timeout (0: none) runs from `now_ns`. Raises: NotFoundError."""
        self._tracked[table, handle] = _Tracked(timeout_ns, self._packets(table, handle), now_ns)

    def forget(self, table: str, handle: int) -> None:
        """End the tracking of an entry that is deleted. An entry that is not tracked is ignored."""
        self._tracked.pop((table, handle), None)

    def timeout_ns(self, table: str, handle: int) -> int:
        """Return the timeout of an entry, 0 for none."""
        tracked = self._tracked.get((table, handle))
        return 0 if tracked is None else tracked.timeout_ns

    def since_hit_ns(self, table: str, handle: int, now_ns: int) -> int | None:
        """Look at an entry's count, and return the ns since its last hit or write, or None if it is not tracked."""
        tracked = self._tracked.get((table, handle))
        if tracked is None:
            return None
        self._look((table, handle), tracked, now_ns)
        return now_ns - tracked.hit_at_ns

    def sweep(self, now_ns: int) -> list[Name]:
        """Look at all counts. Return the idle entries of which the client was not notified (`mark_notified`)."""
        for name, tracked in self._tracked.items():
            self._look(name, tracked, now_ns)
        return [
            name
            for name, each in self._tracked.items()
            if each.timeout_ns and not each.is_told and now_ns - each.hit_at_ns >= each.timeout_ns
        ]

    def mark_notified(self, names: list[Name]) -> None:
        """Record that the client was notified of entries: `sweep` omits them until they are hit again.

        Raises KeyError for an entry that is not tracked.
        """
        for name in names:
            self._tracked[name].is_told = True

    def period_s(self) -> float | None:
        """Return the time between two sweeps, or None where no entry has a timeout."""
        shortest_ns = min(self._timeouts(), default=None)
        if shortest_ns is None:
            return None
        return min(_LONGEST_S, max(_SHORTEST_S, shortest_ns / 1e9 / _SWEEPS))

    def _timeouts(self) -> Iterator[int]:
        return (each.timeout_ns for each in self._tracked.values() if each.timeout_ns)

    def _look(self, name: Name, tracked: _Tracked, now_ns: int) -> None:
        packets = self._packets(*name)
        if packets != tracked.packets:
            tracked.packets, tracked.hit_at_ns, tracked.is_told = packets, now_ns, False

    def _packets(self, table: str, handle: int) -> int:
        return self._tables[table].entry(handle).packets
