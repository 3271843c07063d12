# SPDX-License-Identifier: Apache-2.0
"""The drill of a backup: the controller's machine is lost, and another one goes on with a backup of its database."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from hopsum_evaluation.drill.base import PATIENCE_S, DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.checks import mass, replicas_equal
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

NAME: Final = "controller-moved"


def moved(context: DrillContext) -> DrillReport:
    """Restore a backup elsewhere: a job of it is adopted, a later one is shown and goes on until somebody decides."""
    with drill_testbed(context, NAME, seats=seats_for(context, 5)) as testbed:
        known = TrainingJob(testbed, "train", 3)
        known.train(10)
        backup = context.folder / "backup.sqlite"
        _back_up(testbed, backup)
        late = TrainingJob(testbed, "late", 2, first_seat=3)
        late.train(10)
        testbed.signal("controller", signal.SIGKILL)
        elsewhere = context.folder / "elsewhere" / "state.sqlite"
        elsewhere.parent.mkdir()
        shutil.copy(backup, elsewhere)
        testbed.write_config(database=elsewhere)
        before = known.steps(0), late.steps(0)
        at_s = testbed.happened("another controller started with the backup")
        testbed.start_controller()
        heard_s = first_sign(lambda: _heard(testbed, known), "heartbeats of all ranks")
        testbed.report.detected_ms = 1e3 * (heard_s - at_s)
        testbed.report.detected = "all ranks of the job in the backup heard again"
        (generation,) = late.generations()
        await_that(lambda: f"generation {generation}" in _condition(testbed), "the later job's generation is shown")
        known.train(20)
        late.train(20)
        gone_on = known.steps(0) - before[0], late.steps(0) - before[1]
        late.finish()
        testbed.processes["controller"].stop()
        testbed.happened("the controller started with --remove-existing --yes")
        testbed.start_controller("--remove-existing", "--yes")
        await_that(lambda: not _condition(testbed), "the decision is carried out")
        known.train(10)
        known.finish()
        _judge(testbed, known, late)
        testbed.report.recovered = (
            f"{gone_on[0]} steps of the job in the backup, whose generation went on, and {gone_on[1]} of the later one "
            "beside it, until its entries were removed"
        )
    return testbed.report


def _back_up(testbed: DrillTestbed, path: Path) -> None:
    """Take a backup as an operator does. Raises DrillError."""
    command = [sys.executable, "-m", "hopsum_cli.main", "controller", "backup", str(path)]
    at = ["--controller", testbed.network.controller_address, "--no-tls"]
    token = ["--admin-token-file", str(testbed.context.folder / "admin.token")]
    done = subprocess.run([*command, *at, *token], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if done.returncode:
        raise DrillError(f"no backup: {done.stderr.strip()}")
    testbed.happened(f"backup taken: {done.stdout.strip()}")


def _judge(testbed: DrillTestbed, known: TrainingJob, late: TrainingJob) -> None:
    for training in (known, late):
        if len(training.generations()) > 1:
            raise DrillError(f"job {training.job} had generations {training.generations()}: it did not go on")
    if not (equal := replicas_equal(late.journals())).ok or not (found := mass(late.journals()).check).ok:
        raise DrillError(f"job {late.job}: {equal}, {found}")
    judge(testbed, known)


def _heard(testbed: DrillTestbed, training: TrainingJob) -> float | None:
    """Return the time if this controller has heard all ranks of a job."""
    with testbed.operator() as operator:
        members = operator.job(training.job).members
    return testbed.now() if len([each for each in members if each.statistics]) == training.workers else None


def _condition(testbed: DrillTestbed) -> str:
    with testbed.operator() as operator:
        return str(operator.switches()[0].condition)
