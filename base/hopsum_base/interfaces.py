# SPDX-License-Identifier: Apache-2.0
"""Interfaces, routes and sockets of the operating system, in the network namespace of the calling thread.

From ioctls, netlink and /proc/thread-self/net: no other program is needed, and nothing is sent.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_NET: Final = Path("/proc/thread-self/net")
# linux/sockios.h, linux/if.h, linux/if_arp.h
_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFMTU, _SIOCGIFHWADDR = 0x8912, 0x8913, 0x8921, 0x8927
_IFF_UP, _ARPHRD_ETHER = 0x1, 1
_IFREQ_BYTES: Final = 40
_NAME_BYTES: Final = 16
# linux/netlink.h, linux/rtnetlink.h
_NETLINK_ROUTE = 0
_NLMSG_ERROR, _RTM_GETROUTE = 2, 26
_NLM_F_REQUEST: Final = 1
_RTN_LOCAL: Final = 2
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY = 1, 2, 4, 5
_NLMSGHDR: Final = struct.Struct("=IHHII")
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")


class Interface(NamedTuple):
    """A network interface with one of its IPv4 addresses."""

    name: str
    ip: str
    up: bool
    mtu_bytes: int


class Route(NamedTuple):
    """The route of a datagram, as the operating system chooses it."""

    interface: str
    gateway: str | None
    """IPv4 address of the next hop, None where the destination is reached without one."""
    local: bool
    """True where the destination is an address of this host."""


class UdpSocket(NamedTuple):
    """An open UDP socket of this namespace."""

    inode: int
    remote: tuple[str, int] | None
    """The peer that it is connected to."""


def interfaces() -> list[Interface]:
    """Return the interfaces that have IPv4 addresses, once for each address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # Room for 4,096 addresses: SIOCGIFCONF fills what it gets and says how much it used.
        room = array.array("B", bytes(_IFREQ_BYTES * 4096))
        request = struct.pack("iP", len(room), room.buffer_info()[0])
        used, _ = struct.unpack("iP", fcntl.ioctl(handle, _SIOCGIFCONF, request))
        entries = room.tobytes()[:used]
        found = []
        for at in range(0, used, _IFREQ_BYTES):
            name = entries[at : at + _NAME_BYTES].split(b"\0", 1)[0]
            # struct ifreq: 16 bytes of name, then a sockaddr_in whose address begins at byte 4.
            ip = socket.inet_ntoa(entries[at + 20 : at + 24])
            (flags,) = _of_interface(handle, _SIOCGIFFLAGS, name, "H")
            (mtu_bytes,) = _of_interface(handle, _SIOCGIFMTU, name, "i")
            found.append(Interface(name.decode(), ip, bool(flags & _IFF_UP), mtu_bytes))
        return found


def _of_interface(handle: socket.socket, command: int, name: bytes, code: str) -> tuple[int, ...]:
    """Ask for numbers. Raises OSError when the interface has gone."""
    answer = fcntl.ioctl(handle, command, struct.pack("16s24x", name))
    return struct.unpack_from(f"={code}", answer, _NAME_BYTES)


def mac_of(ip: str) -> str | None:
    """Return the MAC address, aa:bb:cc:dd:ee:ff, of the Ethernet interface that has an IPv4 address.

    None for an address of another kind of interface (loopback), or of none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for name in (each.name.encode() for each in interfaces() if each.ip == ip):
            kind, *mac = _of_interface(handle, _SIOCGIFHWADDR, name, "H6B")
            if kind == _ARPHRD_ETHER:
                return ":".join(f"{byte:02x}" for byte in mac)
    return None


def is_local(ip: str) -> bool:
    """Return whether a socket can have this address: one of an interface, or any of loopback's 127.0.0.0/8."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # bind knows all that is local, also addresses that no interface lists.
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def interface_of(ip: str) -> Interface | None:
    """Return the interface with an address, loopback for a local address that no interface lists, else None."""
    found = interfaces()
    exact = [each for each in found if each.ip == ip]
    loopback = [each for each in found if each.ip == "127.0.0.1"] if is_local(ip) else []
    return next(iter(exact + loopback), None)


def route_to(ip: str, source: str) -> Route:
    """Return the route of a datagram to `ip` from `source`, an address of this host. Nothing is sent.

    Raises:
        OSError: there is no route. The error is the one that a socket would meet.
    """
    attributes = b"".join(
        _ATTRIBUTE.pack(8, kind) + socket.inet_aton(address) for kind, address in ((_RTA_DST, ip), (_RTA_SRC, source))
    )
    body = _RTMSG.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0) + attributes
    message = _NLMSGHDR.pack(_NLMSGHDR.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as netlink:
        # RTM_GETROUTE asks the kernel for its own decision, with policy routing and all: reading tables could not tell.
        netlink.send(message)
        answer = netlink.recv(65535)
    length, kind, *_ = _NLMSGHDR.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, _NLMSGHDR.size)[0]
        raise OSError(code, os.strerror(code))
    route_type = _RTMSG.unpack_from(answer, _NLMSGHDR.size)[7]
    found = dict(_attributes(answer[_NLMSGHDR.size + _RTMSG.size : length]))
    gateway = socket.inet_ntoa(found[_RTA_GATEWAY]) if _RTA_GATEWAY in found else None
    name = socket.if_indextoname(struct.unpack("=I", found[_RTA_OIF])[0])
    return Route(name, gateway, route_type == _RTN_LOCAL)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        # Attributes are aligned to 4 bytes.
        data = data[(length + 3) & ~3 :]


def udp_socket_at(ip: str, port: int) -> UdpSocket | None:
    """Return the open UDP socket of this IPv4 address and port, or of the port on all addresses; else None."""
    # The thread's own namespace, which may differ from the process's.
    for line in (_NET / "udp").read_text().splitlines()[1:]:
        fields = line.split()
        local = _endpoint(fields[1])
        if local[1] == port and local[0] in (ip, "0.0.0.0"):
            remote = _endpoint(fields[2])
            return UdpSocket(int(fields[9]), remote if remote[1] else None)
    return None


def _endpoint(text: str) -> tuple[str, int]:
    """Read what /proc writes: the address as a number of this machine, the port, both hexadecimal."""
    address, port = text.split(":")
    return socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder)), int(port, 16)


def socket_owner(inode: int) -> tuple[int, str] | None:
    """Return id and name of a process that has a socket open, None if there is none, or this user may not see it."""
    wanted = f"socket:[{inode}]"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or another user's
            if any(os.readlink(descriptor) == wanted for descriptor in (process / "fd").iterdir()):
                return int(process.name), (process / "comm").read_text().strip()
    return None
