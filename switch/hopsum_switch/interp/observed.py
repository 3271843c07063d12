# SPDX-License-Identifier: Apache-2.0
"""The parts of an interpreter with an observer: each wraps the ordinary part and tells what that does.

None of this is built, and nothing of it costs, without an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence
from functools import partial
from typing import Protocol, overload

from ..program.ir import ActionNodeIR, ConditionalIR, ProgramIR, TableIR
from ..program.ir_actions import ActionIR, LogMessage, MarkToDrop, Operation
from ..program.ir_objects import CellArray
from ..program.ir_parser import StateIR
from ..program.source import SourceInfo
from ..state.counters import CounterCells, CounterStore
from ..state.registers import RegisterStore
from ..state.tables import TableState, TableStore
from .observer import Observer
from .operations import Environment, OperationWriter
from .packet import PacketState

Node = Callable[[PacketState], int]
KeyFunction = Callable[[list[int]], tuple[int, ...]]
Condition = Callable[[list[int]], object]


class RunsState(Protocol):
    """A parser state, ready to run."""

    def run(self, packet: PacketState) -> str | None:
        """Return the next state."""
        ...


class ObservedState:
    """A parser state that tells where it leads."""

    def __init__(self, state: RunsState, ir: StateIR, observer: Observer) -> None:
        self._state = state
        self._ir = ir
        self._observer = observer

    def run(self, packet: PacketState) -> str | None:
        """Run the state and return the next one."""
        self._observer.state_entered(self._ir)
        following = self._state.run(packet)
        self._observer.state_left(self._ir, following)
        return following


def observed_condition(node: ConditionalIR, run: Node, holds: Condition, observer: Observer) -> Node:
    """Return a node that tells the outcome of its condition."""

    def choose(packet: PacketState) -> int:
        observer.condition_met(node, bool(holds(packet.values)))
        return run(packet)

    return choose


def observed_call(node: ActionNodeIR, run: Node, observer: Observer) -> Node:
    """Return a node that tells that its action runs."""

    def call(packet: PacketState) -> int:
        observer.action_called(node)
        return run(packet)

    return call


def observed_table(ir: TableIR, run: Node, key: KeyFunction | None, state: TableState, observer: Observer) -> Node:
    """Return a node that looks its key up once more, before the table does, and tells what it finds."""

    def apply(packet: PacketState) -> int:
        values = None if key is None else key(packet.values)
        entry = None if values is None else state.lookup(values)
        observer.table_applied(ir, values, entry, state.default if entry is None else entry.call)
        return run(packet)

    return apply


class ObservedWriter(OperationWriter):
    """Writes the operations of an action and, after each mark_to_drop and log_msg, a call that tells of it."""

    def __init__(self, environment: Environment, observer: Observer, action: ActionIR | None) -> None:
        super().__init__(environment)
        self._observer = observer
        self._action = action

    def write(self, operation: Operation) -> None:
        """Append the lines of one operation."""
        self._operation = operation
        super().write(operation)
        if isinstance(operation, MarkToDrop):
            name = f"tell_{len(self.namespace)}"
            self.namespace[name] = partial(self._observer.marked_to_drop, *self._place(operation))
            self.lines.append(f"{name}()")
        if isinstance(operation, LogMessage):
            tell = self._bind(f"tell_{len(self.namespace)}", self._observer.logged)
            text = "%s".join(part.replace("%", "%%") for part in operation.parts)
            values = "".join(f"{self.data(value)}, " for value in operation.values)
            self.lines.append(f"{tell}({text!r} % ({values}))")

    def outside(self, access: str, array: CellArray) -> Callable[[int], None]:
        """Return what is called with an index outside an array: it counts and tells."""
        count, (_, source) = super().outside(access, array), self._place(self._operation)

        def tell(index: int) -> None:
            count(index)
            self._observer.index_out_of_range(access, array, index, source)

        return tell

    def _place(self, operation: Operation) -> tuple[str, SourceInfo | None]:
        if self._action is None:
            return "the parser", None
        known = zip(self._action.body, self._action.sources, strict=True)
        return self._action.name, next((source for op, source in known if op is operation), None)


class ObservedCells(MutableSequence[int]):
    """Cells that tell of reads and writes by index; slices pass in silence."""

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

    def __delitem__(self, index: int | slice) -> None:
        raise TypeError("the number of cells is fixed")

    def insert(self, index: int, value: int) -> None:
        """Refuse: the number of cells is fixed."""
        raise TypeError("the number of cells is fixed")


def observed_registers(program: ProgramIR, store: RegisterStore, observer: Observer) -> RegisterStore:
    """Return a store over the same cells that tells what is read and written through it."""
    cells = {
        ir.name: ObservedCells(
            store.cells(ir.name), partial(observer.register_read, ir), partial(observer.register_written, ir)
        )
        for ir in program.registers.values()
    }
    return RegisterStore(program, cells)


def observed_counters(program: ProgramIR, tables: TableStore, store: CounterStore, observer: Observer) -> CounterStore:
    """Return a store over the same cells that tells what is added through it."""

    def observed(name: str) -> CounterCells:
        ir, cells = program.counters[name], store.cells(name)
        sides = {"packets": cells.packets, "bytes": cells.bytes}
        told = (ObservedCells(side, None, partial(observer.counter_written, ir, unit)) for unit, side in sides.items())
        return CounterCells(*told)

    indexed = [ir.name for ir in program.counters.values() if ir.table is None]
    return CounterStore(program, tables, {name: observed(name) for name in indexed})
