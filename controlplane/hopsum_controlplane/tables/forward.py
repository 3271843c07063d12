# SPDX-License-Identifier: Apache-2.0
"""Entries of control Forward: plain layer-2 forwarding of what is not the service's."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hopsum_controlplane.addresses import mac_to_int
from hopsum_controlplane.entries import MulticastGroup, Replica, TableEntry
from hopsum_wire import MAX_JOBS

L2 = "l2"
# Groups 1 .. MAX_JOBS are the jobs'.
FLOOD_GROUP = MAX_JOBS + 1

_BROADCAST = (1 << 48) - 1


def l2(stations: Mapping[str, int]) -> list[TableEntry]:
    """Build the entries that forward frames for `stations`, by MAC address, each to its switch port."""
    return [TableEntry(L2, {"dst": mac_to_int(mac)}, "forward", {"port": port}) for mac, port in stations.items()]


def broadcast(ports: Collection[int]) -> list[MulticastGroup | TableEntry]:
    """Build the group and the entry that flood broadcast frames to `ports`, except the port that they came from."""
    # Egress drops the copy that would leave by the port that the frame came in.
    group = MulticastGroup(FLOOD_GROUP, tuple(Replica(port, 0) for port in sorted(ports)))
    return [group, TableEntry(L2, {"dst": _BROADCAST}, "flood", {"group": FLOOD_GROUP})]
