# SPDX-License-Identifier: Apache-2.0
"""Entries of control Address: which address is the switch's own."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.job_spec import SwitchEndpoint

SWITCH_ADDRESS = "switch_address"


def switch_address(switch: SwitchEndpoint) -> TableEntry:
    """Build the entry by which the switch accepts packets to its service, and answers ARP and ping for its address."""
    match = {"address": ipv4_to_int(switch.ip)}
    return TableEntry(SWITCH_ADDRESS, match, "set_switch_mac", {"mac": mac_to_int(switch.mac)})
