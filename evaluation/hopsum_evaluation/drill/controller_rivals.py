# SPDX-License-Identifier: Apache-2.0
"""Two controllers want one switch: with the same database, then with a database of its own and a higher election id."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.controller_probe import SLOTS, Probe, edit, refusal
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

NAME: Final = "two-controllers"
_TRAINERS: Final = 2
_PACE_S: Final = 0.05
_LEASE_S: Final = 60.0
_RIVAL, _AGAIN = 2, 3
"""Election ids: of the second controller, and of the first when it has the switch again."""


def two_controllers(context: DrillContext) -> DrillReport:
    """Let a second controller take the switch: the first notices, says so, and changes nothing any more."""
    with drill_testbed(context, NAME, seats=seats_for(context, _TRAINERS), lease_s=_LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        other = Probe(testbed, "other", _LEASE_S)
        other.generation(stay=True)
        _refused_books(testbed)
        _rival(testbed)
        before = training.steps(0)
        _deposed(testbed, other)
        training.train(20)
        under = training.steps(0) - before
        testbed.happened("end of the second controller")
        if (status := testbed.processes["rival"].stop()) != 0:
            raise DrillError(f"the second controller ended with {status}")
        _deposed(testbed, other)  # it does not take back what somebody else may have changed
        _again(testbed, other)
        training.train(5)
        training.finish()
        generations = {entry["generation"] for rank in range(_TRAINERS) for entry in training.journal(rank, "step")}
        report = testbed.report
        report.recovered = (
            f"{under} steps under two controllers, {len(generations)} generation; the first has its jobs again"
        )
        report.numbers = {"steps_under_two": under, "generations": len(generations)}
        judge(testbed, training)
    return testbed.report


def _refused_books(testbed: DrillTestbed) -> None:
    """Start a second controller on the same database, which ends it."""
    folder = testbed.context.folder
    edit(folder / "cluster.toml", folder / "second.toml", (testbed.network.controller_address, _free(testbed)))
    testbed.happened("second controller with the same database")
    process = testbed.start("second", _command(folder / "second.toml"))
    await_that(lambda: not process.running(), "the end of a controller whose database another one has")
    if (status := process.stop()) != 1 or "another controller has it" not in process.log_text():
        raise DrillError(f"a second controller on the same database ended with {status}: {process.log_text()[-500:]}")


def _rival(testbed: DrillTestbed) -> None:
    """Start one with a database of its own, and wait until both say what is the matter."""
    folder = testbed.context.folder
    changes = ((testbed.network.controller_address, _free(testbed)), ("state.sqlite", "rival.sqlite"))
    edit(
        folder / "cluster.toml", folder / "rival.toml", *changes, ("[[switch]]", f"[[switch]]\nelection_id = {_RIVAL}")
    )
    process = testbed.start("rival", _command(folder / "rival.toml"))
    began_s = testbed.happened("second controller with a database of its own and a higher election id")
    with testbed.operator() as operator:

        def noticed() -> float | None:
            return testbed.now() if "primary" in operator.switches()[0].condition else None

        testbed.report.detected_ms = 1e3 * (first_sign(noticed, "sign of another primary client") - began_s)
    testbed.report.detected = "the first says that another client is primary, from the start of the second's process"
    ready = lambda: re.search(r"^ready listen=", process.log_text(), re.MULTILINE)  # noqa: E731
    await_that(ready, "a second controller that serves", alive=process)
    found = lambda: "the database does not have generation" in process.log_text()  # noqa: E731
    await_that(found, "a second controller that sees whose entries stand there", alive=process)


def _deposed(testbed: DrillTestbed, other: Probe) -> None:
    """Check that the first controller refuses what it would have to write, and says why."""
    with testbed.operator() as operator:
        refusal(lambda: operator.create("more", 1, SLOTS), "primary")
        refusal(lambda: operator.delete(other.name), "primary")
        (state,) = [job.switches[0] for job in operator.jobs() if job.name == other.name]
        if not state:
            raise DrillError("the job whose entries could not be removed has no switch any more")


def _again(testbed: DrillTestbed, other: Probe) -> None:
    """Give the first controller the highest election id: it has its jobs again, and ends what it was told to."""
    folder = testbed.context.folder
    edit(folder / "cluster.toml", folder / "cluster.toml", ("[[switch]]", f"[[switch]]\nelection_id = {_AGAIN}"))
    testbed.processes["controller"].stop()
    testbed.happened("first controller started again, with the highest election id")
    testbed.start_controller()
    with testbed.operator() as operator:
        await_that(lambda: not operator.switches()[0].condition, "a switch without a condition")
        gone = lambda: [job.name for job in operator.jobs()] == ["train"]  # noqa: E731
        await_that(gone, f"the end of job {other.name}, which was deleted meanwhile")


def _command(config: Path) -> list[str]:
    return [sys.executable, "-m", "hopsum_cli.main", "controller", "--config", str(config)]


def _free(testbed: DrillTestbed) -> str:
    host = testbed.network.controller_address.rpartition(":")[0]
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
