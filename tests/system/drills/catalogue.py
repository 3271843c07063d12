# SPDX-License-Identifier: Apache-2.0
"""All drills by name. docs/reliability.md has a line for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import controller_drills, network_drills, switch_drills, worker_drills
from .drill import DrillContext, DrillReport

DRILLS: Final[dict[str, Callable[[DrillContext], DrillReport]]] = {
    "worker-killed": worker_drills.killed,
    "worker-missing": worker_drills.missing,
    "worker-rejoins": worker_drills.rejoins,
    "worker-lost-for-good": worker_drills.lost_for_good,
    "worker-joins-late": worker_drills.joins_late,
    "half-of-the-hosts-gone": worker_drills.half_gone,
    "worker-paused": worker_drills.paused,
    "worker-raises": worker_drills.raises,
    "worker-forks": worker_drills.forks,
    "switch-restarted": switch_drills.restarted,
    "switch-gone": switch_drills.gone,
    "host-lost": switch_drills.host_lost,
    "shard-moved": switch_drills.shard_moved,
    "two-jobs": switch_drills.two_jobs,
    "controller-down": controller_drills.down,
    "controller-paused": controller_drills.paused,
    "controller-moved": controller_drills.moved,
    "controller-standby": controller_drills.standby,
    "controller-killed-in-writes": controller_drills.killed_in_writes,
    "two-controllers": controller_drills.two_controllers,
    "controller-clock-jumps": controller_drills.clock_jumps,
    "controller-disk-full": controller_drills.disk_full,
    "connections-dead": network_drills.connections_dead,
    "route-flaps": network_drills.flaps,
    "split": network_drills.split,
    "job-churn": controller_drills.job_churn,
}
SHORT: Final = (
    "worker-rejoins",
    "worker-lost-for-good",
    "worker-raises",
    "switch-restarted",
    "host-lost",
    "controller-down",
    "controller-disk-full",
    "connections-dead",
    "split",
)
"""The drills of `make test`, at a small scale: each kind of process, connection and link breaks once."""
