# SPDX-License-Identifier: Apache-2.0
"""A worker's process: `python -m drills.drill_worker PLAN.json RANK`. It trains, and writes its journal.

Trains until the file `goal` says how many steps there are, waits for the file `leave`, and leaves its job. Where other
workers were replaced it lets them have its state, and continues. A worker that is itself evicted joins anew. Another
error ends it, with status 3. Between two steps it follows the orders of the drill (`WorkerOrder`). The library's logs
go into the journal.

    --bare      connect without a `with` statement
    --url URL   connect there, in place of the plan's URL
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import hopsum
from hopsum.agent import AllReduceResult, Communicator
from hopsum.codec import ErrorFeedback
from hopsum.codec.range_codec import RangeCodec
from hopsum.errors import GenerationEndedError, HopsumError, WorkersReplacedError

from .drill_training import DrillModel, DrillPlan, WorkerOrder, added
from .journal import Journal, Probes, digest, norm

FAILED: Final = 3
_POLL_S: Final = 0.02
_CHILD_S: Final = 30.0
"""The time that a forked child may take to end."""


class UserCodeError(Exception):
    """Any error of the program around the library."""


class _ToJournal(logging.Handler):
    """Writes log records into a journal, as kind `log`."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.INFO)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.write("log", logger=record.name, text=record.getMessage())


class DrillWorker:
    """One rank, from its joining to its end. After an eviction it begins another life, without state."""

    def __init__(self, plan: DrillPlan, rank: int, *, bare: bool = False, url: str = "") -> None:
        self._plan, self._rank = plan, rank
        self._bare, self._url = bare, url or plan.url
        self._journal = Journal(plan.journal(rank))
        logger = logging.getLogger("hopsum")
        logger.addHandler(_ToJournal(self._journal))
        logger.setLevel(logging.INFO)
        self._probes = Probes(plan.elements, plan.seed)
        self._begin()

    def run(self) -> int:
        while True:
            try:
                with self._opened() as job:
                    return self._live(job)
            except UserCodeError:
                if not self._bare:
                    self._journal.write("closed")
                raise
            except GenerationEndedError as error:
                self._fail("failed", error)
                self._begin()
            except HopsumError as error:
                self._fail("failed", error)
                return FAILED

    def _begin(self) -> None:
        """Forget everything."""
        self._model = DrillModel(self._plan, self._rank)
        self._feedback = ErrorFeedback(self._plan.elements)
        self._step = 0
        self._taken = False

    def _opened(self) -> AbstractContextManager[Communicator]:
        plan = self._plan
        url = f"{self._url}{'&' if '?' in self._url else '?'}token_file={plan.token_file}"
        job = hopsum.connect(url, rank=self._rank, **plan.settings())
        return nullcontext(job) if self._bare else job

    def _live(self, job: Communicator) -> int:
        """Train from the state of the others, where there is one, to the goal. Return the exit status."""
        if job.is_newcomer:
            self._step = self._model.load(job.fetch_state(self._plan.membership_wait_s))
        self._journal.write(
            "life", rank=self._rank, step=self._step, generation=_generation(job), is_newcomer=job.is_newcomer
        )
        while not self._done():
            try:
                self._obey(job)
                self._train(job)
            except WorkersReplacedError as error:
                self._fail("void", error, ranks=error.ranks)
                self._step += 1
                job.resume(lambda: self._model.dump(self._step))
            time.sleep(self._plan.pace_s)
        self._journal.write("end", steps=self._step)
        while not self._plan.leave.exists():
            time.sleep(_POLL_S)
        return 0

    def _done(self) -> bool:
        if not self._plan.goal.exists():
            return False
        goal = int(self._plan.goal.read_text())
        if self._step > goal:
            raise SystemExit(f"rank {self._rank} has done {self._step} steps, beyond the goal of {goal}")
        return self._step == goal

    def _obey(self, job: Communicator) -> None:
        """Do what the drill orders, if anything. Raises UserCodeError where that is the order."""
        order = self._plan.take_order(self._rank)
        if order is WorkerOrder.FORK:
            self._fork()
        elif order is not None:
            if order is WorkerOrder.RAISE_IN_FLIGHT:
                self._submit(job)
            self._journal.write("raised")
            raise UserCodeError("out of memory, or a bad batch")

    def _fork(self) -> None:
        """Fork a child that exits normally, and write down its exit status, None if it does not end."""
        child = os.fork()
        if child == 0:
            sys.exit(0)
        until, status = time.monotonic() + _CHILD_S, None
        while status is None and time.monotonic() < until:
            time.sleep(_POLL_S)
            ended, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
        self._journal.write("forked", status=status)

    def _submit(self, job: Communicator) -> Future[AllReduceResult]:
        gradient = self._model.gradient(self._step)
        own = {"gradient": self._probes.of(gradient), "size": norm(gradient + self._feedback.residual)}
        self._journal.write("begin", step=self._step, **own)
        self._taken = False
        submitted = job.submit(gradient, feedback=self._feedback, step=self._step)
        self._taken = True
        return submitted

    def _train(self, job: Communicator) -> None:
        result = self._submit(job).result()
        self._model.apply(result.mean)
        assert isinstance(job.codec, RangeCodec)
        applied = added(result.mean, result.contributors, job.codec.block_elements)
        self._journal.write(
            "step",
            step=self._step,
            generation=_generation(job),
            digest=digest(self._model.weights),
            contributors=[int(bits) for bits in result.contributors],
            applied=self._probes.of(applied),
            **self._residual(),
        )
        self._step += 1

    def _residual(self) -> dict[str, Any]:
        residual = self._feedback.residual
        return {"residual": self._probes.of(residual), "residual_norm": norm(residual)}

    def _fail(self, kind: str, error: HopsumError, **more: Any) -> None:
        """Write down an error, and whether the all-reduce had been taken in, so that its vector was given back."""
        what = {"error": type(error).__name__, "text": str(error), **more}
        self._journal.write(kind, step=self._step, taken=self._taken, **what, **self._residual())
        self._taken = False


def _generation(job: Any) -> int:
    return int(job.membership.generation)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path, help="file of the drill's plan")
    parser.add_argument("rank", type=int, help="rank of this worker")
    parser.add_argument("--bare", action="store_true", help="connection without a `with` statement")
    parser.add_argument("--url", default="", help="address of the job (default: the plan's)")
    options = parser.parse_args(arguments)
    return DrillWorker(DrillPlan.read(options.plan), options.rank, bare=options.bare, url=options.url).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
