# SPDX-License-Identifier: Apache-2.0
"""The silence of this process's TCP connections, as the kernel knows it.

A heartbeat is sent by a thread of Python. Where a library of the worker's program holds Python's interpreter lock for a
minute, none is sent. gRPC's own threads need no interpreter: they send pings and answer those of the server as long as
the process runs, and send nothing when it is stopped. gRPC tells nobody of pings, but the kernel counts their bytes.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final

_DESCRIPTORS: Final = "/proc/self/fd"
# struct tcp_info of linux/tcp.h: eight bytes, then numbers of 32 bits, of which this one has milliseconds.
_LAST_DATA_RECV: Final = struct.Struct("=52xI")


def read_silences_s() -> dict[str, float]:
    """Read the seconds since bytes last came over each TCP connection of this process, by peer as gRPC names it.

    A peer is for example "ipv4:10.0.0.1:4321". Empty where the system does not say: it is no Linux, or the process has
    no descriptor left to read the list with.
    """
    found = {}
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            # Closed meanwhile, no socket, or none of TCP with a peer.
            with suppress(OSError):
                if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                    peer, silent_s = _silence_s(int(name))
                    found[peer] = silent_s
    return found


def _silence_s(descriptor: int) -> tuple[str, float]:
    """Return the peer of a TCP connection, and the seconds since bytes came from it. Raises OSError for all else."""
    connection = socket.socket(fileno=descriptor)
    try:
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECV.size)
        host, port = connection.getpeername()[:2]
    finally:
        # It is gRPC's, or another thread's: it must not be closed with this object.
        connection.detach()
    # A server that listens for IPv6 as well has IPv4 addresses in their longer form.
    host = host.removeprefix("::ffff:")
    (silent_ms,) = _LAST_DATA_RECV.unpack(information)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}", silent_ms / 1000
