# SPDX-License-Identifier: Apache-2.0
"""Drills in which the controller dies and comes back."""

from __future__ import annotations

import signal
from typing import Final

from hopsum.cli.drill.base import Context, DrillFailed, DrillReport
from hopsum.cli.drill.crew import Crew
from hopsum.cli.drill.reference import same_bits
from hopsum.cli.drill.stage import first_sign, staged
from hopsum.cli.drill.workers import judge, seats_for

LEASE_S: Final = 10.0
"""Workers look for a controller that was away every two seconds; within a lease they have all found it."""


def down(context: Context) -> DrillReport:
    """Kill the controller: jobs go on without it, and it has them again when it is back, under the same epoch."""
    with staged(context, "controller-down", seats=seats_for(context, 3), lease_s=LEASE_S) as stage:
        crew = Crew(stage, "train", 3)
        crew.train(20)
        stage.signal("controller", signal.SIGKILL)
        before = crew.steps(0)
        crew.train(60)
        alone = crew.steps(0) - before
        at_s = stage.happened("controller started again")
        stage.start_controller()
        with stage.operator() as operator:

            def heard() -> float | None:
                found = operator.job("train")
                enough = all(member.statistics.get("allreduces", 0) > before for member in found.members)
                return stage.now() if enough and len(found.members) == 3 else None

            stage.report.detected_ms = 1e3 * (first_sign(heard, "heartbeats of all ranks") - at_s)
        stage.report.detected = "all ranks heard again"
        crew.train(20)
        crew.finish()
        if len(crew.epochs()) > 1:
            raise DrillFailed(f"{len(crew.epochs())} epochs: the controller did not adopt the job as it was")
        stage.report.recovered = f"{alone} steps without a controller; it adopted the job, and its epoch went on"
        stage.report.numbers = {"steps_without_controller": alone}
        judge(stage, crew)
        if stage.report.checks["replicas_equal"].ok:
            stage.report.checks["replicas_equal"] = same_bits(crew, stage.report.steps)
    return stage.report
