# SPDX-License-Identifier: Apache-2.0
"""The validation of replies from the switch."""

from __future__ import annotations

from hopsum.protocol.stream import Stream
from hopsum.protocol.worker_state import Membership
from hopsum_wire import Drop, Header, Kind, WireError, down_bytes


def validate_reply(header: Header, values: bytes | memoryview, own: Membership, stream: Stream) -> int:
    """Return the stream position that a reply to this worker names.

    Raises:
        WireError: the reply is of another generation or for another rank, or one of its fields is out of range.
    """
    if header.kind not in (Kind.RESULT, Kind.STALE, Kind.STATE):
        raise WireError(Drop.BAD_KIND, f"{Kind(header.kind).name} from the switch")
    if header.generation != own.generation:
        raise WireError(Drop.UNKNOWN_GENERATION, f"{Kind(header.kind).name} of generation {header.generation}")
    if header.worker != own.rank:
        raise WireError(Drop.UNKNOWN_WORKER, f"{Kind(header.kind).name} for rank {header.worker}")
    if len(values) != (down_bytes(header.op) if header.kind == Kind.RESULT else 0):
        raise WireError(Drop.BAD_LENGTH, f"{Kind(header.kind).name} with {len(values)} payload bytes")
    least = 0 if header.kind == Kind.STATE else 1
    if not least <= header.contributors < 1 << own.workers:
        raise WireError(Drop.BAD_VALUE, f"contributors {header.contributors:#x} of {own.workers} workers")
    if header.slot >= own.slots:
        raise WireError(Drop.BAD_SLOT, f"slot {header.slot} of {own.slots}")
    try:
        return stream.position(header.slot, header.round)
    except ValueError as outside:
        raise WireError(Drop.BAD_ROUND, str(outside)) from outside
