# SPDX-License-Identifier: Apache-2.0
"""The switch as its workers' ordinary Ethernet switch: frames that are not the service's go from one to another.

Workers speak to each other as well (results that one lacks, a model for a newcomer), and behind a switch with a port
for each of them they can do so only if it forwards: broadcasts to all ports of the configuration, frames for the
interface of a member to the port that it joined at; in a tree of switches, to the port that leads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopsum_controlplane.cluster.cluster_config import LinkConfig, SwitchConfig
from hopsum_controlplane.cluster.records import JobRecord, Member
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, TableEntry, Update
from hopsum_controlplane.tables import forward

_Forwarding = dict[tuple[object, ...], TableEntry | MulticastGroup]


class L2Forwarding:
    """The layer-2 forwarding entries of one switch, all of which this object owns. Not thread-safe.

    Construction neither reads nor writes the switch.
    """

    def __init__(self, config: SwitchConfig, device: Device, links: Sequence[LinkConfig] = ()) -> None:
        self._config = config
        self._links = links
        self._device = device
        self._actual: _Forwarding | None = None

    def invalidate(self) -> None:
        """Make the next `sync` read the switch before it writes, because other clients may have changed the entries."""
        self._actual = None

    def sync(self, records: Iterable[JobRecord]) -> None:
        """Make the switch forward to the members of these jobs, and to no other address. Only differences are written.

        Raises ControlPlaneError if the switch fails. The next call then reads the switch before it writes.
        """
        found = ((member.endpoint.mac, self._port(record, member)) for record in records for member in record.members)
        stations = {mac: port for mac, port in found if port is not None}
        ends = {port for link in self._links for name, port in link.ends if name == self._config.name}
        ports = {rule.port for rule in self._config.ports} | ends
        wanted: _Forwarding = {each.key(): each for each in (*forward.broadcast(ports), *forward.l2(stations))}
        if wanted == self._actual:
            return
        actual = self._read() if self._actual is None else self._actual
        # A write that fails leaves an unknown part: the next call reads the switch again.
        self._actual = None
        updates = _changes(actual, wanted)
        if updates:
            self._device.write(updates)
        self._actual = wanted

    def _port(self, record: JobRecord, member: Member) -> int | None:
        """Return the port that leads to a member, None where none does."""
        # The member is at its leaf in a tree, and at the job's switch elsewhere.
        name, at = self._config.name, member.leaf or record.switch
        if at == name:
            return member.endpoint.port
        for link in self._links:
            if link.leaf == name and link.spine == record.switch:
                return link.leaf_port
            if link.leaf == at and link.spine == name:
                return link.spine_port
        return None

    def _read(self) -> _Forwarding:
        groups = [group for group in self._device.read_groups() if group.id == forward.FLOOD_GROUP]
        found: list[TableEntry | MulticastGroup] = [*groups, *self._device.read_table(forward.L2)]
        return {each.key(): each for each in found}


def _changes(actual: _Forwarding, wanted: _Forwarding) -> list[Update]:
    """Return the updates that turn `actual` into `wanted`. The group comes before the entry that names it."""
    updates: list[Update] = [Delete(each) for key, each in actual.items() if key not in wanted]
    for key, each in wanted.items():
        if key not in actual:
            updates.append(Insert(each))
        elif actual[key] != each:
            updates.append(Modify(each))
    return updates
