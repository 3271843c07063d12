# SPDX-License-Identifier: Apache-2.0
"""The controller dies at every write, to the switch and to the database, of everything that happens to a job.

A job trains all the time, which the controllers adopt one after the other. Each kills itself at the next event of a
scene. The one after it reads the switch back and holds it against the database, before it does anything and after it
has taken over, lets an audit look, and is the next to die.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from multiprocessing.context import ForkServerContext
from typing import Final

from .crash_injection import SCENES, TakeoverReport, run_controller
from .drill import PATIENCE_S, DrillContext, DrillError, DrillReport
from .drill_testbed import DrillTestbed, drill_testbed
from .training_job import TrainingJob

_TRAINERS: Final = 2
_PACE_S: Final = 0.05
_LEASE_S: Final = 120.0
"""The lease of the job that trains. Nobody hears its workers while controllers die."""
_MOST: Final = 8
"""Workers of the job that is made and deleted."""
_SAMPLE: Final = 7
"""A run of scale 1 dies at each event, a smaller one at every seventh."""


class Deaths:
    """The deaths of one controller after the other, and the judgement of each takeover."""

    def __init__(self, testbed: DrillTestbed, workers: int, processes: ForkServerContext) -> None:
        self._testbed, self._processes = testbed, processes
        self.workers = workers
        """The workers of the job that is made and deleted."""
        self._config = str(testbed.context.folder / "cluster.toml")
        self._died_s: float | None = None
        self._train_generation = 0
        self.kills: Counter[str] = Counter()
        self.half_done = 0
        """The number of times that the switch or a job was in the middle of something."""
        self.recovery_s: list[float] = []

    def play(self, scene: str, stride: int) -> None:
        """Let controllers die in a scene, each at a later event, until one survives it. Raises DrillError."""
        at = self._testbed.context.seed % stride
        while self._live(scene, at):
            self.kills[scene] += 1
            self._testbed.happened(f"SIGKILL at event {at} of {scene}")
            at += stride

    def look(self) -> None:
        """Let one more controller judge the state that the last one left."""
        self._live("", None)

    def _live(self, scene: str, at: int | None) -> bool:
        """Let one controller live. Return whether it was killed."""
        ours, theirs = self._processes.Pipe(duplex=False)
        process = self._processes.Process(
            target=run_controller, args=(self._config, scene, self.workers, at, theirs), daemon=True
        )
        process.start()
        theirs.close()
        said: list[TakeoverReport | int] = []
        try:
            while ours.poll(PATIENCE_S):
                said.append(ours.recv())
        except EOFError:
            process.join(PATIENCE_S)
        finally:
            ours.close()
            if process.is_alive():
                process.kill()
                process.join()
        before, self._died_s = self._died_s, time.monotonic()
        self._judge(said, before, scene, at, process.exitcode)
        return process.exitcode == -signal.SIGKILL

    def _judge(
        self, said: list[TakeoverReport | int], died_s: float | None, scene: str, at: int | None, status: int | None
    ) -> None:
        where = f"after the death before {scene or 'the end'} {at}"
        if not said or not isinstance(said[0], TakeoverReport):
            raise DrillError(f"{where}, a controller did not take over: exit status {status}")
        found = said[0]
        if found.after or found.audited:
            raise DrillError(f"{where}, switch and database differ: {'; '.join(found.after + found.audited)}")
        trains = found.generations.get("train", 0)
        if trains != (self._train_generation or trains) or not trains:
            raise DrillError(
                f"{where}, the job that trains has generation {trains} instead of {self._train_generation}"
            )
        self._train_generation = trains
        if died_s is not None:
            self.half_done += bool(found.before)
            self.recovery_s.append(found.at_s - died_s)
        if status != -signal.SIGKILL and len(said) < 2:
            raise DrillError(f"{where}, a controller ended with status {status} in {scene or 'no scene'}")


def killed_at_each_write(context: DrillContext) -> DrillReport:
    """Kill controllers at each write of creating, joining, a lease that runs out, and deleting."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([run_controller.__module__])
    with drill_testbed(context, seats=context.seats_for(_TRAINERS), lease_s=_LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        testbed.processes["controller"].stop()
        before = training.steps(0)
        stride = 1 if context.scale >= 1 else _SAMPLE
        deaths = _die(testbed, stride, processes)
        alone = training.steps(0) - before
        testbed.start_controller()
        training.finish()
        testbed.report.detect(max(deaths.recovery_s), "taken over by the next controller, the slowest of all")
        told = ", ".join(f"{count} in {scene}" for scene, count in deaths.kills.items())
        median_s = sorted(deaths.recovery_s)[len(deaths.recovery_s) // 2]
        testbed.report.recovered = (
            f"{deaths.kills.total()} deaths ({told}), {deaths.half_done} of them half way: switch as in the database; "
            f"taken over in {median_s:.1f} s (median); {alone} steps without a controller"
        )
        if not deaths.half_done:
            raise DrillError("no death left a switch or a job in the middle of something")
        training.judge()
    return testbed.report


def _die(testbed: DrillTestbed, stride: int, processes: ForkServerContext) -> Deaths:
    """Play all scenes: once with two workers, and with more for each further unit of scale."""
    rounds = max(1, round(testbed.context.scale))
    deaths = Deaths(testbed, 2, processes)
    for number in range(rounds):
        deaths.workers = min(_MOST, 2 + 2 * number)
        for scene in SCENES:
            deaths.play(scene, stride)
    deaths.look()
    return deaths
