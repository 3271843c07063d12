# SPDX-License-Identifier: Apache-2.0
"""Trainings that go on for the whole year: a process for each rank of a job, and its journal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hopsum_evaluation.drill.checks import mass, replicas_equal
from hopsum_evaluation.drill.journal import read_journal
from hopsum_evaluation.drill.training import DrillPlan
from hopsum_topologies.process import ManagedProcess

PATIENCE_S = 300.0
"""Also the time that a rank waits for whoever it needs: nothing ends because of a slow machine."""
_PACE_S = 0.2
_MARGIN_S = 2.0
_POLL_S = 0.1


class Training:
    """A job's workers, which train until they are told to finish, or cannot go on."""

    def __init__(
        self, stack: ExitStack, folder: Path, url: str, codec: str, workers: int, files: Mapping[str, Path]
    ) -> None:
        self._stack, self._folder, self._workers = stack, folder, workers
        self.job = url.rpartition("/")[2].partition("?")[0]
        self._plan_path = folder / "plan.json"
        self._environment = {**os.environ, **{f"HOPSUM_{name.upper()}": str(path) for name, path in files.items()}}
        patience: dict[str, Any] = {"pace_s": _PACE_S, "deadline_s": PATIENCE_S, "membership_wait_s": PATIENCE_S}
        folder.mkdir()
        self.plan = DrillPlan(url, str(folder / "token"), str(folder), workers, codec=codec, **patience)
        self.plan.write(self._plan_path)
        self._processes: dict[int, ManagedProcess] = {}
        self._starts = 0

    def start(self, *ranks: int) -> None:
        """Start the processes of ranks, all if left out. They read the job's token now."""
        for rank in ranks or range(self._workers):
            self._starts += 1
            command = [sys.executable, "-m", "hopsum_evaluation.drill.worker", str(self._plan_path), str(rank)]
            log = self._folder / f"rank{rank}-{self._starts}.log"
            self._processes[rank] = process = ManagedProcess(command, log, environment=self._environment)
            self._stack.callback(process.stop)

    def kill(self, rank: int) -> None:
        """Kill a rank's process."""
        os.kill(self._processes[rank].pid, signal.SIGKILL)
        self._processes[rank].stop()

    def goes_on(self, steps: int = 5) -> None:
        """Wait until each rank has done so many steps more than any rank has now."""
        goal = max(map(self.steps, range(self._workers))) + steps
        for rank in range(self._workers):
            self._wait(rank, lambda: self.steps(rank) >= goal, f"step {goal}")  # noqa: B023

    def finish(self) -> None:
        """Let all ranks train to a common step, leave, and end with status 0."""
        goal = max(map(self.steps, range(self._workers))) + round(_MARGIN_S / _PACE_S)
        _write_at_once(self.plan.goal, str(goal))
        for rank in range(self._workers):
            self._wait(rank, lambda: self.entries(rank, "end"), "its end")  # noqa: B023
        self.plan.leave.touch()
        assert [self.status(rank) for rank in range(self._workers)] == [0] * self._workers

    def status(self, rank: int) -> int:
        """Return the exit status of a rank's process, which ends by itself."""
        process, give_up_s = self._processes[rank], time.monotonic() + PATIENCE_S
        while process.running():
            assert time.monotonic() < give_up_s, f"{self.job}: rank {rank} goes on: {process.log_text()[-2000:]}"
            time.sleep(_POLL_S)
        return process.stop()

    def check(self) -> None:
        """Compare the replicas after every step, and follow every gradient."""
        journals = {rank: self.entries(rank) for rank in range(self._workers)}
        for found in (replicas_equal(journals), mass(journals).check):
            assert found.ok, f"{self.job}: {found.why}"

    def steps(self, rank: int) -> int:
        done = self.entries(rank, "step")
        return int(done[-1]["step"]) + 1 if done else 0

    def generations(self) -> list[int]:
        """Return the generations that steps were in."""
        return sorted({each["generation"] for rank in range(self._workers) for each in self.entries(rank, "step")})

    def entries(self, rank: int, kind: str = "") -> list[dict[str, Any]]:
        return [entry for entry in read_journal(self.plan.journal(rank)) if not kind or entry["kind"] == kind]

    def _wait(self, rank: int, condition: Any, what: str) -> None:
        process, give_up_s = self._processes[rank], time.monotonic() + PATIENCE_S
        while not condition():
            told = f"{self.job}: rank {rank} has not come to {what}: {process.log_text()[-2000:]}"
            assert process.running(), f"{told}\n{self.entries(rank)[-1:]}"
            assert time.monotonic() < give_up_s, told
            time.sleep(_POLL_S)


def _write_at_once(path: Path, text: str) -> None:
    made = path.with_suffix(".new")
    made.write_text(text)
    made.rename(path)
