# SPDX-License-Identifier: Apache-2.0
"""Objects that actions and parsers name: stacks, field lists, digests, counters, meters, registers, calculations."""

from __future__ import annotations

from dataclasses import dataclass

from .ir_expressions import DataExpr, FieldIR, HeaderIR
from .source import SourceInfo


@dataclass(frozen=True, slots=True)
class StackIR:
    """A header stack. `next` counts the elements in use. It is metadata that only the engine writes."""

    name: str
    headers: tuple[HeaderIR, ...]
    next: FieldIR


@dataclass(frozen=True, slots=True)
class UnionIR:
    """A header union: when a member becomes valid, the others become invalid."""

    name: str
    type_name: str
    headers: tuple[HeaderIR, ...]


@dataclass(frozen=True, slots=True)
class FieldListIR:
    """Metadata that is preserved for a packet that is copied or starts again. All other metadata is reset."""

    id: int
    fields: tuple[FieldIR, ...]


@dataclass(frozen=True, slots=True)
class DigestIR:
    """A digest: the members of one type of message for the controller, and their widths."""

    id: int
    name: str
    members: tuple[DataExpr, ...]
    bits: tuple[int, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class MeterIR:
    """Two-rate meters. A direct one has a table. A hit there stores the colour of the entry's meter in `target`."""

    name: str
    id: int
    size: int
    counts_bytes: bool
    table: str | None
    target: FieldIR | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class CounterIR:
    """A counter array. `table` is set for a direct counter, whose cells are that table's entries."""

    name: str
    id: int
    size: int
    table: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class RegisterIR:
    """A register array. Cells hold unsigned values of `bits` bits."""

    name: str
    id: int
    size: int
    bits: int
    source: SourceInfo | None


CellArray = CounterIR | MeterIR | RegisterIR
"""An array of cells. An index selects one cell."""
INDEX_OUT_OF_RANGE = "index_out_of_range"
"""The kind under which engines count an index outside such an array (`Engine.faults`)."""
INVALID_HEADER_READ = "invalid_header_read"
"""The kind under which an interpreter with an observer counts reads of fields of invalid headers (`Engine.faults`)."""


@dataclass(frozen=True, slots=True)
class CalculationInput:
    """One piece of a calculation's input: a field, a whole header, or a constant of `bits` bits."""

    field: FieldIR | None
    header: HeaderIR | None
    constant: int
    bits: int


@dataclass(frozen=True, slots=True)
class CalculationIR:
    """A checksum or hash over fields, skipping those of invalid headers."""

    name: str
    algorithm: str
    inputs: tuple[CalculationInput, ...]
    with_payload: bool
