# SPDX-License-Identifier: Apache-2.0
"""Integer types of expressions: the range of an operator's values follows from the ranges of its operands."""

from __future__ import annotations

from .ir_expressions import BinaryOp, Const, DataExpr, FieldIR, IntType

# Larger shift amounts act as this one. No field is wider, so a left shift by it leaves 0 in every field
# and keeps the sign; it keeps a hostile amount from filling the memory.
MAX_SHIFT = 1 << 16


def const_type(value: int) -> IntType:
    """Return the smallest type of a literal."""
    if value < 0:
        return IntType((~value).bit_length() + 1, True)
    return IntType(max(1, value.bit_length()), False)


def field_type(field: FieldIR) -> IntType:
    """Return the type of a field's values. `FieldIR` explains the extra bit of signed fields."""
    return IntType(field.bits + 1, True) if field.signed else IntType(field.bits, False)


def invert_type(operand: IntType) -> IntType:
    """Return the type of a bitwise complement."""
    return operand.as_signed()


def binary_type(op: BinaryOp, left: DataExpr, right: DataExpr) -> IntType:
    """Return the type of a binary operator's result."""
    a, b = left.type, right.type
    if op is BinaryOp.ADD:
        both = a.covering(b)
        return IntType(both.bits + 1, both.signed)
    if op is BinaryOp.SUB:
        return IntType(a.covering(b).bits + 1, True)
    if op is BinaryOp.MUL:
        return _product(a, b)
    if op in (BinaryOp.SHL, BinaryOp.SHR):
        return _shift(op, a, right)
    if op is BinaryOp.AND:
        return _conjunction(a, b)
    if op in (BinaryOp.OR, BinaryOp.XOR):
        return a.covering(b)
    return a if op is BinaryOp.DIV else IntType(min(a.bits, b.bits), False)


def _product(a: IntType, b: IntType) -> IntType:
    if not a.signed and not b.signed:
        return IntType(a.bits + b.bits, False)
    return IntType(a.as_signed().bits + b.as_signed().bits, True)


def _conjunction(a: IntType, b: IntType) -> IntType:
    if a.signed and b.signed:
        return IntType(max(a.bits, b.bits), True)
    if a.signed or b.signed:
        return b if a.signed else a
    return IntType(min(a.bits, b.bits), False)


def _shift(op: BinaryOp, value: IntType, amount: DataExpr) -> IntType:
    if op is BinaryOp.SHL:
        most = amount.value if isinstance(amount, Const) else (1 << min(amount.type.bits, 17)) - 1
        return IntType(value.bits + min(most, MAX_SHIFT), value.signed)
    least = amount.value if isinstance(amount, Const) else 0
    return IntType(max(value.bits - least, 1), value.signed)
