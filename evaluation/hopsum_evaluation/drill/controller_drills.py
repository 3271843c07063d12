# SPDX-License-Identifier: Apache-2.0
"""The drills of the controller: for the catalogue."""

from __future__ import annotations

from typing import Final

from hopsum_evaluation.drill import (
    controller_clock,
    controller_disk,
    controller_moved,
    controller_rivals,
    controller_standby,
    controller_writes,
)
from hopsum_evaluation.drill.base import Drill, needs_nothing

CONTROLLER_DRILLS: Final = (
    Drill(
        controller_moved.NAME,
        "the controller's machine is lost, a backup continues elsewhere: no job ends before somebody decides",
        needs_nothing,
        controller_moved.moved,
    ),
    Drill(
        controller_standby.NAME,
        "the controller dies beside a standby: that one serves within the lease, no job ends",
        needs_nothing,
        controller_standby.takes_over,
    ),
    Drill(
        controller_writes.NAME,
        "the controller dies at each write of a job's life: the switch is as in the database",
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
        "the controller's clock jumps by days: no generation comes twice, no lease ends",
        needs_nothing,
        controller_clock.clock_jumps,
    ),
    Drill(
        controller_disk.NAME,
        "the disk under the database is full: refused in words, and jobs go on",
        controller_disk.needs_tmpfs,
        controller_disk.disk_full,
    ),
)
