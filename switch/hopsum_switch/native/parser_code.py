# SPDX-License-Identifier: Apache-2.0
"""The parser: one block per state. A failed operation stores its error and leaves."""

from __future__ import annotations

from llvmlite import ir

from ..interp.parser import error_number
from ..program import ir as p4
from ..program.frame_budget import parser_cycles
from ..program.ir_expressions import HeaderIR
from .frame_code import HeaderAccess
from .function_scope import PTR, CellRef, FunctionScope, Unit, Value, word
from .memory_layout import WORD_BITS, StoredInteger, Word, round_up, words_for
from .only_interpreted import unsupported_error
from .operation_code import Operations, step_block


def write_parser(unit: Unit) -> Value:
    """Write the function `parse`, which parses a packet. Return it. Raises: UnsupportedError."""
    function = unit.declare("parse", ir.VoidType(), [PTR, PTR])
    _Parser(unit, FunctionScope(unit, function)).write()
    return function


class _Parser:
    def __init__(self, unit: Unit, scope: FunctionScope) -> None:
        self._program = unit.program
        self._scope = scope
        self._operations = Operations(scope)
        self._integers = self._operations.integers
        self._frames = HeaderAccess(scope)
        self._end = scope.block("done")
        self._states = {name: scope.block("state") for name in unit.program.parser.states}
        self._cycles = parser_cycles(unit.program.parser)

    def write(self) -> None:
        scope = self._scope
        scope.set(Word.ERROR, error_number(self._program, "NoError"))
        scope.builder.branch(self._target(self._program.parser.init))
        for name, state in self._program.parser.states.items():
            scope.where = name
            scope.start(self._states[name])
            self._state(state)
        scope.start(self._end)
        scope.builder.ret_void()

    def _target(self, name: str | None) -> Value:
        return self._end if name is None else self._states[name]

    def _successor(self, state: p4.StateIR, name: str | None) -> Value:
        """Return where a transition leads, by way of a step if it can lead back."""
        if name not in self._cycles.get(state.name, ()):
            return self._target(name)
        return step_block(self._scope, self._target(name), self._end)

    def _state(self, state: p4.StateIR) -> None:
        for op in state.ops:
            self._write(op)
        builder = self._scope.builder
        if state.key:
            key = self._key(state.key)
            # In the order of the program: the first case that matches decides.
            for case in state.cases:
                masked = builder.and_(key, ir.Constant(key.type, case.mask & (1 << key.type.width) - 1))
                matches = builder.icmp_unsigned("==", masked, ir.Constant(key.type, case.value))
                following = self._scope.block("case")
                builder.cbranch(matches, self._successor(state, case.next), following)
                self._scope.start(following)
        builder.branch(self._successor(state, state.default))

    def _write(self, op: p4.ParserOp) -> None:
        scope = self._scope
        if isinstance(op, p4.Extract):
            self._extract(op.header)
        elif isinstance(op, p4.ExtractNext):
            self._extract_next(op.stack)
        elif isinstance(op, p4.SetField):
            self._operations.store_field(op.target, op.value)
        elif isinstance(op, p4.SetLookahead):
            self._set_lookahead(op)
        elif isinstance(op, p4.Verify):
            self._fail_if(scope.builder.not_(self._integers.condition(op.condition)), self._integers.low(op.error, 64))
        elif isinstance(op, p4.Advance):
            self._advance(op)
        else:
            assert isinstance(op, p4.Perform)
            self._operations.write_all((op.operation,))

    def _fail_if(self, condition: Value, error: Value) -> None:
        failed, following = self._scope.block("failed"), self._scope.block("parsed")
        self._scope.builder.cbranch(condition, failed, following)
        self._scope.start(failed)
        self._scope.set(Word.ERROR, error)
        self._scope.builder.branch(self._end)
        self._scope.start(following)

    def _error(self, name: str) -> Value:
        return word(error_number(self._program, name))

    def _need(self, size: Value) -> Value:
        """Fail unless that many bytes are left. Return the read position."""
        scope, builder = self._scope, self._scope.builder
        position = scope.get(Word.POSITION)
        # The bytes that are left, since a position past the end could wrap.
        left = builder.sub(scope.get(Word.RECEIVED), position)
        self._fail_if(builder.icmp_unsigned(">", size, left), self._error("PacketTooShort"))
        return position

    def _at(self, position: Value) -> Value:
        return self._scope.byte(self._scope.builder.inttoptr(self._scope.get(Word.FRAME), PTR), position)

    def _extract(self, header: HeaderIR) -> None:
        size = word(header.bits // 8)
        position = self._need(size)
        self._frames.extract(header, self._at(position))
        self._scope.make_valid(header)
        self._scope.set(Word.POSITION, self._scope.builder.add(position, size))

    def _extract_next(self, stack: p4.StackIR) -> None:
        """Write one block per element. The number of elements in use selects the block."""
        scope, builder = self._scope, self._scope.builder
        pointer = scope.field_pointer(stack.next)
        number = scope.load(pointer, 0)
        self._fail_if(builder.icmp_unsigned("==", number, word(len(stack.headers))), self._error("StackOutOfBounds"))
        end = scope.block("extracted")
        # Each element has fields of its own, and the number is known at run time only.
        choice = builder.switch(number, self._end)
        for position, header in enumerate(stack.headers):
            block = scope.block("element")
            choice.add_case(word(position), block)
            scope.start(block)
            self._extract(header)
            scope.store(word(position + 1), pointer, 0)
            builder.branch(end)
        scope.start(end)

    def _advance(self, op: p4.Advance) -> None:
        # The amount becomes one word: a negative or longer one would pass the test of what is left.
        if op.bits.type.signed:
            raise unsupported_error("signed length", f"advance() in {self._scope.where}")
        if op.bits.type.bits >= WORD_BITS:
            raise unsupported_error("wide length", f"advance() in {self._scope.where}")
        builder, amount = self._scope.builder, self._integers.exact(op.bits)
        rest = builder.and_(amount, word(7))
        self._fail_if(builder.icmp_unsigned("!=", rest, word(0)), self._error("ParserInvalidArgument"))
        size = builder.lshr(amount, word(3))
        position = self._need(size)
        self._scope.set(Word.POSITION, builder.add(position, size))

    def _peek(self, ahead: p4.Lookahead) -> Value:
        position = self._need(word((ahead.offset + ahead.bits + 7) // 8))
        return self._frames.bits(self._at(position), ahead.offset, ahead.bits)

    def _set_lookahead(self, op: p4.SetLookahead) -> None:
        scope, value = self._scope, self._peek(op.value)
        kind = ir.IntType(WORD_BITS * words_for(op.value.bits))
        with scope.builder.goto_entry_block():
            # In the entry block, since a state that comes again would take more of the stack each time.
            pointer = scope.builder.alloca(kind)
        pointer.align = 64
        value = self._integers.resize(value, kind.width, signed=False)
        if op.target.signed and op.target.bits == op.value.bits:
            spare = ir.Constant(value.type, value.type.width - op.value.bits)
            value = scope.builder.ashr(scope.builder.shl(value, spare), spare)
            scope.builder.store(value, pointer, align=8)
            cell = CellRef(pointer, StoredInteger(0, op.value.bits - 1, signed=True))
        else:
            scope.builder.store(value, pointer, align=8)
            cell = CellRef(pointer, StoredInteger(0, op.value.bits))
        self._operations.store_field(op.target, cell)

    def _key(self, parts: tuple[p4.KeyPart, ...]) -> Value:
        builder = self._scope.builder
        # The JSON pads each piece of a key to whole bytes, in values and masks too.
        sizes = [8 * p4.padded_bytes(part.bits) for part in parts]
        kind = ir.IntType(max(WORD_BITS, round_up(sum(sizes), WORD_BITS)))
        key = ir.Constant(kind, 0)
        for size, part in zip(sizes, parts, strict=True):
            value = self._integers.resize(self._part(part), kind.width, signed=False)
            key = builder.or_(builder.shl(key, ir.Constant(kind, size)), value) if size < kind.width else value
        return key

    def _part(self, part: p4.KeyPart) -> Value:
        if isinstance(part.value, p4.Lookahead):
            return self._peek(part.value)
        if isinstance(part.value, p4.Computed):
            kind = ir.IntType(round_up(part.bits, WORD_BITS))
            value = self._integers.low(part.value.value, kind.width)
            return self._scope.builder.and_(value, ir.Constant(kind, (1 << part.bits) - 1))
        kind = ir.IntType(round_up(part.bits, WORD_BITS))
        value = self._scope.builder.load(self._scope.readable(part.value), typ=kind, align=8)
        return self._scope.builder.and_(value, ir.Constant(kind, (1 << part.bits) - 1))
