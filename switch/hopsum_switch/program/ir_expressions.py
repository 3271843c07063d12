# SPDX-License-Identifier: Apache-2.0
"""Typed expression trees.

Values are integers without a width limit, as the JSON format defines them: truncation happens only where the program
says so (a mask, a cast) and where a value is stored into a field. `IntType` bounds the values of a node, so that a code
generator can choose machine types.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class IrNode(Struct, frozen=True):
    """A part of a program: an immutable value, compared by its members. `__struct_fields__` names them."""


class IntType(IrNode, frozen=True):
    """Unsigned: values in [0, 2**bits). Signed: values in [-2**(bits-1), 2**(bits-1))."""

    bits: int
    signed: bool

    def covering(self, other: IntType) -> IntType:
        """Return the smallest type that holds the values of both."""
        if self.signed == other.signed:
            return IntType(max(self.bits, other.bits), self.signed)
        return IntType(max(self.as_signed().bits, other.as_signed().bits), True)

    def as_signed(self) -> IntType:
        """Return the signed type that holds the same values."""
        return self if self.signed else IntType(self.bits + 1, True)


class FieldIR(IrNode, frozen=True):
    """A field of a header instance. `slot` numbers all fields of a program from 0.

    A signed field may hold values in [-2**(bits-1), 2**bits): the format wraps a stored value only when it
    leaves that range.
    """

    header: str
    name: str
    bits: int
    signed: bool
    slot: int

    @property
    def qualified(self) -> str:
        """Return ``header.name``."""
        return f"{self.header}.{self.name}"


class VariableIR(IrNode, frozen=True):
    """A variable-length field of at most `field.bits` bits. `length`, a field of the engine's own, has its bits."""

    field: FieldIR
    length: FieldIR


class HeaderIR(IrNode, frozen=True):
    """A header or metadata instance. Metadata is always valid. `index` numbers instances from 0.

    The length of a variable-length field is the last of `fields`, and is not in the frame.
    """

    name: str
    type_name: str
    index: int
    metadata: bool
    fields: tuple[FieldIR, ...]
    variable: VariableIR | None = None

    @property
    def bits(self) -> int:
        """Return the width of all fields together, without the variable-length one."""
        total = sum(field.bits for field in self.wire)
        return total if self.variable is None else total - self.variable.field.bits

    @property
    def wire(self) -> tuple[FieldIR, ...]:
        """Return the fields that are in the frame."""
        return self.fields if self.variable is None else self.fields[:-1]


class BinaryOp(Enum):
    """Operators on two integers."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    AND = "&"
    OR = "|"
    XOR = "^"
    SHL = "<<"
    SHR = ">>"


class CompareOp(Enum):
    """Comparisons of integers."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class CastOp(Enum):
    """Changes of range: wrap to two's complement, saturate unsigned, saturate signed."""

    WRAP = "two_comp_mod"
    SATURATE = "usat_cast"
    SATURATE_SIGNED = "sat_cast"


class FieldRef(IrNode, frozen=True):
    """Expression: the value of a header field."""

    field: FieldIR
    type: IntType


class Const(IrNode, frozen=True):
    """Expression: a number of the program's text."""

    value: int
    type: IntType


class ParamRef(IrNode, frozen=True):
    """An argument of the enclosing action."""

    index: int
    type: IntType


class Binary(IrNode, frozen=True):
    """An operator on two integers.

    The right side of shifts is never negative, that of DIV and MOD a positive constant.
    """

    op: BinaryOp
    left: DataExpr
    right: DataExpr
    type: IntType


class Invert(IrNode, frozen=True):
    """Bitwise complement: -1 - operand."""

    operand: DataExpr
    type: IntType


class Cast(IrNode, frozen=True):
    """A change of range to `bits` bits."""

    op: CastOp
    operand: DataExpr
    bits: int
    type: IntType


class Select(IrNode, frozen=True):
    """`condition ? yes : no` on integers."""

    condition: BoolExpr
    yes: DataExpr
    no: DataExpr
    type: IntType


class BoolToInt(IrNode, frozen=True):
    """The integer 1 or 0 of a condition, also of a header's validity that is read as a field."""

    operand: BoolExpr
    type: IntType = IntType(1, False)


DataExpr = FieldRef | Const | ParamRef | Binary | Invert | Cast | Select | BoolToInt


class BoolConst(IrNode, frozen=True):
    """Condition: a constant, true or false."""

    value: bool


class Compare(IrNode, frozen=True):
    """A comparison of two integers."""

    op: CompareOp
    left: DataExpr
    right: DataExpr


class CompareHeaders(IrNode, frozen=True):
    """Condition: two headers of one type are both valid and equal in all fields."""

    left: HeaderIR
    right: HeaderIR


class CompareBools(IrNode, frozen=True):
    """Condition: two conditions have the same value."""

    left: BoolExpr
    right: BoolExpr


class And(IrNode, frozen=True):
    """Condition: both conditions hold."""

    left: BoolExpr
    right: BoolExpr


class Or(IrNode, frozen=True):
    """Condition: at least one of two conditions holds."""

    left: BoolExpr
    right: BoolExpr


class Not(IrNode, frozen=True):
    """Condition: the operand does not hold."""

    operand: BoolExpr


class IsValid(IrNode, frozen=True):
    """Condition: a header is valid."""

    header: HeaderIR


class NonZero(IrNode, frozen=True):
    """Condition: an integer is not 0."""

    operand: DataExpr


class SelectBool(IrNode, frozen=True):
    """`condition ? yes : no` on conditions."""

    condition: BoolExpr
    yes: BoolExpr
    no: BoolExpr


BoolExpr = BoolConst | Compare | CompareHeaders | CompareBools | And | Or | Not | IsValid | NonZero | SelectBool


# Integer types of expressions: the range of an operator's values follows from the ranges of its operands.

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
    """Return a type that holds all results of a binary operator, which never wraps: a sum has one bit more."""
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
        # 17 bits are more than MAX_SHIFT: a longer amount cannot widen the type further.
        most = amount.value if isinstance(amount, Const) else (1 << min(amount.type.bits, 17)) - 1
        return IntType(value.bits + min(most, MAX_SHIFT), value.signed)
    least = amount.value if isinstance(amount, Const) else 0
    return IntType(max(value.bits - least, 1), value.signed)
