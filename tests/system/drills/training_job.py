# SPDX-License-Identifier: Apache-2.0
"""A job of the controller with its workers' processes, and waits for what the workers write into their journals."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hopsum.codec import job_tables, make_codec
from hopsum.rpc.channel import ControllerUnreachableError
from hopsum_topologies.process import ManagedProcess

from .drill import PATIENCE_S, Check, DrillError, await_that, first_sign, require_within
from .drill_testbed import DrillTestbed
from .drill_training import DrillPlan, WorkerOrder, options_of, reference
from .drill_worker import FAILED
from .journal import mass, read_journal, replicas_equal

SLOTS: Final = 16
MARGIN_S: Final = 2.0
"""The time beyond a lease in which news has to reach all ranks."""
_GOAL_S: Final = 1.0
"""Workers read the goal within this time, also on an overloaded machine."""
_NO_RESULT: Final = ("void", "failed")
_CONTROLLER_LOGGER: Final = "hopsum.rpc"


class TrainingJob:
    """One job with a worker on each rank.

    Args:
        first_seat: where rank 0 sits.
        folder: holds the job's files.
        controllers: by rank, the address at which it reaches the controller, where that is another one.
        shards: number of switches that the job is over.
        min_workers: for a job of MIN:MAX workers. It waits for nobody who is gone.
        starts: number of ranks whose workers are started at once, all if None.
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
        min_workers: int | None = None,
        starts: int | None = None,
        **settings: Any,
    ) -> None:
        self.testbed, self.job, self.workers = testbed, job, workers
        self._first_seat = first_seat
        self._controllers = controllers or {}
        at = testbed.context.folder / (folder or job)
        at.mkdir()
        seed, options = testbed.context.seed, options_of(codec)
        made_with = {"codec": codec, "codec_options": options, "seed": seed, **settings}
        url = f"hopsum://{testbed.network.controller_address}/{job}?tls=off"
        self.plan = DrillPlan(url, str(at / "token"), str(at), workers, **made_with)
        tables: dict[str, Any] = job_tables(make_codec(codec, workers=workers, backend="numpy", **options))
        with testbed.operator() as operator:
            fewer = {} if min_workers is None else {"min_workers": min_workers, "replace_s": 0.0}
            made = operator.create(job, workers, SLOTS, quorum=quorum, shards=shards, **fewer, **tables)
        (at / "token").write_text(made.token, encoding="utf-8")
        self._plan_path = at / "plan.json"
        self.plan.write(self._plan_path)
        for rank in range(workers if starts is None else starts):
            self.start(rank)

    def name(self, rank: int) -> str:
        return f"rank {rank} of {self.job}"

    def process(self, rank: int) -> ManagedProcess:
        """Return a rank's process, the one that was started last."""
        return self.testbed.processes[self.name(rank)]

    def start(self, rank: int, *, bare: bool = False) -> None:
        """Start a worker's process. A bare one connects without a `with` statement."""
        command = [sys.executable, "-m", "drills.drill_worker", str(self._plan_path), str(rank)]
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
        write_at_once(self.plan.order(rank), order)

    def steps(self, rank: int) -> int:
        """Return the number of steps in a rank's model, those before it joined as a newcomer included."""
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
        for rank, goal in goals.items():
            within_s = PATIENCE_S + more * (self.plan.pace_s + 1.0)
            what = f"step {goal} of {self.name(rank)}"
            await_that(lambda: self.steps(rank) >= goal, what, within_s=within_s, alive=self.process(rank))  # noqa: B023

    # ---- the end --------------------------------------------------------------------------------------

    def finish(self, *ranks: int) -> None:
        """Let these ranks, all if left out, train to a common step, leave, and end. Raises DrillError."""
        chosen = ranks or tuple(range(self.workers))
        goal = max(self.steps(rank) for rank in chosen) + round(_GOAL_S / self.plan.pace_s)
        write_at_once(self.plan.goal, str(goal))
        for rank in chosen:
            ended = lambda: self.journal(rank, "end")  # noqa: B023, E731
            await_that(ended, f"the end of {self.name(rank)}", within_s=3 * PATIENCE_S, alive=self.process(rank))
        write_at_once(self.plan.leave, "")
        for rank in chosen:
            self.ended(rank, 0)
        self.testbed.report.steps += goal

    def await_failed(self, rank: int) -> dict[str, Any]:
        """Wait until a rank's process has ended after a failed all-reduce. Return the entry. Raises DrillError."""
        self.ended(rank, FAILED)
        return self.journal(rank, "failed")[-1]

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

    # ---- waits and checks -----------------------------------------------------------------------------

    def others_know(self, rank: int, at_s: float, within_s: float) -> float:
        """Return the seconds after which the last of the other ranks knew that `rank` had ended.

        A rank knows by the controller's word in its log, or by an error. A wait for that rank's part of a sum is no
        knowledge. Raises DrillError when the seconds are more than `within_s`.
        """
        took_s = 0.0
        for other in set(range(self.workers)) - {rank}:
            what = f"word of rank {rank} in the journal of rank {other}"
            heard_s = self.hears(other, at_s, rf"\branks? (\d+, )*{rank}\b", what, _CONTROLLER_LOGGER)
            took_s = max(took_s, heard_s - at_s)
        require_within("all other ranks knew of it", took_s, within_s)
        return took_s

    def hears(self, rank: int, at_s: float, words: str, what: str, logger: str = "") -> float:
        """Return the time at which a rank's log or one of its errors since `at_s` had a pattern. Raises DrillError."""

        def heard() -> float | None:
            entry = self.since(at_s, rank, "log", "void", "failed", words=words, logger=logger)
            return None if entry is None else float(entry["at"])

        return first_sign(heard, what)

    def is_back(self, rank: int, at_s: float) -> float:
        """Return the time after `at_s` at which a rank joined with the others' state. Raises DrillError."""

        def back() -> float | None:
            entry = self.since(at_s, rank, "life")
            return float(entry["at"]) if entry is not None and entry["is_newcomer"] else None

        return first_sign(back, f"newcomer on rank {rank}")

    def comes_back(self, rank: int, at_s: float) -> None:
        """Wait until a rank that was lost at `at_s` is a newcomer, then train to the end, and report."""
        others = [other for other in range(self.workers) if other != rank]

        def told() -> float | None:
            return next((entry["at"] for other in others for entry in self.journal(other, "void")), None)

        report = self.testbed.report
        told_s = first_sign(told, "WorkersReplacedError in another worker")
        report.took(told_s - at_s, "WorkersReplacedError in the first of the others")
        report.took(self.is_back(rank, at_s) - at_s, f"rank {rank} was back with the state of the others")
        self.train(20)
        self.finish()

    def continues_after(self, generation: int) -> float:
        """Return the time of rank 0's first step in a generation above this one. Raises DrillError."""

        def continued_at() -> float | None:
            return next((entry["at"] for entry in self.journal(0, "step") if entry["generation"] > generation), None)

        return first_sign(continued_at, "step in another generation")

    def keeps_places(self) -> float:
        """Wait until the controller has heard each member do more steps. Return the time. Raises DrillError."""
        with self.testbed.operator() as operator:
            counted = {rank: self.steps(rank) for rank in range(self.workers)}

            def heard() -> bool:
                try:
                    members = operator.job(self.job).members
                except ControllerUnreachableError:  # the controller may wait for its switch, whose counters it shows
                    return False
                return len(members) == self.workers and all(
                    member.statistics.get("allreduces", 0) > counted[member.rank] for member in members
                )

            await_that(heard, f"heartbeats of all ranks of {self.job}")
        return self.testbed.now()

    def all_heard(self) -> float:
        """Wait until a controller that was just started has heard all ranks. Return the time. Raises DrillError."""

        def heard() -> float | None:
            with self.testbed.operator() as operator:
                members = operator.job(self.job).members
            return self.testbed.now() if sum(bool(each.statistics) for each in members) == self.workers else None

        return first_sign(heard, f"heartbeats of all ranks of {self.job}")

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time between two steps of rank 0, the first of which may be before `since_s`."""
        at: list[float] = [entry["at"] for entry in self.journal(0, "step")]
        return max(after - before for before, after in pairwise(at) if after > since_s)

    def require_results(self, generations: int) -> None:
        """Raise DrillError unless every all-reduce has a result, and the steps were in so many generations."""
        ends = [entry for rank in range(self.workers) for entry in self.journal(rank) if entry["kind"] in _NO_RESULT]
        if ends:
            raise DrillError(f"all-reduces without a result: {ends[0]['error']}: {ends[0]['text']}")
        if len(found := self.generations()) != generations:
            raise DrillError(f"{len(found)} generations instead of {generations}: {found}")

    def require_refusal(self, rank: int) -> None:
        """Raise DrillError unless a rank was told that it had been evicted."""
        texts = [entry["text"] for entry in self.journal(rank, "failed") if entry["error"] == "GenerationEndedError"]
        if not any("evicted" in text for text in texts):
            raise DrillError(f"rank {rank} was not told that it had been evicted: {texts}")

    def judge(self, *, bits: bool = False) -> None:
        """Compute the checks of the journals, and delete the job.

        Args:
            bits: no step is missing and all ranks contributed to all: compare with a training in memory.
        """
        report, journals = self.testbed.report, self.journals()
        found = mass(journals)
        report.checks["replicas_equal"] = replicas_equal(journals)
        report.checks["mass_conserved"] = found.check
        report.lost_norms |= found.lost_norms
        self.delete()
        if bits and report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = self.same_bits()

    def same_bits(self) -> Check:
        """Compare the digests of rank 0's model with those of the same training in memory."""
        found = [entry["digest"] for entry in self.journal(0, "step")]
        steps = self.testbed.report.steps
        if len(found) != steps:
            return Check(False, f"{len(found)} steps in the journal of rank 0, not {steps}")
        for step, (one, other) in enumerate(zip(found, reference(self.plan, steps), strict=True)):
            if one != other:
                return Check(False, f"step {step}: another model than the same training in memory, without a switch")
        return Check(True, f"the bits of the same training in memory, on all replicas, after each of {steps} steps")


def write_at_once(path: Path, text: str) -> None:
    """Write a file that others read as soon as it exists."""
    made = path.with_suffix(".new")
    made.write_text(text, encoding="utf-8")
    made.rename(path)
