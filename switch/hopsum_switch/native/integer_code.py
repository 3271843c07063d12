# SPDX-License-Identifier: Apache-2.0
"""Expressions as machine code: integers of any width, wide values piece by piece, selections lane by lane.

`Integers.low(expr, width)` yields the value modulo 2**width in two's complement. Where the width covers the type of the
expression that is the value itself. Otherwise most operators need only the low bits of their operands. So a machine
type is only as wide as the use of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import ir

from ..program import ir_expressions as ex
from ..program.ir import Assign
from .function_scope import I1, I8, I64, PTR, VECTOR, CellRef, FunctionScope, Value
from .liveness import named_slots
from .memory_layout import PIECE_BITS, PIECE_WORDS, WHOLE_BITS, WORD_BITS, StoredInteger, round_up
from .only_interpreted import unsupported_error

MAX_BITS = 16384

Expr = ex.DataExpr | CellRef

_BITWISE = {
    ex.BinaryOp.ADD: ir.IRBuilder.add,
    ex.BinaryOp.SUB: ir.IRBuilder.sub,
    ex.BinaryOp.MUL: ir.IRBuilder.mul,
    ex.BinaryOp.AND: ir.IRBuilder.and_,
    ex.BinaryOp.OR: ir.IRBuilder.or_,
    ex.BinaryOp.XOR: ir.IRBuilder.xor,
}


def width_of(kind: ex.IntType) -> int:
    """Return the machine width, a multiple of 64 bits, that holds all values of a type."""
    return round_up(kind.bits, WORD_BITS)


class Integers:
    """A writer of expressions as code of a function, at the builder's place."""

    def __init__(self, scope: FunctionScope, pieces: Pieces) -> None:
        self._scope = scope
        self._pieces = pieces

    def low(self, expr: Expr, width: int) -> Value:
        """Write an expression modulo 2**`width` (a multiple of 64). Return the integer. Raises: UnsupportedError."""
        if width > MAX_BITS:
            raise unsupported_error("big integer", f"{width} bits in {self._scope.where}")
        own = width_of(expr.type)
        if own < width:
            return self.resize(self.low(expr, own), width, signed=expr.type.signed)
        if isinstance(expr, ex.FieldRef | ex.ParamRef | CellRef):
            pointer, _ = self._scope.leaf(expr)
            return self._scope.builder.load(pointer, typ=ir.IntType(width), align=8)
        if isinstance(expr, ex.Const):
            return ir.Constant(ir.IntType(width), expr.value & (1 << width) - 1)
        if isinstance(expr, ex.Binary):
            return self._binary(expr, width)
        if isinstance(expr, ex.Invert):
            return self._scope.builder.not_(self.low(expr.operand, width))
        if isinstance(expr, ex.Cast):
            return self.resize(self._cast(expr), width, signed=expr.type.signed)
        if isinstance(expr, ex.Select):
            condition = self.condition(expr.condition)
            return self._scope.builder.select(condition, self.low(expr.yes, width), self.low(expr.no, width))
        assert isinstance(expr, ex.BoolToInt)
        return self._scope.builder.zext(self.condition(expr.operand), ir.IntType(width))

    def exact(self, expr: Expr) -> Value:
        """Write an expression at the full width of its type. Return the integer. Raises: UnsupportedError."""
        return self.low(expr, width_of(expr.type))

    def word(self, expr: ex.DataExpr) -> Value:
        """Write an expression as a word, larger values as 2**64 - 1. Return it. Raises: UnsupportedError (signed)."""
        if expr.type.signed:
            raise unsupported_error("signed length", self._scope.where)
        value = self.exact(expr)
        if expr.type.bits <= WORD_BITS:
            return value
        most = ir.Constant(value.type, (1 << WORD_BITS) - 1)
        builder = self._scope.builder
        return builder.trunc(builder.select(builder.icmp_unsigned(">", value, most), most, value), I64)

    def resize(self, value: Value, width: int, *, signed: bool) -> Value:
        """Write code that cuts a value to `width` bits or extends it, by its sign if `signed`. Return the integer."""
        kind, builder = ir.IntType(width), self._scope.builder
        if value.type.width == width:
            return value
        if value.type.width > width:
            return builder.trunc(value, kind)
        return builder.sext(value, kind) if signed else builder.zext(value, kind)

    def _binary(self, expr: ex.Binary, width: int) -> Value:
        if expr.op is ex.BinaryOp.MUL and width > WHOLE_BITS:
            raise unsupported_error("big product", f"{width} bits in {self._scope.where}")
        if expr.op in _BITWISE:
            left, right = self.low(expr.left, width), self.low(expr.right, width)
            return _BITWISE[expr.op](self._scope.builder, left, right)
        if expr.op is ex.BinaryOp.SHL:
            return self._shift_left(expr, width)
        if expr.op is ex.BinaryOp.SHR:
            return self._shift_right(expr, width)
        return self._divide(expr, width)

    def _shift_left(self, expr: ex.Binary, width: int) -> Value:
        builder, value = self._scope.builder, self.low(expr.left, width)
        zero = ir.Constant(value.type, 0)
        if isinstance(expr.right, ex.Const):
            amount = min(expr.right.value, ex.MAX_SHIFT)
            return zero if amount >= width else builder.shl(value, ir.Constant(value.type, amount))
        amount, fits = self._amount(expr.right, width)
        return builder.select(fits, builder.shl(value, amount), zero)

    def _shift_right(self, expr: ex.Binary, width: int) -> Value:
        builder, full, signed = self._scope.builder, width_of(expr.left.type), expr.left.type.signed
        shift = builder.ashr if signed else builder.lshr
        if isinstance(expr.right, ex.Const):
            amount = expr.right.value
            if amount >= full and not signed:
                return ir.Constant(ir.IntType(width), 0)
            # The bits above do not reach the result of a shift by a constant.
            near = round_up(amount + width, WORD_BITS)
            value = self.low(expr.left, min(full, near))
            amount = min(amount, value.type.width - 1) if signed else amount
            return self.resize(shift(value, ir.Constant(value.type, amount)), width, signed=signed)
        value = self.low(expr.left, full)
        amount, fits = self._amount(expr.right, full)
        last = ir.Constant(value.type, full - 1)
        beyond = builder.ashr(value, last) if signed else ir.Constant(value.type, 0)
        return self.resize(builder.select(fits, shift(value, amount), beyond), width, signed=signed)

    def _amount(self, expr: ex.DataExpr, width: int) -> tuple[Value, Value]:
        """Return a shift amount below `width`, and a flag: it is the program's amount."""
        builder, exact = self._scope.builder, self.exact(expr)
        fits = builder.icmp_unsigned("<", exact, ir.Constant(exact.type, width))
        safe = builder.select(fits, exact, ir.Constant(exact.type, 0))
        return self.resize(safe, width, signed=False), fits

    def _divide(self, expr: ex.Binary, width: int) -> Value:
        common = max(width_of(expr.left.type), width_of(expr.right.type))
        if common > WORD_BITS:  # LLVM would call a function of its compiler's library, which is not there
            raise unsupported_error("big quotient", f"{common} bits in {self._scope.where}")
        operation = self._scope.builder.udiv if expr.op is ex.BinaryOp.DIV else self._scope.builder.urem
        return self.resize(operation(self.low(expr.left, common), self.low(expr.right, common)), width, signed=False)

    def _cast(self, expr: ex.Cast) -> Value:
        builder = self._scope.builder
        if expr.op is ex.CastOp.WRAP:
            width = round_up(expr.bits, WORD_BITS)
            narrow = self.low(expr.operand, width)
            # Shift left, then arithmetically right: the sign bit of the narrow type fills the word.
            spare = ir.Constant(narrow.type, width - expr.bits)
            return builder.ashr(builder.shl(narrow, spare), spare)
        low = 0 if expr.op is ex.CastOp.SATURATE else -(1 << (expr.bits - 1))
        kind = expr.operand.type.covering(ex.IntType(expr.bits, low < 0)).as_signed()
        value = self.low(expr.operand, width_of(kind))
        for sign, bound in ((">", low + (1 << expr.bits) - 1), ("<", low)):
            limit = ir.Constant(value.type, bound)
            value = builder.select(builder.icmp_signed(sign, value, limit), limit, value)
        return value

    def condition(self, expr: ex.BoolExpr) -> Value:
        """Write a condition. Return an i1 value. Raises: UnsupportedError."""
        return _CONDITIONS[type(expr)](self, expr)

    def _constant(self, expr: ex.BoolConst) -> Value:
        return ir.Constant(I1, int(expr.value))

    def _compare(self, expr: ex.Compare) -> Value:
        kind = expr.left.type.covering(expr.right.type)
        if kind.bits > WHOLE_BITS and expr.op in (ex.CompareOp.EQ, ex.CompareOp.NE):
            different = self._pieces.differ(expr.left, expr.right)
            return different if expr.op is ex.CompareOp.NE else self._scope.builder.not_(different)
        left, right = (self.low(side, width_of(kind)) for side in (expr.left, expr.right))
        builder = self._scope.builder
        return (builder.icmp_signed if kind.signed else builder.icmp_unsigned)(expr.op.value, left, right)

    def _compare_headers(self, expr: ex.CompareHeaders) -> Value:
        scope, builder = self._scope, self._scope.builder
        if expr.left.type_name != expr.right.type_name:
            return ir.Constant(I1, 0)
        both = builder.and_(scope.is_valid(expr.left), scope.is_valid(expr.right))
        (first, words), (second, _) = scope.layout.span(expr.left), scope.layout.span(expr.right)
        # Words above a field are zero or the sign, so equal fields have equal bytes.
        memcmp = scope.unit.intrinsic("memcmp", ir.IntType(32), [PTR, PTR, I64])
        pointers = [scope.at(scope.state, first), scope.at(scope.state, second)]
        result = builder.call(memcmp, [*pointers, ir.Constant(I64, 8 * words)])
        return builder.and_(both, builder.icmp_unsigned("==", result, ir.Constant(result.type, 0)))

    def _compare_bools(self, expr: ex.CompareBools) -> Value:
        return self._scope.builder.icmp_unsigned("==", self.condition(expr.left), self.condition(expr.right))

    def _and(self, expr: ex.And) -> Value:
        return self._scope.builder.and_(self.condition(expr.left), self.condition(expr.right))

    def _or(self, expr: ex.Or) -> Value:
        return self._scope.builder.or_(self.condition(expr.left), self.condition(expr.right))

    def _not(self, expr: ex.Not) -> Value:
        return self._scope.builder.not_(self.condition(expr.operand))

    def _is_valid(self, expr: ex.IsValid) -> Value:
        return self._scope.is_valid(expr.header)

    def _non_zero(self, expr: ex.NonZero) -> Value:
        return self._compare(ex.Compare(ex.CompareOp.NE, expr.operand, ex.Const(0, ex.IntType(1, False))))

    def _select(self, expr: ex.SelectBool) -> Value:
        parts = (self.condition(part) for part in (expr.condition, expr.yes, expr.no))
        return self._scope.builder.select(*parts)


_CONDITIONS: dict[type, Callable[..., Value]] = {
    ex.BoolConst: Integers._constant,
    ex.Compare: Integers._compare,
    ex.CompareHeaders: Integers._compare_headers,
    ex.CompareBools: Integers._compare_bools,
    ex.And: Integers._and,
    ex.Or: Integers._or,
    ex.Not: Integers._not,
    ex.IsValid: Integers._is_valid,
    ex.NonZero: Integers._non_zero,
    ex.SelectBool: Integers._select,
}


# The bits of wide values that can be one, and those that must be: by them the compiler sees where a sum carries nothing
# from word to word. Values are two's complement of any length, so both sets are Python integers and may be negative.

_WORD = (1 << 64) - 1


class Known(NamedTuple):
    """A superset of the bits that are one, and a subset."""

    possible: int
    certain: int


def known_of_type(kind: ex.IntType) -> Known:
    """Return the known bits of a value of this type."""
    return Known(-1 if kind.signed else (1 << kind.bits) - 1, 0)


def known_of_binary(op: ex.BinaryOp, left: Known, right: Known, kind: ex.IntType) -> Known:
    """Return the known bits of a binary operator's result, of type `kind`: those of the type but for &, | and ^."""
    if op is ex.BinaryOp.AND:
        return Known(left.possible & right.possible, left.certain & right.certain)
    if op is ex.BinaryOp.OR:
        return Known(left.possible | right.possible, left.certain | right.certain)
    if op is ex.BinaryOp.XOR:
        certain = left.certain & ~right.possible | right.certain & ~left.possible
        return Known((left.possible | right.possible) & ~(left.certain & right.certain), certain)
    return known_of_type(kind)


def known_of_shift(op: ex.BinaryOp, value: Known, amount: int) -> Known:
    """Return the known bits of a value shifted by a constant."""
    if op is ex.BinaryOp.SHL:
        return Known(value.possible << amount, value.certain << amount)
    return Known(value.possible >> amount, value.certain >> amount)


def adds_without_carry(left: Known, right: Known, words: int) -> bool:
    """Return True if the known bits prove that the sum of each pair of 64-bit words fits a word, else False."""
    return all(_word(left.possible, i) + _word(right.possible, i) <= _WORD for i in range(words))


def subtracts_without_borrow(left: Known, right: Known, words: int) -> bool:
    """Return True if the known bits prove that each 64-bit word of `left` is at least that of `right`, else False."""
    return all(_word(left.certain, i) >= _word(right.possible, i) for i in range(words))


def spread_amount(expr: ex.Binary, bits: int) -> int | None:
    """Return k if the expression is (x << k) - x modulo 2**bits, which is x * (2**k - 1), else None."""
    shifted = strip_masks(expr.left, bits)
    if (
        not isinstance(shifted, ex.Binary)
        or shifted.op is not ex.BinaryOp.SHL
        or not isinstance(shifted.right, ex.Const)
    ):
        return None
    amount = shifted.right.value
    return amount if 0 < amount < 64 and shifted.left == expr.right else None


def spreads_within_words(value: Known, amount: int, words: int) -> bool:
    """Return True if the known bits prove that x * (2**amount - 1) has no carry between 64-bit words, else False."""
    return all(_word(value.possible, i) * ((1 << amount) - 1) <= _WORD for i in range(words))


def strip_masks(expr: ex.DataExpr, bits: int) -> ex.DataExpr:
    """Return the expression without its outer & with constants that keep all of the low `bits` bits."""
    ones = (1 << bits) - 1
    while isinstance(expr, ex.Binary) and expr.op is ex.BinaryOp.AND:
        if isinstance(expr.right, ex.Const) and expr.right.value & ones == ones:
            expr = expr.left
        elif isinstance(expr.left, ex.Const) and expr.left.value & ones == ones:
            expr = expr.right
        else:
            break
    return expr


def _word(value: int, index: int) -> int:
    return value >> (64 * index) & _WORD


# Masks that keep or clear whole lanes of a wide value, and the simpler forms of expressions with them.
#
# With b < 2 in every lane of w bits, (b << w) - b = b * (2**w - 1) is all ones in the lanes where b is 1 and 0 in the
# others: nothing is carried from lane to lane. Two identities follow for such a mask m, held by tests of random
# programs:
#
#     m                     = -b, lane by lane                  one operation instead of two
#     (x & ~m) | (y & m)    = y where b is 1, else x            a selection by b, which need not be widened to m

LANE_BITS = (8, 16, 32)
_PIECE_BITS = 512


class Mask(NamedTuple):
    """All ones in the lanes of a value that are 1 (or, inverted, in those that are 0)."""

    lane_bits: int
    bit: ex.DataExpr  # the value, 0 or 1 per lane, as statement `statement` sees it
    statement: int
    inverted: bool

    def complements(self, other: Mask) -> bool:
        """Return whether two masks are each other's complement."""
        return self._replace(inverted=not self.inverted) == other


class MaskedSelections:
    """A finder of masks in a run of assignments, and a writer of selections by them."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def selection(self, expr: ex.Binary, bits: int) -> tuple[Mask, ex.DataExpr, ex.DataExpr] | None:
        """Return (m, y, x) if an OR is (x & ~m) | (y & m) in all of its `bits` bits, else None."""
        left, right = expr.left, expr.right
        if not isinstance(left, ex.Binary) or not isinstance(right, ex.Binary):
            return None
        if not left.op is right.op is ex.BinaryOp.AND:
            return None
        for first, first_value in ((left.right, left.left), (left.left, left.right)):
            mask = self._mask(first, self._pieces.statement, bits)
            for second, second_value in ((right.right, right.left), (right.left, right.right)):
                other = mask and self._mask(second, self._pieces.statement, bits)
                if mask and other and mask.complements(other):
                    return (other, second_value, first_value) if mask.inverted else (mask, first_value, second_value)
        return None

    def lane_bits(self, difference: ex.Binary, statement: int, bits: int) -> int | None:
        """Return the lanes' width if a difference is a mask (b << w) - b of `bits` bits, else None."""
        width = spread_amount(difference, bits)
        if width not in LANE_BITS or bits % width:
            return None
        ones = ((1 << bits) - 1) // ((1 << width) - 1)
        possible = self._pieces.bits_at(difference.right, statement).possible
        return width if possible >= 0 and possible & ~ones == 0 else None

    def select(self, mask: Mask, bit: Value, yes: Value, no: Value) -> Value:
        """Write a selection: `yes` in the lanes in which `bit` is 1, `no` in the others. Return the vector."""
        builder = self._pieces.builder
        kind = lanes_type(mask.lane_bits)
        # The bit of each lane moves to its sign: a comparison with 0 then is the mask, one instruction.
        top = ir.Constant(bit.type, [mask.lane_bits - 1] * (_PIECE_BITS // WORD_BITS))
        sign = builder.bitcast(builder.shl(bit, top), kind)
        chosen = builder.icmp_signed("<", sign, ir.Constant(kind, None))
        return builder.bitcast(builder.select(chosen, *(builder.bitcast(v, kind) for v in (yes, no))), bit.type)

    def negated(self, bit: Value, lane_bits: int) -> Value:
        """Write the mask of a value that is 0 or 1 in each lane: all ones for 1. Return the vector."""
        builder, kind = self._pieces.builder, lanes_type(lane_bits)
        return builder.bitcast(builder.sub(ir.Constant(kind, None), builder.bitcast(bit, kind)), bit.type)

    def _mask(self, expr: ex.DataExpr, statement: int, bits: int) -> Mask | None:
        """Return the known bits of an expression in a statement, of which `bits` bits matter."""
        inverted = False
        while True:
            expr = strip_masks(expr, bits)
            if isinstance(expr, ex.Invert):
                inverted, expr = not inverted, expr.operand
            elif isinstance(expr, ex.FieldRef) and expr.type.bits == bits and not expr.type.signed:
                source = self._pieces.assigned(expr, statement)
                if source is None:
                    return None
                statement, expr = source
            elif isinstance(expr, ex.Binary) and expr.op is ex.BinaryOp.SUB:
                width = self.lane_bits(expr, statement, bits)
                if width is None:
                    return None
                return Mask(width, expr.right, statement, inverted)
            else:
                return None


def lanes_type(lane_bits: int) -> Value:
    """Return LLVM's type of a piece of 512 bits, as a vector of lanes."""
    return ir.VectorType(ir.IntType(lane_bits), _PIECE_BITS // lane_bits)


# Wide expressions, one vector of 512 bits at a time.
#
# `Pieces.piece(expr, j)` is bits 512 j .. 512 j + 511 of the value in two's complement of unlimited length. Bitwise
# operators work on pieces alone, shifts by constants take words from the neighbouring piece, sums pass a carry on to
# the next piece unless the known bits show that there is none. An expression without a piecewise form is computed as
# one integer and cut.
#
# A run of assignments is written piece by piece, not statement by statement, so that the values in between stay in
# registers. A field assigned earlier in the run is its expression's value, not memory.

_WORD_BY_WORD = {
    ex.BinaryOp.AND: ir.IRBuilder.and_,
    ex.BinaryOp.OR: ir.IRBuilder.or_,
    ex.BinaryOp.XOR: ir.IRBuilder.xor,
}
_SPLAT = ir.Constant(ir.VectorType(ir.IntType(32), PIECE_WORDS), [0] * PIECE_WORDS)

Key = tuple[int, int]


def vector(value: int, piece: int) -> Value:
    """Return 512-bit piece number `piece` of a constant, the lowest bits first, as a vector."""
    value >>= piece * PIECE_BITS
    return ir.Constant(VECTOR, [value >> (WORD_BITS * i) & _WORD for i in range(PIECE_WORDS)])


class Pieces:
    """A writer of wide expressions as code of a function, by pieces of 512 bits."""

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope
        self._integers = Integers(scope, self)
        self._lanes = MaskedSelections(self)
        self.reset()

    @property
    def integers(self) -> Integers:
        """The writer of the same function's other expressions."""
        return self._integers

    @property
    def builder(self) -> ir.IRBuilder:
        """The builder of the function."""
        return self._scope.builder

    @property
    def statement(self) -> int:
        """The number, in its run, of the assignment that is being written."""
        return self._statement

    def assigned(self, expr: ex.FieldRef, statement: int) -> tuple[int, ex.DataExpr] | None:
        """Return the statement of the run that assigned a field's present value, and the value, or None."""
        source = self._visible[statement].get(expr.field.slot)
        return None if source is None else (source, self._roots[source][1])

    def reset(self) -> None:
        """Forget the values and fields of the last run, because memory may have changed since."""
        self._statement = 0
        self._sources: dict[int, int] = {}  # field slot -> statement that assigned it
        self._visible: list[dict[int, int]] = []  # the same, as each statement sees it
        self._roots: list[tuple[ex.FieldIR, ex.DataExpr]] = []
        self._values: dict[tuple[int, Key], Value] = {}
        self._carries: dict[tuple[int, Key], Value] = {}
        self._known: dict[Key, Known] = {}
        self._kept: list[object] = []  # expressions stay alive, since their identity is a key

    def assign(self, run: Sequence[Assign], dead: frozenset[int]) -> None:
        """Write a run of assignments to unsigned fields of one width. `dead` ones are not stored."""
        self.reset()
        for op in run:
            self._visible.append(dict(self._sources))
            self._roots.append((op.target, op.value))
            self._sources[op.target.slot] = len(self._roots) - 1
        place = self._scope.layout.field(run[0].target)
        pieces = place.words // PIECE_WORDS
        written = {op.target.slot for op in run}
        self._read_ahead(run, written, pieces)
        targets = {op.target.slot: self._scope.target(op.target) for op in run if op.target.slot not in dead}
        last = {op.target.slot: number for number, op in enumerate(run)}
        for piece in range(pieces):
            for number, op in enumerate(run):
                value = self._root(number, piece)
                if last[op.target.slot] == number and op.target.slot in targets:
                    pointer = self._scope.at(targets[op.target.slot], piece * PIECE_WORDS)
                    self._scope.builder.store(value, pointer, align=64)
        for op in run:
            self._scope.written(op.target)
        self.reset()

    def _read_ahead(self, run: Sequence[Assign], written: set[int], pieces: int) -> None:
        """Bring the fields that the run reads into memory, and load the fields that it later overwrites."""
        for number, op in enumerate(run):
            for slot in sorted(named_slots(op.value) - set(self._visible[number])):
                pointer, place = self._scope.readable(self._field(slot)), self._scope.layout.field(self._field(slot))
                # The run stores piece by piece, and a shift may read a piece that has been overwritten.
                if slot in written:
                    for piece in range(place.words // PIECE_WORDS):
                        self._values[-1, (slot, piece)] = self._load(pointer, piece)

    def _field(self, slot: int) -> ex.FieldIR:
        return self._scope.unit.program.fields[slot]

    def _root(self, number: int, piece: int) -> Value:
        """Return a piece of the value that statement `number` assigns."""
        field, expr = self._roots[number]
        value = self._as_seen_by(number, expr, piece, field.bits)
        beyond = (piece + 1) * PIECE_BITS - field.bits
        if beyond <= 0:
            return value
        return self._scope.builder.and_(value, vector((1 << field.bits) - 1, piece))

    def store(self, pointer: Value, place: StoredInteger, expr: Expr) -> None:
        """Write code that stores an expression at `pointer`, cut to the place's width, which is wide and unsigned."""
        self.reset()
        self._visible.append({})
        values = [self.piece(expr, i, place.bits) for i in range(place.words // PIECE_WORDS)]
        for piece, value in enumerate(values):
            if (piece + 1) * PIECE_BITS > place.bits:
                value = self._scope.builder.and_(value, vector((1 << place.bits) - 1, piece))
            self._scope.builder.store(value, self._scope.at(pointer, piece * PIECE_WORDS), align=64)

    def differ(self, left: ex.DataExpr, right: ex.DataExpr) -> Value:
        """Write a comparison. Return an i1 value, true if the values differ. A run of assignments may be under way."""
        return Pieces(self._scope)._differ(left, right)

    def _differ(self, left: ex.DataExpr, right: ex.DataExpr) -> Value:
        self._visible.append({})
        builder, bits = self._scope.builder, left.type.covering(right.type).as_signed().bits
        pieces = round_up(bits, PIECE_BITS) // PIECE_BITS
        total = vector(0, 0)
        for piece in range(pieces):
            pair = self.piece(left, piece, bits), self.piece(right, piece, bits)
            total = builder.or_(total, builder.xor(*pair))
        mask = builder.icmp_unsigned("!=", total, vector(0, 0))
        return builder.icmp_unsigned("!=", builder.bitcast(mask, I8), ir.Constant(I8, 0))

    def piece(self, expr: Expr, piece: int, bits: int) -> Value:
        """Write 512-bit piece number `piece` of an expression, once. Return it. Only the low `bits` bits matter."""
        key = self._statement, (id(expr), piece)
        if key not in self._values:
            self._kept.append(expr)
            self._values[key] = self._write(expr, piece, bits)
        return self._values[key]

    def _as_seen_by(self, statement: int, expr: Expr, piece: int, bits: int) -> Value:
        """Return a piece of an expression as an earlier statement sees it."""
        outer, self._statement = self._statement, statement
        value = self.piece(expr, piece, bits)
        self._statement = outer
        return value

    def _write(self, expr: Expr, piece: int, bits: int) -> Value:
        builder = self._scope.builder
        if isinstance(expr, ex.Const):
            return vector(expr.value, piece)
        if isinstance(expr, ex.FieldRef | ex.ParamRef | CellRef):
            return self._leaf(expr, piece)
        if isinstance(expr, ex.Invert):
            return builder.not_(self.piece(expr.operand, piece, bits))
        if isinstance(expr, ex.Select):
            yes, no = self.piece(expr.yes, piece, bits), self.piece(expr.no, piece, bits)
            return builder.select(self._integers.condition(expr.condition), yes, no)
        if isinstance(expr, ex.Binary):
            choice = self._lanes.selection(expr, bits) if expr.op is ex.BinaryOp.OR else None
            if choice is not None:
                mask, *values = choice
                bit = self._as_seen_by(mask.statement, mask.bit, piece, bits)
                return self._lanes.select(mask, bit, *(self.piece(value, piece, bits) for value in values))
            if expr.op in _WORD_BY_WORD:
                left, right = self.piece(expr.left, piece, bits), self.piece(expr.right, piece, bits)
                return _WORD_BY_WORD[expr.op](builder, left, right)
            if expr.op in (ex.BinaryOp.SHL, ex.BinaryOp.SHR) and isinstance(expr.right, ex.Const):
                return self._shift(expr, expr.right.value, piece, bits)
            if expr.op in (ex.BinaryOp.ADD, ex.BinaryOp.SUB):
                return self._sum(expr, piece, bits)
        return self._cut(expr, piece, bits)

    def _leaf(self, expr: ex.FieldRef | ex.ParamRef | CellRef, piece: int) -> Value:
        if isinstance(expr, ex.FieldRef):
            slot = expr.field.slot
            source = self._visible[self._statement].get(slot)
            if source is not None:
                return self._forwarded(source, expr.field, piece)
            if (-1, (slot, piece)) in self._values:
                return self._values[-1, (slot, piece)]
        pointer, place = self._scope.leaf(expr)
        if not place.is_wide or place.signed:
            return self._cut(expr, piece, width_of(expr.type))
        return self._load(pointer, piece) if piece < place.words // PIECE_WORDS else vector(0, 0)

    def _forwarded(self, source: int, field: ex.FieldIR, piece: int) -> Value:
        if piece * PIECE_BITS >= field.bits:
            return vector(0, 0)
        key = -2 - source, (field.slot, piece)
        if key not in self._values:
            self._values[key] = self._root(source, piece)
        return self._values[key]

    def _load(self, pointer: Value, piece: int) -> Value:
        return self._scope.builder.load(self._scope.at(pointer, piece * PIECE_WORDS), typ=VECTOR, align=64)

    def _cut(self, expr: Expr, piece: int, bits: int) -> Value:
        """Return a piece of a value that is computed as one integer."""
        builder, own = self._scope.builder, width_of(expr.type)
        width = round_up(max(PIECE_BITS, min(own, round_up(bits, WORD_BITS))), PIECE_BITS)
        beyond = piece * PIECE_BITS >= width
        if beyond and not expr.type.signed:
            return vector(0, 0)
        key = self._statement, (id(expr), -1)
        if key not in self._values:
            self._kept.append(expr)
            self._values[key] = self._integers.low(expr, width)
        value = self._values[key]
        shift = value.type.width - 1 if beyond else piece * PIECE_BITS
        moved = builder.ashr(value, ir.Constant(value.type, shift))
        return builder.bitcast(self._integers.resize(moved, PIECE_BITS, signed=True), VECTOR)

    def _shift(self, expr: ex.Binary, amount: int, piece: int, bits: int) -> Value:
        """Take two neighbouring words for each word of the result."""
        left = expr.op is ex.BinaryOp.SHL
        words, rest = divmod(-amount if left else amount, WORD_BITS)
        inner = bits if left else bits + amount
        low = self._words(expr.left, piece * PIECE_WORDS + words, inner)
        if rest == 0:
            return low
        high = self._words(expr.left, piece * PIECE_WORDS + words + 1, inner)
        builder = self._scope.builder
        return builder.or_(builder.lshr(low, vector_of(rest)), builder.shl(high, vector_of(WORD_BITS - rest)))

    def _words(self, expr: ex.DataExpr, first: int, bits: int) -> Value:
        """Return eight words from any word on. Words before word 0 are 0."""
        piece, offset = divmod(first, PIECE_WORDS)
        low = self.piece(expr, piece, bits) if piece >= 0 else vector(0, 0)
        if offset == 0:
            return low
        high = self.piece(expr, piece + 1, bits) if piece + 1 >= 0 else vector(0, 0)
        # Eight neighbouring words out of two vectors: one shuffle.
        indices = ir.Constant(_SPLAT.type, [offset + i for i in range(PIECE_WORDS)])
        return self._scope.builder.shuffle_vector(low, high, indices)

    def _sum(self, expr: ex.Binary, piece: int, bits: int) -> Value:
        builder, words = self._scope.builder, round_up(bits, PIECE_BITS) // WORD_BITS
        known = self._bits(expr.left), self._bits(expr.right)
        if expr.op is ex.BinaryOp.ADD:
            left, right = self.piece(expr.left, piece, bits), self.piece(expr.right, piece, bits)
            if adds_without_carry(*known, words):
                return builder.add(left, right)
            return self._with_carry(expr, piece, bits, builder.add(left, right), left)
        amount = spread_amount(expr, bits)
        lane_bits = self._lanes.lane_bits(expr, self._statement, bits)
        if lane_bits is not None:
            return self._lanes.negated(self.piece(expr.right, piece, bits), lane_bits)
        if amount is not None and spreads_within_words(known[1], amount, words):
            value = self.piece(expr.right, piece, bits)
            return builder.sub(builder.shl(value, vector_of(amount)), value)
        left, right = self.piece(expr.left, piece, bits), self.piece(expr.right, piece, bits)
        if subtracts_without_borrow(*known, words):
            return builder.sub(left, right)
        return self._with_carry(expr, piece, bits, builder.sub(left, right), left)

    def _with_carry(self, expr: ex.Binary, piece: int, bits: int, plain: Value, left: Value) -> Value:
        """Add the carries between words, or subtract the borrows, all eight at once."""
        # A word makes a carry if its own sum overflows, and passes one on if the sum is all ones. So the words that
        # make a carry are shifted up and added to the words that pass one on. This addition carries through runs of
        # the latter.
        builder, wide = self._scope.builder, ir.IntType(16)
        adding = expr.op is ex.BinaryOp.ADD
        makes = builder.icmp_unsigned("<" if adding else ">", plain, left)
        passes = builder.icmp_unsigned("==", plain, vector(-1 if adding else 0, 0))
        make, pass_on = (builder.zext(builder.bitcast(m, I8), wide) for m in (makes, passes))
        start = self._carry(expr, piece - 1, bits)
        shifted = builder.or_(builder.shl(make, ir.Constant(wide, 1)), start)
        rippled = builder.xor(builder.add(shifted, pass_on), pass_on)
        out = builder.lshr(rippled, ir.Constant(wide, PIECE_WORDS))
        self._carries[self._statement, (id(expr), piece)] = builder.and_(out, ir.Constant(wide, 1))
        mask = builder.bitcast(builder.trunc(rippled, I8), ir.VectorType(I1, PIECE_WORDS))
        change = builder.sext(mask, VECTOR)
        return builder.sub(plain, change) if adding else builder.add(plain, change)

    def _carry(self, expr: ex.Binary, piece: int, bits: int) -> Value:
        if piece < 0:
            return ir.Constant(ir.IntType(16), 0)
        key = self._statement, (id(expr), piece)
        if key not in self._carries:
            self.piece(expr, piece, bits)
        return self._carries[key]

    def bits_at(self, expr: Expr, statement: int) -> Known:
        """Return the known bits of an expression in a statement of the run."""
        outer, self._statement = self._statement, statement
        found = self._bits(expr)
        self._statement = outer
        return found

    def _bits(self, expr: Expr) -> Known:
        key = self._statement, id(expr)
        if key not in self._known:
            self._kept.append(expr)
            self._known[key] = self._find_bits(expr)
        return self._known[key]

    def _find_bits(self, expr: Expr) -> Known:
        if isinstance(expr, ex.Const):
            return Known(expr.value, expr.value)
        if isinstance(expr, ex.Invert):
            inner = self._bits(expr.operand)
            return Known(~inner.certain, ~inner.possible)
        if isinstance(expr, ex.FieldRef):
            source = self._visible[self._statement].get(expr.field.slot)
            return known_of_type(expr.type) if source is None else self._assigned_bits(source)
        if isinstance(expr, ex.Binary):
            if expr.op in (ex.BinaryOp.SHL, ex.BinaryOp.SHR) and isinstance(expr.right, ex.Const):
                return known_of_shift(expr.op, self._bits(expr.left), expr.right.value)
            return known_of_binary(expr.op, self._bits(expr.left), self._bits(expr.right), expr.type)
        return known_of_type(expr.type)

    def _assigned_bits(self, source: int) -> Known:
        field, expr = self._roots[source]
        found, ones = self.bits_at(expr, source), (1 << field.bits) - 1
        return Known(found.possible & ones, found.certain & ones)


def is_piecewise(expr: Expr) -> bool:
    """Return whether an expression can be computed piece by piece, so that several assignments join in one loop.

    These are +, -, &, |, ^, ~ and shifts by constants, of constants, fields and parameters, without a condition.
    """
    if isinstance(expr, ex.Binary):
        if expr.op in (ex.BinaryOp.SHL, ex.BinaryOp.SHR):
            return isinstance(expr.right, ex.Const) and is_piecewise(expr.left)
        known = expr.op in _WORD_BY_WORD or expr.op in (ex.BinaryOp.ADD, ex.BinaryOp.SUB)
        return known and is_piecewise(expr.left) and is_piecewise(expr.right)
    if isinstance(expr, ex.Invert):
        return is_piecewise(expr.operand)
    return isinstance(expr, ex.Const | ex.FieldRef | ex.ParamRef)


def vector_of(value: int) -> Value:
    """Return a constant vector of eight words that equal `value`."""
    return ir.Constant(VECTOR, [value] * PIECE_WORDS)
