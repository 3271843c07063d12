# SPDX-License-Identifier: Apache-2.0
"""Typed expression trees.

Values are integers without a width limit, as the JSON format defines them: truncation happens only where the program
says so (a mask, a cast) and where a value is stored into a field. `IntType` bounds the values of a node, so that a code
generator can choose machine types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class IntType:
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


@dataclass(frozen=True, slots=True)
class FieldIR:
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


@dataclass(frozen=True, slots=True)
class VariableIR:
    """A variable-length field of at most `field.bits` bits. `length`, a field of the engine's own, has its bits."""

    field: FieldIR
    length: FieldIR


@dataclass(frozen=True, slots=True)
class HeaderIR:
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
    """Integer operators."""

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


@dataclass(frozen=True, slots=True)
class FieldRef:
    """The value of a field."""

    field: FieldIR
    type: IntType


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    value: int
    type: IntType


@dataclass(frozen=True, slots=True)
class ParamRef:
    """An argument of the enclosing action."""

    index: int
    type: IntType


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator on two integers.

    The right side of shifts is never negative, that of DIV and MOD a positive constant.
    """

    op: BinaryOp
    left: DataExpr
    right: DataExpr
    type: IntType


@dataclass(frozen=True, slots=True)
class Invert:
    """Bitwise complement: -1 - operand."""

    operand: DataExpr
    type: IntType


@dataclass(frozen=True, slots=True)
class Cast:
    """A change of range to `bits` bits."""

    op: CastOp
    operand: DataExpr
    bits: int
    type: IntType


@dataclass(frozen=True, slots=True)
class Select:
    """`condition ? yes : no` on integers."""

    condition: BoolExpr
    yes: DataExpr
    no: DataExpr
    type: IntType


@dataclass(frozen=True, slots=True)
class BoolToInt:
    """The integer 1 or 0 of a condition, also of a header's validity that is read as a field."""

    operand: BoolExpr
    type: IntType = IntType(1, False)


DataExpr = FieldRef | Const | ParamRef | Binary | Invert | Cast | Select | BoolToInt


@dataclass(frozen=True, slots=True)
class BoolConst:
    """true or false."""

    value: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two integers."""

    op: CompareOp
    left: DataExpr
    right: DataExpr


@dataclass(frozen=True, slots=True)
class CompareHeaders:
    """Condition: two headers of one type are both valid and equal in all fields."""

    left: HeaderIR
    right: HeaderIR


@dataclass(frozen=True, slots=True)
class CompareBools:
    """Condition: two conditions have the same value."""

    left: BoolExpr
    right: BoolExpr


@dataclass(frozen=True, slots=True)
class And:
    """Condition: both conditions hold."""

    left: BoolExpr
    right: BoolExpr


@dataclass(frozen=True, slots=True)
class Or:
    """Condition: at least one of two conditions holds."""

    left: BoolExpr
    right: BoolExpr


@dataclass(frozen=True, slots=True)
class Not:
    """Not."""

    operand: BoolExpr


@dataclass(frozen=True, slots=True)
class IsValid:
    """Condition: a header is valid."""

    header: HeaderIR


@dataclass(frozen=True, slots=True)
class NonZero:
    """Condition: an integer is not 0."""

    operand: DataExpr


@dataclass(frozen=True, slots=True)
class SelectBool:
    """`condition ? yes : no` on conditions."""

    condition: BoolExpr
    yes: BoolExpr
    no: BoolExpr


BoolExpr = BoolConst | Compare | CompareHeaders | CompareBools | And | Or | Not | IsValid | NonZero | SelectBool
