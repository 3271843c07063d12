# SPDX-License-Identifier: Apache-2.0
"""Jobs of MIN:MAX workers at a real controller and switch: workers come and go while the others sum, in any order.

Nobody's vector is lost but what dies with a worker: the books of the error feedback are those of the drills.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hopsum.agent import Communicator
from hopsum.codec import ErrorFeedback, job_tables, make_codec
from hopsum.codec.range_codec import RangeCodec
from hopsum.errors import WorkersReplacedError
from hopsum_controlplane import JobSpec
from hopsum_controlplane.cluster import ClusterController

from ...support.processes import await_that
from ...support.restartable_controller import SLOTS, RestartableController, close_all
from ...support.restartable_controller import controller as controller
from ...system.drills.drill_training import DrillModel, DrillPlan, added
from ...system.drills.journal import Probes, digest, mass, norm, replicas_equal

pytestmark = pytest.mark.system
WAIT_S = 60.0
NAME, WORKERS, REPLACE_S = "train", 4, 0.3
PLAN = DrillPlan("", "", "", WORKERS, codec="fixed", elements=1500)


@pytest.fixture
def desk(controller: RestartableController) -> Iterator[tuple[ClusterController, str]]:
    with controller.running() as cluster:
        tables = job_tables(make_codec("thc:result_bits=8", workers=WORKERS))
        request = JobSpec(NAME, ranks=WORKERS, slots=SLOTS, tables=tables, min_workers=1, replace_s=REPLACE_S)
        yield cluster, cluster.create_job(request).token


def vector(job: Communicator) -> np.ndarray:
    return np.float32([job.rank, 2, *range(700)])


def mean(future: Future[Any]) -> list[float]:
    found: list[float] = future.result(WAIT_S).mean[:2].tolist()
    return found


def test_without_a_lost_worker_and_with_one_that_comes_late(
    controller: RestartableController, desk: tuple[ClusterController, str]
) -> None:
    cluster, token = desk
    # Nobody is to take the place of a rank that the job continues without.
    jobs = controller.connect_all(NAME, token, 3, replacement_wait_s=0.0)
    assert [job.workers for job in jobs] == [WORKERS] * 3
    assert [mean(future) for future in [job.submit(vector(job)) for job in jobs]] == [[1.0, 2.0]] * 3
    waiting = [job.submit(vector(job)) for job in jobs[:2]]
    jobs[2].submit(vector(jobs[2]))
    closing = threading.Thread(target=lambda: leave_unfinished(jobs[2]))
    closing.start()
    # No error: the sum that was in progress is of three workers on both ranks, or of two.
    assert mean(waiting[0]) == mean(waiting[1])
    assert mean(waiting[0]) in ([1.0, 2.0], [0.5, 2.0])
    closing.join()
    assert [mean(future) for future in [job.submit(vector(job)) for job in jobs[:2]]] == [[0.5, 2.0]] * 2
    await_that(lambda: [*cluster.job(NAME).absent_ranks] == [2, 3])
    with ThreadPoolExecutor(2) as pool:
        coming = pool.submit(controller.connect, NAME, token, 3)
        for job in jobs[:2]:
            with pytest.raises(WorkersReplacedError, match="rank 3"):
                sum_until_an_error(job)
            job.resume(lambda: b"step 9")
        newcomer = coming.result(WAIT_S)
        assert newcomer.is_newcomer
        assert newcomer.fetch_state(WAIT_S) == b"step 9"
    jobs = [*jobs[:2], newcomer]
    futures = [job.submit(vector(job)) for job in jobs]
    assert [mean(future) for future in futures] == [[pytest.approx(4 / 3, abs=1e-3), 2.0]] * 3
    close_all(jobs)


def sum_until_an_error(job: Communicator) -> None:
    while True:
        job.allreduce(vector(job))


def leave_unfinished(job: Communicator) -> None:
    with pytest.raises(GoneError), job:
        raise GoneError


class GoneError(Exception):
    """The end of a worker."""


class Rank(threading.Thread):
    """A worker that trains until it is told to end, or to vanish, and keeps a journal as the drills' workers do."""

    def __init__(
        self, controller: RestartableController, token: str, rank: int, codec: str, journal: list[dict[str, Any]]
    ) -> None:
        super().__init__(name=f"rank {rank}")
        self.rank, self.journal = rank, journal
        self.gone, self.goal = threading.Event(), threading.Event()
        self.steps = 0
        self.last_step = 0
        """After `goal`: the number of steps at which it ends."""
        self.error: BaseException | None = None
        self._controller, self._token, self._codec = controller, token, codec
        self._model, self._feedback = DrillModel(PLAN, rank), ErrorFeedback(PLAN.elements)
        self._probes = Probes(PLAN.elements, PLAN.seed)

    def run(self) -> None:
        try:
            with self._controller.connect(NAME, self._token, self.rank, codec=self._codec, backend="auto") as job:
                self._train(job)
                self.note("end", steps=self.steps)
        except GoneError:
            pass
        except BaseException as error:
            self.error = error

    def note(self, kind: str, **fields: Any) -> None:
        self.journal.append({"kind": kind, "at": time.monotonic(), **fields})

    def _train(self, job: Communicator) -> None:
        if job.is_newcomer:
            self.steps = self._model.load(job.fetch_state(WAIT_S))
        self.note("life", step=self.steps, is_newcomer=job.is_newcomer)
        while not (self.goal.is_set() and self.steps >= self.last_step):
            gradient = self._model.gradient(self.steps)
            size = norm(gradient + self._feedback.residual)
            self.note("begin", step=self.steps, gradient=self._probes.of(gradient), size=size)
            try:
                future = job.submit(gradient, feedback=self._feedback, step=self.steps)
                if self.gone.is_set():
                    raise GoneError
                result = future.result(WAIT_S)
            except WorkersReplacedError:
                self.note("void", step=self.steps, taken=True, **self._residual())
                self.steps += 1
                job.resume(lambda: self._model.dump(self.steps))
                continue
            self._model.apply(result.mean)
            assert isinstance(job.codec, RangeCodec)
            applied = added(result.mean, result.contributors, job.codec.block_elements)
            self.note(
                "step",
                step=self.steps,
                digest=digest(self._model.weights),
                contributors=[int(bits) for bits in result.contributors],
                applied=self._probes.of(applied),
                **self._residual(),
            )
            self.steps += 1
            time.sleep(0.005)

    def _residual(self) -> dict[str, Any]:
        residual = self._feedback.residual
        return {"residual": self._probes.of(residual), "residual_norm": norm(residual)}


@contextmanager
def ended(live: dict[int, Rank]) -> Iterator[None]:
    """End all workers, also after a failure."""
    try:
        yield
    finally:
        last_step = max(each.steps for each in live.values()) + 100
        for each in live.values():
            each.last_step = last_step
            each.goal.set()
        for each in live.values():
            each.join(WAIT_S)


def trains(each: Rank) -> None:
    """Wait until a worker has done some steps from now on."""
    before = each.steps
    await_that(lambda: each.steps > before + 3 or each.error is not None, WAIT_S)
    assert each.error is None, each.error


# The codes of thc are in the stream before their ranges are known (O5), those of fixed have no ranges. Whole sums: the
# error of requantised results is in nobody's books.
@pytest.mark.parametrize(("codec", "seed"), [("fixed", 0), ("thc:result_bits=8", 1), ("thc:result_bits=8", 2)])
def test_the_books_balance_over_losses_and_joins(
    controller: RestartableController, desk: tuple[ClusterController, str], codec: str, seed: int
) -> None:
    _, token = desk
    rng = random.Random(seed)
    journals: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(WORKERS)}
    live: dict[int, Rank] = {}

    def begin(rank: int) -> None:
        live[rank] = Rank(controller, token, rank, codec, journals[rank])
        live[rank].start()

    for rank in range(rng.randint(1, WORKERS)):
        begin(rank)
    with ended(live):
        for each in live.values():
            trains(each)
        for _ in range(4):
            absent = sorted(set(range(WORKERS)) - live.keys())
            if absent and (len(live) == 1 or rng.random() < 0.5):
                for rank in rng.sample(absent, rng.randint(1, len(absent))):
                    begin(rank)
            else:
                for rank in rng.sample(sorted(live), rng.randint(1, len(live) - 1)):
                    live[rank].gone.set()
                    live.pop(rank).join(WAIT_S)
            for each in live.values():
                trains(each)
    assert [each.error for each in live.values() if each.error is not None] == []
    assert {entries[-1]["kind"] for rank, entries in journals.items() if rank in live} == {"end"}
    for check in (replicas_equal(journals), mass(journals).check):
        assert check.ok, check.why
