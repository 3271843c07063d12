# SPDX-License-Identifier: Apache-2.0
"""The measurements of section `growth`, in a process of their own: links, a switch, workers, jobs.

gRPC's threads live in the network namespace where they were started, and a process has one set of them: so the
sections that need namespaces do not share a process.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Final, TypeVar

from rich.console import Console

from hopsum.codec import job_tables, make_codec
from hopsum.errors import HopsumError
from hopsum.plan import Costs
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_evaluation.bench.allreduce_report import RateFinding
from hopsum_evaluation.bench.allreduce_run import AllReduceSetting, WrongMeanError, run
from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, Measured
from hopsum_evaluation.bench.allreduce_worker import run as run_worker
from hopsum_evaluation.bench.placement import cpu_time
from hopsum_evaluation.bench.placements import ShardedJobs, seats_of, start_switches
from hopsum_evaluation.plan.calibrate import measure_costs
from hopsum_evaluation.report.settings import NotRunError
from hopsum_topologies import Star
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.tempdirs import temporary_directory
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

RATE: Final = "1gbit"
RATE_BITS_PER_S: Final = 1e9
CODEC: Final = "thc"
WINDOW: Final = 512
JOB_WINDOW: Final = 128
"""Slots of each job where several share the switch."""
JOB_WORKERS: Final = 2

Point = dict[str, Any]
"""One measured point: elements, workers, jobs, seconds of each run, medians of the rest."""


_Found = TypeVar("_Found")


def apart(measure: Callable[..., _Found], *arguments: Any) -> _Found:
    """Return what `measure` returns in a process of its own. Raises NotRunError with what went wrong there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_told, measure, *arguments).result()
        except BrokenProcessPool as error:
            raise NotRunError(f"the process of the measurement ended early: {error}") from error


def _told(measure: Callable[..., _Found], *arguments: Any) -> _Found:
    """Return what `measure` returns. An error becomes one that passes between processes: not every one can."""
    try:
        return measure(*arguments)
    except (ControlPlaneError, TopologyError, WorkerDiedError, WrongMeanError, HopsumError, OSError) as error:
        raise NotRunError(f"{type(error).__name__}: {error}") from None


def measure_allreduce(elements: int, workers: int, buckets: int, runs: int, seed: int) -> Point:
    """Time an all-reduce on links of RATE, with one switch in the middle. Raises as `allreduce_run.run`."""
    setting = AllReduceSetting([RATE], workers, elements, buckets, WINDOW, runs, seed, [CODEC], "auto")
    (found,) = find_rates(setting)
    return _point(found, elements, workers, 1)


def find_rates(setting: AllReduceSetting) -> list[RateFinding]:
    """Return the findings of `hopsum bench allreduce`, without its words. Raises as `allreduce_run.run`."""
    return run(setting, Console(quiet=True))


def costs_here(runs: int, scale: float, seed: int) -> Costs:
    """Return the costs of this machine, as `hopsum plan --calibrate`. Raises PlanError."""
    return measure_costs(runs, scale, seed, Console(quiet=True))


def measure_jobs(jobs: int, elements: int, runs: int, seed: int) -> Point:
    """Time an all-reduce of several jobs at the same time on one switch, each of JOB_WORKERS workers.

    Seconds are those of the slowest job. Raises ControlPlaneError, TopologyError, WorkerDiedError.
    """
    codec = make_codec(CODEC, workers=JOB_WORKERS)  # compiled once, here
    found = RateFinding(CODEC, RATE, RATE_BITS_PER_S)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("growth"))
        star = stack.enter_context(Star(jobs * JOB_WORKERS))
        (switch,) = start_switches(stack, "fabric", star, jobs * JOB_WORKERS)
        everyone = seats_of(star, [switch], jobs * JOB_WORKERS)
        star.shape(RATE)
        plan = AllReducePlan(run_worker.__module__, JOB_WORKERS, elements, 1, seed, min(elements, 1024), "eth0", folder,
                             codec=CODEC, services=(switch.service,))  # fmt: skip
        generations, pools = GenerationAllocator(), []
        for number in range(jobs):
            own = everyone[number * JOB_WORKERS : (number + 1) * JOB_WORKERS]
            seats = [replace(seat, rank=rank) for rank, seat in enumerate(own)]
            pool = stack.enter_context(WorkerPool(seats, run_worker, plan))
            bound = [places for (places,) in pool.gather("bound")]
            path = folder / f"job{number}.json"
            ShardedJobs(stack, [switch], seats, generations).create(
                path.stem, bound, JOB_WINDOW, job_tables(codec), path, time.time()
            )
            pool.send(str(path))
            pools.append(pool)
        ready = max(rss for pool in pools for (rss,) in pool.gather("ready"))
        for number in range(runs + 1):
            before, used_s = star.counts(), sum(cpu_time(switch.pid))
            for pool in pools:
                pool.send(CODEC)
            done = [Measured(*message) for pool in pools for message in pool.gather("done")]
            passed = [now.since(then) for now, then in zip(star.counts(), before, strict=True)]
            if number:  # the first warms up
                found.add(done, passed, sum(cpu_time(switch.pid)) - used_s)
        found.ready_rss_bytes = ready
        for pool in pools:
            pool.send(None)
            pool.gather("finished")
    return _point(found, elements, JOB_WORKERS, jobs)


def _point(found: RateFinding, elements: int, workers: int, jobs: int) -> Point:
    busiest = [max(max(link.wire_bytes_up, link.wire_bytes_down) for link in links) for links in found.passed]
    return {
        "elements": elements,
        "workers": workers,
        "jobs": jobs,
        "seconds": found.seconds,
        "worker_cpu_s": median(found.worker_cpu_s),
        "switch_cpu_s": fmean(found.switch_cpu_s),
        "memory_bytes": max(found.peak_rss_bytes) - found.ready_rss_bytes,
        "busiest_bytes": median(busiest),
        "retransmits": found.retransmits,
    }
