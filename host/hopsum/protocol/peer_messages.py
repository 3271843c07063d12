# SPDX-License-Identifier: Apache-2.0
"""The messages between workers of one job: a fixed header of 24 bytes, then perhaps a payload.

docs/protocol.md has the meaning of each kind. All numbers are big-endian. The transport cuts messages out of a byte
stream.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from hopsum.errors import HopsumError
from hopsum_wire import MAX_WORKERS
from hopsum_wire.generations import MAX_SHARDS
from hopsum_wire.payload import SHAPES

PEER_VERSION: Final = 3
"""The version of these messages, their payloads, and the proofs on their connections."""
_HEADER: Final = struct.Struct(">BBHIHHIQ")
"""kind, op, sender, generation, slot, shard, round, value."""
HEADER_BYTES: Final = _HEADER.size
PIECE_BYTES_MIN: Final = 40
"""Payload of an empty STATE_PIECE."""
PIECE_BYTES_MAX: Final = PIECE_BYTES_MIN + (1 << 16)
MESSAGE_BYTES_MAX: Final = HEADER_BYTES + PIECE_BYTES_MAX
"""The bytes of a STATE_PIECE. A FOUND has `HEADER_BYTES` and the lanes of its op, all others have `HEADER_BYTES`."""


class PeerKind(IntEnum):
    """The kind of a message."""

    FETCH = 1
    FOUND = 2
    GONE = 3
    DONE = 4
    PROGRESS_QUERY = 5
    LEAVE = 6
    STATE_ASK = 7
    STATE_PIECE = 8
    STATE_NONE = 9
    STATE_TAKEN = 10


STATE_KINDS: Final = frozenset({PeerKind.STATE_ASK, PeerKind.STATE_PIECE, PeerKind.STATE_NONE, PeerKind.STATE_TAKEN})


class PeerMessageError(HopsumError):
    """Bytes that are no message between workers. `reason` is one word, to count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PeerMessage(NamedTuple):
    """One message. Fields that a kind does not use are 0."""

    kind: PeerKind
    sender: int
    """Rank."""
    generation: int
    slot: int = 0
    round: int = 0
    op: int = 0
    value: int = 0
    payload: bytes = b""
    shard: int = 0
    """The shard of the job whose stream the message is about. Messages about a program's state are shard 0's, except
    that a newcomer sends STATE_NONE for each shard."""

    def pack(self) -> bytes:
        """Return the bytes of the message. Raises struct.error if a value does not fit its field."""
        header = _HEADER.pack(
            self.kind, self.op, self.sender, self.generation, self.slot, self.shard, self.round, self.value
        )
        return header + self.payload

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> PeerMessage:
        """Return the message that `data` holds as a whole.

        Raises:
            PeerMessageError: too short or too long ("length"), an unknown kind ("kind"), a rank that no job has
                ("sender"), an unknown op or a shard that no job has ("value").
        """
        if not HEADER_BYTES <= len(data) <= MESSAGE_BYTES_MAX:
            raise PeerMessageError("length", f"{len(data)} bytes are not {HEADER_BYTES} to {MESSAGE_BYTES_MAX}")
        kind, op, sender, generation, slot, shard, round_, value = _HEADER.unpack_from(data)
        if kind not in PeerKind._value2member_map_:
            raise PeerMessageError("kind", f"unknown kind {kind}")
        if sender >= MAX_WORKERS:
            raise PeerMessageError("sender", f"rank {sender}: no job has more than {MAX_WORKERS} workers")
        if shard >= MAX_SHARDS or (kind == PeerKind.FOUND) != (op in SHAPES) or (kind != PeerKind.FOUND and op):
            raise PeerMessageError("value", f"{PeerKind(kind).name} with op {op}, shard {shard}")
        payload = bytes(data[HEADER_BYTES:])
        least = most = SHAPES[op].down_bytes if kind == PeerKind.FOUND else 0
        if kind == PeerKind.STATE_PIECE:
            least, most = PIECE_BYTES_MIN, PIECE_BYTES_MAX
        if not least <= len(payload) <= most:
            raise PeerMessageError("length", f"{PeerKind(kind).name} with {len(payload)} payload bytes, not {most}")
        return cls(PeerKind(kind), sender, generation, slot, round_, op, value, payload, shard)
