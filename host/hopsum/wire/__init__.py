# SPDX-License-Identifier: Apache-2.0
"""The wire format, for hosts: headers, payloads, and whole batches of datagrams or frames.

`_layout` is generated from p4/shared, which is the only place where the format is written down.
`hopsum.wire.scapy` is the human form; the one module here that needs scapy, imported by name only.
"""

from __future__ import annotations

from hopsum.wire._layout import (
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
from hopsum.wire.errors import WireError
from hopsum.wire.header import Header, split_datagram
from hopsum.wire.payload import CODE_GROUPS, down_bytes, pack_codes, unpack_codes, up_bytes

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
