# SPDX-License-Identifier: Apache-2.0
"""Checks of this host: what its kernel says of an address, the way to a switch, and sockets. Nothing is sent."""

from __future__ import annotations

import socket
from typing import Final

from hopsum.transport.link import RECEIVE_BUFFER_BYTES
from hopsum.transport.offload import mtu_towards
from hopsum_base import interfaces
from hopsum_cli.diagnosis.rows import CheckRow, failed, passed
from hopsum_wire.membership import Endpoint
from hopsum_wire.payload import PACKET_BYTES

# The kernel charges the whole buffer of a packet (truesize), not its bytes.
CHARGED_BYTES: Final = 2304
"""The bytes of a receive buffer that the kernel counts for such a datagram, measured on loopback."""


def check_address(own: Endpoint) -> CheckRow:
    """Check that an interface of this host has a worker's address, and is up."""
    check, found = "address", interfaces.interface_of(own.ip)
    if found is None:
        here = ", ".join(f"{each.ip} ({each.name})" for each in interfaces.interfaces())
        return failed(
            check,
            f"{own.ip} is no address of this host, which has {here or 'none'}",
            f"run this worker where {own.ip} is, add it (ip addr add {own.ip}/24 dev INTERFACE), or register one of "
            "this host's addresses when the job is made",
        )
    if not found.up:
        return failed(check, f"{own.ip} is on {found.name}, which is down", f"ip link set dev {found.name} up")
    return passed(check, f"{own.ip} is on {found.name}", {"interface": found.name})


def check_route(own: Endpoint, switch: Endpoint) -> CheckRow:
    """Check that datagrams to the switch leave through the interface of the worker's address.

    `check_address` has to pass before.
    """
    check, interface = "route", interfaces.interface_of(own.ip)
    assert interface is not None, "after check_address"
    try:
        route = interfaces.route_to(switch.ip, own.ip)
    except OSError as error:
        return failed(
            check,
            f"no way from {own.ip} to {switch.ip}: {error.strerror}",
            f"ip route add {switch.ip}/32 dev {interface.name} (or via a gateway); if {switch.ip} is not where the "
            "switch is, have the job made with its address",
        )
    if route.local or route.interface == interface.name:
        # A route to this very host has loopback as its interface, whatever interface has the address.
        way = "on this host" if route.local else f"through {route.interface}"
        by = f", by gateway {route.gateway}" if route.gateway else ""
        return passed(check, f"to {switch.ip} {way}{by}", {"interface": route.interface, "gateway": route.gateway})
    others = " or ".join(each.ip for each in interfaces.interfaces() if each.name == route.interface)
    return failed(
        check,
        f"to {switch.ip} goes out of {route.interface}, but {own.ip} is on {interface.name}",
        f"ip route replace {switch.ip}/32 dev {interface.name} src {own.ip}; or register this host's address on "
        f"{route.interface} ({others or 'it has none'}) when the job is made",
    )


def check_mtu(own: Endpoint, switch: Endpoint, path_bytes: int | None) -> CheckRow:
    """Check that the largest datagram passes in one piece. `path_bytes` is the path's MTU, None to ask the kernel.

    `check_route` has to pass before.
    """
    check, route = "mtu", interfaces.route_to(switch.ip, own.ip)
    mtu_bytes = mtu_towards(own.ip, switch.address) if path_bytes is None else path_bytes
    facts = {"mtu_bytes": mtu_bytes, "needed_bytes": PACKET_BYTES}
    told = f"{mtu_bytes} bytes for packets of up to {PACKET_BYTES}"
    if mtu_bytes >= PACKET_BYTES:
        return passed(check, told, facts)
    where = f"ip link set dev {route.interface} mtu 1500, also on the switch's side"
    own_bytes = {each.name: each.mtu_bytes for each in interfaces.interfaces()}.get(route.interface, mtu_bytes)
    # Behind a gateway the narrow link is somewhere else, and this host can only say so.
    if route.gateway and own_bytes > mtu_bytes:
        where = f"raise the MTU of the links beyond gateway {route.gateway} to {PACKET_BYTES} or more"
    told += ": larger ones go in IP fragments, which a switch at interfaces drops"
    return failed(check, told, where, facts)


def check_port(own: Endpoint, switch: Endpoint) -> CheckRow:
    """Check that the worker's UDP port is free, or held by a socket that is connected to this switch."""
    check = "port"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(own.address)
        except OSError as error:
            problem = error.strerror
        else:
            return passed(check, f"UDP {own} is free", {"held": False})
    holder = interfaces.udp_socket_at(*own.address)
    owner = interfaces.socket_owner(holder.inode) if holder is not None else None
    who = f"process {owner[0]} ({owner[1]})" if owner else "a process that this user may not see"
    facts = {"held": True, "pid": owner[0] if owner else None}
    if holder is not None and holder.remote == switch.address:
        return passed(check, f"UDP {own} is held by {who}, connected to the switch: the worker runs", facts)
    if holder is None:
        return failed(check, f"UDP {own}: {problem}", "register a port that this user may have", facts)
    ended = f"end it (kill {owner[0]})" if owner else "find it (ss -uanp, as root) and end it"
    return failed(
        check,
        f"UDP {own} is held by {who}, which is not connected to the switch: no worker of this job",
        f"{ended}, or register another port when the job is made",
        facts,
    )


def check_buffer(window: int) -> CheckRow:
    """Check that the kernel grants a receive buffer for a window of so many results, by opening a socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        granted_bytes = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # it says twice what it was asked
    return judge_buffer(granted_bytes, window)


def judge_buffer(granted_bytes: int, window: int) -> CheckRow:
    """Return the row of a receive buffer of so many bytes: it fails if `window` results do not fit."""
    check, fits = "buffer", 2 * granted_bytes // CHARGED_BYTES
    facts = {"granted_bytes": granted_bytes, "wanted_bytes": RECEIVE_BUFFER_BYTES, "window": window}
    told = f"{granted_bytes} of {RECEIVE_BUFFER_BYTES} bytes asked for, some {fits} results; the window has {window}"
    fix = f"sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}"
    if fits < window:
        return failed(check, f"{told}: results of a full window are lost", fix, facts)
    return passed(check, told, facts, advice=fix if granted_bytes < RECEIVE_BUFFER_BYTES else "")
