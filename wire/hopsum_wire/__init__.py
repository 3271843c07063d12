# SPDX-License-Identifier: Apache-2.0
"""Everything that both ends of a wire agree on. Packets come first: headers, payloads, batches of datagrams or frames.

_layout      numbers and fields, generated from p4/shared, which is the only place where the format is written down
header       the hopsum header; payload: codes and lanes; fields, frames, datagrams: whole packets, many at a time
membership   the document that tells a worker its job
generations  the statements at the change from one generation to the next
watch        the contents of heartbeats, and rates between two of them
control      the messages between hosts and the controller (protobuf)

Importing this package needs numpy only. `hopsum_wire.scapy` is the human form of a packet.
"""

from __future__ import annotations

from hopsum_wire._layout import (
    HOPSUM_BYTES,
    HOPSUM_UDP_PORT,
    JOB_EVENTS,
    LANE_GROUP_CODES,
    MAX_JOBS,
    MAX_SLOTS,
    MAX_WORKERS,
    TABLE_ENTRIES,
    WIRE_VERSION,
    Drop,
    Event,
    Flag,
    Kind,
    Op,
    State,
)
from hopsum_wire.errors import WireError
from hopsum_wire.header import Header, split_datagram
from hopsum_wire.payload import CODE_GROUPS, down_bytes, pack_codes, unpack_codes, up_bytes

__all__ = [
    "CODE_GROUPS",
    "HOPSUM_BYTES",
    "HOPSUM_UDP_PORT",
    "JOB_EVENTS",
    "LANE_GROUP_CODES",
    "MAX_JOBS",
    "MAX_SLOTS",
    "MAX_WORKERS",
    "TABLE_ENTRIES",
    "WIRE_VERSION",
    "Drop",
    "Event",
    "Flag",
    "Header",
    "Kind",
    "Op",
    "State",
    "WireError",
    "down_bytes",
    "pack_codes",
    "split_datagram",
    "unpack_codes",
    "up_bytes",
]
