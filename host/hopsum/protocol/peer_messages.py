# SPDX-License-Identifier: Apache-2.0
"""What workers of one job say to each other beside the switch: a fixed header of 24 bytes, then a payload in FOUND.

    kind     from -> to             says
    FETCH    asker -> peer          send me the result of (slot, round)
    FOUND    peer -> asker          here it is: op, contributors (in `value`), lanes
    NOTYET   peer -> asker          I do not hold it either, not yet
    GONE     peer -> asker          I held it and no longer do: you are further behind than anybody keeps results
    DONE     worker -> everybody    I hold all results before the stream position in `value`
    WHERE    worker -> peer         answer with DONE
    LEAVE    worker -> everybody    I need no result of this epoch any more

All numbers are big-endian. How messages are cut out of a byte stream is the transport's business.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from hopsum.errors import HopsumError
from hopsum.wire import MAX_WORKERS
from hopsum.wire.payload import SHAPES

_HEADER: Final = struct.Struct(">BBHIHHIQ")
"""kind, op, sender, epoch, slot, reserved (0), round, value."""
HEADER_BYTES: Final = _HEADER.size
MESSAGE_BYTES_MAX: Final = HEADER_BYTES + max(shape.down_bytes for shape in SHAPES.values())


class PeerKind(IntEnum):
    """What a message says."""

    FETCH = 1
    FOUND = 2
    NOTYET = 3
    GONE = 4
    DONE = 5
    WHERE = 6
    LEAVE = 7


class PeerMessageError(HopsumError):
    """Bytes that are no message between workers. `reason` is one word, to count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PeerMessage(NamedTuple):
    """One message. Fields that a kind has no use for are 0."""

    kind: PeerKind
    sender: int
    """Rank."""
    epoch: int
    slot: int = 0
    round: int = 0
    op: int = 0
    value: int = 0
    payload: bytes = b""

    def pack(self) -> bytes:
        """Return its bytes. Raises struct.error if a value does not fit its field."""
        header = _HEADER.pack(self.kind, self.op, self.sender, self.epoch, self.slot, 0, self.round, self.value)
        return header + self.payload

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> PeerMessage:
        """Return the message that `data` holds as a whole.

        Raises:
            PeerMessageError: too short or too long ("length"), an unknown kind ("kind"), a rank that no job has
                ("sender"), an unknown op or something in a reserved field ("value").
        """
        if not HEADER_BYTES <= len(data) <= MESSAGE_BYTES_MAX:
            raise PeerMessageError("length", f"{len(data)} bytes are not {HEADER_BYTES} to {MESSAGE_BYTES_MAX}")
        kind, op, sender, epoch, slot, reserved, round_, value = _HEADER.unpack_from(data)
        if kind not in PeerKind._value2member_map_:
            raise PeerMessageError("kind", f"unknown kind {kind}")
        if sender >= MAX_WORKERS:
            raise PeerMessageError("sender", f"rank {sender}: no job has more than {MAX_WORKERS} workers")
        if reserved or (kind == PeerKind.FOUND) != (op in SHAPES) or (kind != PeerKind.FOUND and op):
            raise PeerMessageError("value", f"{PeerKind(kind).name} with op {op}, reserved field {reserved}")
        payload = bytes(data[HEADER_BYTES:])
        expected = SHAPES[op].down_bytes if kind == PeerKind.FOUND else 0
        if len(payload) != expected:
            raise PeerMessageError("length", f"{PeerKind(kind).name} with {len(payload)} payload bytes, not {expected}")
        return cls(PeerKind(kind), sender, epoch, slot, round_, op, value, payload)
