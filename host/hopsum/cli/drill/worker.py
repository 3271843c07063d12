# SPDX-License-Identifier: Apache-2.0
"""A worker's process: `python -m hopsum.cli.drill.worker PLAN.json RANK`. It trains, and writes its journal.

Trains until the file `goal` says how many steps there are, waits for the file `leave`, and leaves its job. Where other
workers were replaced it lets them have its state, and goes on; given up itself, it joins anew. Another error ends it,
with status 3.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import hopsum
from hopsum.aggregation import Aggregation
from hopsum.cli.drill.journal import Journal, Probes, digest, norm
from hopsum.cli.drill.training import Model, Plan, added
from hopsum.codec import ErrorFeedback
from hopsum.codec.range_codec import RangeCodec
from hopsum.errors import EpochOver, HopsumError, WorkersReplaced

FAILED: Final = 3
_POLL_S: Final = 0.02


class Worker:
    """One rank, from its joining to its end; given up, it begins another life, with nothing of its own."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._journal = Journal(plan.journal(rank))
        self._probes = Probes(plan.elements, plan.seed)
        self._begin()

    def run(self) -> int:
        """Train; return the process's exit status."""
        while True:
            try:
                with self._connect() as job:
                    return self._live(job)
            except EpochOver as error:
                self._fail("failed", error)
                self._begin()
            except HopsumError as error:
                self._fail("failed", error)
                return FAILED

    def _begin(self) -> None:
        """Forget everything."""
        self._model = Model(self._plan, self._rank)
        self._feedback = ErrorFeedback(self._plan.elements)
        self._step = 0
        self._taken = False

    def _connect(self) -> Aggregation:
        plan = self._plan
        url = f"{plan.url}?token_file={plan.token_file}&tls=off"
        return hopsum.connect(url, rank=self._rank, **plan.settings())

    def _live(self, job: Aggregation) -> int:
        """Train from the state of the others, where there is one, to the goal; return the exit status."""
        if job.is_newcomer:
            self._step = self._model.load(job.fetch_state(self._plan.membership_wait_s))
        self._journal.write("life", rank=self._rank, step=self._step, epoch=_epoch(job), is_newcomer=job.is_newcomer)
        while not self._done():
            try:
                self._train(job)
            except WorkersReplaced as error:
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

    def _train(self, job: Aggregation) -> None:
        gradient = self._model.gradient(self._step)
        own = {"gradient": self._probes.of(gradient), "size": norm(gradient + self._feedback.residual)}
        self._journal.write("begin", step=self._step, **own)
        self._taken = False
        submitted = job.submit(gradient, feedback=self._feedback, step=self._step)
        self._taken = True
        result = submitted.result()
        self._model.apply(result.mean)
        assert isinstance(job.codec, RangeCodec)
        applied = added(result.mean, result.contributors, job.codec.block_elements)
        self._journal.write(
            "step",
            step=self._step,
            epoch=_epoch(job),
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


def _epoch(job: Any) -> int:
    return int(job.membership.epoch)


def main(plan: str, rank: str) -> int:
    """Run one worker; return its exit status."""
    return Worker(Plan.read(Path(plan)), int(rank)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
