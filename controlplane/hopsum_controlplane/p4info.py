# SPDX-License-Identifier: Apache-2.0
"""Names to ids and widths, from a P4Info message at run time."""

from __future__ import annotations

import collections
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from google.protobuf import text_format

from hopsum_base.p4runtime import p4info_pb2
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.program import (
    BASE_TABLES,
    FURTHER_TABLES,
    HALF_WORD_CODES,
    HALF_WORD_KEYS,
    PAIRS,
    HalfWord,
    Program,
)
from hopsum_wire import CODE_GROUPS

_NEAREST = 3


class _Named(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


@dataclass(frozen=True)
class ProgramField:
    """A match key or an action parameter: `exact` and `ternary` are False for keys of any other match type."""

    id: int
    name: str
    bits: int
    exact: bool = True
    ternary: bool = False


@dataclass(frozen=True)
class Action:
    """An action with its parameters in order."""

    id: int
    name: str
    alias: str
    params: Names[ProgramField]


@dataclass(frozen=True)
class Table:
    """A table with its keys in order. `size` is the number of entries that it was compiled for.

    `entry_actions` are the ids of the actions that entries may have, without those of defaults alone.
    """

    id: int
    name: str
    alias: str
    keys: Names[ProgramField]
    size: int
    entry_actions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Counter:
    """An indexed counter of `size` cells."""

    id: int
    name: str
    alias: str
    size: int


class Names(Generic[_T]):
    """Objects of one kind, found by any of their names or by id. Iteration yields each object once, in their order.

    `in` asks for a name, and `len` counts the objects.
    """

    def __init__(self, kind: str, named: Iterable[tuple[_T, tuple[str, ...]]]) -> None:
        self._kind = kind
        self._by_id: dict[int, _T] = {}
        self._by_name: dict[str, _T] = {}
        for item, names in named:
            self._by_id[item.id] = item
            self._by_name.update(dict.fromkeys(names, item))

    def __getitem__(self, name: str) -> _T:
        """Return the object called `name`. Raises ControlPlaneError that lists the nearest names."""
        try:
            return self._by_name[name]
        except KeyError:
            nearest = difflib.get_close_matches(name, self._by_name, n=_NEAREST, cutoff=0.0)
            raise ControlPlaneError(
                f"the P4Info has no {self._kind} {name!r} among its {len(self._by_id)}",
                hint=f"nearest names: {', '.join(nearest) or 'none'}",
            ) from None

    def by_id(self, id_: int) -> _T:
        """Return the object with this id. Raises ControlPlaneError when there is none."""
        try:
            return self._by_id[id_]
        except KeyError:
            raise ControlPlaneError(
                f"the P4Info has no {self._kind} with id {id_:#010x}", hint="the switch runs another program"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[_T]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)


class P4Info:
    """Tables, actions and counters of one program by full name or alias, and the `message` that has them."""

    def __init__(self, message: p4info_pb2.P4Info) -> None:
        self.message = message
        self.actions = Names("action", [_action(item) for item in message.actions])
        self.tables = Names("table", [_table(item) for item in message.tables])
        self.counters = Names("counter", [_counter(item) for item in message.counters])

    @classmethod
    def from_text(cls, text: str) -> P4Info:
        """Parse the text form that p4c writes. Raises ControlPlaneError when it is none."""
        message = p4info_pb2.P4Info()
        try:
            # Compilers write fields of newer versions of P4Info than our bindings have.
            text_format.Parse(text, message, allow_unknown_field=True)
        except text_format.ParseError as error:
            raise ControlPlaneError(f"not a P4Info in text form: {error}", hint="compile it again") from error
        return cls(message)


def _fields(kind: str, fields: Iterable[ProgramField]) -> Names[ProgramField]:
    return Names(kind, [(field, (field.name,)) for field in fields])


def _key(item: p4info_pb2.MatchField) -> ProgramField:
    matches = item.match_type
    exact, ternary = matches == p4info_pb2.MatchField.EXACT, matches == p4info_pb2.MatchField.TERNARY
    return ProgramField(item.id, item.name, item.bitwidth, exact, ternary)


def _action(item: p4info_pb2.Action) -> tuple[Action, tuple[str, str]]:
    preamble = item.preamble
    fields = (ProgramField(param.id, param.name, param.bitwidth) for param in item.params)
    params = _fields(f"parameter of action {preamble.alias}", fields)
    action = Action(preamble.id, preamble.name, preamble.alias, params)
    return action, (action.name, action.alias)


def _table(item: p4info_pb2.Table) -> tuple[Table, tuple[str, str]]:
    preamble = item.preamble
    keys = _fields(f"key of table {preamble.alias}", map(_key, item.match_fields))
    actions = tuple(ref.id for ref in item.action_refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY)
    table = Table(preamble.id, preamble.name, preamble.alias, keys, item.size, actions)
    return table, (table.name, table.alias)


def _counter(item: p4info_pb2.Counter) -> tuple[Counter, tuple[str, str]]:
    preamble = item.preamble
    counter = Counter(preamble.id, preamble.name, preamble.alias, item.size)
    return counter, (counter.name, counter.alias)


def read_program(p4info: P4Info) -> Program:
    """Return the facts that builders and audits need of a program, from its P4Info.

    Raises ControlPlaneError for tables of half-words with several actions, or with a number of codes that is no group.
    """
    tables = (*BASE_TABLES, *(name for name in FURTHER_TABLES if name in p4info.tables))
    found = [table for table in p4info.tables if {key.name for key in table.keys} == set(HALF_WORD_KEYS)]
    if not found:
        return Program(tables)
    return Program(
        tables,
        tuple(HalfWord(table.alias, _only_action(p4info, table)) for table in found),
        _only_action(p4info, p4info.tables["lookup"]),
        _code_group(found),
        min(table.size for table in found) // PAIRS,
    )


def _only_action(p4info: P4Info, table: Table) -> str:
    """Return the one action that entries of a table may have."""
    if len(table.entry_actions) != 1:
        raise ControlPlaneError(
            f"table {table.alias} has entries with {len(table.entry_actions)} actions, not with one",
            hint="this control plane does not know the program",
        )
    return p4info.actions.by_id(table.entry_actions[0]).alias


def _code_group(half_words: list[Table]) -> int:
    """Return how many codes ingress and egress consume: each a contiguous piece of the payload, hence a group."""
    counted = collections.Counter(table.name.partition(".")[0] for table in half_words)
    sizes = {HALF_WORD_CODES * number for number in counted.values()}
    if len(sizes) > 1 or not sizes <= set(CODE_GROUPS):
        codes = ", ".join(f"{HALF_WORD_CODES * number} in {control}" for control, number in counted.items())
        raise ControlPlaneError(
            f"the program looks up {codes} codes a pass", hint=f"equal halves are needed, of one of {CODE_GROUPS}"
        )
    return sizes.pop()
