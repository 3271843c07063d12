# SPDX-License-Identifier: Apache-2.0
"""A controller's process that kills itself at one of its writes, to the switch or to the database.

Before every update of a table, after the last one of a batch, and before and after every commit a fuse burns; armed
with `at` it sends SIGKILL to its own process at the event with this number, from 0. While it is armed a batch goes
out update by update, so that the switch is left with every part of one.

What it does first is what every controller does that is started again: take the switch over. It tells what it found
and what it left, then does the scene, in which it dies.
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
from hopsum_controlplane.cluster import (
    ClusterConfig,
    ClusterController,
    JobRequest,
    JoinRequest,
    StateStore,
    load_config,
)
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_controlplane.devices.base import Pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.entries import Update
from hopsum_evaluation.drill.controller_state import differences
from hopsum_wire import WIRE_VERSION

VICTIM: Final = "victim"
LEASE_S: Final = 2.0
SLOTS: Final = 16
TABLE: Final = tuple(range(16))


class Fuse:
    """Kills this process at one event; None: at none."""

    def __init__(self) -> None:
        self.arm(None)

    def arm(self, at: int | None) -> None:
        """Count events from now on, and die at this one."""
        self.events, self.at = 0, at

    def burn(self) -> None:
        """Let one event happen."""
        if self.at is not None and self.events == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.events += 1


class MortalDevice(ReconnectingDevice):
    """The switch, as a controller has it that may die at every update."""

    fuse: Fuse

    def write(self, updates: Sequence[Update]) -> None:
        """See Device."""
        if self.fuse.at is None:
            super().write(updates)
            return
        for update in updates:
            self.fuse.burn()
            super().write([update])
        self.fuse.burn()


class MortalStore(StateStore):
    """A database, as a controller has it that may die around every commit."""

    fuse: Fuse

    def put(self, record: JobRecord) -> None:
        """See Store."""
        self.fuse.burn()
        super().put(record)
        self.fuse.burn()

    def remove(self, name: str) -> None:
        """See Store."""
        self.fuse.burn()
        super().remove(name)
        self.fuse.burn()


@dataclass
class Reign:
    """One controller, from taking over to its end; what workers and operators ask for is asked here."""

    config: ClusterConfig
    controller: ClusterController
    fuse: Fuse
    workers: int
    ahead_s: float = 0.0
    """How much further than the machine's the clock of leases is."""

    def monotonic(self) -> float:
        """Return seconds for leases."""
        return time.monotonic() + self.ahead_s

    def create(self) -> None:
        """Make the job."""
        request = JobRequest(VICTIM, self.workers, SLOTS, table=TABLE, lease_s=LEASE_S)
        self.token = self.controller.create_job(request).token

    def join(self) -> None:
        """Let all its workers join, which begins an epoch."""
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
        """Let a lease pass without a word of them, and do what is to be done then."""
        self.ahead_s += LEASE_S + 1
        self.controller.tick()

    def delete(self) -> None:
        """Delete the job."""
        self.controller.delete_job(VICTIM)

    def clear(self) -> None:
        """Delete what a controller left that died."""
        if any(job.name == VICTIM for job in self.controller.jobs()):
            self.delete()


Step = Callable[[Reign], None]
SCENES: Final[dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]]] = {
    "create": ((), (Reign.create,)),
    "join": ((Reign.create,), (Reign.join,)),
    "lease": ((Reign.create, Reign.join), (Reign.expire,)),
    "delete": ((Reign.create, Reign.join), (Reign.delete,)),
}
"""What happens before, and what the controller dies in."""


class Found(NamedTuple):
    """What a controller found when it started, and how it left things when it had taken over."""

    before: list[str]
    """In what the switch differed from the database."""
    after: list[str]
    """The same afterwards."""
    audited: list[str]
    """What an audit says after that."""
    epochs: dict[str, int]
    """By job."""
    at_s: float
    """When it had taken over, as of time.monotonic()."""


def reign(config_path: str, scene: str, workers: int, at: int | None, pipe: Connection) -> None:
    """Be a controller: take over, send Found, play the scene, send how many events it had; or die in it."""
    config = load_config(Path(config_path))
    pipeline, fuse = Pipeline.load(*compiled_program()), Fuse()
    MortalDevice.fuse = MortalStore.fuse = fuse
    store = MortalStore(config.database)
    (switch,) = config.switches
    device = MortalDevice(
        lambda: open_device(switch.driver, switch.address, switch.device_id, election_id=(switch.election_id, 0)),
        pipeline.cookie,
    )
    before = differences(config, store.load(), device)
    here: list[Reign] = []
    clock = lambda: here[0].monotonic() if here else time.monotonic()  # noqa: E731
    controller = ClusterController(config, store, {switch.name: device}, monotonic=clock, pipeline=pipeline)
    taken_over_s = time.monotonic()
    here.append(Reign(config, controller, fuse, workers))
    after = differences(config, store.load(), device)
    here[0].ahead_s += config.audit_s
    controller.reconcile(switch.name)
    view = controller.switches(drops=False)[0]
    audited = [view.trouble] if view.trouble else list(view.findings)
    audited += [] if view.audits else ["no audit was made"]
    epochs = {job.name: job.epoch for job in controller.jobs()}
    pipe.send(Found(before, after, audited, epochs, taken_over_s))
    here[0].clear()
    if scene:
        _play(here[0], scene, at)
    pipe.send(fuse.events)
    controller.close()
    store.close()


def _play(here: Reign, scene: str, at: int | None) -> None:
    before, act = SCENES[scene]
    for step in before:
        step(here)
    here.fuse.arm(at)
    for step in act:
        step(here)
    events = here.fuse.events
    here.fuse.arm(None)
    here.fuse.events = events
