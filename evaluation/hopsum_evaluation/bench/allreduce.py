# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench allreduce`: seconds of an all-reduce over shaped links, beside gloo on the same links.

Workers are processes in network namespaces of their own, with a veth pair each to a bridge. A token bucket gives both
directions of every link a rate. `--placement` says where the embedded switch runs: in the middle with a link for each
worker (fabric), on a host like the workers' behind one link (server), or on every worker's host for its share of each
vector (hosts). Every byte that leaves a host passes its link and counts. Subjects take turns: hopsum with codec thc
(with and without overlap of codec and network), gloo in fp32 and in fp16. All of them share this machine's cores. Every
mean is compared with numpy's: the elements looked at must be equal on all ranks and as near as the codec promises.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hopsum.codec import Codec, job_tables, make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum.communicator import Span
from hopsum.transport.offload import GSO, Gso
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_evaluation.bench.allreduce_worker import AllReducePlan, Measured, vector_of, work
from hopsum_evaluation.bench.placements import PLACEMENTS, ShardedJobs, hosts_of, seats_of, start_switches
from hopsum_evaluation.bench.timeline import draw, overlap_s
from hopsum_evaluation.bench.timing import commit, cpu_time, machine, versions
from hopsum_evaluation.command_options import codec_argument
from hopsum_evaluation.units import time_s
from hopsum_topologies import LinkCounts, Star
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.tempdirs import temporary_directory
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

ELEMENTS = 4_000_000
UNSHAPED = "unshaped"
GLOO = ("gloo-fp32", "gloo-fp16")
OTHERS = (*GLOO, "two-shot-4", "two-shot-8")
"""Subjects that need no switch, and torch. All of them run over gloo."""
SUBJECTS = ("thc", "thc-no-overlap", "gloo-fp32", "gloo-fp16")
"""Measured unless others are asked for. Any other subject is the codec that hopsum takes, as `--codec` spells it."""
_MOST_NMSE = {"gloo-fp16": 1e-5, "two-shot-4": 0.05, "two-shot-8": 5e-4}
"""Bounds of `most_nmse` for subjects that round."""
CHECKED = 65536
CHOICES = (*SUBJECTS, *(name for name in OTHERS if name not in SUBJECTS))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench allreduce", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--rates",
        default="200mbit,1gbit,2.5gbit,unshaped",
        help="rates of every link, as tc writes them (default %(default)s)",
    )
    parser.add_argument(
        "--elements",
        type=int,
        default=ELEMENTS,
        help="number of float32 elements of a tensor (default %(default)s); documented figures: 25000000",
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, default="fabric",
        help="place of the switches of the benchmark (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=4, help="number of workers, 2 to 16 (default %(default)s)")
    parser.add_argument(
        "--round-trip", type=time_s, default=0.0, metavar="TIME",
        help="round-trip time added between two hosts, as in 10ms (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=int, default=512, help="packets in flight per worker and switch (default %(default)s)"
    )
    parser.add_argument(
        "--buckets", type=int, default=8,
        help="vectors that hopsum's tensor is cut into, as DDP does (default %(default)s); gloo has it whole",
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, help="runs of each subject at each rate (default %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        choices=CHOICES,
        metavar="SUBJECT",
        help=f"part to measure, of {', '.join(CHOICES)}; may be repeated (default: the first {len(SUBJECTS)})",
    )
    parser.add_argument(
        "--codec",
        action="append",
        type=codec_argument,
        default=[],
        help="codec to measure beside the others, as in thc:bits=2; may be repeated",
    )
    parser.add_argument(
        "--gso", choices=GSO, default="auto",
        help="many datagrams per system call of hopsum's workers (default %(default)s: where the kernel can)",
    )  # fmt: skip
    parser.add_argument(
        "--error-feedback", action="store_true", help="error feedback in hopsum's workers, as training has it"
    )
    parser.add_argument(
        "--timeline", action="store_true", help="draw the work of codec and network of rank 0 on stderr"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.elements < 1 or not 1 <= options.buckets <= options.elements:
        parser.error("at least one run, of at least one element, in no more buckets than elements")
    if not 2 <= options.workers <= 16:
        parser.error(f"2 to 16 workers, not {options.workers}")
    if reason := unavailable():
        parser.exit(1, f"hopsum bench allreduce: {reason}\n")
    subjects = [name for name in CHOICES if name in (options.only or SUBJECTS)]
    subjects += [codec for codec in dict.fromkeys(options.codec) if codec not in subjects]
    if find_spec("torch") is None:
        subjects = [name for name in subjects if name not in OTHERS]
        print("torch is not installed: no gloo to compare with", file=sys.stderr)
    rates = [None if rate == UNSHAPED else rate for rate in options.rates.split(",")]
    setting = AllReduceSetting(
        rates, options.workers, options.elements, options.buckets, options.window, options.runs, options.seed, subjects,
        options.gso, options.placement, options.error_feedback, round_trip_s=options.round_trip,
    )  # fmt: skip
    start = time.perf_counter()
    try:
        findings = run(setting, Console(stderr=True))
    except (ControlPlaneError, TopologyError, WorkerDiedError, WrongMeanError, OSError) as error:
        parser.exit(1, f"hopsum bench allreduce: {error}\n")
    if options.timeline:
        _draw(findings)
    report = as_json(findings, setting, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def _draw(findings: list[RateFinding]) -> None:
    for finding in findings:
        if finding.spans:
            print(f"{finding.subject}, {finding.rate or UNSHAPED}, rank 0, last run:", file=sys.stderr)
            print("\n".join(draw(finding.spans, 100)), file=sys.stderr)


def unavailable() -> str | None:
    """Return why shaped links cannot be made on this machine, or None."""
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


@dataclass(slots=True)
class RateFinding:
    """All runs of one subject at one rate of the links."""

    subject: str
    rate: str | None
    """The rate in tc's words. None: not shaped."""
    rate_bits_per_s: float | None
    seconds: list[float] = field(default_factory=list)
    """The seconds of each run, the slowest rank's."""
    passed: list[list[LinkCounts]] = field(default_factory=list)
    """The counts of each run, by link."""
    peak_rss_bytes: list[int] = field(default_factory=list)
    """The peak since the process began, by rank."""
    ready_rss_bytes: int = 0
    """The resident bytes of a process with all imports and its vector, before its first all-reduce of that: the
    largest."""
    retransmits: int = 0
    spans: list[Span] = field(default_factory=list)
    """The spans of rank 0 in the last run."""
    worker_cpu_s: list[float] = field(default_factory=list)
    """Processor time, own code and kernel, of each run: mean over ranks."""
    switch_cpu_s: list[float] = field(default_factory=list)

    def add(self, done: Sequence[Measured], passed: list[LinkCounts], switch_cpu_s: float) -> None:
        """Add one run: measurements of every rank, counts of every link, processor time of all switches."""
        self.seconds.append(max(measured.seconds for measured in done))
        self.passed.append(passed)
        self.peak_rss_bytes = [measured.peak_rss_bytes for measured in done]
        self.spans = done[0].spans
        self.retransmits += sum(measured.retransmits for measured in done)
        self.worker_cpu_s.append(fmean(sum(measured.cpu) for measured in done))
        self.switch_cpu_s.append(switch_cpu_s)

    def as_json(self) -> dict[str, Any]:
        """Summarise all runs: medians of times, means of bytes."""
        report: dict[str, Any] = {
            "seconds": round(median(self.seconds), 4),
            "seconds_min": round(min(self.seconds), 4),
            "seconds_max": round(max(self.seconds), 4),
            "worker_cpu_s": round(median(self.worker_cpu_s), 4),
            "switch_cpu_s": round(median(self.switch_cpu_s), 2),
            "peak_rss_bytes": max(self.peak_rss_bytes),
            "ready_rss_bytes": self.ready_rss_bytes,
            "retransmits": self.retransmits,
            "dropped": sum(link.dropped for links in self.passed for link in links),
        }
        report["busiest_wire_bytes"] = round(
            fmean(max(max(link.wire_bytes_up, link.wire_bytes_down) for link in links) for links in self.passed)
        )
        for name in ("wire_bytes_up", "wire_bytes_down", "interface_bytes_up", "interface_bytes_down"):
            report[name] = round(self._mean(name))
        for way in ("up", "down"):
            used = None
            if self.rate_bits_per_s is not None:
                used = round(8 * self._mean(f"wire_bytes_{way}") / fmean(self.seconds) / self.rate_bits_per_s, 3)
            report[f"link_utilisation_{way}"] = used
        if self.spans:
            report["codec_beside_network_s"] = round(overlap_s(self.spans), 4)
            codec = [span.stop_s - span.start_s for span in self.spans if not span.stage.startswith("network")]
            report["codec_s"] = round(sum(codec), 4)
        return report

    def _mean(self, name: str) -> float:
        """Average a count over runs and workers' links."""
        # Links of workers come first. In placement server the last link is the switch's.
        workers = len(self.peak_rss_bytes)
        return fmean(getattr(link, name) for links in self.passed for link in links[:workers])


def as_json(findings: list[RateFinding], setting: AllReduceSetting, elapsed_s: float) -> dict[str, Any]:
    """Make the object of --json: under "rates" one entry per rate."""
    rates = []
    for rate in setting.rates:
        here = {found.subject: found.as_json() for found in findings if found.rate == rate}
        entry: dict[str, Any] = {
            "rate": rate or "unshaped",
            "rate_bits_per_s": next(found.rate_bits_per_s for found in findings if found.rate == rate),
            "subjects": here,
        }
        for ours, theirs in (("thc", "gloo-fp32"), ("thc", "gloo-fp16"), ("thc", "thc-no-overlap")):
            if ours in here and theirs in here:
                entry[f"speedup_over_{theirs}"] = round(here[theirs]["seconds"] / here[ours]["seconds"], 3)
        for found in here.values():
            found["busiest_bits_per_element"] = round(8 * found["busiest_wire_bytes"] / setting.elements, 3)
            found["speedup_over"] = {
                theirs: round(here[theirs]["seconds"] / found["seconds"], 3) for theirs in OTHERS if theirs in here
            }
        rates.append(entry)
    return {
        "benchmark": "allreduce",
        "elements": setting.elements,
        "tensor_bytes": 4 * setting.elements,
        "workers": setting.workers,
        "buckets": setting.buckets,
        "window": setting.window,
        "gso": setting.gso,
        "placement": setting.placement,
        "round_trip_s": setting.round_trip_s,
        "runs": setting.runs,
        "seed": setting.seed,
        "rates": rates,
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "torch", "llvmlite"),
        "commit": commit(),
        "elapsed_s": round(elapsed_s, 1),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table for each rate."""
    what = f"{report['elements']:,} float32, {report['workers']} workers, placement {report['placement']}"
    console.print(f"all-reduce of {what}, medians; bits: of an element, in the busiest direction of a link")
    for entry in report["rates"]:
        console.print(_table(entry))
    where = report["machine"]
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {report['elapsed_s']} s")


def _table(entry: dict[str, Any]) -> Table:
    """Tabulate the subjects at one rate, a row each."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in (entry["rate"], "s", "min-max", "of thc", "MB up/down", "bits", "link used", "peak MB"):
        table.add_column(column, justify="left" if column == entry["rate"] else "right")
    thc = entry["subjects"].get("thc")
    for subject, found in entry["subjects"].items():
        used = [found["link_utilisation_up"], found["link_utilisation_down"]]
        table.add_row(
            subject,
            f"{found['seconds']:.3f}",
            f"{found['seconds_min']:.2f}-{found['seconds_max']:.2f}",
            f"{found['seconds'] / thc['seconds']:.2f}" if thc else "",
            f"{found['wire_bytes_up'] / 1e6:.0f}/{found['wire_bytes_down'] / 1e6:.0f}",
            f"{found['busiest_bits_per_element']:.2f}",
            "" if used[0] is None else f"{used[0]:.0%}/{used[1]:.0%}",
            f"{found['peak_rss_bytes'] / 1e6:.0f}",
        )
    return table


class WrongMeanError(Exception):
    """A mean is not the vectors' mean, or differs between ranks: the figures would be worthless."""


@dataclass(frozen=True, slots=True)
class AllReduceSetting:
    """Links, job and subjects of a benchmark of all-reduces.

    rates: of every link, in tc's words. None: not shaped.
    workers: 2 to 16.
    elements: of the tensor that is summed, float32.
    buckets: vectors into which hopsum's workers cut the tensor.
    window: slots of a job at each switch.
    subjects: of SUBJECTS or OTHERS, or codecs.
    gso: mode of hopsum's sockets.
    placement: of the switches, one of `placements.PLACEMENTS`.
    error_feedback: True: hopsum's workers have error feedback.
    shards: number of hosts with a switch, in placement hosts. None: all.
    round_trip_s: delay added between two hosts, there and back. A switch in the middle is half way.
    """

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
    shards: int | None = None
    round_trip_s: float = 0.0


def run(setting: AllReduceSetting, console: Console) -> list[RateFinding]:
    """Start links, switches and workers, and measure all subjects by turns at every rate.

    Raises ControlPlaneError, TopologyError, WorkerDiedError or WrongMeanError.
    """
    ours = {name: codec_of(name) for name in setting.subjects if name not in OTHERS}
    # Kernels are compiled here, once: workers find them in the cache.
    codecs = {name: make_codec(codec, workers=setting.workers) for name, codec in ours.items()}
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("bench"))
        star = stack.enter_context(Star(hosts_of(setting.placement, setting.workers), setting.round_trip_s / 2))
        console.print(f"starting switches ({setting.placement}) and {setting.workers} workers a subject ...")
        switches = start_switches(stack, setting.placement, star, setting.workers, setting.shards)
        seats = seats_of(star, switches, setting.workers)
        jobs = ShardedJobs(stack, switches, seats, GenerationAllocator())
        plan = AllReducePlan(
            setting.workers, setting.elements, setting.buckets, setting.seed,
            min(CHECKED, setting.elements), "eth0", folder, gso=setting.gso,
            services=tuple(switch.service for switch in switches), error_feedback=setting.error_feedback,
        )  # fmt: skip
        pools: dict[str, WorkerPool] = {}
        for subject in setting.subjects:
            if subject in codecs:
                own = replace(plan, codec=ours[subject], overlap=subject != "thc-no-overlap")
                pool = pools[subject] = stack.enter_context(WorkerPool(seats, work, own))
                path, tables = folder / f"job{len(pools)}.json", job_tables(codecs[subject])
                bound = [places for (places,) in pool.gather("bound")]
                jobs.create(path.stem, bound, setting.window, tables, path, time.time())
                pool.send(str(path))
        gloo = [subject for subject in setting.subjects if subject in OTHERS]
        if gloo:
            # Here, not above: torch is installed where gloo is asked for, and the other processes shall not hold it.
            from hopsum_evaluation.torch.gloo_bench import work as work_gloo

            pool = stack.enter_context(WorkerPool(seats, work_gloo, plan))
            pools.update(dict.fromkeys(gloo, pool))
        ready = {pool: max(rss for (rss,) in pool.gather("ready")) for pool in dict.fromkeys(pools.values())}
        findings: list[RateFinding] = []
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
    """Measure all subjects by turns at one rate, once to warm up."""
    star.shape(rate)
    truth = np.mean([vector_of(replace(plan, elements=plan.checked), rank) for rank in range(plan.workers)], axis=0)
    findings = [RateFinding(subject, rate, star.rate_bits_per_s()) for subject in pools]
    for number in range(setting.runs + 1):
        for finding in findings:
            before = star.counts()
            used_s = sum(sum(cpu_time(pid)) for pid in switch_pids)
            pools[finding.subject].send(finding.subject)
            done = [Measured(*message) for message in pools[finding.subject].gather("done")]
            switch_cpu_s = sum(sum(cpu_time(pid)) for pid in switch_pids) - used_s
            passed = [now.since(then) for now, then in zip(star.counts(), before, strict=True)]
            _check(finding.subject, codecs.get(finding.subject), done, truth, plan)
            # The first run warms up: sockets, caches, and the window of retransmissions.
            if number:
                finding.add(done, passed, switch_cpu_s)
                console.print(f"{rate or 'unshaped':10} {finding.subject:15} {finding.seconds[-1]:.3f} s")
    return findings


def codec_of(subject: str) -> str:
    """Spell the codec of a subject of hopsum's."""
    return "thc" if subject == "thc-no-overlap" else subject


def most_nmse(subject: str, codec: Codec | None, *, error_feedback: bool = False) -> float:
    """Bound the error of a subject's mean: far above what the subject promises, far below that of a wrong sum.

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
