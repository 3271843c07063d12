# SPDX-License-Identifier: Apache-2.0
"""Three sets of fields: local ones of an action, those that are named one by one, and those that egress can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass

from ..program.ir import (
    ActionIR,
    ActionNodeIR,
    AddHeader,
    Assign,
    AssignHeader,
    CalculationInput,
    Count,
    Exit,
    Hash,
    Jump,
    JumpIfZero,
    MarkToDrop,
    NoOp,
    Operation,
    PipelineIR,
    ProgramIR,
    RandomUniform,
    RegisterRead,
    RegisterWrite,
    RemoveHeader,
    StackIR,
    TableIR,
    Truncate,
    UnionIR,
)
from ..program.ir_expressions import CompareHeaders, FieldIR, HeaderIR

_NO_FIELD = Count | Exit | Jump | JumpIfZero | NoOp | RegisterWrite | Truncate  # operations that change no field


def temporaries(program: ProgramIR, eligible: Callable[[FieldIR], bool]) -> frozenset[int]:
    """Return the slots of eligible metadata fields that every action writes before it reads them."""
    seen: set[int] = set()
    # Fields that a control reads itself: conditions and table keys. The actions come below.
    for pipeline in (program.ingress, program.egress):
        for node in pipeline.nodes.values():
            for part in fields(node):
                if part.name not in ("actions", "action", "default", "const_entries"):
                    seen |= reads(getattr(node, part.name))
    for action in all_actions(program):
        seen |= _exposed(action)
    # Fields that are read outside of controls: such a field must live longer than one action.
    for other in (program.parser, program.checksums, program.calculations, program.standard):
        seen |= reads(other)
    for header in program.deparser.order:
        seen |= {field.slot for field in header.fields}
    metadata = [field for header in program.headers.values() if header.metadata for field in header.fields]
    return frozenset(field.slot for field in metadata if eligible(field) and field.slot not in seen)


def copied_as_wholes(program: ProgramIR) -> frozenset[str]:
    """Return the names of headers that some operation copies or compares as a whole."""
    parts = (program.parser, program.ingress, program.egress, program.checksums)
    pairs = {pair for part in parts for pair in _header_pairs(part)}
    return frozenset(header.name for pair in pairs for header in pair)


def changed_by_egress(program: ProgramIR) -> frozenset[int]:
    """Return the slots of all fields that egress, or a checksum after it, can change."""
    changed = {checksum.target.slot for checksum in program.checksums if checksum.update}
    for op in _operations(program.egress):
        if isinstance(op, Assign | RegisterRead | Hash | RandomUniform):
            changed.add(op.target.slot)
        elif isinstance(op, MarkToDrop):
            changed |= reads(op)
        elif isinstance(op, AddHeader | AssignHeader):
            header = op.header if isinstance(op, AddHeader) else op.target
            changed |= {field.slot for field in header.fields}
        elif not isinstance(op, RemoveHeader | _NO_FIELD):
            changed |= {field.slot for field in program.fields}
    return frozenset(changed)


def egress_changes_validity(program: ProgramIR) -> bool:
    """Return whether egress can make a header valid or invalid."""
    harmless = Assign | RegisterRead | Hash | RandomUniform | MarkToDrop | _NO_FIELD
    return not all(isinstance(op, harmless) for op in _operations(program.egress))


def _operations(pipeline: PipelineIR) -> Iterator[Operation]:
    for action in _actions(pipeline):
        yield from action.body


def all_actions(program: ProgramIR) -> list[ActionIR]:
    """Return every action that control can reach, once."""
    found: dict[int, ActionIR] = {}
    for pipeline in (program.ingress, program.egress):
        for action in _actions(pipeline):
            found[action.id] = action
    return list(found.values())


def _actions(pipeline: PipelineIR) -> Iterator[ActionIR]:
    for node in pipeline.nodes.values():
        if isinstance(node, TableIR):
            yield from node.actions.values()
            if node.default is not None:
                yield node.default.action
        elif isinstance(node, ActionNodeIR):
            yield node.action


def _exposed(action: ActionIR) -> set[int]:
    """Return the fields that an action may read before it writes them."""
    if any(isinstance(op, Jump | JumpIfZero) for op in action.body):
        return reads(action.body)
    exposed: set[int] = set()
    written: set[int] = set()
    for op in action.body:
        if isinstance(op, Assign):
            exposed |= reads(op.value) - written
            written.add(op.target.slot)
        elif isinstance(op, RegisterRead):  # an index outside the array leaves the target as it was
            exposed |= (reads(op.index) | {op.target.slot}) - written
        else:
            exposed |= reads(op) - written
    return exposed


def _header_pairs(part: object) -> Iterator[tuple[HeaderIR, HeaderIR]]:
    if isinstance(part, AssignHeader):
        yield part.target, part.value
    elif isinstance(part, CompareHeaders):
        yield part.left, part.right
    elif isinstance(part, Mapping | tuple):
        for item in part.values() if isinstance(part, Mapping) else part:
            yield from _header_pairs(item)
    elif is_dataclass(part) and not isinstance(part, HeaderIR | FieldIR):
        for member in fields(part):
            yield from _header_pairs(getattr(part, member.name))


def reads(part: object) -> set[int]:
    """Return the slots of all fields that part of a program names."""
    if isinstance(part, FieldIR):
        return {part.slot}
    if isinstance(part, HeaderIR):
        return set()
    if isinstance(part, StackIR | UnionIR):  # what names one may move, copy and change all its elements
        own = {part.next.slot} if isinstance(part, StackIR) else set()
        return own | {field.slot for header in part.headers for field in header.fields}
    if isinstance(part, AssignHeader | CompareHeaders):
        pair = (part.target, part.value) if isinstance(part, AssignHeader) else (part.left, part.right)
        return {field.slot for header in pair for field in header.fields}
    if isinstance(part, CalculationInput) and part.field is None and part.header is not None:
        return {field.slot for field in part.header.fields}
    if isinstance(part, Mapping):
        part = tuple(part.values())
    if isinstance(part, tuple):
        return set().union(*(reads(item) for item in part))
    if is_dataclass(part):
        return set().union(*(reads(getattr(part, item.name)) for item in fields(part)))
    return set()
