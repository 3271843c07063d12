# SPDX-License-Identifier: Apache-2.0
"""The run of `hopsum bench allreduce`: links, switch, and a pool of workers per kind of subject. They take turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console

from hopsum.codec import Codec, job_tables, make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum.transport.offload import Gso
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_evaluation.bench.allreduce_report import OTHERS, Findings, RateFinding
from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, Measured, vector_of
from hopsum_evaluation.bench.allreduce_worker import run as run_worker
from hopsum_evaluation.bench.placement import cpu_time
from hopsum_evaluation.bench.placements import ShardedJobs, hosts_of, seats_of, start_switches
from hopsum_topologies import Star
from hopsum_topologies.tempdirs import temporary_directory
from hopsum_topologies.worker_pool import WorkerPool

SUBJECTS = ("thc", "thc-no-overlap", "gloo-fp32", "gloo-fp16")
"""Measured unless others are asked for. Any other subject is the codec that hopsum takes, as `--codec` spells it."""
_MOST_NMSE = {"gloo-fp16": 1e-5, "two-shot-4": 0.05, "two-shot-8": 5e-4}
"""Bounds of `most_nmse` for subjects that round."""
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
    placement: str = "fabric"
    error_feedback: bool = False
    """True where hopsum's workers have error feedback."""
    shards: int | None = None
    """Number of hosts that have a switch, in placement hosts, all by default."""
    round_trip_s: float = 0.0
    """The delay added between two hosts, there and back. A switch in the middle is half way."""


def run(setting: AllReduceSetting, console: Console) -> Findings:
    """Measure all subjects in turn at every rate.

    Raises ControlPlaneError, TopologyError, WorkerDiedError or WrongMeanError.
    """
    ours = {name: codec_of(name) for name in setting.subjects if name not in OTHERS}
    codecs = {name: make_codec(codec, workers=setting.workers) for name, codec in ours.items()}  # compiled once, here
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("bench"))
        star = stack.enter_context(Star(hosts_of(setting.placement, setting.workers), setting.round_trip_s / 2))
        console.print(f"starting switches ({setting.placement}) and {setting.workers} workers a subject ...")
        switches = start_switches(stack, setting.placement, star, setting.workers, setting.shards)
        seats = seats_of(star, switches, setting.workers)
        jobs = ShardedJobs(stack, switches, seats, GenerationAllocator())
        plan = AllReducePlan(
            _HOPSUM, setting.workers, setting.elements, setting.buckets, setting.seed,
            min(CHECKED, setting.elements), "eth0", folder, gso=setting.gso,
            services=tuple(switch.service for switch in switches), error_feedback=setting.error_feedback,
        )  # fmt: skip
        pools: dict[str, WorkerPool] = {}
        for subject in setting.subjects:
            if subject in codecs:
                own = replace(plan, codec=ours[subject], overlap=subject != "thc-no-overlap")
                pool = pools[subject] = stack.enter_context(WorkerPool(seats, run_worker, own))
                path, tables = folder / f"job{len(pools)}.json", job_tables(codecs[subject])
                bound = [places for (places,) in pool.gather("bound")]
                jobs.create(path.stem, bound, setting.window, tables, path, time.time())
                pool.send(str(path))
        gloo = [subject for subject in setting.subjects if subject in OTHERS]
        if gloo:
            pool = stack.enter_context(WorkerPool(seats, run_worker, replace(plan, module=_GLOO)))
            pools.update(dict.fromkeys(gloo, pool))
        ready = {pool: max(rss for (rss,) in pool.gather("ready")) for pool in dict.fromkeys(pools.values())}
        findings: Findings = []
        for rate in setting.rates:
            findings += _at_rate(rate, setting, plan, star, pools, [switch.pid for switch in switches], console, codecs)
        for found in findings:
            found.ready_rss_bytes = ready[pools[found.subject]]
        for pool in dict.fromkeys(pools.values()):
            pool.send(None)
            pool.gather("finished")
        return findings


def _at_rate(
    rate: str | None,
    setting: AllReduceSetting,
    plan: AllReducePlan,
    star: Star,
    pools: dict[str, WorkerPool],
    switch_pids: Sequence[int],
    console: Console,
    codecs: Mapping[str, Codec],
) -> list[RateFinding]:
    """Measure all subjects in turn at one rate, once to warm up."""
    star.shape(rate)
    truth = np.mean([vector_of(replace(plan, elements=plan.checked), rank) for rank in range(plan.workers)], axis=0)
    findings = [RateFinding(subject, rate, star.rate_bits_per_s()) for subject in pools]
    for number in range(setting.runs + 1):
        for finding in findings:
            before, used_s = star.counts(), sum(sum(cpu_time(pid)) for pid in switch_pids)
            pools[finding.subject].send(finding.subject)
            done = [Measured(*message) for message in pools[finding.subject].gather("done")]
            switch_cpu_s = sum(sum(cpu_time(pid)) for pid in switch_pids) - used_s
            passed = [now.since(then) for now, then in zip(star.counts(), before, strict=True)]
            _check(finding.subject, codecs.get(finding.subject), done, truth, plan)
            if number:
                finding.add(done, passed, switch_cpu_s)
                console.print(f"{rate or 'unshaped':10} {finding.subject:15} {finding.seconds[-1]:.3f} s")
    return findings


def codec_of(subject: str) -> str:
    """Return the codec of a subject of hopsum's."""
    return "thc" if subject == "thc-no-overlap" else subject


def most_nmse(subject: str, codec: Codec | None, *, error_feedback: bool = False) -> float:
    """Return an error of the mean far above what a subject promises, and far below that of a wrong sum.

    The ranks' vectors are independent, so their mean has the error of one worker. With error feedback a mean has the
    error of this all-reduce and of the one before it.
    """
    if isinstance(codec, LookupTableCodec):
        return (4 if error_feedback else 2) * expected_nmse(codec.table, 1)
    return _MOST_NMSE.get(subject, 1e-12)


def _check(
    subject: str, codec: Codec | None, done: Sequence[Measured], truth: np.ndarray[Any, Any], plan: AllReducePlan
) -> None:
    most = most_nmse(subject, codec, error_feedback=plan.error_feedback)
    means = [measured.mean for measured in done]
    if any(mean.tobytes() != means[0].tobytes() for mean in means):
        raise WrongMeanError(f"{subject}: the ranks have different means")
    nmse = float(np.sum((means[0] - truth) ** 2) / np.sum(truth**2))
    if not nmse <= most:
        raise WrongMeanError(f"{subject}: a mean with an NMSE of {nmse:.3g}, beyond {most:.3g}")
