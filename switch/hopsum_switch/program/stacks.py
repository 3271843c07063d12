# SPDX-License-Identifier: Apache-2.0
"""Reads of header stacks as expressions: an element that is not there reads 0."""

from __future__ import annotations

from ..errors import ProgramError
from .int_types import const_type, field_type
from .ir_expressions import Binary, BinaryOp, Compare, CompareOp, Const, DataExpr, FieldRef, IntType, Select
from .ir_objects import StackIR
from .source import SourceInfo, at

INDEX_BITS = 32


def count(stack: StackIR) -> DataExpr:
    """Return the number of elements in use."""
    return FieldRef(stack.next, field_type(stack.next))


def last_index(stack: StackIR) -> DataExpr:
    """Return the number of the last element in use, or 2**32 - 1 if none is."""
    before = Binary(BinaryOp.ADD, count(stack), _const((1 << INDEX_BITS) - 1), IntType(INDEX_BITS + 1, False))
    return Binary(BinaryOp.AND, before, _const((1 << INDEX_BITS) - 1), IntType(INDEX_BITS, False))


def last_field(stack: StackIR, name: str, source: SourceInfo | None) -> DataExpr:
    """Return a field of the last element in use. Raises: ProgramError (no such field)."""
    names = [field.name for field in stack.headers[0].fields]
    if name not in names:
        raise ProgramError(f"the elements of {stack.name} have no field {name}{at(source)}")
    return element_field(stack, last_index(stack), names.index(name), source)


def element_field(stack: StackIR, index: DataExpr, position: int, source: SourceInfo | None) -> DataExpr:
    """Return field number `position` of element `index`. Raises: ProgramError (no such field)."""
    if position >= len(stack.headers[0].fields):
        raise ProgramError(f"the elements of {stack.name} have no field {position}{at(source)}")
    kind = field_type(stack.headers[0].fields[position])
    value: DataExpr = Const(0, IntType(kind.bits, kind.signed))
    for number, header in reversed(list(enumerate(stack.headers))):
        chosen = Compare(CompareOp.EQ, index, _const(number))
        value = Select(chosen, FieldRef(header.fields[position], kind), value, kind)
    return value


def _const(value: int) -> Const:
    return Const(value, const_type(value))
