# SPDX-License-Identifier: Apache-2.0
"""Addresses as people write them, checked, and as the switch wants them: ints."""

from __future__ import annotations

import ipaddress
import re

from hopsum_controlplane.errors import ControlPlaneError

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_MAC_GROUP_BIT = 1 << 40


def mac_to_int(text: str) -> int:
    """Return a host's MAC address, written aa:bb:cc:dd:ee:ff, as an int of 48 bits.

    Raises ControlPlaneError for another form, for zero, and for a group address (multicast or broadcast).
    """
    value = int(text.replace(":", ""), 16) if _MAC.fullmatch(text) else 0
    # A group address as source or destination of one host would be flooded by switches.
    if value == 0 or value & _MAC_GROUP_BIT:
        raise ControlPlaneError(
            f"{text!r} is not the MAC address of a host",
            hint="write six bytes as aa:bb:cc:dd:ee:ff, not a group's",
        )
    return value


def ipv4_to_int(text: str) -> int:
    """Return a host's IPv4 address, written a.b.c.d, as an int of 32 bits.

    Raises ControlPlaneError for another form, 0.0.0.0, a multicast address and 255.255.255.255.
    """
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        address = ipaddress.IPv4Address(0)
    if address.is_unspecified or address.is_multicast or address == ipaddress.IPv4Address(0xFFFFFFFF):
        raise ControlPlaneError(
            f"{text!r} is not the IPv4 address of a host", hint="write a.b.c.d, no group or broadcast address"
        )
    return int(address)
