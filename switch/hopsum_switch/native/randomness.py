# SPDX-License-Identifier: Apache-2.0
"""random(): the stream of `state.randomness` as machine code."""

from __future__ import annotations

from llvmlite import ir

from ..state.randomness import INCREMENT, LAST_SHIFT, MIX
from .layout import ControlWord
from .scope import I1, I64, FunctionScope, Value, word


def draw(scope: FunctionScope, low: Value, high: Value) -> Value:
    """Write code for an integer in [low, high], where low <= high. Returns the word."""
    builder = scope.builder
    span = builder.sub(high, low)
    leading = scope.unit.intrinsic("llvm.ctlz.i64", I64, [I64, I1])
    zeros = builder.call(leading, [builder.or_(span, word(1)), ir.Constant(I1, 0)])
    mask = builder.lshr(word(-1), zeros)
    again, end = scope.block("draw"), scope.block("drawn")
    builder.branch(again)
    scope.start(again)
    value = builder.and_(_next(scope), mask)
    builder.cbranch(builder.icmp_unsigned("<=", value, span), end, again)
    scope.start(end)
    return builder.add(low, value)


def _next(scope: FunctionScope) -> Value:
    builder = scope.builder
    value = builder.add(scope.shared(ControlWord.RANDOM), word(INCREMENT))
    scope.store(value, scope.control, ControlWord.RANDOM)
    for shift, factor in MIX:
        value = builder.mul(builder.xor(value, builder.lshr(value, word(shift))), word(factor))
    return builder.xor(value, builder.lshr(value, word(LAST_SHIFT)))
