# SPDX-License-Identifier: Apache-2.0
"""Two engines at the same time, a process and a core for each: what shards on one machine sum together.

Frames are handed over in memory, so that the workers, which have no cores of their own here, take none of the time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from hopsum_controlplane.artifacts import compiled_program
from hopsum_evaluation.bench.pipeline import engine_run
from hopsum_switch.backend import Backend
from hopsum_topologies.seat import Seat
from hopsum_topologies.worker_pool import WorkerPool

ENGINES = 2


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """A job on an engine, and the cores of the engines."""

    workers: int
    slots: int
    table: tuple[int, ...]
    seed: int
    cores: tuple[int, ...]


class SideBySide:
    """Engines that wait until they are asked to run. The pool stays the caller's. Raises WorkerDiedError."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        pool.gather("ready")

    def alone(self, seconds: float) -> float:
        """Let the first engine run. Return UPDATEs per second. Raises WorkerDiedError."""
        self._pool.pipes[0].send(seconds)
        _, (_, rate) = self._pool.receive()
        return float(rate)

    def together(self, seconds: float) -> float:
        """Let all engines run at the same time. Return the UPDATEs per second of all. Raises WorkerDiedError."""
        self._pool.send(seconds)
        return float(sum(rate for (rate,) in self._pool.gather("rate")))

    def close(self) -> None:
        """Let the engines end, and wait for that."""
        self._pool.send(None)
        self._pool.gather("finished")


def engine_pool(plan: EnginePlan) -> WorkerPool:
    """Return a pool with a process for each of ENGINES cores."""
    seats = [Seat(number, 0, "", "", ("", 0)) for number in range(ENGINES)]
    return WorkerPool(seats, run_engine, replace(plan, cores=plan.cores[:ENGINES]))


def run_engine(seat: Seat, plan: EnginePlan, pipe: Connection) -> None:
    """Be one engine, on its own core."""
    os.sched_setaffinity(0, {plan.cores[seat.rank]})
    with engine_run(
        Backend.NATIVE, plan.workers, plan.slots, plan.table, plan.seed, program=compiled_program()
    ) as engine:
        pipe.send(("ready",))
        while (seconds := pipe.recv()) is not None:
            pipe.send(("rate", engine.run(seconds)))
