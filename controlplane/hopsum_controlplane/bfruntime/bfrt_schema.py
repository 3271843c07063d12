# SPDX-License-Identifier: Apache-2.0
"""The tables of a program and of the chip, from the JSON that a switch returns (the compiler's bfrt.json).

The numbers of tables, actions and fields of a P4 program are those of its P4Info. So the part that builders and audits
know is a P4Info message, made of the JSON: names, checks and widths are then those of the P4Runtime drivers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hopsum_base.p4runtime import p4info_pb2
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info

PIPE: Final = "pipe."
"""The prefix of the names of a program's tables. A name in P4Info has none."""
PRIORITY: Final = "$MATCH_PRIORITY"
COUNTER_INDEX: Final = "$COUNTER_INDEX"
PACKETS: Final = "$COUNTER_SPEC_PKTS"
_MATCH_TABLE, _COUNTER_TABLE = "MatchAction_Direct", "Counter"
_BITS: Final = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}


@dataclass(frozen=True)
class BfrtField:
    """A key field or a data field of a table. `kind` is its type in bfrt.json, `match` its match type as a key.

    `bits` is 0 for a field that is no number. `choices` are the texts that a field takes, empty for others.
    """

    id: int
    name: str
    kind: str
    bits: int
    match: str = ""
    repeated: bool = False
    choices: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the length in bytes of a value on the wire, 0 if the field is no number."""
        return (self.bits + 7) // 8


@dataclass(frozen=True)
class BfrtAction:
    """An action of a table, with its parameters by name."""

    id: int
    name: str
    fields: Mapping[str, BfrtField]
    default_only: bool = False


@dataclass(frozen=True)
class BfrtTable:
    """A table, a counter or a part of the chip: keys and data by name, actions by id."""

    id: int
    name: str
    kind: str
    size: int
    keys: Mapping[str, BfrtField]
    data: Mapping[str, BfrtField]
    actions: Mapping[int, BfrtAction] = field(default_factory=dict)


class BfrtSchema:
    """All tables of a switch."""

    def __init__(self, *documents: bytes) -> None:
        """Read the JSON of the program and of the chip. Raises ControlPlaneError when it is none."""
        self._tables: dict[str, BfrtTable] = {}
        for document in documents:
            try:
                for item in json.loads(document)["tables"]:
                    table = _table(item)
                    self._tables[table.name] = table
            except (ValueError, KeyError, TypeError) as error:
                hint = "see whether the switch runs a BF Runtime server of SDE 9"
                raise ControlPlaneError(f"the switch's bfrt.json cannot be read: {error!r}", hint=hint) from error

    def table(self, name: str) -> BfrtTable:
        """Return a table by its name. The names of the chip's tables may be without the chip ("tf1").

        Raises ControlPlaneError when there is none.
        """
        found = [self._tables[name]] if name in self._tables else []
        found += [table for full, table in self._tables.items() if not found and full.partition(".")[2] == name]
        if not found:
            hint = "see whether its SDE is one that the driver knows (docs/tofino.md)"
            raise ControlPlaneError(f"the switch has no table {name!r} among {len(self._tables)}", hint=hint)
        return found[0]

    def p4info(self) -> P4Info:
        """Make a new P4Info of the program's tables, actions and counters. The chip's own tables are left out."""
        message = p4info_pb2.P4Info()
        tables = [table for table in self._tables.values() if table.kind == _MATCH_TABLE]
        counters = [table for table in self._tables.values() if table.kind == _COUNTER_TABLE]
        actions = {action.id: action for table in tables for action in table.actions.values()}
        aliases = _aliases(table.name.removeprefix(PIPE) for table in (*tables, *counters))
        for table in tables:
            _add_table(message, table, aliases)
        action_aliases = _aliases(action.name for action in actions.values())
        for action in actions.values():
            added = message.actions.add()
            _name(added.preamble, action.id, action.name, action_aliases)
            for each in action.fields.values():
                added.params.add(id=each.id, name=each.name, bitwidth=each.bits)
        for counter in counters:
            counted = message.counters.add(size=counter.size)
            _name(counted.preamble, counter.id, counter.name.removeprefix(PIPE), aliases)
        return P4Info(message)


def _add_table(message: p4info_pb2.P4Info, table: BfrtTable, aliases: Mapping[str, str]) -> None:
    added = message.tables.add(size=table.size)
    _name(added.preamble, table.id, table.name.removeprefix(PIPE), aliases)
    kinds = {"Exact": p4info_pb2.MatchField.EXACT, "Ternary": p4info_pb2.MatchField.TERNARY}
    for key in table.keys.values():
        if key.name != PRIORITY:
            match = kinds.get(key.match, p4info_pb2.MatchField.UNSPECIFIED)
            added.match_fields.add(id=key.id, name=key.name, bitwidth=key.bits, match_type=match)
    for action in table.actions.values():
        scope = p4info_pb2.ActionRef.DEFAULT_ONLY if action.default_only else p4info_pb2.ActionRef.TABLE_AND_DEFAULT
        added.action_refs.add(id=action.id, scope=scope)


def _name(preamble: Any, id_: int, name: str, aliases: Mapping[str, str]) -> None:
    preamble.id, preamble.name, preamble.alias = id_, name, aliases[name]


def _aliases(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest end of each name that no other name has."""
    parts = {name: name.split(".") for name in names}
    ends: dict[str, int] = {}
    for split in parts.values():
        for at in range(len(split)):
            end = ".".join(split[at:])
            ends[end] = ends.get(end, 0) + 1
    return {
        name: next(
            (end for at in reversed(range(len(split))) if ends[end := ".".join(split[at:])] == 1),
            name,
        )
        for name, split in parts.items()
    }


def _table(item: Mapping[str, Any]) -> BfrtTable:
    actions = {}
    for spec in item.get("action_specs", ()):
        default_only = spec.get("action_scope") == "DefaultOnly"
        actions[spec["id"]] = BfrtAction(spec["id"], spec["name"], _fields(spec["data"]), default_only)
    keys, data = _fields(item["key"]), _fields(item.get("data", ()))
    return BfrtTable(item["id"], item["name"], item["table_type"], item.get("size", 0), keys, data, actions)


def _fields(items: Iterable[Mapping[str, Any]]) -> dict[str, BfrtField]:
    found = {}
    for outer in items:
        item = outer.get("singleton", outer)
        if "id" not in item or "type" not in item:
            # A choice between fields: the driver uses none.
            continue
        kind = item["type"]
        bits = _BITS.get(kind["type"], kind.get("width", 0) if kind["type"] == "bytes" else 0)
        match, repeated = item.get("match_type", ""), bool(item.get("repeated"))
        each = BfrtField(item["id"], item["name"], kind["type"], bits, match, repeated, tuple(kind.get("choices", ())))
        found[each.name] = each
    return found
