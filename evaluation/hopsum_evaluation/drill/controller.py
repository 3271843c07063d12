# SPDX-License-Identifier: Apache-2.0
"""Drills in which the controller is away for a while: it dies and comes back, or stands still."""

from __future__ import annotations

import signal
import time
from typing import Final

from hopsum_evaluation.drill.base import Context, DrillError, DrillReport
from hopsum_evaluation.drill.crew import Crew
from hopsum_evaluation.drill.news import keeps_places, require_no_break
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.stage import first_sign, staged
from hopsum_evaluation.drill.workers import judge, seats_for

PAUSES_S: Final = (20.0, 60.0)
PAUSED_LEASE_S: Final = 15.0
"""A controller's default, and shorter than both pauses."""
_SMALL: Final = 0.2
"""A run of a scale below 1 has pauses and a lease of that share."""
_PACE_S: Final = 0.05


def down(context: Context) -> DrillReport:
    """Kill the controller: jobs go on without it, and it has them again when it is back, under the same epoch."""
    with staged(context, "controller-down", seats=seats_for(context, 3)) as stage:
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
            raise DrillError(f"{len(crew.epochs())} epochs: the controller did not adopt the job as it was")
        stage.report.recovered = f"{alone} steps without a controller; it adopted the job, and its epoch went on"
        stage.report.numbers = {"steps_without_controller": alone}
        judge(stage, crew)
        if stage.report.checks["replicas_equal"].ok:
            stage.report.checks["replicas_equal"] = same_bits(crew, stage.report.steps)
    return stage.report


def paused(context: Context) -> DrillReport:
    """Stop the controller for longer than a lease, twice: it gives nobody up, and the job goes on meanwhile."""
    share = 1.0 if context.scale >= 1 else _SMALL
    lease_s, pauses_s = share * PAUSED_LEASE_S, [share * pause_s for pause_s in PAUSES_S]
    with staged(context, "controller-paused", seats=seats_for(context, 3), lease_s=lease_s) as stage:
        crew = Crew(stage, "train", 3, pace_s=_PACE_S)
        crew.train(10)
        alone, heard_s = 0, 0.0
        for pause_s in pauses_s:
            before = crew.steps(0)
            stage.signal("controller", signal.SIGSTOP)
            time.sleep(pause_s)
            alone += crew.steps(0) - before
            again_s = stage.signal("controller", signal.SIGCONT)
            keeps_places(stage, crew)
            heard_s = max(heard_s, stage.now() - again_s)
            time.sleep(lease_s)  # a place that was lost shows by then
            keeps_places(stage, crew)
        crew.train(10)
        crew.finish()
        require_no_break(crew)
        told = " and ".join(f"{pause_s:g} s" for pause_s in pauses_s)
        stage.report.detected_ms = 1e3 * heard_s
        stage.report.detected = "all ranks heard again, from when the controller went on"
        stage.report.recovered = (
            f"{alone} steps in pauses of {told}, with a lease of {lease_s:g} s; nobody was given up"
        )
        stage.report.numbers = {"steps_in_pauses": alone, "lease_s": lease_s, "longest_pause_s": pauses_s[-1]}
        judge(stage, crew)
        if stage.report.checks["replicas_equal"].ok:
            stage.report.checks["replicas_equal"] = same_bits(crew, stage.report.steps)
    return stage.report
