# SPDX-License-Identifier: Apache-2.0
"""The run of `hopsum bench allreduce`: links, switch, and a pool of workers per kind of subject; they take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hopsum.codec import Codec, job_tables, make_codec
from hopsum.codec.lookup_table_codec import LookupTableCodec
from hopsum.codec.table import expected_nmse
from hopsum.transport.offload import Gso
from hopsum_controlplane import JobSpec, SwitchController, write_membership
from hopsum_evaluation.bench.allreduce_report import Findings, RateFinding
from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, Measured, vector_of
from hopsum_evaluation.bench.allreduce_worker import run as run_worker
from hopsum_evaluation.bench.placement import cpu_time
from hopsum_topologies import Star
from hopsum_topologies.seat import Seat
from hopsum_topologies.tempdirs import temporary_directory
from hopsum_topologies.testbed import SWITCH, native_testbed
from hopsum_topologies.worker_pool import WorkerPool

SUBJECTS = ("thc", "thc-no-overlap", "gloo-fp32", "gloo-fp16")
"""Measured unless others are asked for. Any other subject is the codec that hopsum takes, as `--codec` spells it."""
CHECKED = 65536
_HOPSUM, _GLOO = "hopsum_evaluation.bench.allreduce_worker", "hopsum_evaluation.torch.gloo_bench"


class WrongMeanError(Exception):
    """A mean is not the vectors' mean, or differs between ranks: the figures would be worthless."""


@dataclass(frozen=True, slots=True)
class AllReduceSetting:
    """What is measured."""

    rates: Sequence[str | None]
    workers: int
    elements: int
    buckets: int
    window: int
    runs: int
    seed: int
    subjects: Sequence[str]
    gso: Gso


def run(setting: AllReduceSetting, console: Console) -> Findings:
    """Measure all subjects in turn at every rate. Raises ControlPlaneError, TopologyError, WorkerDiedError,
    WrongMeanError.
    """
    ours = {name: codec_of(name) for name in setting.subjects if not name.startswith("gloo")}
    codecs = {name: make_codec(codec, workers=setting.workers) for name, codec in ours.items()}  # compiled once, here
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("bench"))
        star = stack.enter_context(Star(setting.workers))
        stack.enter_context(star.middle.inside())  # gRPC's threads live where the thread that starts them does
        console.print(f"starting the switch and {setting.workers} workers a subject ...")
        testbed = stack.enter_context(native_testbed(setting.workers, star=star))
        controller = SwitchController(testbed.device, SWITCH)
        plan = AllReducePlan(
            _HOPSUM, setting.workers, setting.elements, setting.buckets, setting.seed,
            min(CHECKED, setting.elements), "eth0", folder, gso=setting.gso,
        )  # fmt: skip
        pools: dict[str, WorkerPool] = {}
        for subject in setting.subjects:
            if subject in codecs:
                own = replace(plan, codec=ours[subject], overlap=subject != "thc-no-overlap")
                pools[subject] = stack.enter_context(WorkerPool(testbed.seats, run_worker, own))
                name, tables = f"job{len(pools)}", job_tables(codecs[subject])
                join_job(stack, controller, pools[subject], testbed.seats, name, setting.window, tables, folder)
        gloo = [subject for subject in setting.subjects if subject.startswith("gloo")]
        if gloo:
            pool = stack.enter_context(WorkerPool(testbed.seats, run_worker, replace(plan, module=_GLOO)))
            pools.update(dict.fromkeys(gloo, pool))
        ready = {pool: max(rss for (rss,) in pool.gather("ready")) for pool in dict.fromkeys(pools.values())}
        findings: Findings = []
        for rate in setting.rates:
            findings += _at_rate(rate, setting, plan, star, pools, testbed.pid, console, codecs)
        for found in findings:
            found.ready_rss_bytes = ready[pools[found.subject]]
        for pool in dict.fromkeys(pools.values()):
            pool.send(None)
            pool.gather("finished")
        return findings


def join_job(
    stack: ExitStack,
    controller: SwitchController,
    pool: WorkerPool,
    seats: Sequence[Seat],
    name: str,
    window: int,
    tables: dict[str, Any],
    folder: Path,
) -> None:
    """Make the job of a pool and tell its workers."""
    bound = pool.gather("bound")
    endpoints = tuple(seat.endpoint(address) for seat, (address,) in zip(seats, bound, strict=True))
    job = controller.create_job(JobSpec(name, endpoints, window, **tables))
    stack.callback(controller.delete_job, job)
    path = folder / f"{name}.json"
    write_membership(job, path, {seat.rank: seat.switch for seat in seats})
    pool.send(str(path))


def _at_rate(
    rate: str | None,
    setting: AllReduceSetting,
    plan: AllReducePlan,
    star: Star,
    pools: dict[str, WorkerPool],
    switch_pid: int,
    console: Console,
    codecs: Mapping[str, Codec],
) -> list[RateFinding]:
    """Measure all subjects in turn at one rate, once to warm up."""
    star.shape(rate)
    truth = np.mean([vector_of(replace(plan, elements=plan.checked), rank) for rank in range(plan.workers)], axis=0)
    findings = [RateFinding(subject, rate, star.rate_bits_per_s()) for subject in pools]
    for number in range(setting.runs + 1):
        for finding in findings:
            before, used = star.counts(), cpu_time(switch_pid)
            pools[finding.subject].send(finding.subject)
            done = [Measured(*message) for message in pools[finding.subject].gather("done")]
            switch_cpu_s = sum(cpu_time(switch_pid)) - sum(used)
            passed = [now.since(then) for now, then in zip(star.counts(), before, strict=True)]
            _check(finding.subject, codecs.get(finding.subject), done, truth)
            if number:
                finding.add(done, passed, switch_cpu_s)
                console.print(f"{rate or 'unshaped':10} {finding.subject:15} {finding.seconds[-1]:.3f} s")
    return findings


def codec_of(subject: str) -> str:
    """Return the codec of a subject of hopsum's."""
    return "thc" if subject == "thc-no-overlap" else subject


def most_nmse(subject: str, codec: Codec | None) -> float:
    """Return an error of the mean far above what a subject promises, and far below that of a wrong sum.

    The ranks' vectors are independent, so their mean has the error of one worker.
    """
    if isinstance(codec, LookupTableCodec):
        return 2 * expected_nmse(codec.table, 1)
    return 1e-5 if subject == "gloo-fp16" else 1e-12


def _check(subject: str, codec: Codec | None, done: Sequence[Measured], truth: np.ndarray[Any, Any]) -> None:
    means = [measured.mean for measured in done]
    if any(mean.tobytes() != means[0].tobytes() for mean in means):
        raise WrongMeanError(f"{subject}: the ranks have different means")
    nmse = float(np.sum((means[0] - truth) ** 2) / np.sum(truth**2))
    if not nmse <= most_nmse(subject, codec):
        raise WrongMeanError(f"{subject}: a mean with an NMSE of {nmse:.3g}, beyond {most_nmse(subject, codec):.3g}")
