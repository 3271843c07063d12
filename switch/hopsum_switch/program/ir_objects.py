# SPDX-License-Identifier: Apache-2.0
"""Objects that actions name: counters, registers, calculations."""

from __future__ import annotations

from dataclasses import dataclass

from .ir_expressions import FieldIR, HeaderIR
from .source import SourceInfo


@dataclass(frozen=True, slots=True)
class CounterIR:
    """A counter array; `table` is set for a direct counter, whose cells are that table's entries."""

    name: str
    id: int
    size: int
    table: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class RegisterIR:
    """A register array; cells hold unsigned values of `bits` bits."""

    name: str
    id: int
    size: int
    bits: int
    source: SourceInfo | None


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
