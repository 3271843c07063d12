# SPDX-License-Identifier: Apache-2.0
"""The program as the engine runs it: every name resolved, every width known, expressions as typed trees.

Two consumers read it: the reference interpreter and the native code generator. Nothing here refers to the
JSON it came from. Objects are immutable and refer to each other directly (a field reference holds its
`FieldIR`, a table its `ActionIR`s). Only control-flow successors are names, since they may form any graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .ir_actions import ActionIR
from .ir_expressions import BoolExpr, DataExpr, FieldIR, HeaderIR
from .ir_objects import CalculationIR, CounterIR, DigestIR, MeterIR, RegisterIR, StackIR, UnionIR
from .ir_parser import ParserIR
from .source import SourceInfo


class MatchKind(Enum):
    """The match kind of one key field."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class KeyIR:
    """One key field of a table. `mask` is ANDed to the field before matching."""

    name: str
    kind: MatchKind
    target: DataExpr
    bits: int
    header: HeaderIR | None  # the key reads 0 while this header is invalid; None: always readable
    mask: int | None


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with its arguments, in the order of its parameters."""

    action: ActionIR
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConstEntryIR:
    """An entry of the P4 source, with one (value, mask or prefix length or high bound) pair per key."""

    values: tuple[tuple[int, int], ...]
    call: ActionCall
    priority: int  # P4Runtime's sense: larger wins; 0 in exact and lpm tables


@dataclass(frozen=True, slots=True)
class TableIR:
    """A match-action table and where control goes after it.

    Successors: after a hit `on_hit` if `branches_on_hit`, else `by_action[action id]`. After a miss
    `on_miss` if `branches_on_miss`, else `by_action` of the default action, else `base_next`.
    """

    name: str
    id: int
    match_kind: MatchKind  # of the whole table: the strongest of its keys
    keys: tuple[KeyIR, ...]
    max_size: int
    actions: Mapping[str, ActionIR]
    default: ActionCall | None
    const_default_action: bool  # the control plane may not choose another default action
    const_default_entry: bool  # ... nor other arguments
    const_entries: tuple[ConstEntryIR, ...]
    immutable: bool  # entries are in the source; the control plane may not write any
    with_counters: bool
    direct_counter: str | None
    direct_meter: MeterIR | None
    by_action: Mapping[int, str | None]
    branches_on_hit: bool
    on_hit: str | None
    branches_on_miss: bool
    on_miss: str | None
    base_next: str | None
    source: SourceInfo | None

    @property
    def needs_priority(self) -> bool:
        """Flag: entries have a priority (ternary and range tables)."""
        return self.match_kind in (MatchKind.TERNARY, MatchKind.RANGE)


@dataclass(frozen=True, slots=True)
class ConditionalIR:
    """An `if` between tables."""

    name: str
    condition: BoolExpr
    on_true: str | None
    on_false: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ActionNodeIR:
    """An action called from a control without a table."""

    name: str
    action: ActionIR
    next: str | None
    source: SourceInfo | None


NodeIR = TableIR | ConditionalIR | ActionNodeIR


@dataclass(frozen=True, slots=True)
class PipelineIR:
    """One control (ingress or egress): a graph of nodes. `init` None is an empty control."""

    name: str
    init: str | None
    nodes: Mapping[str, NodeIR]


@dataclass(frozen=True, slots=True)
class ChecksumIR:
    """A checksum field that the parser verifies, the deparser updates, or both."""

    name: str
    target: FieldIR
    header: HeaderIR
    calculation: CalculationIR
    condition: BoolExpr | None
    verify: bool
    update: bool


@dataclass(frozen=True, slots=True)
class DeparserIR:
    """Headers in the order in which the valid ones are emitted."""

    order: tuple[HeaderIR, ...]


@dataclass(frozen=True, slots=True)
class ProgramIR:
    """A loaded and verified program. Mappings are by fully qualified P4 name.

    `actions` holds one of the possibly several copies the compiler made of an action. Look an action of a
    table up in `TableIR.actions`. `standard` maps the architecture's names of metadata fields
    (``standard_metadata.egress_spec``, ``intrinsic_metadata.mcast_grp``...) to the program's fields.
    """

    name: str
    digest: str  # SHA-256 of the JSON text, in hex
    headers: Mapping[str, HeaderIR]
    fields: tuple[FieldIR, ...]  # by slot
    errors: Mapping[str, int]
    parser: ParserIR
    ingress: PipelineIR
    egress: PipelineIR
    deparser: DeparserIR
    tables: Mapping[str, TableIR]
    actions: Mapping[str, ActionIR]
    stacks: Mapping[str, StackIR]
    unions: Mapping[str, UnionIR]
    counters: Mapping[str, CounterIR]
    digests: Mapping[str, DigestIR]
    meters: Mapping[str, MeterIR]
    registers: Mapping[str, RegisterIR]
    calculations: Mapping[str, CalculationIR]
    checksums: tuple[ChecksumIR, ...]
    standard: Mapping[str, FieldIR]

    def siblings(self, header: HeaderIR) -> tuple[HeaderIR, ...]:
        """Return the headers that become invalid when a header becomes valid."""
        for union in self.unions.values():
            if any(member.name == header.name for member in union.headers):
                return tuple(member for member in union.headers if member.name != header.name)
        return ()

    def field(self, header: str, name: str) -> FieldIR:
        """Return a field by header instance and member name.

        Raises: KeyError.
        """
        for candidate in self.headers[header].fields:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{header}.{name}")
