# SPDX-License-Identifier: Apache-2.0
"""All drills by name."""

from __future__ import annotations

from typing import Final

from hopsum.cli.drill import controller, jobs, network, workers
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
    )
}
