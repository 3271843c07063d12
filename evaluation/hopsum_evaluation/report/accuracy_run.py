# SPDX-License-Identifier: Apache-2.0
"""The trainings of section `accuracy`: links, a switch, a pool of workers, in a process of their own.

gRPC's threads live in the network namespace where they were started, and a process has one set of them: so the
sections that need namespaces do not share a process.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hopsum.codec import job_tables, make_codec
from hopsum.errors import HopsumError
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_evaluation.bench.placements import ShardedJobs, hosts_of, seats_of, start_switches
from hopsum_evaluation.report.accuracy_plan import PACE, AccuracyPlan, Course, Ready, TrainingOrder, TrainingRun, work
from hopsum_evaluation.report.settings import NotRunError, Tell
from hopsum_topologies import Star
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

WINDOW = 512
Keep = Callable[[dict[str, Any]], None]
_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Trainings:
    """All of them."""

    workers: int
    courses: Sequence[Course]
    seeds: Sequence[int]
    """One per repeat, as many as any rate of a course needs."""
    placement: str = "fabric"
    """The place of the switches, as `hopsum bench allreduce` has it."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """Return the schemes that the switch sums, by the spelling of their codecs."""
        schemes = dict.fromkeys(scheme for course in self.courses for scheme in course.schemes)
        return tuple(scheme for scheme in schemes if scheme.partition(":")[0] == "thc")

    @property
    def count(self) -> int:
        """How many trainings there are."""
        return sum(
            (sum(course.rates.values()) + sum(course.paced.values())) * len(course.schemes) for course in self.courses
        )


def run_apart(trainings: Trainings, tell: Tell, keep: Keep = lambda _: None) -> dict[str, Any]:
    """Return what `run` returns, done by a process of its own. Raises NotRunError with what went wrong there.

    Args:
        keep: is given the figures of each training as soon as it is over.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(trainings, theirs))
    process.start()
    theirs.close()
    try:
        while True:
            kind, *rest = ours.recv()
            if kind == "told":
                tell(rest[0], rest[1])
            elif kind == "ran":
                keep(rest[0])
            elif kind == "failed":
                raise NotRunError(rest[0])
            else:
                found: dict[str, Any] = rest[0]
                return found
    except EOFError:
        raise NotRunError("the process of the trainings ended early; its last words are above") from None
    finally:
        ours.close()
        process.join(_END_S)
        if process.is_alive():
            process.terminate()
            process.join()


def _run(trainings: Trainings, pipe: Connection) -> None:
    try:
        found = run(
            trainings,
            lambda done, now: pipe.send(("told", done, now)),
            lambda each: pipe.send(("ran", each)),
        )
        pipe.send(("found", found))
    except (ControlPlaneError, TopologyError, WorkerDiedError, HopsumError, OSError) as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def run(trainings: Trainings, tell: Tell, keep: Keep) -> dict[str, Any]:
    """Do all trainings, schemes taking turns. Return their figures. Each run's are kept as soon as it is over.

    Raises ControlPlaneError, TopologyError, WorkerDiedError, OSError.
    """
    codecs = {name: make_codec(name, workers=trainings.workers) for name in trainings.codecs}  # compiled once, here
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsum-report-")))
        star = stack.enter_context(Star(hosts_of(trainings.placement, trainings.workers)))
        tell(0.0, f"starting the switch and {trainings.workers} workers")
        switches = start_switches(stack, trainings.placement, star, trainings.workers)
        seats = seats_of(star, switches, trainings.workers)
        jobs = ShardedJobs(stack, switches, seats, GenerationAllocator())
        models = tuple(course.model for course in trainings.courses)
        services = tuple(switch.service for switch in switches)
        plan = AccuracyPlan(trainings.workers, models, trainings.codecs, folder, services)
        pool = stack.enter_context(WorkerPool(seats, work, plan))
        for number, codec in enumerate(codecs.values()):
            path = folder / f"report{number}.json"
            bound = [places for (places,) in pool.gather("bound")]
            jobs.create(path.stem, bound, WINDOW, job_tables(codec), path, time.time())
            pool.send(str(path))
        ready = [Ready(*each) for each in pool.gather("ready")[0][0]]
        runs = _train_all(trainings, star, pool, tell, keep)
        pool.send(None)
        pool.gather("finished")
    trained = {
        course.model: {"steps": course.steps, "batch": course.batch, **each._asdict()}
        for course, each in zip(trainings.courses, ready, strict=True)
    }
    return {"models": trained, "runs": runs}


def _train_all(trainings: Trainings, star: Star, pool: WorkerPool, tell: Tell, keep: Keep) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for course in trainings.courses:
        rates = [(rate, course.rates[rate], False) for rate in course.rates]
        rates += [(rate, course.paced[rate], True) for rate in course.paced]
        for rate, repeats, paced in rates:
            star.shape(rate)
            steps, every = PACE if paced else (course.steps, course.every)
            for repeat, seed in enumerate(trainings.seeds[:repeats]):
                for scheme in _turned(course.schemes, repeat):
                    tell(len(runs) / trainings.count, f"{course.model}, {rate}, {scheme}, seed {repeat + 1}")
                    order = TrainingOrder(course.model, scheme, seed, steps, course.batch, every, course.diloco)
                    pool.send(tuple(order))
                    runs.append({
                        "model": course.model, "rate": rate, "bits_per_s": star.rate_bits_per_s(), "scheme": scheme,
                        "placement": trainings.placement, "paced": paced, "repeat": repeat,
                        **gather_trained(pool)[0]._asdict(),
                    })  # fmt: skip
                    keep(runs[-1])
    return runs


def _turned(schemes: Sequence[str], repeat: int) -> Sequence[str]:
    """Return the schemes in the order of a repeat: another one begins, since what comes first finds cold caches."""
    first = repeat % len(schemes)
    return (*schemes[first:], *schemes[:first])


def gather_trained(pool: WorkerPool) -> list[TrainingRun]:
    """Wait until all workers are done with a training, however long it takes while they go on. Return what they found.

    Raises WorkerDiedError.
    """
    found: dict[int, TrainingRun] = {}
    while len(found) < len(pool.pipes):
        rank, message = pool.receive()
        if message[0] == "done":
            found[rank] = TrainingRun(*message[1:])
        elif message[0] != "step":
            raise WorkerDiedError(f"worker {rank} sent {message[0]!r} in a training")
    return [found[rank] for rank in range(len(pool.pipes))]
