# SPDX-License-Identifier: Apache-2.0
"""The loss simulator of one switch: set, cleared and counted by port and direction.

The switch is the only memory: whatever stands there is replaced, also what another controller left.
"""

from __future__ import annotations

from typing import NamedTuple

from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.entries import Delete, Insert, Modify, TableEntry, Update
from hopsum_controlplane.tables.loss import Direction, loss


class DropStats(NamedTuple):
    """Frames that a port has lost since the program started."""

    ingress: int
    egress: int


def set_loss(device: Device, port: int, ingress_probability: float, egress_probability: float) -> None:
    """Make a port lose frames on the way in and out. 0 removes the entry of that direction.

    Raises ControlPlaneError when port or probability are none, with nothing written, or the switch refuses.
    """
    wanted = {
        Direction.INGRESS: loss(Direction.INGRESS, port, ingress_probability),
        Direction.EGRESS: loss(Direction.EGRESS, port, egress_probability),
    }
    updates: list[Update] = []
    for direction, entries in wanted.items():
        actual = [entry for entry in device.read_table(direction.table) if entry.match["port"] == port]
        updates += _change(actual, entries)
    if updates:
        device.write(updates)


def clear_losses(device: Device) -> None:
    """Let no port lose a frame any more. Raises ControlPlaneError when the switch refuses."""
    updates: list[Update] = [Delete(entry) for direction in Direction for entry in device.read_table(direction.table)]
    if updates:
        device.write(updates)


def read_drop_stats(device: Device) -> dict[int, DropStats]:
    """Read what was lost, by port. Ports without loss are left out."""
    cells = [device.read_counter(direction.counter) for direction in Direction]
    lost = (DropStats(*(cell.packets for cell in pair)) for pair in zip(*cells, strict=True))
    return {port: both for port, both in enumerate(lost) if any(both)}


def _change(actual: list[TableEntry], wanted: list[TableEntry]) -> list[Update]:
    """Return what turns the entries of one key into the wanted ones: none or one of each."""
    if actual == wanted:
        return []
    if not wanted:
        return [Delete(entry) for entry in actual]
    return [Modify(entry) if actual else Insert(entry) for entry in wanted]
