# SPDX-License-Identifier: Apache-2.0
"""Splitting of GSO buffers: raw and packet sockets hand over many datagrams as one, without the size of each."""

from __future__ import annotations

from hopsum_wire import HOPSUM_BYTES, Header


def split_segments(buffer: memoryview) -> list[memoryview]:
    """Return the datagrams of a GSO buffer, views into it.

    All segments but the last have the same size (UDP_SEGMENT and UDP_GRO make them so), and the header of the first
    one holds that size. A buffer that holds no whole hopsum packet stays in one piece, for its receiver to refuse.
    """
    if len(buffer) <= HOPSUM_BYTES:
        return [buffer]
    each = HOPSUM_BYTES + Header.unpack(buffer).length
    return [buffer[at : at + each] for at in range(0, len(buffer), each)]
