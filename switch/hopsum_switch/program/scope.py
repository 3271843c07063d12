# SPDX-License-Identifier: Apache-2.0
"""Names in reach while a program is resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import ProgramError
from .ir_actions import ActionIR, ParamIR
from .ir_expressions import FieldIR, HeaderIR
from .ir_objects import CalculationIR, CounterIR, DigestIR, FieldListIR, MeterIR, RegisterIR, StackIR, UnionIR
from .p4c_json import FieldOperand
from .source import SourceInfo, at

VALIDITY_FIELD = "$valid$"

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class ProgramScope:
    """All declarations so far. They are added in the order headers, state, actions, tables."""

    headers: dict[str, HeaderIR] = field(default_factory=dict)
    fields: dict[tuple[str, str], FieldIR] = field(default_factory=dict)
    standard: dict[str, FieldIR] = field(default_factory=dict)
    stacks: dict[str, StackIR] = field(default_factory=dict)
    unions: dict[str, UnionIR] = field(default_factory=dict)
    field_lists: dict[int, FieldListIR] = field(default_factory=dict)
    digests: dict[int, DigestIR] = field(default_factory=dict)
    meters: dict[str, MeterIR] = field(default_factory=dict)
    counters: dict[str, CounterIR] = field(default_factory=dict)
    registers: dict[str, RegisterIR] = field(default_factory=dict)
    calculations: dict[str, CalculationIR] = field(default_factory=dict)
    actions_by_id: dict[int, ActionIR] = field(default_factory=dict)

    def header(self, name: str, source: SourceInfo | None) -> HeaderIR:
        """Return a header instance. Raises: ProgramError."""
        return _found(self.headers, name, "header", source)

    def field(self, operand: FieldOperand, source: SourceInfo | None) -> FieldIR:
        """Return a field. Validity is not a field. Raises: ProgramError."""
        return _found(self.fields, (operand.header, operand.field), "field", source)

    def stack(self, name: str, source: SourceInfo | None) -> StackIR:
        """Return a header stack. Raises: ProgramError."""
        return _found(self.stacks, name, "header stack", source)

    def union(self, name: str, source: SourceInfo | None) -> UnionIR:
        """Return a header union. Raises: ProgramError."""
        return _found(self.unions, name, "header union", source)

    def field_list(self, number: int, source: SourceInfo | None) -> FieldListIR:
        """Return a field list by its number. Raises: ProgramError."""
        return _found(self.field_lists, number, "field list", source)

    def digest(self, number: int, source: SourceInfo | None) -> DigestIR:
        """Return a digest by its number. Raises: ProgramError."""
        return _found(self.digests, number, "learn list", source)

    def meter(self, name: str, source: SourceInfo | None) -> MeterIR:
        """Return a meter array. Raises: ProgramError."""
        return _found(self.meters, name, "meter", source)

    def counter(self, name: str, source: SourceInfo | None) -> CounterIR:
        """Return a counter. Raises: ProgramError."""
        return _found(self.counters, name, "counter", source)

    def register(self, name: str, source: SourceInfo | None) -> RegisterIR:
        """Return a register array. Raises: ProgramError."""
        return _found(self.registers, name, "register", source)

    def calculation(self, name: str, source: SourceInfo | None) -> CalculationIR:
        """Return a calculation. Raises: ProgramError."""
        return _found(self.calculations, name, "calculation", source)

    def action(self, action_id: int, source: SourceInfo | None) -> ActionIR:
        """Return an action by its number. Raises: ProgramError."""
        return _found(self.actions_by_id, action_id, "action", source)


@dataclass(frozen=True)
class ExpressionContext:
    """The context of an expression: the names that it may use besides the scope, and the place for errors."""

    scope: ProgramScope
    params: tuple[ParamIR, ...]
    source: SourceInfo | None


def _found(table: dict[K, V], key: K, kind: str, source: SourceInfo | None) -> V:
    try:
        return table[key]
    except KeyError:
        raise ProgramError(f"unknown {kind} {key!r}{at(source)}; compile the program again") from None
