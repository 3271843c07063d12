# SPDX-License-Identifier: Apache-2.0
"""An analysis of the bits of wide values: those that can be one, and those that must be.

The compiler sees by it where a sum carries nothing from word to word.

Values are two's complement of any length, so both sets are Python integers and may be negative.
"""

from __future__ import annotations

from typing import NamedTuple

from ..program.ir_expressions import Binary, BinaryOp, Const, DataExpr, IntType

WORD = (1 << 64) - 1


class Known(NamedTuple):
    """A superset of the bits that are one, and a subset."""

    possible: int
    certain: int


def of_type(kind: IntType) -> Known:
    """Return the known bits of a value of this type."""
    return Known(-1 if kind.signed else (1 << kind.bits) - 1, 0)


def of_binary(op: BinaryOp, left: Known, right: Known, kind: IntType) -> Known:
    """Return the known bits of a bitwise operator's result."""
    if op is BinaryOp.AND:
        return Known(left.possible & right.possible, left.certain & right.certain)
    if op is BinaryOp.OR:
        return Known(left.possible | right.possible, left.certain | right.certain)
    if op is BinaryOp.XOR:
        certain = left.certain & ~right.possible | right.certain & ~left.possible
        return Known((left.possible | right.possible) & ~(left.certain & right.certain), certain)
    return of_type(kind)


def of_shift(op: BinaryOp, value: Known, amount: int) -> Known:
    """Return the known bits of a value shifted by a constant."""
    if op is BinaryOp.SHL:
        return Known(value.possible << amount, value.certain << amount)
    return Known(value.possible >> amount, value.certain >> amount)


def adds_without_carry(left: Known, right: Known, words: int) -> bool:
    """Return whether the sum of each pair of words fits a word."""
    return all(_word(left.possible, i) + _word(right.possible, i) <= WORD for i in range(words))


def subtracts_without_borrow(left: Known, right: Known, words: int) -> bool:
    """Return whether each word on the left is at least the one on the right."""
    return all(_word(left.certain, i) >= _word(right.possible, i) for i in range(words))


def spread(expr: Binary, bits: int) -> int | None:
    """Return k if the expression is (x << k) - x modulo 2**bits, which is x * (2**k - 1), else None."""
    shifted = unmasked(expr.left, bits)
    if not isinstance(shifted, Binary) or shifted.op is not BinaryOp.SHL or not isinstance(shifted.right, Const):
        return None
    amount = shifted.right.value
    return amount if 0 < amount < 64 and shifted.left == expr.right else None


def spreads_within_words(value: Known, amount: int, words: int) -> bool:
    """Return whether x * (2**amount - 1) is the same word by word."""
    return all(_word(value.possible, i) * ((1 << amount) - 1) <= WORD for i in range(words))


def unmasked(expr: DataExpr, bits: int) -> DataExpr:
    """Return the expression without masks that keep the low `bits` bits."""
    ones = (1 << bits) - 1
    while isinstance(expr, Binary) and expr.op is BinaryOp.AND:
        if isinstance(expr.right, Const) and expr.right.value & ones == ones:
            expr = expr.left
        elif isinstance(expr.left, Const) and expr.left.value & ones == ones:
            expr = expr.right
        else:
            break
    return expr


def _word(value: int, index: int) -> int:
    return value >> (64 * index) & WORD
