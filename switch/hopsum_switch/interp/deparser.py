# SPDX-License-Identifier: Apache-2.0
"""The deparser: valid headers in order, then the bytes that the parser did not read."""

from __future__ import annotations

from ..program.ir import DeparserIR
from ..program.ir_expressions import HeaderIR
from .checksums import Checksum
from .packet import PacketState, ValueLayout


class Deparser:
    """Turns a packet back into a frame."""

    def __init__(self, ir: DeparserIR, layout: ValueLayout, checksums: list[Checksum]) -> None:
        self._checksums = checksums
        self._headers = [
            (layout.valid(h), h.bits // 8, _fields(h), None if h.variable is None else h.variable.length.slot)
            for h in ir.order
        ]

    def run(self, packet: PacketState) -> bytes:
        """Return the frame, not cut by truncate()."""
        for checksum in self._checksums:
            checksum.update(packet)
        values, parts = packet.values, []
        for valid, size, fields, length in self._headers:
            if values[valid]:
                word, more = 0, 0 if length is None else values[length]
                for slot, bits, mask in fields:
                    word = word << (more if bits is None else bits) | values[slot] & mask
                parts.append(word.to_bytes(size + more // 8, "big"))
        parts.append(packet.data)
        return b"".join(parts)


def _fields(header: HeaderIR) -> list[tuple[int, int | None, int]]:
    """Return (slot, width, mask) of the fields in the frame. A variable width is None."""
    variable = None if header.variable is None else header.variable.field
    return [(f.slot, None if f == variable else f.bits, (1 << f.bits) - 1) for f in header.wire]
