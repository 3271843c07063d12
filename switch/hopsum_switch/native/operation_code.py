# SPDX-License-Identifier: Apache-2.0
"""Operations of actions and of the parser as machine code: assignments, jumps, stacks, random(), the budget of steps.

A program without loops has no code for the budget (`program.frame_budget`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from llvmlite import ir

from ..program import ir as p4
from ..program.frame_budget import MAX_STEPS, jumps_back
from ..program.ir_expressions import Const, DataExpr, FieldIR, HeaderIR, IntType
from ..state.randomness import INCREMENT, LAST_SHIFT, MIX
from .calculation_code import compute
from .function_scope import I1, I64, CellRef, FunctionScope, Value, word
from .integer_code import Expr, Pieces, is_piecewise, width_of
from .liveness import named_slots
from .memory_layout import WORD_BITS, ControlWord, StoredInteger, Word
from .only_interpreted import unsupported_error

_SPENT = -1


def write_budget(scope: FunctionScope) -> None:
    """Write code that sets the frame's budget of steps to MAX_STEPS."""
    scope.store(word(MAX_STEPS), scope.control, ControlWord.STEPS)


def step_block(scope: FunctionScope, onward: Value, out_of_steps: Value) -> Value:
    """Write a block that takes a step and goes to `onward`, or to `out_of_steps` if none is left. Return the block."""
    builder, current = scope.builder, scope.builder.block
    block, taken, spent = (scope.block(name) for name in ("step", "taken", "spent"))
    scope.start(block)
    left = scope.shared(ControlWord.STEPS)
    builder.cbranch(builder.icmp_unsigned("==", left, word(0)), spent, taken)
    scope.start(taken)
    scope.store(builder.sub(left, word(1)), scope.control, ControlWord.STEPS)
    builder.branch(onward)
    scope.start(spent)
    # All ones marks a frame without steps. The callers test it after each block that may loop.
    scope.store(word(_SPENT), scope.control, ControlWord.STEPS)
    scope.store(builder.add(scope.shared(ControlWord.OUT_OF_STEPS), word(1)), scope.control, ControlWord.OUT_OF_STEPS)
    scope.set(Word.EXITED, 1)
    builder.branch(out_of_steps)
    scope.start(current)
    return block


def is_spent(scope: FunctionScope) -> Value:
    """Write a test of the budget. Return an i1 value, true if the frame is dropped for its steps."""
    return scope.builder.icmp_unsigned("==", scope.shared(ControlWord.STEPS), word(_SPENT))


def add_steps_taken(scope: FunctionScope) -> Value:
    """Write code that adds the frame's steps to the call's total, and compares the total with MAX_STEPS.

    Returns an i1 value, true while the call may begin another frame.
    """
    # Frames of one call take less than two budgets together, so a caller waits for a bounded time.
    builder = scope.builder
    taken = builder.sub(word(MAX_STEPS), scope.shared(ControlWord.STEPS))
    total = builder.add(scope.shared(ControlWord.STEPS_TAKEN), taken)
    scope.store(total, scope.control, ControlWord.STEPS_TAKEN)
    return builder.icmp_unsigned("<", total, word(MAX_STEPS))


# random(): the stream of `state.randomness` as machine code.


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
    # Rejection: the mask is the next power of two, so fewer than two draws are needed on average, and no value is
    # preferred.
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


# The methods push_front() and pop_front(), see `interp.primitives.OperationWriter._shift_stack`.


def shift_stack(scope: FunctionScope, op: p4.ShiftStack) -> None:
    """Write code that moves the elements of a stack, and changes the number of those in use."""
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


# Operations of actions and of the parser, in order and with jumps.

DROP_PORT = 511


class Operations:
    """A writer of runs of operations as code of a function."""

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope
        self._pieces = Pieces(scope)
        self.integers = self._pieces.integers
        self._body: tuple[p4.Operation, ...] = ()

    def write_all(self, body: tuple[p4.Operation, ...]) -> None:
        """Write a whole body, jumps included. The builder ends in the block after it. Raises: UnsupportedError."""
        scope, self._body = self._scope, body
        jumps = [op for op in body if isinstance(op, p4.Jump | p4.JumpIfZero)]
        if not jumps:
            self._straight(body)
            return
        ends = {i + 1 for i, op in enumerate(body) if isinstance(op, p4.Jump | p4.JumpIfZero)}
        starts = sorted({0, len(body)} | ends | {op.to for op in jumps})
        blocks = {start: scope.block(f"op{start}") for start in starts}
        scope.builder.branch(blocks[0])
        for start, end in pairwise(starts):
            scope.start(blocks[start])
            self._straight([op for op in body[start:end] if not isinstance(op, p4.Jump | p4.JumpIfZero)])
            self._leave(end - 1, blocks, blocks[end])
        scope.start(blocks[len(body)])

    def store(self, pointer: Value, place: StoredInteger, expr: Expr) -> None:
        """Write code that stores an expression at `pointer`, wrapped to the place's width. Raises: UnsupportedError."""
        if place.is_wide and not place.signed:
            self._pieces.store(pointer, place, expr)
            return
        width = WORD_BITS * place.words
        value = self._wrap_signed(expr, place) if place.signed else self.integers.low(expr, width)
        if not place.signed and (expr.type.signed or expr.type.bits > place.bits) and place.bits < width:
            value = self._scope.builder.and_(value, ir.Constant(value.type, (1 << place.bits) - 1))
        self._scope.builder.store(value, pointer, align=8)

    def store_field(self, field: FieldIR, expr: Expr) -> None:
        """Write code that sets a field, wrapped to its width. Raises: UnsupportedError."""
        self.store(self._scope.target(field), self._scope.layout.field(field), expr)
        self._scope.written(field)

    def store_word(self, field: FieldIR, value: Value) -> None:
        """Write code that sets a field from an unsigned word, wrapped to the field's width."""
        self.store_field(field, CellRef(self._scope.variable(value), StoredInteger(0, WORD_BITS)))

    def _leave(self, index: int, blocks: dict[int, Value], following: Value) -> None:
        last = self._body[index]
        if isinstance(last, p4.Jump):
            self._scope.builder.branch(self._jump_target(index, last, blocks))
        elif isinstance(last, p4.JumpIfZero):
            value = self.integers.exact(last.value)
            zero = self._scope.builder.icmp_unsigned("==", value, ir.Constant(value.type, 0))
            self._scope.builder.cbranch(zero, self._jump_target(index, last, blocks), following)
        else:
            self._scope.builder.branch(following)

    def _jump_target(self, index: int, jump: p4.Jump | p4.JumpIfZero, blocks: dict[int, Value]) -> Value:
        if not jumps_back(index, jump):
            return blocks[jump.to]
        return step_block(self._scope, blocks[jump.to], blocks[len(self._body)])

    def _straight(self, body: Sequence[p4.Operation]) -> None:
        run: list[p4.Assign] = []
        for op in body:
            if isinstance(op, p4.Assign) and self._joins(run, op):
                run.append(op)
                continue
            self._flush(run)
            run = []
            if isinstance(op, p4.Assign) and self._joins(run, op):
                run.append(op)
            else:
                _WRITERS[type(op)](self, op)
        self._flush(run)

    def _joins(self, run: list[p4.Assign], op: p4.Assign) -> bool:
        place = self._scope.layout.field(op.target)
        if not place.is_wide or place.signed or not is_piecewise(op.value):
            return False
        return not run or self._scope.layout.field(run[0].target).words == place.words

    def _flush(self, run: list[p4.Assign]) -> None:
        if run:
            others = tuple(op for op in self._body if not any(op is member for member in run))
            dead = self._scope.layout.temporaries - named_slots(others)
            self._pieces.assign(run, dead)

    def _assign(self, op: p4.Assign) -> None:
        self.store_field(op.target, op.value)

    def _wrap_signed(self, expr: Expr, place: StoredInteger) -> Value:
        """Return the value of a signed field after a store, see `interp.packet.wrap_signed`."""
        builder, width = self._scope.builder, WORD_BITS * place.words
        if expr.type.as_signed().bits <= place.bits:
            return self.integers.low(expr, width)
        own = max(width, width_of(expr.type.as_signed()))
        value = self.integers.low(expr, own)
        low, high = (ir.Constant(value.type, bound) for bound in (-(1 << (place.bits - 1)), 1 << place.bits))
        fits = builder.and_(builder.icmp_signed(">=", value, low), builder.icmp_signed("<", value, high))
        spare = ir.Constant(value.type, own - place.bits)
        wrapped = builder.ashr(builder.shl(value, spare), spare)
        return self.integers.resize(builder.select(fits, value, wrapped), width, signed=True)

    def _assign_element(self, op: p4.AssignElement) -> None:
        inside, index = self._index(op.index, len(op.targets))
        # The index is computed once, before any store: it may name one of the fields.
        choice = self._scope.variable(self._scope.builder.select(inside, index, word(len(op.targets))))
        for number, field in enumerate(op.targets):
            chosen = self._scope.builder.load(choice, typ=I64)
            with self._scope.when(self._scope.builder.icmp_unsigned("==", chosen, word(number))):
                # The value may name the field itself: nothing is read again once a field was written.
                self._assign(p4.Assign(field, op.value))

    def _assign_header(self, op: p4.AssignHeader) -> None:
        scope, builder = self._scope, self._scope.builder
        if op.target.name == op.value.name:
            return
        (target, words), (source, _) = scope.layout.span(op.target), scope.layout.span(op.value)
        with builder.if_else(scope.is_valid(op.value)) as (then, otherwise):
            with then:
                scope.make_valid(op.target)
                scope.copy(scope.at(scope.state, target), scope.at(scope.state, source), 8 * words)
            with otherwise:
                if not op.target.metadata:
                    scope.set_valid(op.target, 0)

    def _add_header(self, op: p4.AddHeader) -> None:
        if op.header.metadata:
            return
        scope = self._scope
        with scope.when(scope.builder.not_(scope.is_valid(op.header))):
            scope.make_valid(op.header)
            first, words = scope.layout.span(op.header)
            if not self._overwritten(op):
                scope.clear(scope.at(scope.state, first), 8 * words)
            scope.set(Word.LENGTH, scope.builder.add(scope.get(Word.LENGTH), word(op.header.bits // 8)))

    def _overwritten(self, op: p4.AddHeader) -> bool:
        """Return whether the rest of this body sets every field before any read."""
        # p4c writes setValid and then every field. Then the zeros would be overwritten at once.
        left = {field.slot for field in op.header.fields}
        position = next(i for i, other in enumerate(self._body) if other is op)
        for following in self._body[position + 1 :]:
            if not isinstance(following, p4.Assign) or named_slots(following.value) & left:
                break
            left.discard(following.target.slot)
        return not left

    def _remove_header(self, op: p4.RemoveHeader) -> None:
        if op.header.metadata:
            return
        scope = self._scope
        with scope.when(scope.is_valid(op.header)):
            scope.set_valid(op.header, 0)
            scope.set(Word.LENGTH, scope.builder.sub(scope.get(Word.LENGTH), word(op.header.bits // 8)))

    def _mark_to_drop(self, op: p4.MarkToDrop) -> None:
        self.store_word(op.egress_spec, word(DROP_PORT))
        if op.mcast_grp is not None:
            self.store_word(op.mcast_grp, word(0))

    def _exit(self, op: p4.Exit) -> None:
        del op
        self._scope.set(Word.EXITED, 1)

    def _truncate(self, op: p4.Truncate) -> None:
        scope = self._scope
        scope.set(Word.LIMIT, scope.minimum(scope.get(Word.LIMIT), self.integers.word(op.length)))

    def _register_read(self, op: p4.RegisterRead) -> None:
        with self._inside(op.index, op.register.size) as index:
            cell = self._cell(op.register.name, index)
            self.store_field(op.target, cell)

    def _register_write(self, op: p4.RegisterWrite) -> None:
        with self._inside(op.index, op.register.size) as index:
            cell = self._cell(op.register.name, index)
            self.store(cell.pointer, cell.place, op.value)

    def _cell(self, name: str, index: Value) -> CellRef:
        scope, place = self._scope, self._scope.layout.registers[name]
        offset = scope.builder.add(word(place.offset), scope.builder.mul(index, word(place.words)))
        return CellRef(scope.at(scope.address(ControlWord.REGISTERS), offset), place)

    def _count(self, op: p4.Count) -> None:
        scope, builder = self._scope, self._scope.builder
        with self._inside(op.index, op.counter.size) as index:
            start, base = scope.layout.counters[op.counter.name], scope.address(ControlWord.COUNTERS)
            for offset, amount in ((0, word(1)), (op.counter.size, scope.get(Word.RECEIVED))):
                at = builder.add(index, word(start + offset))
                scope.store(builder.add(scope.load(base, at), amount), base, at)

    def _hash(self, op: p4.Hash) -> None:
        builder = self._scope.builder
        size, base = self.integers.word(op.size), self.integers.word(op.base)
        size = builder.select(builder.icmp_unsigned("==", size, word(0)), word(1), size)
        value = compute(self._scope, op.calculation)
        self.store_word(op.target, builder.add(builder.urem(value, size), base))

    def _random(self, op: p4.RandomUniform) -> None:
        low, high = self.integers.word(op.low), self.integers.word(op.high)
        with self._scope.when(self._scope.builder.icmp_unsigned("<=", low, high)):
            self.store_word(op.target, draw(self._scope, low, high))

    def _shift_stack(self, op: p4.ShiftStack) -> None:
        shift_stack(self._scope, op)

    def _assign_stack(self, op: p4.AssignStack) -> None:
        count = self._scope.load(self._scope.field_pointer(op.value.next), 0)
        self._scope.store(count, self._scope.field_pointer(op.target.next), 0)
        for target, value in zip(op.target.headers, op.value.headers, strict=True):
            self._assign_header(p4.AssignHeader(target, value))

    def _assign_union(self, op: p4.AssignUnion) -> None:
        for target, value in zip(op.target.headers, op.value.headers, strict=True):
            self._assign_header(p4.AssignHeader(target, value))

    def _refuse(self, op: p4.Operation) -> None:
        raise unsupported_error(_INTERPRETED[type(op)], self._scope.where)

    def _no_op(self, op: p4.NoOp) -> None:
        del op

    @contextmanager
    def _inside(self, expr: DataExpr, size: int) -> Iterator[Value]:
        """Write code that runs with an index inside an array. An index outside is counted."""
        scope = self._scope
        inside, index = self._index(expr, size)
        if isinstance(expr, Const) and 0 <= expr.value < size:
            yield index
            return
        with scope.builder.if_else(inside, likely=True) as (then, otherwise):
            with otherwise:
                total = scope.builder.add(scope.shared(ControlWord.OUT_OF_RANGE), word(1))
                scope.store(total, scope.control, ControlWord.OUT_OF_RANGE)
            with then:
                yield index

    def _index(self, expr: DataExpr, size: int) -> tuple[Value, Value]:
        """Return whether an index is inside an array, and the index as a word."""
        kind = expr.type.covering(IntType(max(1, size.bit_length()), False))
        value = self.integers.low(expr, width_of(kind))
        inside = self._scope.builder.icmp_unsigned("<", value, ir.Constant(value.type, size))
        return inside, self.integers.resize(value, WORD_BITS, signed=False)


# Operations that only the interpreter runs, as `only_interpreted` names them.
_INTERPRETED: dict[type, str] = {
    p4.Clone: "clone",
    p4.ExecuteMeter: "meter",
    p4.LogMessage: "log message",
    p4.Recirculate: "recirculate",
    p4.Resubmit: "resubmit",
    p4.SendDigest: "digest",
}

_WRITERS: dict[type, Callable[[Operations, Any], None]] = {
    p4.Assign: Operations._assign,
    p4.AssignHeader: Operations._assign_header,
    p4.AddHeader: Operations._add_header,
    p4.RemoveHeader: Operations._remove_header,
    p4.ShiftStack: Operations._shift_stack,
    p4.AssignStack: Operations._assign_stack,
    p4.AssignElement: Operations._assign_element,
    p4.AssignUnion: Operations._assign_union,
    **dict.fromkeys(_INTERPRETED, Operations._refuse),
    p4.MarkToDrop: Operations._mark_to_drop,
    p4.Exit: Operations._exit,
    p4.Truncate: Operations._truncate,
    p4.RegisterRead: Operations._register_read,
    p4.RegisterWrite: Operations._register_write,
    p4.Count: Operations._count,
    p4.Hash: Operations._hash,
    p4.RandomUniform: Operations._random,
    p4.NoOp: Operations._no_op,
}
