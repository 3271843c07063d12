# SPDX-License-Identifier: Apache-2.0
"""Wide expressions, one vector of 512 bits at a time.

`Pieces.piece(expr, j)` is bits 512 j .. 512 j + 511 of the value in two's complement of unlimited length. Bitwise
operators work on pieces alone, shifts by constants take words from the neighbouring piece, sums pass a carry on to the
next piece unless the known bits show that there is none. An expression without a piecewise form is computed as one
integer and cut.

A run of assignments is written piece by piece, not statement by statement, so that the values in between stay
in registers. A field assigned earlier in the run is its expression's value, not memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..program.ir import Assign
from ..program.ir_expressions import (
    Binary,
    BinaryOp,
    Const,
    DataExpr,
    FieldIR,
    FieldRef,
    Invert,
    ParamRef,
    Select,
)
from . import known_bits
from .integers import Expr, Integers, width_of
from .known_bits import Known
from .lanes import MaskedSelections
from .layout import PIECE_BITS, PIECE_WORDS, WORD_BITS, StoredInteger, round_up
from .liveness import reads
from .scope import I1, I8, VECTOR, CellRef, FunctionScope, Value

_BITWISE = {
    BinaryOp.AND: ir.IRBuilder.and_,
    BinaryOp.OR: ir.IRBuilder.or_,
    BinaryOp.XOR: ir.IRBuilder.xor,
}
_SPLAT = ir.Constant(ir.VectorType(ir.IntType(32), PIECE_WORDS), [0] * PIECE_WORDS)

Key = tuple[int, int]


def vector(value: int, piece: int) -> Value:
    """Return a piece of a constant."""
    value >>= piece * PIECE_BITS
    return ir.Constant(VECTOR, [value >> (WORD_BITS * i) & known_bits.WORD for i in range(PIECE_WORDS)])


class Pieces:
    """Writes wide expressions into a function."""

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope
        self._integers = Integers(scope, self)
        self._lanes = MaskedSelections(self)
        self.begin()

    @property
    def integers(self) -> Integers:
        """Return the writer of the same function's other expressions."""
        return self._integers

    @property
    def builder(self) -> ir.IRBuilder:
        """Return the builder of the function."""
        return self._scope.builder

    @property
    def statement(self) -> int:
        """Return the number of the statement that is being written."""
        return self._statement

    def assigned(self, expr: FieldRef, statement: int) -> tuple[int, DataExpr] | None:
        """Return the statement of the run that assigned a field's present value, and the value, or None."""
        source = self._visible[statement].get(expr.field.slot)
        return None if source is None else (source, self._roots[source][1])

    def begin(self) -> None:
        """Start a run: memory may have changed."""
        self._statement = 0
        self._sources: dict[int, int] = {}  # field slot -> statement that assigned it
        self._visible: list[dict[int, int]] = []  # the same, as each statement sees it
        self._roots: list[tuple[FieldIR, DataExpr]] = []
        self._values: dict[tuple[int, Key], Value] = {}
        self._carries: dict[tuple[int, Key], Value] = {}
        self._known: dict[Key, Known] = {}
        self._kept: list[object] = []  # expressions stay alive, since their identity is a key

    def assign(self, run: Sequence[Assign], dead: frozenset[int]) -> None:
        """Write a run of assignments to unsigned fields of one width. `dead` ones are not stored."""
        self.begin()
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
        self.begin()

    def _read_ahead(self, run: Sequence[Assign], written: set[int], pieces: int) -> None:
        """Bring the fields that the run reads into memory, and load the fields that it later overwrites."""
        for number, op in enumerate(run):
            for slot in sorted(reads(op.value) - set(self._visible[number])):
                pointer, place = self._scope.readable(self._field(slot)), self._scope.layout.field(self._field(slot))
                # The run stores piece by piece, and a shift may read a piece that has been overwritten.
                if slot in written:
                    for piece in range(place.words // PIECE_WORDS):
                        self._values[-1, (slot, piece)] = self._load(pointer, piece)

    def _field(self, slot: int) -> FieldIR:
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
        """Write one expression to unsigned memory of a place's width."""
        self.begin()
        self._visible.append({})
        values = [self.piece(expr, i, place.bits) for i in range(place.words // PIECE_WORDS)]
        for piece, value in enumerate(values):
            if (piece + 1) * PIECE_BITS > place.bits:
                value = self._scope.builder.and_(value, vector((1 << place.bits) - 1, piece))
            self._scope.builder.store(value, self._scope.at(pointer, piece * PIECE_WORDS), align=64)

    def differ(self, left: DataExpr, right: DataExpr) -> Value:
        """Return whether two values differ. A run of assignments may be in progress."""
        return Pieces(self._scope)._differ(left, right)

    def _differ(self, left: DataExpr, right: DataExpr) -> Value:
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
        """Return a piece of a value of which only the low `bits` bits matter."""
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
        if isinstance(expr, Const):
            return vector(expr.value, piece)
        if isinstance(expr, FieldRef | ParamRef | CellRef):
            return self._leaf(expr, piece)
        if isinstance(expr, Invert):
            return builder.not_(self.piece(expr.operand, piece, bits))
        if isinstance(expr, Select):
            yes, no = self.piece(expr.yes, piece, bits), self.piece(expr.no, piece, bits)
            return builder.select(self._integers.condition(expr.condition), yes, no)
        if isinstance(expr, Binary):
            choice = self._lanes.selection(expr, bits) if expr.op is BinaryOp.OR else None
            if choice is not None:
                mask, *values = choice
                bit = self._as_seen_by(mask.statement, mask.bit, piece, bits)
                return self._lanes.select(mask, bit, *(self.piece(value, piece, bits) for value in values))
            if expr.op in _BITWISE:
                left, right = self.piece(expr.left, piece, bits), self.piece(expr.right, piece, bits)
                return _BITWISE[expr.op](builder, left, right)
            if expr.op in (BinaryOp.SHL, BinaryOp.SHR) and isinstance(expr.right, Const):
                return self._shift(expr, expr.right.value, piece, bits)
            if expr.op in (BinaryOp.ADD, BinaryOp.SUB):
                return self._sum(expr, piece, bits)
        return self._cut(expr, piece, bits)

    def _leaf(self, expr: FieldRef | ParamRef | CellRef, piece: int) -> Value:
        if isinstance(expr, FieldRef):
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

    def _forwarded(self, source: int, field: FieldIR, piece: int) -> Value:
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

    def _shift(self, expr: Binary, amount: int, piece: int, bits: int) -> Value:
        """Take two neighbouring words for each word of the result."""
        left = expr.op is BinaryOp.SHL
        words, rest = divmod(-amount if left else amount, WORD_BITS)
        inner = bits if left else bits + amount
        low = self._words(expr.left, piece * PIECE_WORDS + words, inner)
        if rest == 0:
            return low
        high = self._words(expr.left, piece * PIECE_WORDS + words + 1, inner)
        builder = self._scope.builder
        return builder.or_(builder.lshr(low, vector_of(rest)), builder.shl(high, vector_of(WORD_BITS - rest)))

    def _words(self, expr: DataExpr, first: int, bits: int) -> Value:
        """Return eight words from any word on. Words before word 0 are 0."""
        piece, offset = divmod(first, PIECE_WORDS)
        low = self.piece(expr, piece, bits) if piece >= 0 else vector(0, 0)
        if offset == 0:
            return low
        high = self.piece(expr, piece + 1, bits) if piece + 1 >= 0 else vector(0, 0)
        indices = ir.Constant(_SPLAT.type, [offset + i for i in range(PIECE_WORDS)])
        return self._scope.builder.shuffle_vector(low, high, indices)

    def _sum(self, expr: Binary, piece: int, bits: int) -> Value:
        builder, words = self._scope.builder, round_up(bits, PIECE_BITS) // WORD_BITS
        known = self._bits(expr.left), self._bits(expr.right)
        if expr.op is BinaryOp.ADD:
            left, right = self.piece(expr.left, piece, bits), self.piece(expr.right, piece, bits)
            if known_bits.adds_without_carry(*known, words):
                return builder.add(left, right)
            return self._with_carry(expr, piece, bits, builder.add(left, right), left)
        amount = known_bits.spread(expr, bits)
        lane_bits = self._lanes.lane_bits(expr, self._statement, bits)
        if lane_bits is not None:
            return self._lanes.negated(self.piece(expr.right, piece, bits), lane_bits)
        if amount is not None and known_bits.spreads_within_words(known[1], amount, words):
            value = self.piece(expr.right, piece, bits)
            return builder.sub(builder.shl(value, vector_of(amount)), value)
        left, right = self.piece(expr.left, piece, bits), self.piece(expr.right, piece, bits)
        if known_bits.subtracts_without_borrow(*known, words):
            return builder.sub(left, right)
        return self._with_carry(expr, piece, bits, builder.sub(left, right), left)

    def _with_carry(self, expr: Binary, piece: int, bits: int, plain: Value, left: Value) -> Value:
        """Add the carries between words, or subtract the borrows, all eight at once.

        A word makes a carry if its own sum overflows, and passes one on if the sum is all ones. So the words that make
        a carry are shifted up and added to the words that pass one on. This addition carries through runs of the
        latter.
        """
        builder, wide = self._scope.builder, ir.IntType(16)
        adding = expr.op is BinaryOp.ADD
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

    def _carry(self, expr: Binary, piece: int, bits: int) -> Value:
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
        if isinstance(expr, Const):
            return Known(expr.value, expr.value)
        if isinstance(expr, Invert):
            inner = self._bits(expr.operand)
            return Known(~inner.certain, ~inner.possible)
        if isinstance(expr, FieldRef):
            source = self._visible[self._statement].get(expr.field.slot)
            return known_bits.of_type(expr.type) if source is None else self._assigned_bits(source)
        if isinstance(expr, Binary):
            if expr.op in (BinaryOp.SHL, BinaryOp.SHR) and isinstance(expr.right, Const):
                return known_bits.of_shift(expr.op, self._bits(expr.left), expr.right.value)
            return known_bits.of_binary(expr.op, self._bits(expr.left), self._bits(expr.right), expr.type)
        return known_bits.of_type(expr.type)

    def _assigned_bits(self, source: int) -> Known:
        field, expr = self._roots[source]
        found, ones = self.bits_at(expr, source), (1 << field.bits) - 1
        return Known(found.possible & ones, found.certain & ones)


def is_piecewise(expr: Expr) -> bool:
    """Return whether nothing of an expression is computed as one integer, or under a condition."""
    if isinstance(expr, Binary):
        if expr.op in (BinaryOp.SHL, BinaryOp.SHR):
            return isinstance(expr.right, Const) and is_piecewise(expr.left)
        known = expr.op in _BITWISE or expr.op in (BinaryOp.ADD, BinaryOp.SUB)
        return known and is_piecewise(expr.left) and is_piecewise(expr.right)
    if isinstance(expr, Invert):
        return is_piecewise(expr.operand)
    return isinstance(expr, Const | FieldRef | ParamRef)


def vector_of(value: int) -> Value:
    """Return a vector of eight equal words."""
    return ir.Constant(VECTOR, [value] * PIECE_WORDS)
