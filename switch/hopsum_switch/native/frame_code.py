# SPDX-License-Identifier: Apache-2.0
"""Fields between the wire, where bits count from the first and most significant, and words in memory."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..program.ir_expressions import FieldIR, HeaderIR
from .function_scope import I64, VECTOR, FunctionScope, Value
from .memory_layout import PIECE_WORDS, WORD_BITS, round_up

PIECE_BYTES = 64
_BYTES = ir.VectorType(ir.IntType(8), PIECE_BYTES)
_REVERSED = ir.Constant(ir.VectorType(ir.IntType(32), PIECE_BYTES), list(range(PIECE_BYTES - 1, -1, -1)))


class HeaderAccess:
    """A writer of code that moves fields between the bytes of a frame and the packet's state."""

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope

    def extract(self, header: HeaderIR, start: Value) -> None:
        """Write code that sets all fields of a header from the bytes at `start`. It does not make the header valid."""
        bit = 0
        for field in header.fields:
            self._extract_field(field, start, bit)
            bit += field.bits

    def bits(self, start: Value, first: int, count: int) -> Value:
        """Write a load of `count` bits from bit `first` after `start` on. Return them as an integer of whole words."""
        builder = self._scope.builder
        begin, end = first // 8, (first + count + 7) // 8
        value = self._big_endian(self._scope.byte(start, begin), 8 * (end - begin))
        value = builder.lshr(value, ir.Constant(value.type, 8 * end - first - count))
        kind = ir.IntType(round_up(count, WORD_BITS))
        value = builder.zext(value, kind) if value.type.width < kind.width else value
        value = builder.trunc(value, kind) if value.type.width > kind.width else value
        return builder.and_(value, ir.Constant(kind, (1 << count) - 1))

    def emit(self, fields: Sequence[tuple[Value, int]], target: Value) -> None:
        """Write code that puts fields (address, bits), together whole bytes, one after the other to `target`."""
        group: list[tuple[Value, int]] = []
        bit = 0
        for pointer, bits in fields:
            if bits % (8 * PIECE_BYTES) == 0 and bit % 8 == 0 and not group:
                self._emit_pieces(pointer, bits, self._scope.byte(target, bit // 8))
                bit += bits
                continue
            group.append((pointer, bits))
            bit += bits
            if bit % 8 == 0:
                size = sum(b for _, b in group)
                self._emit_group(group, self._scope.byte(target, (bit - size) // 8))
                group = []

    def _extract_field(self, field: FieldIR, start: Value, bit: int) -> None:
        scope, builder = self._scope, self._scope.builder
        place, pointer = scope.layout.field(field), scope.field_pointer(field)
        if bit % 8 == 0 and field.bits % (8 * PIECE_BYTES) == 0 and not field.signed:
            self._extract_pieces(scope.byte(start, bit // 8), pointer, field.bits)
            return
        for low in range(0, field.bits, WORD_BITS):
            count = min(WORD_BITS, field.bits - low)
            value = self.bits(start, bit + field.bits - low - count, count)
            if field.signed and low + count == field.bits:
                spare = ir.Constant(I64, WORD_BITS - count)
                value = builder.ashr(builder.shl(value, spare), spare)
            scope.store(value, pointer, low // WORD_BITS)
        # A signed field has one bit more than the frame carries, so its layout may have one word more.
        above = -(-field.bits // WORD_BITS)
        if place.words > above:
            fill = builder.ashr(value, ir.Constant(I64, WORD_BITS - 1)) if field.signed else ir.Constant(I64, 0)
            for index in range(above, place.words):
                scope.store(fill, pointer, index)

    def _extract_pieces(self, source: Value, target: Value, bits: int) -> None:
        builder, count = self._scope.builder, bits // (8 * PIECE_BYTES)
        for index in range(count):
            # The first byte of a frame is the most significant: bytes are reversed within a vector, and vectors in
            # their order.
            raw = builder.load(self._scope.byte(source, (count - 1 - index) * PIECE_BYTES), typ=_BYTES, align=1)
            value = builder.bitcast(builder.shuffle_vector(raw, raw, _REVERSED), VECTOR)
            builder.store(value, self._scope.at(target, index * PIECE_WORDS), align=PIECE_BYTES)

    def _emit_pieces(self, source: Value, bits: int, target: Value) -> None:
        builder, count = self._scope.builder, bits // (8 * PIECE_BYTES)
        for index in range(count):
            pointer = self._scope.at(source, index * PIECE_WORDS)
            raw = builder.bitcast(builder.load(pointer, typ=VECTOR, align=PIECE_BYTES), _BYTES)
            value = builder.shuffle_vector(raw, raw, _REVERSED)
            builder.store(value, self._scope.byte(target, (count - 1 - index) * PIECE_BYTES), align=1)

    def _emit_group(self, group: list[tuple[Value, int]], target: Value) -> None:
        """Write a run of fields that ends on a byte as one integer."""
        builder, total = self._scope.builder, sum(bits for _, bits in group)
        kind = ir.IntType(total)
        value = ir.Constant(kind, 0)
        for pointer, bits in group:
            part = self._field_bits(pointer, bits)
            part = builder.zext(part, kind) if bits < total else part
            shifted = builder.shl(value, ir.Constant(kind, bits)) if bits < total else value
            value = builder.or_(shifted, part)
        for done in range(0, total, WORD_BITS):
            count = min(WORD_BITS, total - done)
            piece = builder.lshr(value, ir.Constant(kind, total - done - count))
            piece = builder.trunc(piece, ir.IntType(count)) if count < total else piece
            self._store_big_endian(piece, self._scope.byte(target, done // 8))

    def _field_bits(self, pointer: Value, bits: int) -> Value:
        kind = ir.IntType(round_up(bits, WORD_BITS))
        value = self._scope.builder.load(pointer, typ=kind, align=8)
        return value if kind.width == bits else self._scope.builder.trunc(value, ir.IntType(bits))

    def _big_endian(self, pointer: Value, bits: int) -> Value:
        """Return whole bytes as an integer, at least as wide."""
        value = self._scope.builder.load(pointer, typ=ir.IntType(bits), align=1)
        return self._swapped(value, bits)

    def _store_big_endian(self, value: Value, pointer: Value) -> None:
        self._scope.builder.store(self._swapped(value, value.type.width), pointer, align=1)

    def _swapped(self, value: Value, bits: int) -> Value:
        builder = self._scope.builder
        if bits == 8:
            return value
        # LLVM swaps whole 16-bit units only.
        even = ir.IntType(round_up(bits, 16))
        swap = self._scope.unit.intrinsic(f"llvm.bswap.i{even.width}", even, [even])
        if even.width == bits:
            return builder.call(swap, [value])
        swapped = builder.call(swap, [builder.zext(value, even)])
        return builder.trunc(builder.lshr(swapped, ir.Constant(even, even.width - bits)), value.type)
