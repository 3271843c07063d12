# SPDX-License-Identifier: Apache-2.0
"""A job of the controller, its workers' processes, and what their journals say so far."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hopsum.codec import job_tables, make_codec
from hopsum_evaluation.drill.base import PATIENCE_S, DrillError, await_that
from hopsum_evaluation.drill.journal import read_journal
from hopsum_evaluation.drill.testbed import DrillTestbed
from hopsum_evaluation.drill.training import DrillPlan, WorkerOrder, options_of
from hopsum_topologies.process import ManagedProcess

SLOTS: Final = 16
_MARGIN_S: Final = 1.0
"""Workers hear of the goal within this time, whatever the machine is busy with."""


class TrainingJob:
    """One job with a worker on each rank.

    Args:
        first_seat: where rank 0 sits.
        folder: holds the job's files.
        controllers: by rank, the address at which it reaches the controller, where that is another one.
        shards: number of switches that the job is over.
        settings: those that are not given are `DrillPlan`'s.
    """

    def __init__(
        self,
        testbed: DrillTestbed,
        job: str,
        workers: int,
        *,
        quorum: int | None = None,
        first_seat: int = 0,
        codec: str = "thc",
        folder: str = "",
        controllers: Mapping[int, str] | None = None,
        shards: int = 1,
        **settings: Any,
    ) -> None:
        self.testbed, self.job, self.workers = testbed, job, workers
        self._first_seat = first_seat
        self._controllers = controllers or {}
        at = testbed.context.folder / (folder or job)
        at.mkdir()
        seed, options = testbed.context.seed, options_of(codec, workers)
        made_with = {"codec": codec, "codec_options": options, "seed": seed, **settings}
        url = f"hopsum://{testbed.network.controller_address}/{job}?tls=off"
        self.plan = DrillPlan(url, str(at / "token"), str(at), workers, **made_with)
        tables: dict[str, Any] = job_tables(make_codec(codec, workers=workers, backend="numpy", **self.plan.options()))
        with testbed.operator() as operator:
            made = operator.create(job, workers, SLOTS, quorum=quorum, shards=shards, **tables)
        (at / "token").write_text(made.token, encoding="utf-8")
        self._plan_path = at / "plan.json"
        self.plan.write(self._plan_path)
        for rank in range(workers):
            self.start(rank)

    def name(self, rank: int) -> str:
        """Return what a rank's process is called."""
        return f"rank {rank} of {self.job}"

    def process(self, rank: int) -> ManagedProcess:
        """Return a rank's process, the one that was started last."""
        return self.testbed.processes[self.name(rank)]

    def start(self, rank: int, *, bare: bool = False) -> None:
        """Start a worker's process. A bare one connects without a `with` statement."""
        command = [sys.executable, "-m", "hopsum_evaluation.drill.worker", str(self._plan_path), str(rank)]
        command += ["--bare"] * bare
        if rank in self._controllers:
            command += ["--url", f"hopsum://{self._controllers[rank]}/{self.job}?tls=off"]
        namespace = self.testbed.network.namespace_of(self._first_seat + rank)
        self.testbed.start(self.name(rank), command, namespace=namespace)

    # ---- journals -------------------------------------------------------------------------------------

    def journal(self, rank: int, kind: str = "") -> list[dict[str, Any]]:
        """Return the entries of a rank, or those of a kind."""
        return [entry for entry in read_journal(self.plan.journal(rank)) if not kind or entry["kind"] == kind]

    def journals(self) -> dict[int, list[dict[str, Any]]]:
        """Return all entries by rank."""
        return {rank: self.journal(rank) for rank in range(self.workers)}

    def since(self, at_s: float, rank: int, *kinds: str, words: str = "", logger: str = "") -> dict[str, Any] | None:
        """Return a rank's first entry of some kinds since a time, None without one.

        Its text has the pattern `words`. What was logged, was by a logger whose name begins with `logger`.
        """
        for entry in self.journal(rank):
            wanted = entry["at"] >= at_s and entry["kind"] in kinds and re.search(words, entry.get("text", ""))
            if wanted and entry.get("logger", logger).startswith(logger):
                return entry
        return None

    def order(self, rank: int, order: WorkerOrder) -> None:
        """Give a rank an order, which it follows after its step."""
        self.testbed.happened(f"{self.name(rank)} is told to {order}")
        _write_at_once(self.plan.order(rank), order)

    def steps(self, rank: int) -> int:
        """Return how many steps a rank has behind it, those of the state that it may have come with included."""
        done = self.journal(rank, "step")
        return int(done[-1]["step"]) + 1 if done else 0

    def generations(self, *ranks: int) -> list[int]:
        """Return the generations that steps of these ranks, all if left out, were in."""
        chosen = ranks or tuple(range(self.workers))
        return sorted({entry["generation"] for rank in chosen for entry in self.journal(rank, "step")})

    def train(self, steps: int, *ranks: int) -> None:
        """Wait until these ranks, all if left out, have done so many steps more, as the drill's scale has it."""
        chosen = ranks or tuple(range(self.workers))
        more = self.testbed.context.steps(steps)
        goals = {rank: self.steps(rank) + more for rank in chosen}
        self.testbed.context.note(f"{self.job}: training")
        for rank, goal in goals.items():
            within_s = PATIENCE_S + more * (self.plan.pace_s + 1.0)
            what = f"step {goal} of {self.name(rank)}"
            await_that(lambda: self.steps(rank) >= goal, what, within_s=within_s, alive=self.process(rank))  # noqa: B023

    # ---- the end --------------------------------------------------------------------------------------

    def finish(self, *ranks: int) -> None:
        """Let these ranks, all if left out, train to a common step, leave, and end. Raises DrillError."""
        chosen = ranks or tuple(range(self.workers))
        self.testbed.context.note(f"{self.job}: to its end")
        goal = max(self.steps(rank) for rank in chosen) + round(_MARGIN_S / self.plan.pace_s)
        _write_at_once(self.plan.goal, str(goal))
        for rank in chosen:
            ended = lambda: self.journal(rank, "end")  # noqa: B023, E731
            await_that(ended, f"the end of {self.name(rank)}", within_s=3 * PATIENCE_S, alive=self.process(rank))
        _write_at_once(self.plan.leave, "")
        for rank in chosen:
            self.ended(rank, 0)
        self.testbed.report.steps += goal

    def ended(self, rank: int, status: int) -> None:
        """Wait for the end of a rank's process. Raises DrillError for another exit status."""
        process = self.process(rank)
        await_that(lambda: not process.running(), f"the end of {self.name(rank)}", within_s=3 * PATIENCE_S)
        if (found := process.stop()) != status:
            raise DrillError(f"{self.name(rank)} ended with {found}: {process.log_text()[-1500:].strip()}")

    def delete(self) -> None:
        """Delete the job, and wait until the controller has it no more."""
        with self.testbed.operator() as operator:
            operator.delete(self.job)
            await_that(lambda: self.job not in [job.name for job in operator.jobs()], f"the end of job {self.job}")


def _write_at_once(path: Path, text: str) -> None:
    """Write a file that others read as soon as it is there."""
    made = path.with_suffix(".new")
    made.write_text(text, encoding="utf-8")
    made.rename(path)
