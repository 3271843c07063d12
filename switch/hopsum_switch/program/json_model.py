# SPDX-License-Identifier: Apache-2.0
"""The JSON that p4c writes for the v1model architecture, as typed objects.

A mirror: same structure, same names, nothing resolved. Source of the format: the behavioral-model project's
``docs/JSON_format.md``, version 2.x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .source import SourceInfo

if TYPE_CHECKING:  # they need the operands that are defined here
    from .json_objects import FieldListJson, HeaderStackJson, HeaderUnionJson, LearnListJson, MeterJson


@dataclass(frozen=True, slots=True)
class FieldOperand:
    """Operand of type ``field``."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class HexOperand:
    """Operand of type ``hexstr``. `bits` is the width of the written digits or the given bitwidth."""

    value: int
    bits: int


@dataclass(frozen=True, slots=True)
class BoolOperand:
    """Operand of type ``bool``."""

    value: bool


@dataclass(frozen=True, slots=True)
class NamedOperand:
    """A reference to a named object: `type` is header, register_array, counter_array, calculation..."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class LocalOperand:
    """types ``local`` and ``runtime_data``: an argument of the action."""

    index: int


@dataclass(frozen=True, slots=True)
class LookaheadOperand:
    """Operand of type ``lookahead``."""

    offset: int
    bits: int


@dataclass(frozen=True, slots=True)
class ExpressionOperand:
    """Operand of type ``expression`` with an operator."""

    op: str
    left: Operand | None
    right: Operand | None
    condition: Operand | None


@dataclass(frozen=True, slots=True)
class StackFieldOperand:
    """Operand of type ``stack_field``: a field of the element that was extracted last."""

    stack: str
    field: str


@dataclass(frozen=True, slots=True)
class StringOperand:
    """Operand of type ``string``."""

    value: str


@dataclass(frozen=True, slots=True)
class VectorOperand:
    """Operand of type ``parameters_vector``: several operands as one argument."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class OtherOperand:
    """An operand of a type that only exists here to be refused with its name."""

    type: str


Operand = (
    FieldOperand
    | HexOperand
    | BoolOperand
    | NamedOperand
    | LocalOperand
    | LookaheadOperand
    | ExpressionOperand
    | StackFieldOperand
    | StringOperand
    | VectorOperand
    | OtherOperand
)


@dataclass(frozen=True, slots=True)
class FieldJson:
    """A field of a header type. `bits` None is a variable-length field."""

    name: str
    bits: int | None
    signed: bool
    saturating: bool


@dataclass(frozen=True, slots=True)
class HeaderTypeJson:
    """Entry of ``header_types``."""

    name: str
    fields: tuple[FieldJson, ...]
    max_bytes: int  # of a header with a variable-length field


@dataclass(frozen=True, slots=True)
class HeaderJson:
    """Entry of ``headers``."""

    name: str
    id: int
    header_type: str
    metadata: bool
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class NamedJson:
    """An object of which only name and place matter, because it is refused."""

    name: str
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class PrimitiveJson:
    """One primitive call of an action or a parser state."""

    op: str
    parameters: tuple[Operand, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ParserOpJson:
    """One parser operation. `primitive` is set for op ``primitive``."""

    op: str
    parameters: tuple[Operand, ...]
    primitive: PrimitiveJson | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class TransitionJson:
    """One transition. Value and mask cover the padded key."""

    type: str
    value: int
    mask: int | None
    next_state: str | None


@dataclass(frozen=True, slots=True)
class ParseStateJson:
    """Entry of ``parse_states``."""

    name: str
    ops: tuple[ParserOpJson, ...]
    key: tuple[Operand, ...]
    transitions: tuple[TransitionJson, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ParserJson:
    """Entry of ``parsers``."""

    name: str
    init_state: str | None
    states: tuple[ParseStateJson, ...]


@dataclass(frozen=True, slots=True)
class DeparserJson:
    """Entry of ``deparsers``."""

    name: str
    order: tuple[str, ...]
    primitives: tuple[PrimitiveJson, ...]


@dataclass(frozen=True, slots=True)
class CounterJson:
    """Entry of ``counter_arrays``."""

    name: str
    id: int
    size: int
    binding: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class RegisterJson:
    """Entry of ``register_arrays``."""

    name: str
    id: int
    size: int
    bits: int
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class CalculationJson:
    """Entry of ``calculations``. `with_payload` stands for an input of type ``payload``."""

    name: str
    algo: str
    inputs: tuple[Operand, ...]
    with_payload: bool
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ChecksumJson:
    """Entry of ``checksums``."""

    name: str
    type: str
    target: FieldOperand
    calculation: str
    condition: Operand | None
    verify: bool
    update: bool
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class RuntimeDataJson:
    """One parameter of an action."""

    name: str
    bits: int


@dataclass(frozen=True, slots=True)
class ActionJson:
    """Entry of ``actions``."""

    name: str
    id: int
    runtime_data: tuple[RuntimeDataJson, ...]
    primitives: tuple[PrimitiveJson, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class KeyJson:
    """One key field of a table. `target` is a field, or a header for match type ``valid``."""

    match_type: str
    target: FieldOperand | NamedOperand | ExpressionOperand
    mask: int | None
    name: str


@dataclass(frozen=True, slots=True)
class MatchJson:
    """One match value of a constant entry: key with mask, prefix length, or end."""

    match_type: str
    key: int
    second: int


@dataclass(frozen=True, slots=True)
class EntryJson:
    """A constant entry. Here the smaller priority wins."""

    match: tuple[MatchJson, ...]
    action_id: int
    action_data: tuple[int, ...]
    priority: int
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class DefaultEntryJson:
    """The default action of a table."""

    action_id: int
    action_const: bool
    action_data: tuple[int, ...]
    action_entry_const: bool


@dataclass(frozen=True, slots=True)
class TableJson:
    """Entry of ``tables``. `entries` None: the control plane writes them."""

    name: str
    id: int
    type: str
    match_type: str
    max_size: int
    with_counters: bool
    direct_meters: str | None
    key: tuple[KeyJson, ...]
    action_ids: tuple[int, ...]
    next_tables: dict[str, str | None]
    base_default_next: str | None
    default_entry: DefaultEntryJson | None
    entries: tuple[EntryJson, ...] | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ConditionalJson:
    """Entry of ``conditionals``."""

    name: str
    expression: Operand
    true_next: str | None
    false_next: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ActionCallJson:
    """Entry of ``action_calls``."""

    name: str
    action_id: int
    next_node: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class PipelineJson:
    """Entry of ``pipelines``."""

    name: str
    init_table: str | None
    tables: tuple[TableJson, ...]
    conditionals: tuple[ConditionalJson, ...]
    action_calls: tuple[ActionCallJson, ...]
    action_profiles: tuple[NamedJson, ...]


@dataclass(frozen=True, slots=True)
class ProgramJson:
    """The whole file. `refused` lists (construct, object) for sections that are not run at all."""

    name: str
    version: tuple[int, int] | None
    header_types: tuple[HeaderTypeJson, ...]
    headers: tuple[HeaderJson, ...]
    stacks: tuple[HeaderStackJson, ...]
    unions: tuple[HeaderUnionJson, ...]
    field_lists: tuple[FieldListJson, ...]
    learn_lists: tuple[LearnListJson, ...]
    meters: tuple[MeterJson, ...]
    errors: dict[str, int]
    parsers: tuple[ParserJson, ...]
    deparsers: tuple[DeparserJson, ...]
    counters: tuple[CounterJson, ...]
    registers: tuple[RegisterJson, ...]
    calculations: tuple[CalculationJson, ...]
    checksums: tuple[ChecksumJson, ...]
    actions: tuple[ActionJson, ...]
    pipelines: tuple[PipelineJson, ...]
    field_aliases: dict[str, FieldOperand]
    refused: tuple[tuple[str, NamedJson], ...]
