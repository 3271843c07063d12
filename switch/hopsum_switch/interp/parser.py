# SPDX-License-Identifier: Apache-2.0
"""The parser: a machine over the received bytes.

On an error parsing stops, `run` returns the error's number, and the packet continues with the headers extracted so far.
Bytes read before the failed operation stay read. A transition key that looks ahead past the end of the frame is a
PacketTooShort error (undefined in the behavioral model).
"""

from __future__ import annotations

from collections.abc import Callable

from ..program import ir as p4
from ..program.frame_budget import parser_cycles
from ..program.ir_expressions import DataExpr, FieldIR, HeaderIR
from ..program.p4_source import SourceInfo
from .actions import compile_operations
from .expressions import ExpressionWriter, compile_condition, compile_data
from .observed import ObservedState, RunsState, expression_writer, observed_step
from .packet import PacketState, decode_signed, store
from .primitives import Environment, Steps

Step = Callable[[PacketState], None]
Key = Callable[[PacketState], int]


class ParserError(Exception):
    """Parsing stops with the error number in `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Parser:
    """The parser of a program, ready to run on packets."""

    def __init__(self, program: p4.ProgramIR, environment: Environment) -> None:
        self._init = program.parser.init
        self.no_error = error_number(program, "NoError")
        builder = _StateBuilder(program, environment)
        self._states: dict[str, RunsState] = {n: builder.build(s) for n, s in program.parser.states.items()}
        for name, cycle in parser_cycles(program.parser).items():
            self._states[name] = _StateOfCycle(self._states[name], cycle, environment.steps)
        observer = environment.observer
        if observer is not None:
            states = program.parser.states
            self._states = {n: ObservedState(s, states[n], observer) for n, s in self._states.items()}

    def run(self, packet: PacketState) -> int:
        """Parse, leave the rest of the frame in `packet.data`, return the error number.

        Raises OutOfStepsError: the frame goes round a cycle of states for too long.
        """
        error = self.no_error
        name = self._init
        try:
            while name is not None:
                name = self._states[name].run(packet)
        except ParserError as stop:
            error = stop.code
        # Also after an error: what was not read follows the headers that were extracted before it.
        packet.data = packet.data[packet.position :]
        return error


def error_number(program: p4.ProgramIR, name: str) -> int:
    """Return the number of a core error. An unlisted one gets a number that no error has, unlisted NoError gets 0."""
    if name in program.errors:
        return program.errors[name]
    # A number that no error of the program has: it compares equal to none.
    return max(program.errors.values(), default=0) + 1 if name != "NoError" else 0


class _State:
    """Operations, then the choice of the next state."""

    def __init__(self, steps: list[Step], key: Key | None, ir: p4.StateIR) -> None:
        self._steps = steps
        self._key = key
        self._cases = [(case.value, case.mask, case.next) for case in ir.cases]
        self._default = ir.default

    def run(self, packet: PacketState) -> str | None:
        for step in self._steps:
            step(packet)
        if self._key is not None:
            key = self._key(packet)
            for value, mask, following in self._cases:
                if key & mask == value:
                    return following
        return self._default


class _StateOfCycle:
    """A parser state that can come again, and takes a step of the budget when it may."""

    def __init__(self, state: RunsState, cycle: frozenset[str], steps: Steps) -> None:
        self._state = state
        self._cycle = cycle
        self._steps = steps

    def run(self, packet: PacketState) -> str | None:
        following = self._state.run(packet)
        if following in self._cycle:
            self._steps.spend()
        return following


class _StateBuilder:
    """Builder of parser states: it turns their operations into functions on packets."""

    def __init__(self, program: p4.ProgramIR, environment: Environment) -> None:
        self._environment = environment
        self._layout = environment.layout
        self._source: SourceInfo | None = None  # of the state that is being built
        self._too_short = error_number(program, "PacketTooShort")
        self._header_too_short = error_number(program, "HeaderTooShort")
        self._full = error_number(program, "StackOutOfBounds")
        self._invalid_argument = error_number(program, "ParserInvalidArgument")

    def build(self, state: p4.StateIR) -> _State:
        self._source = state.source
        steps = [self._step(op, state.name) for op in state.ops]
        return _State(steps, self._key(state.key, state.name) if state.key else None, state)

    def _writer(self) -> ExpressionWriter:
        return expression_writer(self._environment, self._source)

    def _data(self, expr: DataExpr, name: str) -> Callable[[list[int]], int]:
        return compile_data(expr, self._writer(), name)

    def _told(self, step: Step, target: FieldIR) -> Step:
        observer = self._environment.observer
        return step if observer is None else observed_step(step, target, observer)

    def _step(self, op: p4.ParserOp, name: str) -> Step:
        if isinstance(op, p4.Extract):
            return self._extract(op.header)
        if isinstance(op, p4.ExtractVariable):
            return self._extract_variable(op, name)
        if isinstance(op, p4.ExtractNext):
            return self._extract_next(op.stack)
        if isinstance(op, p4.SetField):
            return self._told(self._set_field(op, name), op.target)
        if isinstance(op, p4.SetLookahead):
            return self._told(self._set_lookahead(op), op.target)
        if isinstance(op, p4.Verify):
            return self._verify(op, name)
        if isinstance(op, p4.Advance):
            return self._advance(op, name)
        assert isinstance(op, p4.Perform)
        run = compile_operations(name, (op.operation,), self._environment)
        return lambda packet: run(packet, ())

    def _extract(self, header: HeaderIR) -> Step:
        size, valid, too_short = header.bits // 8, self._layout.valid(header), self._too_short
        # The header is read as one integer: one conversion, then a shift and a mask for each field.
        shift, places = header.bits, []
        for field in header.fields:
            shift -= field.bits
            places.append((field.slot, shift, (1 << field.bits) - 1))
        signed = [(field.slot, field.bits) for field in header.fields if field.signed]
        siblings = self._layout.siblings(header)

        def extract(packet: PacketState) -> None:
            start, end = packet.position, packet.position + size
            if end > len(packet.data):
                raise ParserError(too_short)
            word, values = int.from_bytes(packet.data[start:end], "big"), packet.values
            for slot, low, mask in places:
                values[slot] = word >> low & mask
            for slot, bits in signed:
                values[slot] = decode_signed(values[slot], bits)
            for slot in siblings:
                values[slot] = 0
            values[valid] = 1
            packet.position = end

        return extract

    def _extract_variable(self, op: p4.ExtractVariable, name: str) -> Step:
        amount, valid, siblings = self._data(op.bits, name), *self._validity(op.header)
        variable, length = op.variable.field, op.variable.length.slot
        fixed, fields = op.header.bits, op.header.wire

        def extract_variable(packet: PacketState) -> None:
            values = packet.values
            bits = amount(values)
            # In the order of bmv2: argument, end of the frame, capacity of the field.
            if bits % 8 or bits < 0:
                raise ParserError(self._invalid_argument)
            start, end = packet.position, packet.position + (fixed + bits) // 8
            if end > len(packet.data):
                raise ParserError(self._too_short)
            if bits > variable.bits:
                raise ParserError(self._header_too_short)
            word, shift = int.from_bytes(packet.data[start:end], "big"), fixed + bits
            for field in fields:
                width = bits if field is variable else field.bits
                shift -= width
                value = word >> shift & (1 << width) - 1
                values[field.slot] = decode_signed(value, width) if field.signed else value
            for slot in siblings:
                values[slot] = 0
            values[length], values[valid] = bits, 1
            packet.position = end

        return extract_variable

    def _validity(self, header: HeaderIR) -> tuple[int, list[int]]:
        """Return the slots of validity that become 1 and 0 when a header is extracted."""
        return self._layout.valid(header), self._layout.siblings(header)

    def _extract_next(self, stack: p4.StackIR) -> Step:
        steps, count, full = [self._extract(header) for header in stack.headers], stack.next.slot, self._full

        def extract_next(packet: PacketState) -> None:
            number = packet.values[count]
            if number == len(steps):
                raise ParserError(full)
            steps[number](packet)
            packet.values[count] = number + 1

        return extract_next

    def _set_field(self, op: p4.SetField, name: str) -> Step:
        target, compute = op.target, self._data(op.value, name)
        return lambda packet: store(packet.values, target, compute(packet.values))

    def _set_lookahead(self, op: p4.SetLookahead) -> Step:
        target, peek = op.target, self._peek(op.value)
        decode = target.signed and target.bits == op.value.bits

        def set_lookahead(packet: PacketState) -> None:
            # Lookahead into a signed field of the same width reads two's complement. Otherwise the bits are a number.
            value = peek(packet)
            store(packet.values, target, decode_signed(value, target.bits) if decode else value)

        return set_lookahead

    def _verify(self, op: p4.Verify, name: str) -> Step:
        holds = compile_condition(op.condition, self._writer(), name)
        code = self._data(op.error, name)

        def verify(packet: PacketState) -> None:
            if not holds(packet.values):
                raise ParserError(code(packet.values))

        return verify

    def _advance(self, op: p4.Advance, name: str) -> Step:
        amount, too_short = self._data(op.bits, name), self._too_short
        invalid_argument = self._invalid_argument

        def advance(packet: PacketState) -> None:
            size, rest = divmod(amount(packet.values), 8)
            if rest:
                raise ParserError(invalid_argument)
            if packet.position + size > len(packet.data):
                raise ParserError(too_short)
            packet.position += size

        return advance

    def _peek(self, ahead: p4.Lookahead) -> Key:
        first, end_bit, mask = ahead.offset // 8, ahead.offset + ahead.bits, (1 << ahead.bits) - 1
        size, too_short = (end_bit + 7) // 8, self._too_short
        shift = 8 * size - end_bit

        def peek(packet: PacketState) -> int:
            start, end = packet.position + first, packet.position + size
            if end > len(packet.data):
                raise ParserError(too_short)
            return int.from_bytes(packet.data[start:end], "big") >> shift & mask

        return peek

    def _key(self, parts: tuple[p4.KeyPart, ...], name: str) -> Key:
        readers = [(8 * p4.padded_bytes(part.bits), self._key_part(part.value, name)) for part in parts]
        if len(readers) == 1:
            return readers[0][1]

        def key(packet: PacketState) -> int:
            word = 0
            for bits, read in readers:
                word = word << bits | read(packet)
            return word

        return key

    def _key_part(self, value: FieldIR | p4.Lookahead | p4.Computed, name: str) -> Key:
        if isinstance(value, p4.Lookahead):
            return self._peek(value)
        if isinstance(value, p4.Computed):
            compute, low = self._data(value.value, name), (1 << value.bits) - 1
            return lambda packet: compute(packet.values) & low
        slot, mask = value.slot, (1 << value.bits) - 1
        return lambda packet: packet.values[slot] & mask
