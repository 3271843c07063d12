# SPDX-License-Identifier: Apache-2.0
"""A controller's books on disk, held against what its switch says that it holds."""

from __future__ import annotations

from hopsum_controlplane.audit import read_standing
from hopsum_controlplane.cluster import ClusterConfig, Store
from hopsum_controlplane.cluster.records import State
from hopsum_controlplane.cluster.store import Books
from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entries import Entity
from hopsum_controlplane.plan import plan
from hopsum_controlplane.tables.address import switch_address

_SETTLED = (State.FORMING, State.RUNNING)
"""In the other states some entries may stand, or all, or none."""


def differences(config: ClusterConfig, books: Books, device: Device) -> list[str]:
    """Return in words what one switch has that the books do not say, and what it lacks: nothing if they agree."""
    (switch,) = config.switches
    wanted: dict[tuple[object, ...], Entity] = {}
    for entity in (switch_address(switch.endpoint), *_of_jobs(books)):
        wanted[entity.key()] = entity
    standing = dict(read_standing(device))
    found = [f"job {each.name} is {each.state.value}" for each in books.records if each.state not in _SETTLED]
    found += [f"lacks {entity}" for key, entity in wanted.items() if key not in standing]
    found += [f"has {entity}, which is in no book" for key, entity in standing.items() if key not in wanted]
    changed = [key for key in wanted if key in standing and standing[key] != wanted[key]]
    return found + [f"has {standing[key]} instead of {wanted[key]}" for key in changed]


def settled_differences(config: ClusterConfig, election_id: int) -> list[str]:
    """The same for books that no controller has now; who reads the switch is its primary client for that time."""
    store = Store(config.database)
    try:
        books = store.load()
    finally:
        store.close()
    (switch,) = config.switches
    with open_device(switch.driver, switch.address, switch.device_id, election_id=(election_id, 0)) as device:
        return differences(config, books, device)


def _of_jobs(books: Books) -> list[Entity]:
    return [entity for record in books.records if record.job is not None for entity in plan(record.job).entities]
