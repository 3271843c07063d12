# SPDX-License-Identifier: Apache-2.0
"""The controller's clock jumps by hours and days while a job trains and another one has generation after generation."""

from __future__ import annotations

import random
import re
import signal
import sys
from pathlib import Path
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.controller_probe import Probe, beats
from hopsum_evaluation.drill.testbed import LEASE_S, DrillTestbed, drill_testbed
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

NAME: Final = "controller-clock-jumps"
_TRAINERS: Final = 2
_PACE_S: Final = 0.05
_HOUR_S: Final = 3600.0
_FIRST_HOURS: Final = (5.0, -7.0, 240.0, -240.0)
_HOURS: Final = 24.0 * 30
"""The hours of the jumps after those, each way at most."""


def clock_jumps(context: DrillContext) -> DrillReport:
    """Turn the controller's clock back and forward, and restart it in the past: no generation twice, no lease ends."""
    with drill_testbed(context, NAME, seats=seats_for(context, _TRAINERS)) as testbed:
        clock = context.folder / "offset"
        _turn(clock, 0.0)
        testbed.processes["controller"].stop()
        _start(testbed, clock)
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        probe = Probe(testbed, "probe", LEASE_S)
        generations = [probe.generation()]
        chance = random.Random(context.seed)
        for number in range(context.steps(6)):
            hours = _FIRST_HOURS[number] if number < len(_FIRST_HOURS) else chance.uniform(-_HOURS, _HOURS)
            testbed.happened(f"clock {hours:+.0f} h from the machine's")
            _turn(clock, hours * _HOUR_S)
            beats(testbed, training)
            generations.append(probe.generation())
            if number == 1:
                testbed.signal("controller", signal.SIGKILL)
                _start(testbed, clock)
        training.finish()
        _judge_generations(testbed, training, generations)
        with testbed.operator() as operator:
            operator.delete(probe.name)
        judge(testbed, training)
    return testbed.report


def _turn(clock: Path, offset_s: float) -> None:
    made = clock.with_suffix(".new")
    made.write_text(str(offset_s), encoding="utf-8")
    made.replace(clock)


def _start(testbed: DrillTestbed, clock: Path) -> None:
    """Start a controller with that clock, in place of the testbed's."""
    command = [sys.executable, "-m", "hopsum_evaluation.drill.controller_skewed"]
    process = testbed.start("controller", [*command, str(testbed.context.folder / "cluster.toml"), str(clock)])
    ready = lambda: re.search(r"^ready listen=", process.log_text(), re.MULTILINE)  # noqa: E731
    await_that(ready, "a controller that serves", alive=process)


def _judge_generations(testbed: DrillTestbed, training: TrainingJob, generations: list[int]) -> None:
    """Raise DrillError if a generation came again, or the job that trains had a second one."""
    trained = {entry["generation"] for rank in range(_TRAINERS) for entry in training.journal(rank, "step")}
    if len(trained) != 1:
        raise DrillError(f"a lease ended because of the clock: the job that trains had generations {sorted(trained)}")
    if sorted(set(generations)) != generations or trained & set(generations):
        raise DrillError(f"generations came again: {generations} of one job, {sorted(trained)} of the other")
    report = testbed.report
    report.detected = "nothing was to be: no lease ended"
    report.recovered = f"{len(generations)} generations of one job, each above the one before; 1 of the job that trains"
    report.numbers = {"jumps": len(generations) - 1, "generations": len(generations) + 1, "leases_ended": 0}
