# SPDX-License-Identifier: Apache-2.0
"""Entries on a switch, and changes to them, as plain values: names and ints, no ids and no protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_SHOWN_HEX_BITS = 64
_SHOWN_WIDE = 2


def _show(values: Mapping[str, int]) -> str:
    wide = [value.bit_length() for value in values.values() if value.bit_length() > _SHOWN_HEX_BITS]
    # The coefficients of a lookup table say nothing to a reader, and would fill a job's line in every list.
    if len(wide) > _SHOWN_WIDE:
        return f"{len(values)} values of up to {max(wide)} bits"
    return ", ".join(f"{name}={_show_value(value)}" for name, value in values.items())


def _show_value(value: int) -> str:
    if value.bit_length() > _SHOWN_HEX_BITS:
        return f"<{value.bit_length()} bits>"
    return str(value)


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table: `match` by key name, `params` by parameter name.

    Every key is matched exactly. A ternary key has a mask of all ones, so that no two entries match one packet.
    """

    table: str
    match: Mapping[str, int]
    action: str
    params: Mapping[str, int] = field(default_factory=dict)

    def key(self) -> tuple[object, ...]:
        """Return the key by which a switch tells entries apart: table and match."""
        return ("table", self.table, tuple(sorted(self.match.items())))

    def __str__(self) -> str:
        """Return `table[key=value] -> action(parameter=value)`."""
        return f"{self.table}[{_show(self.match)}] -> {self.action}({_show(self.params)})"


@dataclass(frozen=True)
class DefaultAction:
    """A table's default action, for packets that no entry matches. P4Runtime allows MODIFY only."""

    table: str
    action: str
    params: Mapping[str, int] = field(default_factory=dict)

    def key(self) -> tuple[object, ...]:
        """Return the key by which a switch tells entries apart: a table has one default action."""
        return ("default", self.table)

    def __str__(self) -> str:
        """Return `table[default] -> action(parameter=value)`."""
        return f"{self.table}[default] -> {self.action}({_show(self.params)})"


class Replica(NamedTuple):
    """One copy of a multicast packet: the egress port and the number that egress processing sees."""

    port: int
    instance: int


def replica_order(replica: Replica) -> tuple[int, int]:
    """Return the sort key of a replica: instance, then port. Devices return the replicas of a group in this order."""
    return replica.instance, replica.port


@dataclass(frozen=True)
class MulticastGroup:
    """A multicast group: one copy for every replica, in replica_order. Group 0 does not exist."""

    id: int
    replicas: tuple[Replica, ...] = ()

    def key(self) -> tuple[object, ...]:
        """Return the key by which a switch tells groups apart."""
        return ("group", self.id)

    def __str__(self) -> str:
        """Return `multicast group N of port/instance, ...`."""
        return f"multicast group {self.id} of " + ", ".join(f"{r.port}/{r.instance}" for r in self.replicas)


Entity = TableEntry | DefaultAction | MulticastGroup


@dataclass(frozen=True)
class _Change:
    """A change of one entity on a switch."""

    entity: Entity

    def __str__(self) -> str:
        """Return the change in words, such as "insert ENTITY"."""
        return f"{type(self).__name__.lower()} {self.entity}"


class Insert(_Change):
    """The addition of an entity that is not on the switch."""


class Modify(_Change):
    """The replacement of an entity that is on the switch."""


class Delete(_Change):
    """The removal of an entity that is on the switch."""


Update = Insert | Modify | Delete


class CounterValue(NamedTuple):
    """One cell of a counter. A unit that the program does not count is 0."""

    packets: int
    bytes: int
