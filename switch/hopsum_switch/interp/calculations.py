# SPDX-License-Identifier: Apache-2.0
"""Checksum and hash calculations over fields, headers, constants and the payload.

Inputs are packed bit by bit in order, without invalid fields and headers. The last byte is filled with zeros. The
payload follows, if it belongs to the input.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable

from ..program.ir import CalculationInput, CalculationIR, ChecksumIR
from .expressions import ExpressionWriter, compile_condition
from .packet import PacketState, ValueLayout, store

Calculation = Callable[[PacketState], int]


class Calculations:
    """The calculations of a program as functions of a packet, built once each."""

    def __init__(self, layout: ValueLayout) -> None:
        self._layout = layout
        self._functions: dict[str, Calculation] = {}

    def function(self, ir: CalculationIR) -> Calculation:
        """Return the function that computes a calculation's value from a packet. It is built once."""
        if ir.name not in self._functions:
            self._functions[ir.name] = _build(ir, self._layout)
        return self._functions[ir.name]

    def number(self, ir: CalculationIR) -> int:
        """Return a number that identifies a calculation among those of this object."""
        self.function(ir)
        return list(self._functions).index(ir.name)


def _build(ir: CalculationIR, layout: ValueLayout) -> Calculation:
    pieces = [piece for item in ir.inputs for piece in _pieces(item, layout)]
    algorithm, with_payload = ALGORITHMS[ir.algorithm], ir.with_payload

    def compute(packet: PacketState) -> int:
        values, word, bits = packet.values, 0, 0
        for valid, slot, constant, width, length in pieces:
            if valid is not None and not values[valid]:
                continue
            if length is not None:
                width = values[length]
            value = constant if slot is None else values[slot]
            word = word << width | value & ((1 << width) - 1)
            bits += width
        size = (bits + 7) // 8
        data = (word << (8 * size - bits)).to_bytes(size, "big")
        return algorithm(data + packet.data[: packet.limit] if with_payload else data)

    return compute


def _pieces(item: CalculationInput, layout: ValueLayout) -> list[tuple[int | None, int | None, int, int, int | None]]:
    """Return (validity slot, field slot, constant, width, slot of a variable width) for each field of an input."""
    if item.header is None:
        return [(None, None, item.constant, item.bits, None)]
    valid, variable = layout.valid(item.header), item.header.variable
    fields = item.header.wire if item.field is None else (item.field,)
    lengths = [variable.length.slot if variable is not None and field == variable.field else None for field in fields]
    return [(valid, field.slot, 0, field.bits, length) for field, length in zip(fields, lengths, strict=True)]


def csum16(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071). An odd last byte counts as the high half of a word."""
    number = int.from_bytes(data + bytes(len(data) % 2), "big")
    # 2**16 is 1 modulo 2**16 - 1, so the remainder adds all 16-bit words with end-around carry.
    folded = number % 0xFFFF
    if folded == 0 and number:
        folded = 0xFFFF
    return 0xFFFF - folded


def crc16(data: bytes) -> int:
    """Return CRC-16/ARC: polynomial 0x8005, reflected, initial value and final xor 0."""
    crc = 0
    for byte in data:
        crc = crc >> 8 ^ _CRC16[(crc ^ byte) & 0xFF]
    return crc


def _crc16_entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (0xA001 if index & 1 else 0)
    return index


_CRC16 = [_crc16_entry(index) for index in range(256)]


def crc_ccitt(data: bytes) -> int:
    """Return CRC-16/CCITT-FALSE: polynomial 0x1021, initial value 0xFFFF, not reflected."""
    return binascii.crc_hqx(data, 0xFFFF)


def identity(data: bytes) -> int:
    """Return the first 8 bytes as a number."""
    return int.from_bytes(data[:8], "big")


def xor16(data: bytes) -> int:
    """Return the exclusive or of all 16-bit words. An odd last byte counts as the high half of a word."""
    result = 0
    for position in range(0, len(data), 2):
        result ^= int.from_bytes(data[position : position + 2].ljust(2, b"\0"), "big")
    return result


ALGORITHMS: dict[str, Callable[[bytes], int]] = {
    "crc16": crc16,
    "crc32": zlib.crc32,
    "crcCCITT": crc_ccitt,
    "csum16": csum16,
    "identity": identity,
    "xor16": xor16,
}


# Checksums: verified after the parser, updated before the deparser.


class Checksum:
    """A checksum field, which the parser verifies or the deparser updates."""

    def __init__(self, ir: ChecksumIR, layout: ValueLayout, calculations: Calculations) -> None:
        self._target = ir.target
        self._valid = layout.valid(ir.header)
        self._compute = calculations.function(ir.calculation)
        writer = ExpressionWriter(layout)
        self._condition = None if ir.condition is None else compile_condition(ir.condition, writer, ir.name)

    def verify(self, packet: PacketState) -> bool:
        """Return true where the field is correct, its header is invalid, or its condition does not hold."""
        values = packet.values
        if not values[self._valid] or not self._applies(values):
            return True
        return self._compute(packet) == values[self._target.slot]

    def update(self, packet: PacketState) -> None:
        """Compute the checksum into its field, if the condition is met, also while the header is invalid."""
        if self._applies(packet.values):
            store(packet.values, self._target, self._compute(packet))

    def _applies(self, values: list[int]) -> bool:
        return self._condition is None or bool(self._condition(values))
