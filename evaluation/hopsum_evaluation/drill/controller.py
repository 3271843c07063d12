# SPDX-License-Identifier: Apache-2.0
"""Drills in which the controller is away for a while: it dies and comes back, or stands still."""

from __future__ import annotations

import signal
import time
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.news import keeps_places, require_no_break
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

PAUSES_S: Final = (20.0, 60.0)
PAUSED_LEASE_S: Final = 15.0
"""A controller's default, and shorter than both pauses."""
_SMALL: Final = 0.2
"""A run of a scale below 1 has pauses and a lease of that share."""
_PACE_S: Final = 0.05


def down(context: DrillContext) -> DrillReport:
    """Kill the controller: jobs go on without it, and it has them again when it is back, under the same generation."""
    with drill_testbed(context, "controller-down", seats=seats_for(context, 3)) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        testbed.signal("controller", signal.SIGKILL)
        before = training.steps(0)
        training.train(60)
        alone = training.steps(0) - before
        at_s = testbed.happened("controller started again")
        testbed.start_controller()
        with testbed.operator() as operator:

            def heard() -> float | None:
                found = operator.job("train")
                enough = all(member.statistics.get("allreduces", 0) > before for member in found.members)
                return testbed.now() if enough and len(found.members) == 3 else None

            testbed.report.detected_ms = 1e3 * (first_sign(heard, "heartbeats of all ranks") - at_s)
        testbed.report.detected = "all ranks heard again"
        training.train(20)
        training.finish()
        if len(training.generations()) > 1:
            raise DrillError(
                f"{len(training.generations())} generations: the controller did not adopt the job as it was"
            )
        testbed.report.recovered = f"{alone} steps without a controller; it adopted the job, and its generation went on"
        testbed.report.numbers = {"steps_without_controller": alone}
        judge(testbed, training)
        if testbed.report.checks["replicas_equal"].ok:
            testbed.report.checks["replicas_equal"] = same_bits(training, testbed.report.steps)
    return testbed.report


def paused(context: DrillContext) -> DrillReport:
    """Stop the controller for longer than a lease, twice: it gives nobody up, and the job goes on meanwhile."""
    share = 1.0 if context.scale >= 1 else _SMALL
    lease_s, pauses_s = share * PAUSED_LEASE_S, [share * pause_s for pause_s in PAUSES_S]
    with drill_testbed(context, "controller-paused", seats=seats_for(context, 3), lease_s=lease_s) as testbed:
        training = TrainingJob(testbed, "train", 3, pace_s=_PACE_S)
        training.train(10)
        alone, heard_s = 0, 0.0
        for pause_s in pauses_s:
            before = training.steps(0)
            testbed.signal("controller", signal.SIGSTOP)
            time.sleep(pause_s)
            alone += training.steps(0) - before
            again_s = testbed.signal("controller", signal.SIGCONT)
            keeps_places(testbed, training)
            heard_s = max(heard_s, testbed.now() - again_s)
            time.sleep(lease_s)  # a place that was lost shows by then
            keeps_places(testbed, training)
        training.train(10)
        training.finish()
        require_no_break(training)
        told = " and ".join(f"{pause_s:g} s" for pause_s in pauses_s)
        testbed.report.detected_ms = 1e3 * heard_s
        testbed.report.detected = "all ranks heard again, from when the controller went on"
        testbed.report.recovered = (
            f"{alone} steps in pauses of {told}, with a lease of {lease_s:g} s; no member was evicted"
        )
        testbed.report.numbers = {"steps_in_pauses": alone, "lease_s": lease_s, "longest_pause_s": pauses_s[-1]}
        judge(testbed, training)
        if testbed.report.checks["replicas_equal"].ok:
            testbed.report.checks["replicas_equal"] = same_bits(training, testbed.report.steps)
    return testbed.report
