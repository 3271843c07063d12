# SPDX-License-Identifier: Apache-2.0
"""The methods push_front() and pop_front(), see `interp.operations.OperationWriter.shift_stack`."""

from __future__ import annotations

from llvmlite import ir

from ..program.ir import ShiftStack
from ..program.ir_expressions import HeaderIR
from .scope import I64, FunctionScope, Value, word


def shift_stack(scope: FunctionScope, op: ShiftStack) -> None:
    """Write code that moves the elements of a stack."""
    if op.by == 0:
        return
    headers, size, builder = op.stack.headers, len(op.stack.headers), scope.builder
    pointer = scope.field_pointer(op.stack.next)
    count = scope.load(pointer, 0)
    by, moved = word(abs(op.by)), max(size - abs(op.by), 0)
    if op.by > 0:
        count = scope.minimum(builder.add(count, by), word(size))
        pairs = [(i, i - op.by) for i in range(size - 1, size - 1 - moved, -1)]
        entered = headers[: op.by]
    else:
        count = builder.sub(count, scope.minimum(count, by))
        pairs = [(i, i - op.by) for i in range(moved)]
        entered = headers[moved:]
    scope.store(count, pointer, 0)
    spare = _spare(scope, max(scope.layout.span(header)[1] for header in headers))
    for left, right in pairs:
        _swap(scope, headers[left], headers[right], spare)
    for header in entered:
        scope.set_valid(header, 0)


def _spare(scope: FunctionScope, words: int) -> Value:
    with scope.builder.goto_entry_block():
        return scope.builder.alloca(I64, size=ir.Constant(I64, max(words, 1)))


def _swap(scope: FunctionScope, left: HeaderIR, right: HeaderIR, spare: Value) -> None:
    (one, words), (other, _) = scope.layout.span(left), scope.layout.span(right)
    scope.copy(spare, scope.at(scope.state, one), 8 * words)
    scope.copy(scope.at(scope.state, one), scope.at(scope.state, other), 8 * words)
    scope.copy(scope.at(scope.state, other), spare, 8 * words)
    places = [(scope.layout.valid(left), scope.layout.valid(right))]
    regions = scope.layout.header_region(left), scope.layout.header_region(right)
    if regions[0] is not None and regions[1] is not None:  # both or none: the elements have one type
        places.append((regions[0].flag, regions[1].flag))
    for first, second in places:
        flags = [scope.load(scope.state, at) for at in (first, second)]
        scope.store(flags[1], scope.state, first)
        scope.store(flags[0], scope.state, second)
