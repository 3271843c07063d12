# SPDX-License-Identifier: Apache-2.0
"""This machine's interfaces: MAC addresses behind IPv4 addresses, routes out, and TCP ports for peers."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Final

_SIOCGIFADDR: Final = 0x8915
_SIOCGIFHWADDR: Final = 0x8927
_ARPHRD_ETHER: Final = 1
_IFREQ: Final = "16s24x"
"""struct ifreq: the interface's name, and room for the answer, a struct sockaddr."""
_NAME_BYTES: Final = 16


def mac_of(ip: str) -> str | None:
    """Return the MAC address, aa:bb:cc:dd:ee:ff, of the Ethernet interface that has an IPv4 address.

    None for an address of another kind of interface (loopback), or of none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            address = _ask(asker, name, _SIOCGIFADDR)
            if address is None or address[4:8] != socket.inet_aton(ip):
                continue
            hardware = _ask(asker, name, _SIOCGIFHWADDR)
            if hardware is not None and struct.unpack_from("=H", hardware)[0] == _ARPHRD_ETHER:
                return ":".join(f"{byte:02x}" for byte in hardware[2:8])
    return None


def source_towards(place: tuple[str, int], ip: str = "") -> str | None:
    """Return the IPv4 address that datagrams to `place` come from, bound to `ip` if given. None without a route.

    Raises OSError for an `ip` that is not this machine's. Nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.bind((ip, 0))
        try:
            asker.connect(place)
        except OSError:
            return None
        return str(asker.getsockname()[0])


def listen_tcp(ip: str) -> socket.socket:
    """Return a socket that listens at a free TCP port of an address, so that nobody else can.

    Raises OSError for an address that is not this machine's.
    """
    return socket.create_server((ip, 0))


def _ask(asker: socket.socket, name: str, request: int) -> bytes | None:
    try:
        answer = fcntl.ioctl(asker.fileno(), request, struct.pack(_IFREQ, name.encode()))
    except OSError:  # an interface without an IPv4 address
        return None
    return answer[_NAME_BYTES:]
