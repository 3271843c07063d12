# SPDX-License-Identifier: Apache-2.0
"""All drills by name."""

from __future__ import annotations

from typing import Final

from hopsum.cli.drill import controller, workers
from hopsum.cli.drill.base import Drill, needs_nothing

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
    )
}
