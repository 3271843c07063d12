# SPDX-License-Identifier: Apache-2.0
"""Which replies are for this worker at all."""

from __future__ import annotations

from hopsum.protocol.stream import Stream
from hopsum.protocol.worker_state import Membership
from hopsum_wire import Drop, Header, Kind, WireError, down_bytes


def position_of(header: Header, values: bytes | memoryview, own: Membership, stream: Stream) -> int:
    """Return the position that a reply to a worker names. Raises WireError if it is no such reply."""
    if header.kind not in (Kind.RESULT, Kind.STALE, Kind.STATE):
        raise WireError(Drop.BAD_KIND, f"{Kind(header.kind).name} from the switch")
    if header.epoch != own.epoch:
        raise WireError(Drop.UNKNOWN_EPOCH, f"{Kind(header.kind).name} of epoch {header.epoch}")
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
