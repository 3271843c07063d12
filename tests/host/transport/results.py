# SPDX-License-Identifier: Apache-2.0
"""RESULTs of a switch that needs nobody else."""

from __future__ import annotations

from hopsum_wire import Header, Kind, down_bytes, split_datagram


def result_of(update: bytes) -> bytes:
    """Return the RESULT of an UPDATE in a job of one contributor."""
    sent = split_datagram(update)[0]
    header = Header(
        kind=Kind.RESULT, op=sent.op, worker=sent.worker, slot=sent.slot, generation=sent.generation,
        round=sent.round, length=down_bytes(sent.op), contributors=1 << sent.worker,
    )  # fmt: skip
    return header.pack() + bytes([sent.slot]) * down_bytes(sent.op)
