# SPDX-License-Identifier: Apache-2.0
"""The parts of an interpreter with an observer. Each part wraps the ordinary part and reports its events.

Without an observer none of these parts is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from functools import partial
from typing import NamedTuple, Protocol, overload

from ..program import ir as p4
from ..program.ir_expressions import BoolExpr, CompareHeaders, DataExpr, FieldIR, FieldRef, HeaderIR, IrNode, IsValid
from ..program.p4_source import SourceInfo
from ..state.cells import CounterCells, CounterStore, FixedCells, RegisterStore
from ..state.table_store import TableState, TableStore
from .expressions import ExpressionWriter
from .observer import Observer
from .packet import PacketState, ValueLayout
from .primitives import Environment, OperationWriter

Node = Callable[[PacketState], int]
Step = Callable[[PacketState], None]
KeyFunction = Callable[[list[int]], tuple[int, ...]]
Condition = Callable[[list[int]], object]
Named = Callable[[list[int]], Mapping[str, int | bool]]


class RunsState(Protocol):
    """A parser state, ready to run."""

    def run(self, packet: PacketState) -> str | None:
        """Run the operations of the state. Return the name of the next state, None at the end."""
        ...


class ObservedState:
    """A parser state that reports its start and its successor to the observer."""

    def __init__(self, state: RunsState, ir: p4.StateIR, observer: Observer) -> None:
        self._state = state
        self._ir = ir
        self._observer = observer

    def run(self, packet: PacketState) -> str | None:
        """Run the state, report it, and return the name of the next one, None at the end."""
        self._observer.state_entered(self._ir)
        following = self._state.run(packet)
        self._observer.state_left(self._ir, following)
        return following


class ObservedExpressionWriter(ExpressionWriter):
    """A writer of expressions that count and report the read of a field while its header is invalid."""

    def __init__(self, environment: Environment, observer: Observer, source: SourceInfo | None) -> None:
        super().__init__(environment.layout)
        self.source = source  # of what is written at present
        self._observer = observer
        self._count_fault = environment.count_fault

    def field(self, field: FieldIR) -> str:
        """Return source that reads a field, and reports the read if its header is invalid."""
        valid = self._layout.valid_of(field)
        if valid is None:
            return super().field(field)
        # The report is part of the expression: a part that is not evaluated reads nothing, and reports nothing.
        return f"(v[{field.slot}] if v[{valid}] else {self._teller(field)}(v[{field.slot}]))"

    def absent(self, field: FieldIR) -> str:
        """Return source for the value of an invalid header's field in a table's key. The read is reported."""
        return f"{self._teller(field)}(0)"

    def temporary(self, name: str, text: str) -> str:
        """Compute `text` only where it is used: a part that is not evaluated reads nothing."""
        self.lines.append(f"{name} = lambda: {text}")
        return f"{name}()"

    def _teller(self, field: FieldIR) -> str:
        name = f"invalid_{len(self.namespace)}"
        self.namespace[name] = partial(self._tell, field, self.source)
        return name

    def _tell(self, field: FieldIR, source: SourceInfo | None, value: int) -> int:
        self._count_fault(p4.INVALID_HEADER_READ)
        self._observer.invalid_header_read(field, value, source)
        return value


def expression_writer(environment: Environment, source: SourceInfo | None) -> ExpressionWriter:
    """Return a writer of expressions at one place in the source. It reports to the observer if there is one."""
    if environment.observer is None:
        return ExpressionWriter(environment.layout)
    return ObservedExpressionWriter(environment, environment.observer, source)


def observed_condition(
    node: p4.ConditionalIR, holds: Condition, named: Named, yes: int, no: int, observer: Observer
) -> Node:
    """Return a node that evaluates its condition and reports outcome and values to the observer."""

    def choose(packet: PacketState) -> int:
        outcome = bool(holds(packet.values))
        observer.condition_met(node, outcome, named(packet.values))
        return yes if outcome else no

    return choose


def observed_call(node: p4.ActionNodeIR, run: Node, observer: Observer) -> Node:
    """Return a node that reports the call of its action to the observer, and then runs it."""

    def call(packet: PacketState) -> int:
        observer.action_called(node)
        return run(packet)

    return call


def named_values(expr: BoolExpr | DataExpr, layout: ValueLayout, observer: Observer) -> Named:
    """Return a function from values to the fields and validities in `expr` by name (`observer.values`), else to {}."""
    found: dict[str, tuple[int, bool]] = {}
    for part in _named(expr) if observer.values else ():
        if isinstance(part, HeaderIR):
            found[f"{part.name}.isValid()"] = (layout.valid(part), True)
        else:
            found[part.qualified] = (part.slot, False)

    def find(values: list[int]) -> Mapping[str, int | bool]:
        return {name: bool(values[slot]) if truth else values[slot] for name, (slot, truth) in found.items()}

    return find


def _named(part: object) -> Iterator[FieldIR | HeaderIR]:
    if isinstance(part, FieldRef):
        yield part.field
    elif isinstance(part, IsValid):
        yield part.header
    elif isinstance(part, CompareHeaders):
        for header in (part.left, part.right):
            yield header
            yield from header.fields
    elif isinstance(part, IrNode):
        for member in part.__struct_fields__:
            yield from _named(getattr(part, member))


def observed_step(step: Step, target: FieldIR, observer: Observer) -> Step:
    """Return a parser's assignment that reports old and new value, or `step` for an observer without `values`."""
    if not observer.values:
        return step

    def run(packet: PacketState) -> None:
        old = packet.values[target.slot]
        step(packet)
        observer.assigned(target, old, packet.values[target.slot], None)

    return run


def observed_table(ir: p4.TableIR, run: Node, key: KeyFunction | None, state: TableState, observer: Observer) -> Node:
    """Return a node that looks its key up once more, before the table does, and reports the result."""

    def apply(packet: PacketState) -> int:
        # Before the table runs: its action may write the fields of the key.
        values = None if key is None else key(packet.values)
        entry = None if values is None else state.lookup(values)
        observer.table_applied(ir, values, entry, state.default if entry is None else entry.call)
        return run(packet)

    return apply


class ObservedWriter(OperationWriter):
    """A writer of the operations of an action, with calls that report them to the observer."""

    def __init__(self, environment: Environment, observer: Observer, action: p4.ActionIR | None) -> None:
        self._observer = observer
        self._action = action
        super().__init__(environment)

    def make_expression_writer(self) -> ExpressionWriter:
        """Return a writer of operations' expressions that reports reads of invalid headers."""
        self._observed = ObservedExpressionWriter(self._environment, self._observer, None)
        return self._observed

    def jump_value(self, operation: p4.JumpIfZero) -> str:
        """Return source for the value that a jump tests, which also reports the branch to an observer with `values`."""
        name, source = self._place(operation)
        self._observed.source = source
        text = super().jump_value(operation)
        if not self._observer.values:
            return text
        named = named_values(operation.value, self._layout, self._observer)

        def tell(value: int, values: list[int]) -> int:
            self._observer.branched(name, source, bool(value), named(values))
            return value

        return f"{self._bind(f'branch_{len(self.namespace)}', tell)}({text}, v)"

    def write(self, operation: p4.Operation) -> None:
        self._operation = operation
        _, self._observed.source = self._place(operation)
        changes = _changes(operation) if self._observer.values else _NONE
        slots = tuple(field.slot for field in changes.fields) + tuple(map(self._layout.valid, changes.headers))
        if slots:
            # The generated code has no hook inside an operation, so the values around it are compared.
            self.lines.append(f"old = [{', '.join(f'v[{slot}]' for slot in slots)}]")
        super().write(operation)
        if slots:
            told = self._bind(f"changed_{len(self.namespace)}", self._changes_teller(changes, slots))
            self.lines.append(f"{told}(old, v)")
        if isinstance(operation, p4.MarkToDrop):
            name = f"tell_{len(self.namespace)}"
            self.namespace[name] = partial(self._observer.marked_to_drop, *self._place(operation))
            self.lines.append(f"{name}()")
        if isinstance(operation, p4.LogMessage):
            tell = self._bind(f"tell_{len(self.namespace)}", self._observer.logged)
            text = "%s".join(part.replace("%", "%%") for part in operation.parts)
            values = "".join(f"{self.data(value)}, " for value in operation.values)
            self.lines.append(f"{tell}({text!r} % ({values}))")

    def outside_counter(self, access: str, array: p4.CellArray) -> Callable[[int], None]:
        """Return the function that generated code calls with an index outside an array: it counts and reports it."""
        count, (_, source) = super().outside_counter(access, array), self._place(self._operation)

        def tell(index: int) -> None:
            count(index)
            self._observer.index_out_of_range(access, array, index, source)

        return tell

    def _changes_teller(self, changes: _Changes, slots: tuple[int, ...]) -> Callable[[list[int], list[int]], None]:
        """Return a function that reports changes, from the old values of `slots` and all new values."""
        observer, source = self._observer, self._observed.source

        def tell(old: list[int], values: list[int]) -> None:
            pairs = [(before, values[slot]) for before, slot in zip(old, slots, strict=True)]
            for header, (before, now) in zip(changes.headers, pairs[len(changes.fields) :], strict=True):
                if changes.all_told or before != now:
                    observer.validity_set(header, bool(now), source)
            for field, (before, now) in zip(changes.fields, pairs, strict=False):
                if changes.all_told or before != now:
                    observer.assigned(field, before, now, source)

        return tell

    def _place(self, operation: p4.Operation) -> tuple[str, SourceInfo | None]:
        if self._action is None:
            return "the parser", None
        # By identity: an action may have equal operations at two places of the source.
        known = zip(self._action.body, self._action.sources, strict=True)
        return self._action.name, next((source for op, source in known if op is operation), None)


class _Changes(NamedTuple):
    """The fields and headers' validities that an operation may change, and a flag: equal values are reported too."""

    fields: tuple[FieldIR, ...] = ()
    headers: tuple[HeaderIR, ...] = ()
    all_told: bool = True


_NONE = _Changes()


def _changes(operation: p4.Operation) -> _Changes:
    if isinstance(operation, p4.Assign | p4.RegisterRead | p4.Hash | p4.RandomUniform | p4.ExecuteMeter):
        return _Changes((operation.target,))
    if isinstance(operation, p4.AssignVariable):
        return _Changes((operation.target.field,))
    if isinstance(operation, p4.AddHeader | p4.RemoveHeader):
        return _NONE if operation.header.metadata else _Changes((), (operation.header,))
    if isinstance(operation, p4.AssignElement):
        return _Changes(operation.targets, all_told=False)
    # A copy of a whole names many fields, so only those that change are reported.
    if isinstance(operation, p4.AssignHeader):
        validity = () if operation.target.metadata else (operation.target,)
        return _Changes(operation.target.fields, validity, all_told=False)
    if isinstance(operation, p4.AssignStack | p4.AssignUnion | p4.ShiftStack):
        whole = operation.stack if isinstance(operation, p4.ShiftStack) else operation.target
        fields_of_all = tuple(field for header in whole.headers for field in header.fields)
        return _Changes(fields_of_all, whole.headers, all_told=False)
    return _NONE


class ObservedCells(FixedCells):
    """Cells that report reads and writes by index to the observer. Slices are not reported."""

    def __init__(
        self,
        cells: MutableSequence[int],
        read: Callable[[int, int], None] | None,
        written: Callable[[int, int, int], None],
    ) -> None:
        self._cells = cells
        self._read = read
        self._written = written

    def __len__(self) -> int:
        return len(self._cells)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> MutableSequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | MutableSequence[int]:
        value = self._cells[index]
        if isinstance(index, int) and isinstance(value, int) and self._read is not None:
            self._read(index, value)
        return value

    @overload
    def __setitem__(self, index: int, value: int) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[int]) -> None: ...
    def __setitem__(self, index: int | slice, value: int | Iterable[int]) -> None:
        if isinstance(index, slice):
            assert not isinstance(value, int)
            self._cells[index] = value
            return
        assert isinstance(value, int)
        old = self._cells[index]
        self._cells[index] = value
        self._written(index, old, value)


def observed_registers(program: p4.ProgramIR, store: RegisterStore, observer: Observer) -> RegisterStore:
    """Return a store over the same cells that reports reads and writes."""
    cells = {
        ir.name: ObservedCells(
            store.cells(ir.name), partial(observer.register_read, ir), partial(observer.register_written, ir)
        )
        for ir in program.registers.values()
    }
    return RegisterStore(program, cells)


def observed_counters(
    program: p4.ProgramIR, tables: TableStore, store: CounterStore, observer: Observer
) -> CounterStore:
    """Return a store over the same cells that reports additions to indexed counters, but none to direct ones."""

    def observed(name: str) -> CounterCells:
        ir, cells = program.counters[name], store.cells(name)
        sides = {"packets": cells.packets, "bytes": cells.bytes}
        told = (ObservedCells(side, None, partial(observer.counter_written, ir, unit)) for unit, side in sides.items())
        return CounterCells(*told)

    indexed = [ir.name for ir in program.counters.values() if ir.table is None]
    return CounterStore(program, tables, {name: observed(name) for name in indexed})
