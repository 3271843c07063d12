# SPDX-License-Identifier: Apache-2.0
"""The deparser: valid headers in order, then what the parser did not read."""

from __future__ import annotations

from ..program.ir import DeparserIR
from .checksums import Checksum
from .packet import Layout, PacketState


class Deparser:
    """Turns a packet back into a frame."""

    def __init__(self, ir: DeparserIR, layout: Layout, checksums: list[Checksum]) -> None:
        self._checksums = checksums
        self._headers = [
            (layout.valid(h), h.bits // 8, [(f.slot, f.bits, (1 << f.bits) - 1) for f in h.fields]) for h in ir.order
        ]

    def run(self, packet: PacketState) -> bytes:
        """Return the frame, not cut by truncate()."""
        for checksum in self._checksums:
            checksum.update(packet)
        values, parts = packet.values, []
        for valid, size, fields in self._headers:
            if values[valid]:
                word = 0
                for slot, bits, mask in fields:
                    word = word << bits | values[slot] & mask
                parts.append(word.to_bytes(size, "big"))
        parts.append(packet.data)
        return b"".join(parts)
