# SPDX-License-Identifier: Apache-2.0
"""Checksums and hashes: the input is packed into scratch memory, then one function per algorithm runs over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from ..program.ir import CalculationInput, CalculationIR, ProgramIR
from ..program.ir_expressions import HeaderIR
from .frame_code import HeaderAccess
from .function_scope import I8, I64, PTR, FunctionScope, Unit, Value, word
from .memory_layout import ControlWord, Word, round_up
from .only_interpreted import unsupported_error

Piece = tuple[HeaderIR | None, CalculationInput, int]


def compute(scope: FunctionScope, ir_: CalculationIR) -> Value:
    """Write a calculation over the packet. Return its value as a word. Raises: UnsupportedError."""
    builder, scratch = scope.builder, scope.address(ControlWord.SCRATCH)
    pieces = list(_pieces(ir_))
    length = scope.variable(word(0))
    groups = [(header, list(group)) for header, group in groupby(pieces, key=lambda piece: piece[0])]
    for number, (header, group) in enumerate(groups):
        size = sum(bits for *_, bits in group)
        # Whether a header is in the input is known at run time, so what follows it must begin on a byte.
        if size % 8 and number + 1 < len(groups):
            raise unsupported_error("hash input", ir_.name)
        if header is None or header.metadata:
            _append(scope, scratch, length, group)
        else:
            with scope.when(scope.is_valid(header)):
                _append(scope, scratch, length, group)
    if ir_.with_payload:
        _append_payload(scope, scratch, length)
    return builder.call(_algorithm(scope.unit, ir_.algorithm), [scratch, builder.load(length, typ=I64)])


def scratch_bytes(program: ProgramIR) -> int:
    """Return the bytes of the longest input of any calculation, without payload, or 0 without calculations."""
    sizes = (sum(bits for *_, bits in _pieces(calculation)) for calculation in program.calculations.values())
    return max((round_up(bits, 8) // 8 for bits in sizes), default=0)


def _pieces(ir_: CalculationIR) -> Iterator[Piece]:
    """Yield (header whose validity counts, constant input or field input, bits). Metadata is always valid."""
    for item in ir_.inputs:
        if item.header is None:
            yield None, item, item.bits
            continue
        header = None if item.header.metadata else item.header
        for field in item.header.fields if item.field is None else (item.field,):
            yield header, CalculationInput(field, item.header, 0, field.bits), field.bits


def _append(scope: FunctionScope, scratch: Value, length: Value, group: list[Piece]) -> None:
    builder = scope.builder
    start = builder.load(length, typ=I64)
    fields = [(_address(scope, item), bits) for _, item, bits in group]
    padding = -sum(bits for _, bits in fields) % 8
    if padding:
        fields.append((_constant(scope, 0, padding), padding))
    HeaderAccess(scope).emit(fields, scope.byte(scratch, start))
    size = sum(bits for _, bits in fields) // 8
    builder.store(builder.add(start, word(size)), length)


def _address(scope: FunctionScope, item: CalculationInput) -> Value:
    return _constant(scope, item.constant, item.bits) if item.field is None else scope.readable(item.field)


def _constant(scope: FunctionScope, value: int, bits: int) -> Value:
    words = round_up(bits, 512) // 64
    value &= (1 << bits) - 1
    pointer = scope.unit.constant_array(
        f"constant_{bits}_{value:x}", [value >> (64 * i) & ((1 << 64) - 1) for i in range(words)], 64
    )
    pointer.align = 64
    return pointer


def _append_payload(scope: FunctionScope, scratch: Value, length: Value) -> None:
    """Append the unparsed rest of the frame, cut by truncate()."""
    builder = scope.builder
    data = scope.get(Word.DATA)
    # As bmv2: the payload that is hashed is what truncate() leaves.
    size = scope.minimum(builder.sub(scope.get(Word.RECEIVED), data), scope.get(Word.LIMIT))
    source = scope.byte(builder.inttoptr(scope.get(Word.FRAME), PTR), data)
    start = builder.load(length, typ=I64)
    scope.copy(scope.byte(scratch, start), source, size)
    builder.store(builder.add(start, size), length)


def _algorithm(unit: Unit, name: str) -> Value:
    if name not in unit.functions:
        function = unit.declare(name, I64, [PTR, I64])
        scope = FunctionScope(unit, function)
        _ALGORITHMS[name](scope, function.args[0], function.args[1])
    return unit.functions[name]


def _byte(scope: FunctionScope, data: Value, index: Value) -> Value:
    return scope.builder.zext(scope.builder.load(scope.byte(data, index), typ=I8, align=1), I64)


def _words16(scope: FunctionScope, data: Value, size: Value, step: Callable[[Value, Value], Value]) -> Value:
    """Fold 16-bit words with `step`, an odd last byte being the high half of a word."""
    builder = scope.builder
    total = scope.variable(word(0))
    with scope.repeat(builder.lshr(size, word(1))) as index:
        at = builder.shl(index, word(1))
        high, low = _byte(scope, data, at), _byte(scope, data, builder.add(at, word(1)))
        pair = builder.or_(builder.shl(high, word(8)), low)
        builder.store(step(builder.load(total, typ=I64), pair), total)
    with scope.when(builder.icmp_unsigned("!=", builder.and_(size, word(1)), word(0))):
        last = builder.shl(_byte(scope, data, builder.sub(size, word(1))), word(8))
        builder.store(step(builder.load(total, typ=I64), last), total)
    return builder.load(total, typ=I64)


def _csum16(scope: FunctionScope, data: Value, size: Value) -> None:
    builder = scope.builder
    total = _words16(scope, data, size, builder.add)
    for _ in range(4):  # 64 bits fold to 48, 32, 17, 16
        total = builder.add(builder.and_(total, word(0xFFFF)), builder.lshr(total, word(16)))
    builder.ret(builder.sub(word(0xFFFF), total))


def _xor16(scope: FunctionScope, data: Value, size: Value) -> None:
    scope.builder.ret(_words16(scope, data, size, scope.builder.xor))


def _identity(scope: FunctionScope, data: Value, size: Value) -> None:
    builder = scope.builder
    total = scope.variable(word(0))
    with scope.repeat(scope.minimum(size, word(8))) as index:
        shifted = builder.shl(builder.load(total, typ=I64), word(8))
        builder.store(builder.or_(shifted, _byte(scope, data, index)), total)
    builder.ret(builder.load(total, typ=I64))


def _reflected(polynomial: int, start: int, final: int) -> Callable[[FunctionScope, Value, Value], None]:
    """Return the writer of a CRC that shifts right."""
    table = [_shift_right(index, polynomial) for index in range(256)]

    def write(scope: FunctionScope, data: Value, size: Value) -> None:
        builder = scope.builder
        entries = scope.unit.constant_array(f"crc_{polynomial:x}", table, 64)
        crc = scope.variable(word(start))
        with scope.repeat(size) as index:
            old = builder.load(crc, typ=I64)
            entry = builder.and_(builder.xor(old, _byte(scope, data, index)), word(0xFF))
            builder.store(builder.xor(builder.lshr(old, word(8)), scope.load(entries, entry)), crc)
        builder.ret(builder.xor(builder.load(crc, typ=I64), word(final)))

    return write


def _crc_ccitt(scope: FunctionScope, data: Value, size: Value) -> None:
    builder = scope.builder
    entries = scope.unit.constant_array("crc_1021", [_shift_left(index) for index in range(256)], 64)
    crc = scope.variable(word(0xFFFF))
    with scope.repeat(size) as index:
        old = builder.load(crc, typ=I64)
        entry = builder.xor(builder.lshr(old, word(8)), _byte(scope, data, index))
        shifted = builder.and_(builder.shl(old, word(8)), word(0xFFFF))
        builder.store(builder.xor(shifted, scope.load(entries, entry)), crc)
    builder.ret(builder.load(crc, typ=I64))


def _shift_right(value: int, polynomial: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (polynomial if value & 1 else 0)
    return value


def _shift_left(value: int) -> int:
    value <<= 8
    for _ in range(8):
        value = (value << 1 ^ (0x1021 if value & 0x8000 else 0)) & 0xFFFF
    return value


_ALGORITHMS: dict[str, Callable[[FunctionScope, Value, Value], None]] = {
    "crc16": _reflected(0xA001, 0, 0),
    "crc32": _reflected(0xEDB88320, 0xFFFFFFFF, 0xFFFFFFFF),
    "crcCCITT": _crc_ccitt,
    "csum16": _csum16,
    "identity": _identity,
    "xor16": _xor16,
}
