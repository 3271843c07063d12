# SPDX-License-Identifier: Apache-2.0
"""A controller's database on disk, held against what its switch says that it holds."""

from __future__ import annotations

from hopsum_controlplane.audit import read_installed
from hopsum_controlplane.cluster import ClusterConfig, StateStore
from hopsum_controlplane.cluster.records import JobState
from hopsum_controlplane.cluster.state_store import StoredState
from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entries import Entity
from hopsum_controlplane.plan import plan
from hopsum_controlplane.tables.address import switch_address

_SETTLED = (JobState.FORMING, JobState.RUNNING)
"""The settled states. In the other states some entries may stand, or all, or none."""


def differences(config: ClusterConfig, stored: StoredState, device: Device) -> list[str]:
    """Return in words what one switch has that the database does not say, and what it lacks: nothing if they agree."""
    (switch,) = config.switches
    wanted: dict[tuple[object, ...], Entity] = {}
    for entity in (switch_address(switch.endpoint), *_of_jobs(stored)):
        wanted[entity.key()] = entity
    actual = dict(read_installed(device))
    found = [f"job {each.name} is {each.state.value}" for each in stored.records if each.state not in _SETTLED]
    found += [f"lacks {entity}" for key, entity in wanted.items() if key not in actual]
    found += [
        f"has {entity}, which the database does not have" for key, entity in actual.items() if key not in wanted
    ]
    changed = [key for key in wanted if key in actual and actual[key] != wanted[key]]
    return found + [f"has {actual[key]} instead of {wanted[key]}" for key in changed]


def settled_differences(config: ClusterConfig, election_id: int) -> list[str]:
    """Return the same for a database that no controller has open now.

    The reader is the switch's primary client for that time.
    """
    store = StateStore(config.database)
    try:
        stored = store.load()
    finally:
        store.close()
    (switch,) = config.switches
    with open_device(switch.driver, switch.address, switch.device_id, election_id=(election_id, 0)) as device:
        return differences(config, stored, device)


def _of_jobs(stored: StoredState) -> list[Entity]:
    return [entity for record in stored.records if record.job is not None for entity in plan(record.job).entities]
