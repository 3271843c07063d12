# SPDX-License-Identifier: Apache-2.0
"""All drills by name."""

from __future__ import annotations

from typing import Final

from hopsum.cli.drill import controller, jobs, network, switch, workers
from hopsum.cli.drill.base import Drill, needs_namespaces, needs_nothing
from hopsum.cli.drill.controller_drills import CONTROLLER_DRILLS

_ALL: Final = (
    Drill(
        "worker-killed",
        "a worker dies that the quorum can do without: the others go on",
        needs_nothing,
        workers.killed,
    ),
    Drill(
        "worker-missing",
        "a worker dies, all are needed: the others fail in time, naming it",
        needs_nothing,
        workers.missing,
    ),
    Drill(
        "worker-rejoins",
        "a worker dies, another process takes its rank: it has the others' state, training goes on",
        needs_nothing,
        workers.rejoins,
    ),
    Drill(
        "worker-paused",
        "a worker is stopped for longer than its lease: it is refused, and joins anew",
        needs_nothing,
        workers.paused,
    ),
    Drill(
        "switch-restarted",
        "the switch dies and comes back empty: sums take longer, and have the same bits",
        needs_nothing,
        switch.restarted,
    ),
    Drill(
        "controller-down",
        "the controller dies and comes back: the job goes on, and is adopted",
        needs_nothing,
        controller.down,
    ),
    Drill(
        "split",
        "a worker is cut off, for less than its lease and for longer",
        needs_namespaces,
        network.split,
    ),
    Drill(
        "two-jobs",
        "a job is killed and made again all the time: the other stays bit-exact",
        needs_namespaces,
        jobs.two,
    ),
    *CONTROLLER_DRILLS,
)
DRILLS: Final = {drill.name: drill for drill in _ALL}
