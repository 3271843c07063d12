# SPDX-License-Identifier: Apache-2.0
"""Header stacks, header unions, field lists, digests and meters of the mirror to IR."""

from __future__ import annotations

from ..errors import ProgramError
from .ir_expressions import DataExpr, FieldIR, FieldRef, HeaderIR
from .ir_objects import DigestIR, FieldListIR, MeterIR, StackIR, UnionIR
from .json_model import FieldOperand, ProgramJson
from .json_objects import FieldListJson, HeaderStackJson, HeaderUnionJson, LearnListJson, MeterJson
from .lower_expressions import lower_data
from .scope import ExpressionContext, ProgramScope
from .source import at
from .stacks import INDEX_BITS
from .unsupported import refuse

# A metadata header of the engine's own: for each stack, how many elements are in use.
STACK_STATE = "$stacks$"
_UNITS = {"packets": False, "bytes": True}
_RATES = 2


def declare_stacks(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter header stacks, after all headers. Raises: ProgramError."""
    if not program.stacks:
        return
    first, by_id = len(scope.fields), {header.id: header.name for header in program.headers}
    fields = tuple(
        FieldIR(STACK_STATE, stack.name, INDEX_BITS, False, first + number)
        for number, stack in enumerate(program.stacks)
    )
    state = HeaderIR(STACK_STATE, STACK_STATE, len(scope.headers), True, fields)
    for stack, field in zip(program.stacks, fields, strict=True):
        scope.stacks[stack.name] = StackIR(stack.name, _elements(stack, by_id, scope), field)
    scope.headers[STACK_STATE] = state
    scope.fields.update({(STACK_STATE, field.name): field for field in fields})


def _elements(stack: HeaderStackJson, by_id: dict[int, str], scope: ProgramScope) -> tuple[HeaderIR, ...]:
    headers = _headers(stack, by_id, scope)
    if any(header.variable is not None for header in headers):
        raise refuse("varbit", f"header stack {stack.name}", stack.source)
    if not headers or {header.type_name for header in headers} != {stack.header_type}:
        raise ProgramError(f"header stack {stack.name}: the elements are not of its type{at(stack.source)}")
    return headers


def declare_unions(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter header unions, after all headers. Raises: ProgramError."""
    by_id = {header.id: header.name for header in program.headers}
    for union in program.unions:
        scope.unions[union.name] = UnionIR(union.name, union.union_type, _headers(union, by_id, scope))


def _headers(
    owner: HeaderStackJson | HeaderUnionJson, by_id: dict[int, str], scope: ProgramScope
) -> tuple[HeaderIR, ...]:
    return tuple(scope.header(by_id.get(number, f"number {number}"), owner.source) for number in owner.header_ids)


def declare_field_lists(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter the lists of preserved metadata. Raises: ProgramError."""
    for item in program.field_lists:
        scope.field_lists[item.id] = FieldListIR(item.id, tuple(_preserved(item, scope)))


def _preserved(item: FieldListJson, scope: ProgramScope) -> list[FieldIR]:
    fields = []
    for element in item.elements:
        if not isinstance(element, FieldOperand):
            raise refuse("operand", f"{type(element).__name__} in field list {item.name}", item.source)
        fields.append(scope.field(element, item.source))
    return fields


def declare_digests(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter the members of digests. Raises: ProgramError."""
    for item in program.learn_lists:
        scope.digests[item.id] = _digest(item, scope)


def _digest(item: LearnListJson, scope: ProgramScope) -> DigestIR:
    place = ExpressionContext(scope, (), item.source)
    members = tuple(lower_data(element, place) for element in item.elements)
    return DigestIR(item.id, item.name, members, tuple(map(_bits, members)), item.source)


def _bits(member: DataExpr) -> int:
    return member.field.bits if isinstance(member, FieldRef) else member.type.bits


def declare_meters(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter meter arrays. Raises: ProgramError."""
    for meter in program.meters:
        scope.meters[meter.name] = _meter(meter, scope)


def _meter(meter: MeterJson, scope: ProgramScope) -> MeterIR:
    if meter.rate_count != _RATES:
        raise refuse("meter", f"{meter.name} with {meter.rate_count} rates", meter.source)
    if meter.type not in _UNITS or (meter.binding is None and meter.size <= 0):
        raise ProgramError(
            f"meter {meter.name}: type {meter.type!r} or size {meter.size} is impossible{at(meter.source)}"
        )
    target = scope.field(meter.target, meter.source) if isinstance(meter.target, FieldOperand) else None
    return MeterIR(meter.name, meter.id, meter.size, _UNITS[meter.type], meter.binding, target, meter.source)
