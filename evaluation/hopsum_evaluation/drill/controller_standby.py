# SPDX-License-Identifier: Apache-2.0
"""The drill of a second controller that waits: the first one dies, the second one serves, no job notices."""

from __future__ import annotations

import re
import signal
import sys
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.news import require_no_break
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

NAME: Final = "controller-standby"


def takes_over(context: DrillContext) -> DrillReport:
    """Kill the controller beside a standby: it has the database at once, adopts the job, and hears all ranks."""
    with drill_testbed(context, NAME, seats=seats_for(context, 3)) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(10)
        _start_standby(testbed)
        before = training.steps(0)
        killed_s = testbed.signal("controller", signal.SIGKILL)
        standby = testbed.processes["controller"] = testbed.processes.pop("standby")
        ready = lambda: re.search(r"^ready listen=", standby.log_text(), re.MULTILINE)  # noqa: E731
        await_that(ready, "a standby that serves", alive=standby)
        served_s = testbed.now() - killed_s
        heard_s = first_sign(lambda: _heard(testbed, training), "heartbeats of all ranks") - killed_s
        testbed.report.detected_ms = 1e3 * heard_s
        testbed.report.detected = "all ranks heard by the second controller, from the first one's death"
        training.train(20)
        training.finish()
        if len(training.generations()) > 1:
            raise DrillError(f"generations {training.generations()}: the standby did not adopt the job as it was")
        require_no_break(training)
        testbed.report.recovered = (
            f"the standby served {1e3 * served_s:.0f} ms after the first one's death, within the lease of "
            f"{testbed.lease_s:g} s; {training.steps(0) - before} steps, one generation"
        )
        testbed.report.numbers = {"served_ms": round(1e3 * served_s), "lease_s": testbed.lease_s}
        judge(testbed, training)
    return testbed.report


def _start_standby(testbed: DrillTestbed) -> None:
    """Start a second controller with the same configuration, and wait until it waits."""
    command = [sys.executable, "-m", "hopsum_cli.main", "controller", "--standby", "--config"]
    process = testbed.start("standby", [*command, str(testbed.context.folder / "cluster.toml")])
    testbed.happened("a standby started")
    await_that(lambda: "standby: another controller has" in process.log_text(), "a standby that waits", alive=process)


def _heard(testbed: DrillTestbed, training: TrainingJob) -> float | None:
    """Return the time if this controller has heard all ranks of a job."""
    with testbed.operator() as operator:
        members = operator.job(training.job).members
    return testbed.now() if len([each for each in members if each.statistics]) == training.workers else None
