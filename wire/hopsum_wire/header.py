# SPDX-License-Identifier: Apache-2.0
"""The 32-byte hopsum header as a value."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from hopsum_wire._layout import HOPSUM_BYTES, HOPSUM_FIELDS, HOPSUM_STRUCT, WIRE_VERSION, Drop, Kind, Op
from hopsum_wire.errors import WireError

_STRUCT: Final = struct.Struct(HOPSUM_STRUCT)
_VALUES: Final = attrgetter(*(field.name for field in HOPSUM_FIELDS))
_KINDS: Final = frozenset(Kind)
_OPS: Final = frozenset(Op)
_WITHOUT_OP: Final = frozenset((Kind.PROBE, Kind.STATE))
"""Kinds that may have op 0: nothing is asked to be summed, or nothing is held."""


@dataclass(frozen=True, slots=True)
class Header:
    """One hopsum header. Fields in the order of the wire. p4/shared/headers.p4 has the widths."""

    version: int = WIRE_VERSION
    kind: int = 0
    flags: int = 0
    op: int = 0
    worker: int = 0
    """Rank: the sender's in UPDATE and PROBE, the receiver's in RESULT, STALE and STATE."""
    slot: int = 0
    generation: int = 0
    """Incarnation of the job. 0 is never used."""
    round: int = 0
    """Use count of the slot, from 1. In replies it is the round that was asked for."""
    held: int = 0
    """STALE and STATE only: the round that the slot's copy holds."""
    contributors: int = 0
    """Bitmap of the workers in the sum (STALE, STATE: in the held one). Bit w is rank w."""
    count: int = 0
    """Elements of the chunk that are in use. In STATE: the content of the copy, see `State`."""
    length: int = 0
    """Payload bytes after this header."""

    def pack(self) -> bytes:
        """Return the 32 bytes of the wire.

        Raises:
            WireError: a value does not fit its field, with reason BAD_VALUE.
        """
        try:
            return _STRUCT.pack(*_VALUES(self))
        except struct.error:
            widths = {field.name: field.bits for field in HOPSUM_FIELDS}
            values = {name: getattr(self, name) for name in widths}
            wrong = [
                f"{name} = {value} does not fit in {widths[name]} bits"
                for name, value in values.items()
                if not 0 <= value < 1 << widths[name]
            ]
            raise WireError(Drop.BAD_VALUE, "; ".join(wrong)) from None

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Header:
        """Return the header at the start of `data`, whatever its version and kind.

        Raises:
            WireError: fewer than 32 bytes, with reason TRUNCATED.
        """
        if len(data) < HOPSUM_BYTES:
            raise WireError(Drop.TRUNCATED, f"{len(data)} bytes are no {HOPSUM_BYTES}-byte hopsum header")
        return cls(*_STRUCT.unpack_from(data))


def split_datagram(data: bytes | memoryview) -> tuple[Header, memoryview]:
    """Return the header and the payload (a view into `data`) of a datagram of this wire version.

    Raises:
        WireError: not one whole hopsum packet: short (TRUNCATED), foreign (BAD_VERSION, BAD_KIND, BAD_OP), or
            with bytes beyond its payload (BAD_LENGTH). Count the reason and drop the datagram.
    """
    header = Header.unpack(data)
    if header.version != WIRE_VERSION:
        raise WireError(
            Drop.BAD_VERSION, f"wire version {header.version} instead of {WIRE_VERSION}: not from this hopsum"
        )
    if header.kind not in _KINDS:
        raise WireError(Drop.BAD_KIND, f"unknown kind {header.kind}")
    if header.op not in _OPS and not (header.op == 0 and header.kind in _WITHOUT_OP):
        raise WireError(Drop.BAD_OP, f"unknown op {header.op}")
    payload = memoryview(data)[HOPSUM_BYTES:]
    if len(payload) != header.length:
        reason = Drop.TRUNCATED if len(payload) < header.length else Drop.BAD_LENGTH
        raise WireError(reason, f"header says {header.length} payload bytes, datagram has {len(payload)}")
    return header, payload
