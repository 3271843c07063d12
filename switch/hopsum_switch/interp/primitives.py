# SPDX-License-Identifier: Apache-2.0
"""Compiler of actions' operations to Python source, one method per operation.

The generated code works on `p` (PacketState), `v` (its values) and `a` (the action's arguments). An access with an
index outside a register or counter array has no effect. It is counted (`Engine.faults`) and reported to the observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..program import ir as p4
from ..program.frame_budget import MAX_STEPS
from ..program.ir_expressions import Const, DataExpr, FieldIR, FieldRef, HeaderIR, IntType
from ..state.copies import MAX_SESSION_ID
from ..state.program_state import ProgramState
from ..state.randomness import RandomStream
from .calculations import Calculations
from .expressions import ExpressionWriter, wrap_to_field
from .observer import Observer
from .packet import Slots, ValueLayout

DROP_PORT = 511
_log = logging.getLogger("hopsum_switch.program")
UINT64 = (1 << 64) - 1


class OutOfStepsError(Exception):
    """The received frame has used all of its steps in loops: drop it with its copies."""


class Steps:
    """The budget of one received frame. See `program.frame_budget`."""

    def __init__(self) -> None:
        self.refill()

    def refill(self) -> None:
        """Set the budget to MAX_STEPS, for the next frame."""
        self._left = MAX_STEPS

    def spend(self) -> None:
        """Subtract one step from the frame's budget. Raises OutOfStepsError: none is left."""
        if not self._left:
            raise OutOfStepsError
        self._left -= 1


class Environment:
    """The objects that operations use besides the packet."""

    def __init__(
        self,
        layout: ValueLayout,
        state: ProgramState,
        calculations: Calculations,
        rng: RandomStream,
        observer: Observer | None = None,
    ) -> None:
        self.layout = layout
        self.counters = state.counters
        self.registers = state.registers
        self.meters = state.meters
        self.calculations = calculations
        self.rng = rng
        self.observer = observer
        self.steps = Steps()
        self._state = state

    def count_fault(self, kind: str) -> None:
        """Add one to the program's faults of a kind, `INDEX_OUT_OF_RANGE` for instance."""
        self._state.faults[kind] += 1


class OperationWriter:
    """A writer of operations as Python source. `lines` has the source, `namespace` the objects that it names."""

    def __init__(self, environment: Environment) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._environment = environment
        self._layout = environment.layout
        self._expressions = self.make_expression_writer()
        self._expressions.lines, self._expressions.namespace = self.lines, self.namespace

    def make_expression_writer(self) -> ExpressionWriter:
        """Return a new writer of operations' expressions."""
        return ExpressionWriter(self._environment.layout)

    def data(self, expr: DataExpr) -> str:
        """Return source for an expression, after lines for its temporaries."""
        return self._expressions.data(expr)

    def jump_value(self, operation: p4.JumpIfZero) -> str:
        """Return source for the value that a jump tests. The jump is made if the value is 0."""
        return self.data(operation.value)

    def write(self, operation: p4.Operation) -> None:
        """Append the lines of one operation to `lines`. The caller writes jumps. Raises KeyError: it is a jump."""
        _WRITERS[type(operation)](self, operation)

    def _assign(self, op: p4.Assign) -> None:
        self.lines.append(f"v[{op.target.slot}] = {self._expressions.stored(op.value, op.target)}")

    def _assign_element(self, op: p4.AssignElement) -> None:
        slots = tuple(field.slot for field in op.targets)
        value = self._expressions.stored(op.value, op.targets[0])
        self.lines.append(f"i = {self.data(op.index)}")
        self.lines.append(f"if 0 <= i < {len(slots)}: v[{slots}[i]] = {value}")

    def _assign_header(self, op: p4.AssignHeader) -> None:
        # An invalid source makes the target invalid and leaves its fields.
        (a, b), (c, d) = self._layout.span(op.target), self._layout.span(op.value)
        target, source = self._layout.valid(op.target), self._layout.valid(op.value)
        self.lines.append(f"if v[{source}]: v[{target}] = 1; v[{a}:{b}] = v[{c}:{d}]{self._others(op.target)}")
        if not op.target.metadata:
            self.lines.append(f"else: v[{target}] = 0")

    def _add_header(self, op: p4.AddHeader) -> None:
        if op.header.metadata:
            return
        valid, (first, end) = self._layout.valid(op.header), self._layout.span(op.header)
        body = f"v[{valid}] = 1; v[{first}:{end}] = [0] * {end - first}; p.length += {op.header.bits // 8}"
        body += self._others(op.header)
        self.lines.append(f"if not v[{valid}]: {body}")

    def _remove_header(self, op: p4.RemoveHeader) -> None:
        if op.header.metadata:
            return
        valid = self._layout.valid(op.header)
        size = str(op.header.bits // 8)
        if op.header.variable is not None:
            size += f" + v[{op.header.variable.length.slot}] // 8"
        self.lines.append(f"if v[{valid}]: v[{valid}] = 0; p.length -= {size}")

    def _shift_stack(self, op: p4.ShiftStack) -> None:
        # Elements change places. Those that enter or leave become invalid.
        if op.by == 0:
            return
        headers, size = op.stack.headers, len(op.stack.headers)
        count = f"v[{op.stack.next.slot}]"
        if op.by > 0:
            pairs = [(i, i - op.by) for i in range(size - 1, op.by - 1, -1)]
            entered = headers[: op.by]
            self.lines.append(f"{count} = min({count} + {op.by}, {size})")
        else:
            pairs = [(i, i - op.by) for i in range(size + op.by)]
            entered = headers[max(size + op.by, 0) :]
            self.lines.append(f"{count} = max({count} - {-op.by}, 0)")
        for left, right in pairs:
            (a, b), (c, d) = self._layout.span(headers[left]), self._layout.span(headers[right])
            one, other = self._layout.valid(headers[left]), self._layout.valid(headers[right])
            self.lines.append(
                f"v[{one}], v[{other}], v[{a}:{b}], v[{c}:{d}] = v[{other}], v[{one}], v[{c}:{d}], v[{a}:{b}]"
            )
        self.lines += [f"v[{self._layout.valid(header)}] = 0" for header in entered]

    def _assign_stack(self, op: p4.AssignStack) -> None:
        self.lines.append(f"v[{op.target.next.slot}] = v[{op.value.next.slot}]")
        for target, value in zip(op.target.headers, op.value.headers, strict=True):
            self._assign_header(p4.AssignHeader(target, value))

    def _assign_union(self, op: p4.AssignUnion) -> None:
        for target, value in zip(op.target.headers, op.value.headers, strict=True):
            self._assign_header(p4.AssignHeader(target, value))

    def _assign_variable(self, op: p4.AssignVariable) -> None:
        self.lines.append(f"v[{op.target.field.slot}] = v[{op.value.field.slot}]")
        self.lines.append(f"v[{op.target.length.slot}] = v[{op.value.length.slot}]")

    def _log_message(self, op: p4.LogMessage) -> None:
        # The logger drops the line unless somebody listens, so the text is formatted there.
        log = self._bind("log", _log)
        parts = self._bind(f"text{len(self.namespace)}", "%s".join(part.replace("%", "%%") for part in op.parts))
        values = "".join(f", {self.data(value)}" for value in op.values)
        self.lines.append(f"{log}.info({parts}{values})")

    def _clone(self, op: p4.Clone) -> None:
        # Noted only: the architecture makes the copy after the control.
        self.lines.append(f"p.clone = ({self.data(op.session)} & {MAX_SESSION_ID}, {_slots(op.preserved)})")

    def _send_digest(self, op: p4.SendDigest) -> None:
        self.lines.append(f"p.digest = {self._bind(f'digest_{op.digest.id}', op.digest)}")

    def _resubmit(self, op: p4.Resubmit) -> None:
        self.lines.append(f"p.resubmit = {_slots(op.preserved)}")

    def _recirculate(self, op: p4.Recirculate) -> None:
        self.lines.append(f"p.recirculate = {_slots(op.preserved)}")

    def _execute_meter(self, op: p4.ExecuteMeter) -> None:
        cells = self._bind(f"meter_{op.meter.id}", self._environment.meters.cells(op.meter.name))
        amount = "p.received" if op.meter.counts_bytes else "1"
        colour = self._wrap_word(f"{cells}[i].execute(p.now_us, {amount})", op.target)
        self._indexed(op.index, "execute", op.meter, f"v[{op.target.slot}] = {colour}")

    def _mark_to_drop(self, op: p4.MarkToDrop) -> None:
        self.lines.append(f"v[{op.egress_spec.slot}] = {DROP_PORT & ((1 << op.egress_spec.bits) - 1)}")
        if op.mcast_grp is not None:
            self.lines.append(f"v[{op.mcast_grp.slot}] = 0")

    def _exit(self, op: p4.Exit) -> None:
        del op
        self.lines.append("p.exited = True")

    def _truncate(self, op: p4.Truncate) -> None:
        # The cut applies when the frame is emitted.
        self.lines.append(f"p.limit = min(p.limit, {self.data(op.length)})")

    def _register_read(self, op: p4.RegisterRead) -> None:
        cells = self._bind(f"register_{op.register.id}", self._environment.registers.cells(op.register.name))
        cell = f"{cells}[i]"
        value = FieldRef(op.target, IntType(op.register.bits, False))  # only its type matters to the wrapping
        self._indexed(op.index, "read", op.register, f"v[{op.target.slot}] = {wrap_to_field(cell, value, op.target)}")

    def _register_write(self, op: p4.RegisterWrite) -> None:
        cells = self._bind(f"register_{op.register.id}", self._environment.registers.cells(op.register.name))
        cell = FieldIR("", op.register.name, op.register.bits, False, 0)
        self._indexed(op.index, "write", op.register, f"{cells}[i] = {self._expressions.stored(op.value, cell)}")

    def _count(self, op: p4.Count) -> None:
        cells = self._environment.counters.cells(op.counter.name)
        packets = self._bind(f"packets_{op.counter.id}", cells.packets)
        octets = self._bind(f"bytes_{op.counter.id}", cells.bytes)
        self._indexed(op.index, "count", op.counter, f"{packets}[i] += 1; {octets}[i] += p.received")

    def _hash(self, op: p4.Hash) -> None:
        index = self._environment.calculations.number(op.calculation)
        compute = self._bind(f"hash_{index}", self._environment.calculations.function(op.calculation))
        # Values are unbounded integers here, and hash() works in 64 bits. A size of 0 acts as 1, as in bmv2.
        size = f"(min({self.data(op.size)}, {UINT64}) or 1)"
        total = f"({compute}(p) % {size} + min({self.data(op.base)}, {UINT64})) & {UINT64}"
        self.lines.append(f"h = {total}")
        self.lines.append(f"v[{op.target.slot}] = {self._wrap_word('h', op.target)}")

    def _random_uniform(self, op: p4.RandomUniform) -> None:
        draw = self._bind("draw", self._environment.rng.draw)
        # The bounds are 64-bit words, as in machine code: both back ends draw the same numbers.
        self.lines.append(f"low = min({self.data(op.low)}, {UINT64})")
        self.lines.append(f"high = min({self.data(op.high)}, {UINT64})")
        value = self._wrap_word(f"{draw}(low, high)", op.target)
        self.lines.append(f"if low <= high: v[{op.target.slot}] = {value}")

    def _no_op(self, op: p4.NoOp) -> None:
        del op

    def _others(self, header: HeaderIR) -> str:
        """Return source that makes the other members of a header's union invalid, to follow on the same line."""
        return "".join(f"; v[{slot}] = 0" for slot in self._layout.siblings(header))

    def outside_counter(self, access: str, array: p4.CellArray) -> Callable[[int], None]:
        """Return the function that generated code calls with an index outside `array`: it counts the fault.

        `access`: read, write, count or execute.
        """
        del access, array
        count = self._environment.count_fault
        return lambda _: count(p4.INDEX_OUT_OF_RANGE)

    def _indexed(self, index: DataExpr, access: str, array: p4.CellArray, statement: str) -> None:
        self.lines.append(f"i = {self.data(index)}")
        # p4c checks no index, so the test is left out only for a constant inside the array.
        if isinstance(index, Const) and 0 <= index.value < array.size:
            self.lines.append(statement)
        else:
            outside = self._bind(f"outside_{len(self.namespace)}", self.outside_counter(access, array))
            self.lines.append(f"if 0 <= i < {array.size}: {statement}")
            self.lines.append(f"else: {outside}(i)")

    def _wrap_word(self, text: str, field: FieldIR) -> str:
        return wrap_to_field(text, FieldRef(field, IntType(64, False)), field)

    def _bind(self, name: str, value: object) -> str:
        self.namespace[name] = value
        return name


def _slots(preserved: p4.FieldListIR) -> Slots:
    return tuple(field.slot for field in preserved.fields)


_WRITERS: dict[type, Callable[[OperationWriter, Any], None]] = {
    p4.Assign: OperationWriter._assign,
    p4.AssignHeader: OperationWriter._assign_header,
    p4.AddHeader: OperationWriter._add_header,
    p4.RemoveHeader: OperationWriter._remove_header,
    p4.ShiftStack: OperationWriter._shift_stack,
    p4.AssignStack: OperationWriter._assign_stack,
    p4.AssignElement: OperationWriter._assign_element,
    p4.AssignUnion: OperationWriter._assign_union,
    p4.AssignVariable: OperationWriter._assign_variable,
    p4.LogMessage: OperationWriter._log_message,
    p4.Clone: OperationWriter._clone,
    p4.SendDigest: OperationWriter._send_digest,
    p4.Resubmit: OperationWriter._resubmit,
    p4.Recirculate: OperationWriter._recirculate,
    p4.ExecuteMeter: OperationWriter._execute_meter,
    p4.MarkToDrop: OperationWriter._mark_to_drop,
    p4.Exit: OperationWriter._exit,
    p4.Truncate: OperationWriter._truncate,
    p4.RegisterRead: OperationWriter._register_read,
    p4.RegisterWrite: OperationWriter._register_write,
    p4.Count: OperationWriter._count,
    p4.Hash: OperationWriter._hash,
    p4.RandomUniform: OperationWriter._random_uniform,
    p4.NoOp: OperationWriter._no_op,
}
