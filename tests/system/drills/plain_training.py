# SPDX-License-Identifier: Apache-2.0
"""The workers of a job at any controller, for tests that are no drills: a process for each rank, and its journal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hopsum.codec import job_tables, make_codec
from hopsum.rpc.jobs_client import JobsClient
from hopsum_topologies.process import ManagedProcess

from .drill import await_that
from .drill_training import DrillPlan
from .journal import mass, read_journal, replicas_equal
from .training_job import write_at_once

PATIENCE_S = 300.0
"""Every wait, and the deadlines of the workers: nothing ends because of a slow machine."""
_WORKERS = 2
_PACE_S = 0.2
_GOAL_S = 2.0
"""Workers read the goal within this time."""


class PlainTraining:
    """A job of two workers that train until `finish`. Made and started on construction."""

    def __init__(self, stack: ExitStack, folder: Path, operator: JobsClient, address: str, job: str) -> None:
        folder.mkdir()
        tables: dict[str, Any] = job_tables(make_codec("uhc", workers=_WORKERS, backend="numpy"))
        (folder / "token").write_text(operator.create(job, _WORKERS, 32, **tables).token)
        patience: dict[str, Any] = {"pace_s": _PACE_S, "deadline_s": PATIENCE_S, "membership_wait_s": PATIENCE_S}
        url = f"hopsum://{address}/{job}?tls=off"
        self._plan = DrillPlan(url, str(folder / "token"), str(folder), _WORKERS, codec="uhc", **patience)
        self._plan.write(folder / "plan.json")
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._processes = []
        for rank in range(_WORKERS):
            command = [sys.executable, "-m", "drills.drill_worker", str(folder / "plan.json"), str(rank)]
            process = ManagedProcess(command, folder / f"rank{rank}.log", environment=environment)
            stack.callback(process.stop)
            self._processes.append(process)
        self.continues()

    def continues(self, steps: int = 5) -> None:
        """Wait until each rank has done so many steps more than any rank has now."""
        goal = max(map(self.steps, range(_WORKERS))) + steps
        for rank in range(_WORKERS):
            self._wait(rank, lambda: self.steps(rank) >= goal, f"step {goal}")  # noqa: B023

    def finish(self) -> None:
        """Let all ranks train to a common step, leave, and end. Check replicas and mass."""
        write_at_once(self._plan.goal, str(max(map(self.steps, range(_WORKERS))) + round(_GOAL_S / _PACE_S)))
        for rank in range(_WORKERS):
            self._wait(rank, lambda: self._entries(rank)[-1]["kind"] == "end", "its end")  # noqa: B023
        self._plan.leave.touch()
        for process in self._processes:
            await_that(lambda: not process.running(), f"end of {process.name}", within_s=PATIENCE_S)  # noqa: B023
            assert process.stop() == 0, process.log_text()[-2000:]
        journals = {rank: self._entries(rank) for rank in range(_WORKERS)}
        for found in (replicas_equal(journals), mass(journals).check):
            assert found.ok, found.why

    def steps(self, rank: int) -> int:
        done = [entry for entry in self._entries(rank) if entry["kind"] == "step"]
        return int(done[-1]["step"]) + 1 if done else 0

    def _entries(self, rank: int) -> list[dict[str, Any]]:
        return read_journal(self._plan.journal(rank))

    def _wait(self, rank: int, condition: Callable[[], bool], what: str) -> None:
        await_that(condition, f"{what} of rank {rank}", within_s=PATIENCE_S, alive=self._processes[rank])
