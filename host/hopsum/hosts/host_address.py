# SPDX-License-Identifier: Apache-2.0
"""The address of a rank for its peers: an explicit one, gloo's interface's, or the one of the route to the master."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hopsum.config import ConfigError
from hopsum_base.interfaces import interfaces

INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
MASTER_VARIABLE: Final = "MASTER_ADDR"
_IPV4: Final = (
    "datagrams of hopsum are IPv4 alone. Give every host an IPv4 address on the link between them (ip addr add "
    "10.0.0.N/24 dev INTERFACE), and set `ip` (HOPSUM_IP) to it"
)
_HINT: Final = f"set {INTERFACE_VARIABLE} to the interface between the hosts, or the setting `ip` (HOPSUM_IP)"


def choose_address(ip: str, environment: Mapping[str, str]) -> str:
    """Return this rank's IPv4 address, the first of these that is given. Nothing is sent.

    `ip`; the address of the first existing interface of GLOO_SOCKET_IFNAME; the source address of the route to
    MASTER_ADDR; loopback.

    Args:
        ip: the setting, empty for none.
        environment: the variables of the process.

    Raises:
        ConfigError: no such address or interface on this host, or no route to MASTER_ADDR.
    """
    if ip:
        return _own(ip)
    if names := environment.get(INTERFACE_VARIABLE, ""):
        return _of_interface(names)
    master = environment.get(MASTER_VARIABLE, "127.0.0.1")
    # A datagram socket that is connected has the source address of the kernel's route. Nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((master, 9))
        except OSError as error:
            if _is_ipv6(master):
                raise ConfigError(f"{MASTER_VARIABLE} {master!r} is an IPv6 address: {_IPV4}") from error
            raise ConfigError(f"no way to {MASTER_VARIABLE} {master!r}: {error}; {_HINT}") from error
        return str(asker.getsockname()[0])


def host_id() -> str:
    """Return a text that only processes of this host and network namespace have: boot id and namespace number."""
    # Two containers of one host have one boot id and different namespaces: they reach each other by the network only.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"


def _is_ipv6(name: str) -> bool:
    """Say whether a name or address has IPv6 addresses and no others."""
    try:
        return {family for family, *_ in socket.getaddrinfo(name, None)} == {socket.AF_INET6}
    except OSError:
        return False


def _own(ip: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            asker.bind((ip, 0))
        except OSError as error:
            if _is_ipv6(ip):
                raise ConfigError(f"ip {ip!r} is an IPv6 address: {_IPV4}") from error
            raise ConfigError(f"ip {ip!r} is not this host's: {error.strerror or error}; {_HINT}") from error
        return str(asker.getsockname()[0])


def _of_interface(names: str) -> str:
    """Return the address of the first interface that there is of a list such as `eth0,eth1`."""
    if names.startswith(("^", "=")):
        raise ConfigError(
            f"{INTERFACE_VARIABLE} {names!r}: a list that begins with {names[0]} is for NCCL_SOCKET_IFNAME, gloo takes "
            f"names; {_HINT}"
        )
    # The first address of an interface that has several is the one that gloo takes.
    addresses = {each.name: each.ip for each in reversed(interfaces())}
    wanted = [each.strip() for each in names.split(",") if each.strip()]
    for name in wanted:
        if name in addresses:
            return addresses[name]
    there = ", ".join(name for _, name in socket.if_nameindex())
    host = os.uname().nodename
    raise ConfigError(
        f"{INTERFACE_VARIABLE} {names!r}: no interface with an IPv4 address on {host}: {', '.join(wanted)}; there are "
        f"{there}; {_IPV4}"
    )
