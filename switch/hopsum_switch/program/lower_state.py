# SPDX-License-Identifier: Apache-2.0
"""Headers, counters, registers, calculations and checksums of the mirror to IR."""

from __future__ import annotations

from ..errors import ProgramError
from .ir import ChecksumIR
from .ir_expressions import FieldIR, HeaderIR, VariableIR
from .ir_objects import CalculationInput, CalculationIR, CounterIR, RegisterIR
from .json_model import (
    CalculationJson,
    ChecksumJson,
    FieldOperand,
    HeaderJson,
    HeaderTypeJson,
    HexOperand,
    NamedOperand,
    Operand,
    ProgramJson,
)
from .lower_expressions import lower_bool, lower_header
from .scope import ExpressionContext, ProgramScope
from .source import at
from .unsupported import refuse

LENGTH_FIELD, LENGTH_BITS = "$length$", 32
HASH_ALGORITHMS = frozenset({"crc16", "crc32", "crcCCITT", "csum16", "identity", "xor16"})


def declare_headers(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter headers, fields and the architecture's names of metadata fields. Raises: ProgramError."""
    types = {t.name: t for t in program.header_types}
    for index, header in enumerate(program.headers):
        if header.header_type not in types:
            raise ProgramError(f"header {header.name}: unknown type {header.header_type!r}{at(header.source)}")
        ir = _header(header, types[header.header_type], index, len(scope.fields))
        scope.headers[ir.name] = ir
        scope.fields.update({(f.header, f.name): f for f in ir.fields})
    if "standard_metadata" in scope.headers:
        for field in scope.headers["standard_metadata"].fields:
            scope.standard[field.qualified] = field
    for alias, target in program.field_aliases.items():
        scope.standard[alias] = scope.field(target, None)


def _header(header: HeaderJson, kind: HeaderTypeJson, index: int, first_slot: int) -> HeaderIR:
    fields: list[FieldIR] = []
    for field in kind.fields:
        bits = _variable_bits(header, kind) if field.bits is None else field.bits
        if field.saturating:
            raise refuse("saturating field", f"{header.name}.{field.name}", header.source)
        if bits <= 0 or (field.signed and bits < 2):
            raise ProgramError(f"{header.name}.{field.name}: width {bits} is impossible")
        slot = first_slot + len(fields)
        fields.append(FieldIR(header.name, field.name, bits, field.signed, slot))
    variable = next((field for field, json in zip(fields, kind.fields, strict=True) if json.bits is None), None)
    if variable is None:
        return HeaderIR(header.name, kind.name, index, header.metadata, tuple(fields))
    length = FieldIR(header.name, LENGTH_FIELD, LENGTH_BITS, False, first_slot + len(fields))
    pair = VariableIR(variable, length)
    return HeaderIR(header.name, kind.name, index, header.metadata, (*fields, length), pair)


def _variable_bits(header: HeaderJson, kind: HeaderTypeJson) -> int:
    """Return the most bits that a header's variable-length field can have."""
    if header.metadata or sum(field.bits is None for field in kind.fields) > 1:
        raise refuse("varbit", f"field of {header.name}", header.source)
    return 8 * kind.max_bytes - sum(field.bits or 0 for field in kind.fields)


def declare_state(program: ProgramJson, scope: ProgramScope) -> None:
    """Enter counters, registers and calculations. Raises: ProgramError."""
    for counter in program.counters:
        ir = CounterIR(counter.name, counter.id, counter.size, counter.binding, counter.source)
        scope.counters[counter.name] = ir
    for register in program.registers:
        if register.size <= 0 or register.bits <= 0:
            raise ProgramError(f"register {register.name} has no cells or no width{at(register.source)}")
        array = RegisterIR(register.name, register.id, register.size, register.bits, register.source)
        scope.registers[register.name] = array
    for calculation in program.calculations:
        scope.calculations[calculation.name] = _calculation(calculation, scope)


def _calculation(calculation: CalculationJson, scope: ProgramScope) -> CalculationIR:
    if calculation.algo not in HASH_ALGORITHMS:
        raise refuse("hash algorithm", f"{calculation.algo} of {calculation.name}", calculation.source)
    place = ExpressionContext(scope, (), calculation.source)
    inputs = tuple(_input(operand, place) for operand in calculation.inputs)
    return CalculationIR(calculation.name, calculation.algo, inputs, calculation.with_payload)


def _input(operand: Operand, place: ExpressionContext) -> CalculationInput:
    if isinstance(operand, FieldOperand):
        field = place.scope.field(operand, place.source)
        return CalculationInput(field, place.scope.header(operand.header, place.source), 0, field.bits)
    if isinstance(operand, HexOperand):
        return CalculationInput(None, None, operand.value, operand.bits)
    if isinstance(operand, NamedOperand):
        header = lower_header(operand, place)
        return CalculationInput(None, header, 0, header.bits)
    raise refuse("operand", f"calculation input {type(operand).__name__}", place.source)


def lower_checksum(checksum: ChecksumJson, scope: ProgramScope) -> ChecksumIR:
    """Return a checksum with all names resolved. Raises: ProgramError."""
    if checksum.type != "generic":
        raise refuse("checksum type", f"{checksum.type} of {checksum.name}", checksum.source)
    place = ExpressionContext(scope, (), checksum.source)
    return ChecksumIR(
        name=checksum.name,
        target=scope.field(checksum.target, checksum.source),
        header=scope.header(checksum.target.header, checksum.source),
        calculation=scope.calculation(checksum.calculation, checksum.source),
        condition=None if checksum.condition is None else lower_bool(checksum.condition, place),
        verify=checksum.verify,
        update=checksum.update,
    )
