# SPDX-License-Identifier: Apache-2.0
"""Compiler of expressions to machine integers.

`low(expr, width)` yields the value modulo 2**width in two's complement. Where the width covers the expression's
type that is the value itself. Otherwise most operators need only the low bits of their operands. So a machine type is
only as wide as the use of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llvmlite import ir

from ..program.ir_expressions import (
    MAX_SHIFT,
    And,
    Binary,
    BinaryOp,
    BoolConst,
    BoolExpr,
    BoolToInt,
    Cast,
    CastOp,
    Compare,
    CompareBools,
    CompareHeaders,
    CompareOp,
    Const,
    DataExpr,
    FieldRef,
    IntType,
    Invert,
    IsValid,
    NonZero,
    Not,
    Or,
    ParamRef,
    Select,
    SelectBool,
)
from .layout import WHOLE_BITS, WORD_BITS, round_up
from .scope import I1, I64, PTR, CellRef, FunctionScope, Value
from .unsupported import refuse

if TYPE_CHECKING:
    from .pieces import Pieces

MAX_BITS = 16384

Expr = DataExpr | CellRef

_BITWISE = {
    BinaryOp.ADD: ir.IRBuilder.add,
    BinaryOp.SUB: ir.IRBuilder.sub,
    BinaryOp.MUL: ir.IRBuilder.mul,
    BinaryOp.AND: ir.IRBuilder.and_,
    BinaryOp.OR: ir.IRBuilder.or_,
    BinaryOp.XOR: ir.IRBuilder.xor,
}


def width_of(kind: IntType) -> int:
    """Return the machine width that holds all values of a type."""
    return round_up(kind.bits, WORD_BITS)


class Integers:
    """Writes expressions into a function."""

    def __init__(self, scope: FunctionScope, pieces: Pieces) -> None:
        self._scope = scope
        self._pieces = pieces

    def low(self, expr: Expr, width: int) -> Value:
        """Return an integer of `width` bits (a multiple of 64). Raises: UnsupportedError."""
        if width > MAX_BITS:
            raise refuse("big integer", f"{width} bits in {self._scope.where}")
        own = width_of(expr.type)
        if own < width:
            return self.resize(self.low(expr, own), width, signed=expr.type.signed)
        if isinstance(expr, FieldRef | ParamRef | CellRef):
            pointer, _ = self._scope.leaf(expr)
            return self._scope.builder.load(pointer, typ=ir.IntType(width), align=8)
        if isinstance(expr, Const):
            return ir.Constant(ir.IntType(width), expr.value & (1 << width) - 1)
        if isinstance(expr, Binary):
            return self._binary(expr, width)
        if isinstance(expr, Invert):
            return self._scope.builder.not_(self.low(expr.operand, width))
        if isinstance(expr, Cast):
            return self.resize(self._cast(expr), width, signed=expr.type.signed)
        if isinstance(expr, Select):
            condition = self.condition(expr.condition)
            return self._scope.builder.select(condition, self.low(expr.yes, width), self.low(expr.no, width))
        assert isinstance(expr, BoolToInt)
        return self._scope.builder.zext(self.condition(expr.operand), ir.IntType(width))

    def exact(self, expr: Expr) -> Value:
        """Return the value itself."""
        return self.low(expr, width_of(expr.type))

    def word(self, expr: DataExpr) -> Value:
        """Return the value as 64 unsigned bits, at most 2**64 - 1. Raises: UnsupportedError (signed)."""
        if expr.type.signed:
            raise refuse("signed length", self._scope.where)
        value = self.exact(expr)
        if expr.type.bits <= WORD_BITS:
            return value
        most = ir.Constant(value.type, (1 << WORD_BITS) - 1)
        builder = self._scope.builder
        return builder.trunc(builder.select(builder.icmp_unsigned(">", value, most), most, value), I64)

    def resize(self, value: Value, width: int, *, signed: bool) -> Value:
        """Return a value cut or extended to a width."""
        kind, builder = ir.IntType(width), self._scope.builder
        if value.type.width == width:
            return value
        if value.type.width > width:
            return builder.trunc(value, kind)
        return builder.sext(value, kind) if signed else builder.zext(value, kind)

    def _binary(self, expr: Binary, width: int) -> Value:
        if expr.op is BinaryOp.MUL and width > WHOLE_BITS:
            raise refuse("big product", f"{width} bits in {self._scope.where}")
        if expr.op in _BITWISE:
            left, right = self.low(expr.left, width), self.low(expr.right, width)
            return _BITWISE[expr.op](self._scope.builder, left, right)
        if expr.op is BinaryOp.SHL:
            return self._shift_left(expr, width)
        if expr.op is BinaryOp.SHR:
            return self._shift_right(expr, width)
        return self._divide(expr, width)

    def _shift_left(self, expr: Binary, width: int) -> Value:
        builder, value = self._scope.builder, self.low(expr.left, width)
        zero = ir.Constant(value.type, 0)
        if isinstance(expr.right, Const):
            amount = min(expr.right.value, MAX_SHIFT)
            return zero if amount >= width else builder.shl(value, ir.Constant(value.type, amount))
        amount, fits = self._amount(expr.right, width)
        return builder.select(fits, builder.shl(value, amount), zero)

    def _shift_right(self, expr: Binary, width: int) -> Value:
        builder, full, signed = self._scope.builder, width_of(expr.left.type), expr.left.type.signed
        shift = builder.ashr if signed else builder.lshr
        if isinstance(expr.right, Const):
            amount = expr.right.value
            if amount >= full and not signed:
                return ir.Constant(ir.IntType(width), 0)
            near = round_up(amount + width, WORD_BITS)
            value = self.low(expr.left, min(full, near))
            amount = min(amount, value.type.width - 1) if signed else amount
            return self.resize(shift(value, ir.Constant(value.type, amount)), width, signed=signed)
        value = self.low(expr.left, full)
        amount, fits = self._amount(expr.right, full)
        last = ir.Constant(value.type, full - 1)
        beyond = builder.ashr(value, last) if signed else ir.Constant(value.type, 0)
        return self.resize(builder.select(fits, shift(value, amount), beyond), width, signed=signed)

    def _amount(self, expr: DataExpr, width: int) -> tuple[Value, Value]:
        """Return a shift amount below `width`, and a flag: it is the program's amount."""
        builder, exact = self._scope.builder, self.exact(expr)
        fits = builder.icmp_unsigned("<", exact, ir.Constant(exact.type, width))
        safe = builder.select(fits, exact, ir.Constant(exact.type, 0))
        return self.resize(safe, width, signed=False), fits

    def _divide(self, expr: Binary, width: int) -> Value:
        common = max(width_of(expr.left.type), width_of(expr.right.type))
        if common > WORD_BITS:  # LLVM would call a function of its compiler's library, which is not there
            raise refuse("big quotient", f"{common} bits in {self._scope.where}")
        operation = self._scope.builder.udiv if expr.op is BinaryOp.DIV else self._scope.builder.urem
        return self.resize(operation(self.low(expr.left, common), self.low(expr.right, common)), width, signed=False)

    def _cast(self, expr: Cast) -> Value:
        builder = self._scope.builder
        if expr.op is CastOp.WRAP:
            width = round_up(expr.bits, WORD_BITS)
            narrow = self.low(expr.operand, width)
            spare = ir.Constant(narrow.type, width - expr.bits)
            return builder.ashr(builder.shl(narrow, spare), spare)
        low = 0 if expr.op is CastOp.SATURATE else -(1 << (expr.bits - 1))
        kind = expr.operand.type.covering(IntType(expr.bits, low < 0)).as_signed()
        value = self.low(expr.operand, width_of(kind))
        for sign, bound in ((">", low + (1 << expr.bits) - 1), ("<", low)):
            limit = ir.Constant(value.type, bound)
            value = builder.select(builder.icmp_signed(sign, value, limit), limit, value)
        return value

    def condition(self, expr: BoolExpr) -> Value:
        """Return a truth value. Raises: UnsupportedError."""
        return _CONDITIONS[type(expr)](self, expr)

    def _constant(self, expr: BoolConst) -> Value:
        return ir.Constant(I1, int(expr.value))

    def _compare(self, expr: Compare) -> Value:
        kind = expr.left.type.covering(expr.right.type)
        if kind.bits > WHOLE_BITS and expr.op in (CompareOp.EQ, CompareOp.NE):
            different = self._pieces.differ(expr.left, expr.right)
            return different if expr.op is CompareOp.NE else self._scope.builder.not_(different)
        left, right = (self.low(side, width_of(kind)) for side in (expr.left, expr.right))
        builder = self._scope.builder
        return (builder.icmp_signed if kind.signed else builder.icmp_unsigned)(expr.op.value, left, right)

    def _compare_headers(self, expr: CompareHeaders) -> Value:
        scope, builder = self._scope, self._scope.builder
        if expr.left.type_name != expr.right.type_name:
            return ir.Constant(I1, 0)
        both = builder.and_(scope.is_valid(expr.left), scope.is_valid(expr.right))
        (first, words), (second, _) = scope.layout.span(expr.left), scope.layout.span(expr.right)
        memcmp = scope.unit.intrinsic("memcmp", ir.IntType(32), [PTR, PTR, I64])
        pointers = [scope.at(scope.state, first), scope.at(scope.state, second)]
        result = builder.call(memcmp, [*pointers, ir.Constant(I64, 8 * words)])
        return builder.and_(both, builder.icmp_unsigned("==", result, ir.Constant(result.type, 0)))

    def _compare_bools(self, expr: CompareBools) -> Value:
        return self._scope.builder.icmp_unsigned("==", self.condition(expr.left), self.condition(expr.right))

    def _and(self, expr: And) -> Value:
        return self._scope.builder.and_(self.condition(expr.left), self.condition(expr.right))

    def _or(self, expr: Or) -> Value:
        return self._scope.builder.or_(self.condition(expr.left), self.condition(expr.right))

    def _not(self, expr: Not) -> Value:
        return self._scope.builder.not_(self.condition(expr.operand))

    def _is_valid(self, expr: IsValid) -> Value:
        return self._scope.is_valid(expr.header)

    def _non_zero(self, expr: NonZero) -> Value:
        return self._compare(Compare(CompareOp.NE, expr.operand, Const(0, IntType(1, False))))

    def _select(self, expr: SelectBool) -> Value:
        parts = (self.condition(part) for part in (expr.condition, expr.yes, expr.no))
        return self._scope.builder.select(*parts)


_CONDITIONS: dict[type, Callable[..., Value]] = {
    BoolConst: Integers._constant,
    Compare: Integers._compare,
    CompareHeaders: Integers._compare_headers,
    CompareBools: Integers._compare_bools,
    And: Integers._and,
    Or: Integers._or,
    Not: Integers._not,
    IsValid: Integers._is_valid,
    NonZero: Integers._non_zero,
    SelectBool: Integers._select,
}
