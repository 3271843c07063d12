# SPDX-License-Identifier: Apache-2.0
"""Three sets of fields: local ones of an action, those that are named one by one, and those that egress can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..program import ir as p4
from ..program.ir_expressions import CompareHeaders, FieldIR, HeaderIR, IrNode

# Operations that change no field.
_NO_FIELD = p4.Count | p4.Exit | p4.Jump | p4.JumpIfZero | p4.NoOp | p4.RegisterWrite | p4.Truncate


def temporaries(program: p4.ProgramIR, eligible: Callable[[FieldIR], bool]) -> frozenset[int]:
    """Return the slots of eligible metadata fields that every action writes before it reads them."""
    seen: set[int] = set()
    # Fields that a control reads itself: conditions and table keys. The actions come below.
    for pipeline in (program.ingress, program.egress):
        for node in pipeline.nodes.values():
            for member in node.__struct_fields__:
                if member not in ("actions", "action", "default", "const_entries"):
                    seen |= named_slots(getattr(node, member))
    for action in all_actions(program):
        seen |= _exposed(action)
    # Fields that are read outside of controls: such a field must live longer than one action.
    for other in (program.parser, program.checksums, program.calculations, program.standard):
        seen |= named_slots(other)
    for header in program.deparser.order:
        seen |= {field.slot for field in header.fields}
    metadata = [field for header in program.headers.values() if header.metadata for field in header.fields]
    return frozenset(field.slot for field in metadata if eligible(field) and field.slot not in seen)


def copied_as_wholes(program: p4.ProgramIR) -> frozenset[str]:
    """Return the names of headers that some operation copies or compares as a whole."""
    parts = (program.parser, program.ingress, program.egress, program.checksums)
    pairs = {pair for part in parts for pair in _header_pairs(part)}
    return frozenset(header.name for pair in pairs for header in pair)


def changed_by_egress(program: p4.ProgramIR) -> frozenset[int]:
    """Return the slots of all fields that egress, or a checksum after it, can change."""
    changed = {checksum.target.slot for checksum in program.checksums if checksum.update}
    for op in _operations(program.egress):
        if isinstance(op, p4.Assign | p4.RegisterRead | p4.Hash | p4.RandomUniform):
            changed.add(op.target.slot)
        elif isinstance(op, p4.MarkToDrop):
            changed |= named_slots(op)
        elif isinstance(op, p4.AddHeader | p4.AssignHeader):
            header = op.header if isinstance(op, p4.AddHeader) else op.target
            changed |= {field.slot for field in header.fields}
        elif not isinstance(op, p4.RemoveHeader | _NO_FIELD):
            changed |= {field.slot for field in program.fields}
    return frozenset(changed)


def egress_changes_validity(program: p4.ProgramIR) -> bool:
    """Return whether egress can make a header valid or invalid."""
    harmless = p4.Assign | p4.RegisterRead | p4.Hash | p4.RandomUniform | p4.MarkToDrop | _NO_FIELD
    return not all(isinstance(op, harmless) for op in _operations(program.egress))


def _operations(pipeline: p4.PipelineIR) -> Iterator[p4.Operation]:
    for action in pipeline.runnable():
        yield from action.body


def all_actions(program: p4.ProgramIR) -> list[p4.ActionIR]:
    """Return every action that ingress or egress may run, once."""
    found: dict[int, p4.ActionIR] = {}
    for pipeline in (program.ingress, program.egress):
        for action in pipeline.runnable():
            found[action.id] = action
    return list(found.values())


def _exposed(action: p4.ActionIR) -> set[int]:
    """Return the fields that an action may read before it writes them."""
    # With jumps the order of operations is not that of the body, so every read may come first.
    if any(isinstance(op, p4.Jump | p4.JumpIfZero) for op in action.body):
        return named_slots(action.body)
    exposed: set[int] = set()
    written: set[int] = set()
    for op in action.body:
        if isinstance(op, p4.Assign):
            exposed |= named_slots(op.value) - written
            written.add(op.target.slot)
        elif isinstance(op, p4.RegisterRead):
            # An index outside the array leaves the target as it was, so the old value may be read.
            exposed |= (named_slots(op.index) | {op.target.slot}) - written
        else:
            exposed |= named_slots(op) - written
    return exposed


def _header_pairs(part: object) -> Iterator[tuple[HeaderIR, HeaderIR]]:
    if isinstance(part, p4.AssignHeader):
        yield part.target, part.value
    elif isinstance(part, CompareHeaders):
        yield part.left, part.right
    elif isinstance(part, Mapping | tuple):
        for item in part.values() if isinstance(part, Mapping) else part:
            yield from _header_pairs(item)
    elif isinstance(part, IrNode) and not isinstance(part, HeaderIR | FieldIR):
        for member in part.__struct_fields__:
            yield from _header_pairs(getattr(part, member))


def named_slots(part: object) -> set[int]:
    """Return the slots of all fields that a part of a program names, also of those that it only writes.

    A header alone names none. A copy or comparison of headers, a stack, a union and an input name all of their fields.
    """
    if isinstance(part, FieldIR):
        return {part.slot}
    if isinstance(part, HeaderIR):
        return set()
    # An operation on a stack or a union may move, copy and change all its elements.
    if isinstance(part, p4.StackIR | p4.UnionIR):
        own = {part.next.slot} if isinstance(part, p4.StackIR) else set()
        return own | {field.slot for header in part.headers for field in header.fields}
    if isinstance(part, p4.AssignHeader | CompareHeaders):
        pair = (part.target, part.value) if isinstance(part, p4.AssignHeader) else (part.left, part.right)
        return {field.slot for header in pair for field in header.fields}
    if isinstance(part, p4.CalculationInput) and part.field is None and part.header is not None:
        return {field.slot for field in part.header.fields}
    if isinstance(part, Mapping):
        part = tuple(part.values())
    if isinstance(part, tuple):
        return set().union(*(named_slots(item) for item in part))
    if isinstance(part, IrNode):
        return set().union(*(named_slots(getattr(part, name)) for name in part.__struct_fields__))
    return set()
