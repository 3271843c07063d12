# SPDX-License-Identifier: Apache-2.0
"""Drills in which the switch dies: it comes back empty, or never."""

from __future__ import annotations

import re
import signal
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.news import MARGIN_S, hears, require_within
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.worker import FAILED
from hopsum_evaluation.drill.workers import judge, seats_for

LIMIT_S: Final = 15.0
"""The time that workers wait for a switch which is gone, by their own choice, and for each other at the start."""
_NEVER_S: Final = 600.0


def restarted(context: DrillContext) -> DrillReport:
    """Kill the switch and start it again, empty: sums in progress take longer, and have the same bits."""
    with drill_testbed(context, "switch-restarted", seats=seats_for(context, 3)) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        (before,) = training.generations()
        at_s = testbed.signal("switch", signal.SIGKILL)
        testbed.start_switch()
        restarted_s = testbed.happened("switch started again, empty")

        def noticed() -> float | None:
            with testbed.operator() as operator:
                job = operator.job("train")
            return testbed.now() if job.generation != before else None

        def going_on() -> float | None:
            return next((entry["at"] for entry in training.journal(0, "step") if entry["generation"] != before), None)

        report = testbed.report
        report.detected_ms = 1e3 * (first_sign(noticed, "end of the generation") - restarted_s)
        report.detected = "the controller had ended the generation, counted from when the switch listened again"
        again_s = first_sign(going_on, "step in another generation")
        training.train(20)
        training.finish()
        ends = [entry for rank in range(3) for kind in ("void", "failed") for entry in training.journal(rank, kind)]
        if ends or len(training.generations()) != 2:
            raise DrillError(f"{len(training.generations())} generations, and all-reduces without a result: {ends[:1]}")
        report.recovered = f"training stood for {again_s - at_s:.1f} s, then went on in the next generation"
        report.numbers = {"stood_s": round(again_s - at_s, 3), "generations": 2}
        judge(testbed, training)
        if report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = same_bits(training, report.steps)
    return report


def gone(context: DrillContext) -> DrillReport:
    """Kill the switch for good: every rank says so within seconds, and fails at the limit that it has chosen.

    The limit is `membership_wait_s`. A rank that hears of another's failure waits no longer for that one than it would
    have waited for the switch.
    """
    with drill_testbed(context, "switch-gone", seats=seats_for(context, 3)) as testbed:
        training = TrainingJob(testbed, "train", 3, membership_wait_s=LIMIT_S, deadline_s=_NEVER_S)
        training.train(20)
        at_s = testbed.signal("switch", signal.SIGKILL)
        said_s = (
            max(hears(training, rank, at_s, "is not there|waited", f"word of rank {rank}") for rank in range(3)) - at_s
        )
        for rank in range(3):
            training.ended(rank, FAILED)
        failed = [training.journal(rank, "failed")[-1] for rank in range(3)]
        for entry in failed:
            if not re.search(r"\bswitch\b", entry["text"]):
                raise DrillError(f"an all-reduce failed without naming the switch: {entry['text']}")
        first_s, last_s = (choose(entry["at"] for entry in failed) - at_s for choose in (min, max))
        require_within("all ranks said it", said_s, testbed.lease_s + MARGIN_S)
        require_within("all ranks failed", last_s, LIMIT_S + testbed.lease_s + MARGIN_S)
        testbed.start_switch()
        with testbed.operator() as operator:
            await_that(lambda: operator.switches()[0].reachable, "session of the controller with the new switch")
        report = testbed.report
        report.detected_ms = 1e3 * said_s
        report.detected = "all ranks had said in their logs that no switch answers"
        names = ", ".join(sorted({entry["error"] for entry in failed}))
        report.recovered = f"failed after {first_s:.1f} to {last_s:.1f} s, with a limit of {LIMIT_S:g} s: {names}"
        report.numbers = {
            "said_after_s": round(said_s, 3),
            "first_failed_s": round(first_s, 3),
            "last_failed_s": round(last_s, 3),
        }
        report.steps = min(training.steps(rank) for rank in range(3))
        judge(testbed, training)
    return report
