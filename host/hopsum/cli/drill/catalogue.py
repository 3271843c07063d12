# SPDX-License-Identifier: Apache-2.0
"""All drills by name."""

from __future__ import annotations

from typing import Final

from hopsum.cli.drill import (
    controller,
    controller_clock,
    controller_disk,
    controller_rivals,
    controller_writes,
    jobs,
    network,
    workers,
)
from hopsum.cli.drill.base import Drill, needs_namespaces, needs_nothing

DRILLS: Final = {
    drill.name: drill
    for drill in (
        Drill(
            "worker-missing",
            "a worker dies, all are needed: the others fail in time, naming it",
            needs_nothing,
            workers.missing,
        ),
        Drill(
            "controller-down",
            "the controller dies and comes back: the job goes on, and is adopted",
            needs_nothing,
            controller.down,
        ),
        Drill(
            "split",
            "the network between a worker and all else goes down and up",
            needs_namespaces,
            network.split,
        ),
        Drill(
            "two-jobs",
            "a job is killed and made again all the time: the other stays bit-exact",
            needs_namespaces,
            jobs.two,
        ),
        Drill(
            controller_writes.NAME,
            "the controller dies at each write of a job's life: the switch is as in the books",
            needs_nothing,
            controller_writes.killed_at_each_write,
        ),
        Drill(
            controller_rivals.NAME,
            "a second controller takes the switch: the first says so, and changes nothing",
            needs_nothing,
            controller_rivals.two_controllers,
        ),
        Drill(
            controller_clock.NAME,
            "the controller's clock jumps by days: no epoch comes twice, no lease ends",
            needs_nothing,
            controller_clock.clock_jumps,
        ),
        Drill(
            controller_disk.NAME,
            "the disk under the books is full: refused in words, and jobs go on",
            controller_disk.needs_tmpfs,
            controller_disk.disk_full,
        ),
    )
}
