# SPDX-License-Identifier: Apache-2.0
"""A controller's process that kills itself at one of its writes, to the switch or to the database.

The process hits its crash point before every update of a table, after the last one of a batch, and before and after
every commit. Armed with `at`, the crash point sends SIGKILL to its own process at the event with this number, from 0.
While the crash point is armed a batch goes out update by update, so that every part of a batch is left on the switch
once.

The process begins as every restarted controller does: it takes the switch over, and sends a TakeoverReport. Then it
plays a scene, in which it dies.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.audit import read_installed
from hopsum_controlplane.cluster import (
    ClusterConfig,
    ClusterController,
    JobRequest,
    JoinRequest,
    StateStore,
    load_config,
)
from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.cluster.state_store import StoredState
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.entries import Entity, Update
from hopsum_controlplane.entry_plan import plan
from hopsum_controlplane.tables.address import switch_address
from hopsum_wire import WIRE_VERSION

VICTIM: Final = "victim"
LEASE_S: Final = 2.0
SLOTS: Final = 16
TABLE: Final = tuple(range(16))
_SETTLED = (JobState.FORMING, JobState.RUNNING)
"""In the other states a switch may have all entries of a job, some or none."""


class CrashPoint:
    """Kills this process at one event, or at none (None)."""

    def __init__(self) -> None:
        self.arm(None)

    def arm(self, at: int | None) -> None:
        """Count events from now on, and die at this one."""
        self.events, self.at = 0, at

    def hit(self) -> None:
        """Let one event happen."""
        if self.at is not None and self.events == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.events += 1


class CrashingDevice(ReconnectingDevice):
    """A switch driver that hits the crash point around every update."""

    crash_point: CrashPoint

    def write(self, updates: Sequence[Update]) -> None:
        if self.crash_point.at is None:
            super().write(updates)
            return
        for update in updates:
            self.crash_point.hit()
            super().write([update])
        self.crash_point.hit()


class CrashingStore(StateStore):
    """A database that hits the crash point around every commit."""

    crash_point: CrashPoint

    def put(self, record: JobRecord) -> None:
        self.crash_point.hit()
        super().put(record)
        self.crash_point.hit()

    def remove(self, name: str) -> None:
        self.crash_point.hit()
        super().remove(name)
        self.crash_point.hit()


@dataclass
class ControllerRun:
    """One controller, from taking over to its end, with the calls of its workers and operators."""

    config: ClusterConfig
    controller: ClusterController
    crash_point: CrashPoint
    workers: int
    ahead_s: float = 0.0
    """The seconds by which the clock of leases is ahead of the machine's."""

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def create(self) -> None:
        request = JobRequest(VICTIM, self.workers, SLOTS, table=TABLE, lease_s=LEASE_S)
        self.token = self.controller.create_job(request).token

    def join(self) -> None:
        """Let all workers of the job join, which begins a generation."""
        network = IPv4Network(self.config.switches[0].ports[0].network)
        for rank in range(self.workers):
            self.controller.join(
                JoinRequest(
                    job=VICTIM,
                    token=self.token,
                    rank=rank,
                    ip=str(network.network_address + (network.num_addresses > 1)),
                    udp_port=1024 + rank,
                    mac=f"02:00:00:00:09:{rank:02x}",
                    side_port=None,
                    incarnation=os.urandom(16),
                    wire_version=WIRE_VERSION,
                    version="drill",
                )
            )

    def expire(self) -> None:
        """Let the lease of all workers run out, and run the timer that ends the generation."""
        self.ahead_s += LEASE_S + 1
        self.controller.tick()

    def delete(self) -> None:
        self.controller.delete_job(VICTIM)

    def clear(self) -> None:
        """Delete the job that a dead controller left."""
        if any(job.name == VICTIM for job in self.controller.jobs()):
            self.delete()


Step = Callable[[ControllerRun], None]
SCENES: Final[dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]]] = {
    "create": ((), (ControllerRun.create,)),
    "join": ((ControllerRun.create,), (ControllerRun.join,)),
    "lease": ((ControllerRun.create, ControllerRun.join), (ControllerRun.expire,)),
    "delete": ((ControllerRun.create, ControllerRun.join), (ControllerRun.delete,)),
}
"""The scenes: preparing steps, and the steps in which the controller dies."""


class TakeoverReport(NamedTuple):
    """The state that a controller found on its switch, and the state after its takeover."""

    before: list[str]
    """The differences between the switch and the database before."""
    after: list[str]
    """The differences after the takeover."""
    audited: list[str]
    """The findings of an audit after that."""
    generations: dict[str, int]
    at_s: float
    """The time at which it had taken over, as of time.monotonic()."""


def run_controller(config_path: str, scene: str, workers: int, at: int | None, pipe: Connection) -> None:
    """Be a controller: take over, send TakeoverReport, play the scene, and die in it or send its number of events."""
    config = load_config(Path(config_path))
    pipeline, crash_point = PipelineConfig.load(*compiled_program()), CrashPoint()
    CrashingDevice.crash_point = CrashingStore.crash_point = crash_point
    store = CrashingStore(config.database)
    (switch,) = config.switches
    device = CrashingDevice(
        lambda: open_device(switch.driver, switch.address, switch.device_id, election_id=(switch.election_id, 0)),
        pipeline.cookie,
    )
    before = differences(config, store.load(), device)
    here: list[ControllerRun] = []
    clock = lambda: here[0].monotonic() if here else time.monotonic()  # noqa: E731
    controller = ClusterController(config, store, {switch.name: device}, monotonic=clock, pipeline=pipeline)
    taken_over_s = time.monotonic()
    here.append(ControllerRun(config, controller, crash_point, workers))
    after = differences(config, store.load(), device)
    here[0].ahead_s += config.reconcile_interval_s
    controller.reconcile(switch.name)
    view = controller.switches(drops=False)[0]
    audited = [view.condition] if view.condition else list(view.findings)
    audited += [] if view.audits else ["no audit was made"]
    generations = {job.name: job.generation for job in controller.jobs()}
    pipe.send(TakeoverReport(before, after, audited, generations, taken_over_s))
    here[0].clear()
    if scene:
        _play(here[0], scene, at)
    pipe.send(crash_point.events)
    controller.close()
    store.close()


def _play(here: ControllerRun, scene: str, at: int | None) -> None:
    before, act = SCENES[scene]
    for step in before:
        step(here)
    here.crash_point.arm(at)
    for step in act:
        step(here)
    events = here.crash_point.events
    here.crash_point.arm(None)
    here.crash_point.events = events


def differences(config: ClusterConfig, stored: StoredState, device: Device) -> list[str]:
    """Return the differences between a switch and the database in words, an empty list if they agree."""
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


def _of_jobs(stored: StoredState) -> list[Entity]:
    return [entity for record in stored.records if record.job is not None for entity in plan(record.job).entities]
