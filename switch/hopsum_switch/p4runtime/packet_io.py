# SPDX-License-Identifier: Apache-2.0
"""Packet-in and packet-out: the controller header in front of a frame <-> metadata values.

A program declares the header with @controller_header. P4Info lists its fields. On the CPU port every frame
starts with that header: its fields in order of declaration, most significant bit first, without gaps. As
bmv2 requires, a header is a whole number of bytes. A program without such headers exchanges bare frames
with the controller.
"""

from __future__ import annotations

from collections.abc import Iterable

from hopsum_switch.p4runtime.p4info import P4InfoField
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode
from hopsum_switch.p4runtime.values import decode, encode


class PacketHeader:
    """The fields of one controller header."""

    def __init__(self, name: str, fields: tuple[P4InfoField, ...]) -> None:
        """Raise P4RuntimeError (INVALID_ARGUMENT) for a header that is not a whole number of bytes."""
        self._name = name
        self._fields = fields
        self._bits = sum(field.width for field in fields)
        if self._bits % 8:
            raise P4RuntimeError(
                RpcCode.INVALID_ARGUMENT,
                f"P4Info: header {name} has {self._bits} bits, which is not a whole number of bytes: add padding",
            )

    def pack(self, metadata: Iterable[tuple[int, bytes]]) -> bytes:
        """Return the header's bytes for (field id, byte string) pairs.

        Raises P4RuntimeError: a field is missing, given twice, unknown or too large. The frame must not
        enter.
        """
        values = dict[int, bytes]()
        for number, value in metadata:
            if number in values:
                raise P4RuntimeError(RpcCode.INVALID_ARGUMENT, f"{self._name}: field {number} is given twice")
            values[number] = value
        header = 0
        for field in self._fields:
            if field.id not in values:
                raise P4RuntimeError(
                    RpcCode.INVALID_ARGUMENT, f"{self._name}: field {field.id} ({field.name}) is missing"
                )
            header = header << field.width | decode(values.pop(field.id), field.width, f"{self._name}.{field.name}")
        if values:
            raise P4RuntimeError(RpcCode.INVALID_ARGUMENT, f"{self._name}: it has no fields {sorted(values)}")
        return header.to_bytes(self._bits // 8, "big")

    def unpack(self, frame: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
        """Return the (field id, byte string) pairs at the start of `frame`, and the rest.

        Raises P4RuntimeError (OUT_OF_RANGE): the frame is shorter than the header.
        """
        size = self._bits // 8
        if len(frame) < size:
            raise P4RuntimeError(
                RpcCode.OUT_OF_RANGE, f"a frame of {len(frame)} bytes cannot hold header {self._name} of {size}"
            )
        header = int.from_bytes(frame[:size], "big")
        pairs, left = [], self._bits
        for field in self._fields:
            left -= field.width
            pairs.append((field.id, encode(header >> left & (1 << field.width) - 1)))
        return pairs, frame[size:]
