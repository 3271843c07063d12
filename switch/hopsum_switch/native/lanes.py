# SPDX-License-Identifier: Apache-2.0
"""Masks that keep or clear whole lanes of a wide value, and the simpler forms of expressions with them.

With b < 2 in every lane of w bits, (b << w) - b = b * (2**w - 1) is all ones in the lanes where b is 1 and 0 in the
others: nothing is carried from lane to lane. Two identities follow for such a mask m, held by tests of random programs:

    m                     = -b, lane by lane                  one operation instead of two
    (x & ~m) | (y & m)    = y where b is 1, else x            a selection by b, which need not be widened to m
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llvmlite import ir

from ..program.ir_expressions import Binary, BinaryOp, DataExpr, FieldRef, Invert
from . import known_bits
from .layout import WORD_BITS
from .scope import Value

if TYPE_CHECKING:
    from .pieces import Pieces

LANE_BITS = (8, 16, 32)
_PIECE_BITS = 512


class Mask(NamedTuple):
    """All ones in the lanes of a value that are 1 (or, inverted, in those that are 0)."""

    lane_bits: int
    bit: DataExpr  # the value, 0 or 1 per lane, as statement `statement` sees it
    statement: int
    inverted: bool

    def complements(self, other: Mask) -> bool:
        """Return whether two masks are each other's complement."""
        return self._replace(inverted=not self.inverted) == other


class MaskedSelections:
    """Finds masks in a run of assignments and writes selections by them."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def selection(self, expr: Binary, bits: int) -> tuple[Mask, DataExpr, DataExpr] | None:
        """Return (m, y, x) if an OR is (x & ~m) | (y & m) in all of its `bits` bits, else None."""
        left, right = expr.left, expr.right
        if not isinstance(left, Binary) or not isinstance(right, Binary):
            return None
        if not left.op is right.op is BinaryOp.AND:
            return None
        for first, first_value in ((left.right, left.left), (left.left, left.right)):
            mask = self._mask(first, self._pieces.statement, bits)
            for second, second_value in ((right.right, right.left), (right.left, right.right)):
                other = mask and self._mask(second, self._pieces.statement, bits)
                if mask and other and mask.complements(other):
                    return (other, second_value, first_value) if mask.inverted else (mask, first_value, second_value)
        return None

    def lane_bits(self, difference: Binary, statement: int, bits: int) -> int | None:
        """Return the lanes' width if a difference is a mask (b << w) - b of `bits` bits, else None."""
        width = known_bits.spread(difference, bits)
        if width not in LANE_BITS or bits % width:
            return None
        ones = ((1 << bits) - 1) // ((1 << width) - 1)
        possible = self._pieces.bits_at(difference.right, statement).possible
        return width if possible >= 0 and possible & ~ones == 0 else None

    def select(self, mask: Mask, bit: Value, yes: Value, no: Value) -> Value:
        """Return `yes` in the lanes where `bit` is 1, and `no` in the others."""
        builder = self._pieces.builder
        kind = lanes_type(mask.lane_bits)
        top = ir.Constant(bit.type, [mask.lane_bits - 1] * (_PIECE_BITS // WORD_BITS))
        sign = builder.bitcast(builder.shl(bit, top), kind)
        chosen = builder.icmp_signed("<", sign, ir.Constant(kind, None))
        return builder.bitcast(builder.select(chosen, *(builder.bitcast(v, kind) for v in (yes, no))), bit.type)

    def negated(self, bit: Value, lane_bits: int) -> Value:
        """Return the mask of a value that is 0 or 1 in each lane."""
        builder, kind = self._pieces.builder, lanes_type(lane_bits)
        return builder.bitcast(builder.sub(ir.Constant(kind, None), builder.bitcast(bit, kind)), bit.type)

    def _mask(self, expr: DataExpr, statement: int, bits: int) -> Mask | None:
        """Return the known bits of an expression in a statement, of which `bits` bits matter."""
        inverted = False
        while True:
            expr = known_bits.unmasked(expr, bits)
            if isinstance(expr, Invert):
                inverted, expr = not inverted, expr.operand
            elif isinstance(expr, FieldRef) and expr.type.bits == bits and not expr.type.signed:
                source = self._pieces.assigned(expr, statement)
                if source is None:
                    return None
                statement, expr = source
            elif isinstance(expr, Binary) and expr.op is BinaryOp.SUB:
                width = self.lane_bits(expr, statement, bits)
                if width is None:
                    return None
                return Mask(width, expr.right, statement, inverted)
            else:
                return None


def lanes_type(lane_bits: int) -> Value:
    """Return the type of a piece as lanes."""
    return ir.VectorType(ir.IntType(lane_bits), _PIECE_BITS // lane_bits)
