# SPDX-License-Identifier: Apache-2.0
"""Declarations of the mirror to IR: headers, stacks, unions, lists, counters, meters, registers, calculations."""

from __future__ import annotations

from ..errors import ProgramError
from . import ir as p4
from . import p4c_json as js
from .ir_expressions import DataExpr, FieldIR, FieldRef, HeaderIR, VariableIR
from .lower_expressions import INDEX_BITS, ExpressionContext, ProgramScope, lower_bool, lower_data, lower_header
from .p4_source import at
from .unsupported import unsupported_error

LENGTH_FIELD, LENGTH_BITS = "$length$", 32
_PAYLOAD = js.OtherOperand("payload")
HASH_ALGORITHMS = frozenset({"crc16", "crc32", "crcCCITT", "csum16", "identity", "xor16"})


def declare_headers(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add headers, fields and the architecture's names of metadata fields to `scope`. Raises: ProgramError."""
    types = {t.name: t for t in program.header_types}
    for index, header in enumerate(program.headers):
        if header.header_type not in types:
            raise ProgramError(f"header {header.name}: unknown type {header.header_type!r}{at(header.source)}")
        ir = _header(header, types[header.header_type], index, len(scope.fields))
        scope.headers[ir.name] = ir
        scope.fields.update({(f.header, f.name): f for f in ir.fields})
    # Both spellings lead to a field: standard_metadata.x, and the aliases that p4c writes (intrinsic_metadata.x).
    if "standard_metadata" in scope.headers:
        for field in scope.headers["standard_metadata"].fields:
            scope.standard[field.qualified] = field
    for alias, target in program.field_aliases:
        scope.standard[alias] = scope.field(target, None)


def _header(header: js.HeaderJson, kind: js.HeaderTypeJson, index: int, first_slot: int) -> HeaderIR:
    fields: list[FieldIR] = []
    for field in kind.fields:
        bits = _variable_bits(header, kind) if field.bits is None else field.bits
        if field.saturating:
            raise unsupported_error("saturating field", f"{header.name}.{field.name}", header.source)
        if bits <= 0 or (field.signed and bits < 2):
            raise ProgramError(f"{header.name}.{field.name}: width {bits} is impossible")
        # Slots are dense over the whole program: a packet is one list of values in the interpreter.
        slot = first_slot + len(fields)
        fields.append(FieldIR(header.name, field.name, bits, field.signed, slot))
    variable = next((field for field, json in zip(fields, kind.fields, strict=True) if json.bits is None), None)
    if variable is None:
        return HeaderIR(header.name, kind.name, index, header.metadata, tuple(fields))
    # The length is a field like others, so that copies of headers and packets carry it along.
    length = FieldIR(header.name, LENGTH_FIELD, LENGTH_BITS, False, first_slot + len(fields))
    pair = VariableIR(variable, length)
    return HeaderIR(header.name, kind.name, index, header.metadata, (*fields, length), pair)


def _variable_bits(header: js.HeaderJson, kind: js.HeaderTypeJson) -> int:
    """Return the most bits that a header's variable-length field can have."""
    if header.metadata or sum(field.bits is None for field in kind.fields) > 1:
        raise unsupported_error("varbit", f"field of {header.name}", header.source)
    return 8 * (kind.max_bytes or 0) - sum(field.bits or 0 for field in kind.fields)


def declare_state(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add counters, registers and calculations to `scope`. Raises: ProgramError."""
    for counter in program.counter_arrays:
        ir = p4.CounterIR(counter.name, counter.id, counter.size or 0, bound_table(counter), counter.source)
        scope.counters[counter.name] = ir
    for register in program.register_arrays:
        if register.size <= 0 or register.bitwidth <= 0:
            raise ProgramError(f"register {register.name} has no cells or no width{at(register.source)}")
        array = p4.RegisterIR(register.name, register.id, register.size, register.bitwidth, register.source)
        scope.registers[register.name] = array
    for calculation in program.calculations:
        scope.calculations[calculation.name] = _calculation(calculation, scope)


def _calculation(calculation: js.CalculationJson, scope: ProgramScope) -> p4.CalculationIR:
    if calculation.algo not in HASH_ALGORITHMS:
        raise unsupported_error("hash algorithm", f"{calculation.algo} of {calculation.name}", calculation.source)
    place = ExpressionContext(scope, (), calculation.source)
    payload = [operand for operand in calculation.input if operand == _PAYLOAD]
    inputs = tuple(_input(operand, place) for operand in calculation.input if operand != _PAYLOAD)
    return p4.CalculationIR(calculation.name, calculation.algo, inputs, bool(payload))


def _input(operand: js.Operand, place: ExpressionContext) -> p4.CalculationInput:
    if isinstance(operand, js.FieldOperand):
        field = place.scope.field(operand, place.source)
        return p4.CalculationInput(field, place.scope.headers.find(operand.header, place.source), 0, field.bits)
    if isinstance(operand, js.HexOperand):
        return p4.CalculationInput(None, None, operand.value, operand.bits)
    if isinstance(operand, js.NamedOperand):
        header = lower_header(operand, place)
        return p4.CalculationInput(None, header, 0, header.bits)
    raise unsupported_error("operand", f"calculation input {type(operand).__name__}", place.source)


def lower_checksum(checksum: js.ChecksumJson, scope: ProgramScope) -> p4.ChecksumIR:
    """Return a checksum with all names resolved. Raises: ProgramError."""
    if checksum.type != "generic":
        raise unsupported_error("checksum type", f"{checksum.type} of {checksum.name}", checksum.source)
    place = ExpressionContext(scope, (), checksum.source)
    return p4.ChecksumIR(
        name=checksum.name,
        target=scope.field(checksum.target, checksum.source),
        header=scope.headers.find(checksum.target.header, checksum.source),
        calculation=scope.calculations.find(checksum.calculation or "", checksum.source),
        condition=None if checksum.condition is None else lower_bool(checksum.condition, place),
        verify=checksum.verify,
        update=checksum.update,
    )


_UNITS = {"packets": False, "bytes": True}
_RATES = 2


def declare_stacks(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add header stacks to `scope`, and a metadata header of their counts. Raises: ProgramError."""
    if not program.header_stacks:
        return
    # `next` of a stack is metadata: it is 0 at the start of a packet, and copied with it.
    first, by_id = len(scope.fields), {header.id: header.name for header in program.headers}
    fields = tuple(
        FieldIR(p4.STACK_STATE, stack.name, INDEX_BITS, False, first + number)
        for number, stack in enumerate(program.header_stacks)
    )
    state = HeaderIR(p4.STACK_STATE, p4.STACK_STATE, len(scope.headers), True, fields)
    for stack, field in zip(program.header_stacks, fields, strict=True):
        scope.stacks[stack.name] = p4.StackIR(stack.name, _elements(stack, by_id, scope), field)
    scope.headers[p4.STACK_STATE] = state
    scope.fields.update({(p4.STACK_STATE, field.name): field for field in fields})


def _elements(stack: js.HeaderStackJson, by_id: dict[int, str], scope: ProgramScope) -> tuple[HeaderIR, ...]:
    headers = _headers(stack, by_id, scope)
    if any(header.variable is not None for header in headers):
        raise unsupported_error("varbit", f"header stack {stack.name}", stack.source)
    if not headers or {header.type_name for header in headers} != {stack.header_type}:
        raise ProgramError(f"header stack {stack.name}: the elements are not of its type{at(stack.source)}")
    return headers


def declare_unions(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add header unions to `scope`, which has all headers already. Raises: ProgramError."""
    by_id = {header.id: header.name for header in program.headers}
    for union in program.header_unions:
        scope.unions[union.name] = p4.UnionIR(union.name, union.union_type, _headers(union, by_id, scope))


def _headers(
    owner: js.HeaderStackJson | js.HeaderUnionJson, by_id: dict[int, str], scope: ProgramScope
) -> tuple[HeaderIR, ...]:
    return tuple(scope.headers.find(by_id.get(number, f"number {number}"), owner.source) for number in owner.header_ids)


def declare_field_lists(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add the lists of preserved metadata to `scope`, by id. Raises: ProgramError."""
    for item in program.field_lists:
        scope.field_lists[item.id] = p4.FieldListIR(item.id, tuple(_preserved(item, scope)))


def _preserved(item: js.FieldListJson, scope: ProgramScope) -> list[FieldIR]:
    fields = []
    for element in item.elements:
        if not isinstance(element, js.FieldOperand):
            raise unsupported_error(
                "operand", f"{type(element).__name__} in field list {item.name or item.id}", item.source
            )
        fields.append(scope.field(element, item.source))
    return fields


def declare_digests(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add the program's digests to `scope.digests`, by id. Raises ProgramError for a member that cannot be lowered."""
    for item in program.learn_lists:
        scope.digests[item.id] = _digest(item, scope)


def _digest(item: js.LearnListJson, scope: ProgramScope) -> p4.DigestIR:
    place = ExpressionContext(scope, (), item.source)
    members = tuple(lower_data(element, place) for element in item.elements)
    return p4.DigestIR(item.id, item.name, members, tuple(map(_bits, members)), item.source)


def _bits(member: DataExpr) -> int:
    return member.field.bits if isinstance(member, FieldRef) else member.type.bits


def declare_meters(program: js.ProgramJson, scope: ProgramScope) -> None:
    """Add meter arrays to `scope`. Raises: ProgramError."""
    for meter in program.meter_arrays:
        scope.meters[meter.name] = _meter(meter, scope)


def _meter(meter: js.MeterJson, scope: ProgramScope) -> p4.MeterIR:
    if meter.rate_count != _RATES:
        raise unsupported_error("meter", f"{meter.name} with {meter.rate_count} rates", meter.source)
    table, size = bound_table(meter), meter.size or 0
    if meter.type not in _UNITS or (table is None and size <= 0):
        raise ProgramError(f"meter {meter.name}: type {meter.type!r} or size {size} is impossible{at(meter.source)}")
    target = None
    if meter.is_direct:
        if meter.result_target is None:
            raise ProgramError(f"the direct meter {meter.name} has no field for its colour{at(meter.source)}")
        target = scope.field(meter.result_target, meter.source)
    return p4.MeterIR(meter.name, meter.id, size, _UNITS[meter.type], table, target, meter.source)


def bound_table(array: js.CounterJson | js.MeterJson) -> str | None:
    """Return the table of a direct counter or meter, None for another array. Raises: ProgramError (it names none)."""
    if not array.is_direct:
        return None
    if array.binding is None:
        raise ProgramError(f"{array.name} is direct, but names no table{at(array.source)}")
    return array.binding
