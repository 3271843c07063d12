# SPDX-License-Identifier: Apache-2.0
"""Checks that an IR program can run: the assumptions of the interpreter and the code generator.

Rules:
* sizes: what a program declares fits a machine, and is compiled in seconds;
* control flow: every successor of a node, state or jump exists; controls are free of cycles;
* headers that travel (not metadata) are whole bytes;
* the architecture's metadata fields are there;
* tables: keys fit the table's match kind, constant entries fit the keys, arguments fit the parameters;
* counters: a direct counter's table exists and counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..errors import ProgramError
from . import ir as p4
from .p4_source import at

REQUIRED_STANDARD = (
    "standard_metadata.ingress_port",
    "standard_metadata.packet_length",
    "standard_metadata.instance_type",
    "standard_metadata.egress_spec",
    "standard_metadata.egress_port",
)

FIELD_BITS_MAX: Final = 1 << 16
FIELDS_MAX: Final = 1 << 14
"""Fields of all headers together."""
CELLS_MAX: Final = 1 << 26
"""Cells of all registers and counters together: half a gigabyte."""
METERS_MAX: Final = 1 << 20
"""Cells of all meters together, which are larger."""

# Key kinds that may appear in a table of each kind.
_KEY_KINDS = {
    p4.MatchKind.EXACT: {p4.MatchKind.EXACT},
    p4.MatchKind.LPM: {p4.MatchKind.EXACT, p4.MatchKind.LPM},
    p4.MatchKind.TERNARY: {p4.MatchKind.EXACT, p4.MatchKind.LPM, p4.MatchKind.TERNARY},
    p4.MatchKind.RANGE: set(p4.MatchKind),
}


def verify(program: p4.ProgramIR) -> None:
    """Check a program. Raises: ProgramError (the first violation, with the object's name)."""
    for check in (_sizes, _standard, _headers, _parser, _actions, _controls, _tables, _counters):
        for violation in check(program):
            raise ProgramError(violation)


def _sizes(program: p4.ProgramIR) -> Iterator[str]:
    if len(program.fields) > FIELDS_MAX:
        yield f"the headers have {len(program.fields)} fields together, at most {FIELDS_MAX} run here: declare fewer"
    for field in program.fields:
        if field.bits > FIELD_BITS_MAX:
            name = f"{field.header}.{field.name}"
            yield f"field {name} has {field.bits} bits, at most {FIELD_BITS_MAX} run here: split it"
    for register in program.registers.values():
        if register.bits > FIELD_BITS_MAX:
            yield f"register {register.name} has {register.bits} bits, at most {FIELD_BITS_MAX} run here: split it"
    counters = [counter for counter in program.counters.values() if counter.table is None]
    meters = [meter for meter in program.meters.values() if meter.table is None]
    kinds: list[tuple[str, int, Sequence[p4.CellArray]]] = [
        ("registers and counters", CELLS_MAX, [*program.registers.values(), *counters]),
        ("meters", METERS_MAX, meters),
    ]
    for what, most, arrays in kinds:
        largest = max(arrays, key=lambda array: array.size, default=None)
        if largest is not None and (cells := sum(array.size for array in arrays)) > most:
            yield (
                f"{what} have {cells} cells together, at most {most} run here; the largest is {largest.name} with "
                f"{largest.size}{at(largest.source)}: make it smaller"
            )


def _standard(program: p4.ProgramIR) -> Iterator[str]:
    for name in REQUIRED_STANDARD:
        if name not in program.standard:
            yield f"the program has no field {name}; compile it with --arch v1model"


def _headers(program: p4.ProgramIR) -> Iterator[str]:
    for header in program.headers.values():
        if not header.metadata and header.bits % 8:
            yield f"header {header.name} has {header.bits} bits, which is no whole number of bytes"


def _parser(program: p4.ProgramIR) -> Iterator[str]:
    states = program.parser.states
    if program.parser.init is not None and program.parser.init not in states:
        yield f"the parser starts in an unknown state {program.parser.init}"
    for state in states.values():
        for successor in (state.default, *(case.next for case in state.cases)):
            if successor is not None and successor not in states:
                yield f"parser state {state.name} leads to an unknown state {successor}{at(state.source)}"
        if state.cases and not state.key:
            yield f"parser state {state.name} selects without a key{at(state.source)}"
        for op in state.ops:
            if isinstance(op, p4.Extract) and op.header.metadata:
                yield f"parser state {state.name} extracts metadata {op.header.name}{at(state.source)}"
        for part in state.key:
            if isinstance(part.value, p4.Lookahead) and (part.value.bits <= 0 or part.value.offset < 0):
                yield f"parser state {state.name} looks ahead by nothing{at(state.source)}"


def _actions(program: p4.ProgramIR) -> Iterator[str]:
    for action in _all_actions(program):
        for op in action.body:
            if isinstance(op, p4.Jump | p4.JumpIfZero) and not 0 <= op.to <= len(action.body):
                yield f"action {action.name} jumps to {op.to} of {len(action.body)} operations{at(action.source)}"


def _all_actions(program: p4.ProgramIR) -> Iterator[p4.ActionIR]:
    yield from program.actions.values()
    for table in program.tables.values():
        yield from table.actions.values()


def _controls(program: p4.ProgramIR) -> Iterator[str]:
    for control in (program.ingress, program.egress):
        if control.init is not None and control.init not in control.nodes:
            yield f"{control.name} starts at an unknown node {control.init}"
        for node in control.nodes.values():
            for successor in successors(node):
                if successor not in control.nodes:
                    yield f"{node.name} leads to an unknown node {successor}{at(node.source)}"
        yield from _cycles(control)  # control flow has no loops: a cycle would never end


def successors(node: p4.NodeIR) -> tuple[str, ...]:
    """Return the names of all nodes that may follow one, without the end. A name may come several times."""
    if isinstance(node, p4.ConditionalIR):
        names: tuple[str | None, ...] = (node.on_true, node.on_false)
    elif isinstance(node, p4.ActionNodeIR):
        names = (node.next,)
    else:
        names = (node.on_hit, node.on_miss, node.base_next, *node.by_action.values())
    return tuple(name for name in names if name is not None)


def _cycles(control: p4.PipelineIR) -> Iterator[str]:
    done: set[str] = set()
    for start in control.nodes:
        # Depth first with a stack of iterators: a control of thousands of nodes must not reach the recursion limit.
        stack = [(start, iter(successors(control.nodes[start])))] if start not in done else []
        path = {start}
        while stack:
            name, following = stack[-1]
            successor = next((s for s in following if s in control.nodes and s not in done), None)
            if successor is None:
                done.add(name)
                path.discard(name)
                stack.pop()
            elif successor in path:
                yield f"{control.name} is cyclic: {successor} follows itself"
                return
            else:
                path.add(successor)
                stack.append((successor, iter(successors(control.nodes[successor]))))


def _tables(program: p4.ProgramIR) -> Iterator[str]:
    for table in program.tables.values():
        kinds = {key.kind for key in table.keys}
        if not kinds <= _KEY_KINDS[table.match_kind]:
            yield f"table {table.name} of kind {table.match_kind.value} has a key that needs more{at(table.source)}"
        if [key.kind for key in table.keys].count(p4.MatchKind.LPM) != 1 and table.match_kind is p4.MatchKind.LPM:
            yield f"lpm table {table.name} has not exactly one lpm key{at(table.source)}"
        if table.max_size <= 0 and table.keys:
            yield f"table {table.name} has size {table.max_size}{at(table.source)}"
        yield from _entries(table)


def _entries(table: p4.TableIR) -> Iterator[str]:
    calls = [entry.call for entry in table.const_entries]
    if table.default is not None:
        calls.append(table.default)
    for call in calls:
        yield from _arguments(table, call)
    if len(table.const_entries) > table.max_size:
        yield f"table {table.name}: {len(table.const_entries)} constant entries in {table.max_size}{at(table.source)}"
    if len({(e.values, e.priority) for e in table.const_entries}) < len(table.const_entries):
        yield f"table {table.name}: a constant entry is there twice{at(table.source)}"
    if table.default is not None and not table.branches_on_miss and table.default.action.id not in table.by_action:
        yield f"table {table.name}: the default action {table.default.action.name} is foreign{at(table.source)}"
    for entry in table.const_entries:
        for key, (first, second) in zip(table.keys, entry.values, strict=True):
            # The second number is a prefix length for lpm, else a value of the key's width.
            bound = key.bits + 1 if key.kind is p4.MatchKind.LPM else 1 << key.bits
            empty = key.kind is p4.MatchKind.RANGE and first > second
            if empty or not 0 <= first < 1 << key.bits or not 0 <= second < bound:
                yield f"table {table.name}: a constant entry does not fit key {key.name}{at(table.source)}"
        if entry.call.action.id not in table.by_action and not table.branches_on_hit:
            yield f"table {table.name}: an entry uses the foreign action {entry.call.action.name}{at(table.source)}"


def _arguments(table: p4.TableIR, call: p4.ActionCall) -> Iterator[str]:
    for param, value in zip(call.action.params, call.args, strict=True):
        if not 0 <= value < 1 << param.bits:
            yield f"table {table.name}: {value} does not fit {call.action.name}.{param.name}{at(table.source)}"


def _counters(program: p4.ProgramIR) -> Iterator[str]:
    for counter in program.counters.values():
        if counter.table is None:
            if counter.size <= 0:
                yield f"counter {counter.name} has size {counter.size}{at(counter.source)}"
        elif counter.table not in program.tables or not program.tables[counter.table].with_counters:
            yield f"direct counter {counter.name}: table {counter.table} does not count{at(counter.source)}"
