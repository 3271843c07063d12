# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench allreduce`: seconds of an all-reduce over shaped links, by hopsum and by gloo.

Workers are processes in network namespaces of their own, with a veth pair each to a bridge. A token bucket gives both
directions of every link a rate. `--placement` says where the embedded switch runs: in the middle with a link for each
worker (fabric), on a host like the workers' behind one link (server), or on every worker's host for its share of each
vector (hosts). Every byte that leaves a host passes its link and counts. hopsum's workers are those of a training at a
controller: with side channels between them, and with error feedback where the codec has it.

Subjects take turns: hopsum with codec thc, gloo in fp32 and in fp16. All of them share this machine's cores. A turn is
one all-reduce, which ranks begin as each is told and with cold caches, and then a tight loop of all-reduces, of which
the median counts. The first mean of a turn is compared with numpy's: the elements looked at must be equal on all ranks
and as near as the codec promises.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hopsum.codec import Codec, make_codec, parse_codec
from hopsum.codec.arguments import check_codec, codec_argument
from hopsum.codec.interface import feeds_back
from hopsum.codec.thc import LookupTableCodec
from hopsum.codec.two_shot import TwoShot
from hopsum.transport.worker_loop import compiled_kernel
from hopsum_base.owned_folder import OwnedFolder
from hopsum_base.units import list_of, rate_bits_per_s, time_s, whole
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.allreduce_worker import GLOO, AllReducePlan, Turn, TurnFigures, gradient_of, work
from hopsum_evaluation.bench.dilation import ProcessorQuotas, add_dilate_option, dilated_rate, dilated_timing
from hopsum_evaluation.bench.placements import make_job, window_of
from hopsum_evaluation.bench.timing import machine, processor_s, processors_of, source_commit, versions
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_topologies import LinkCounts, Star
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import PLACEMENTS, LocalCluster, default_switch_count, links_unavailable
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

ELEMENTS = 4_000_000
UNSHAPED = "unshaped"
OTHERS = (*GLOO, "two-shot:bits=4", "two-shot:bits=8")
"""Subjects that need no switch, and torch. All of them run over gloo."""
SUBJECTS = ("thc", "gloo-fp32", "gloo-fp16")
"""Measured unless others are asked for. Any other subject is the codec that hopsum takes, as `--codec` spells it."""
CHECKED = 65536
LOOP_S: Final = 0.3
"""The time that a tight loop takes, in all-reduces as fast as the one that warms up."""
MAX_CALLS: Final = 200
CHOICES = (*SUBJECTS, *(name for name in OTHERS if name not in SUBJECTS))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench allreduce", description=(__doc__ or "").partition("\n\n")[2])
    add_common_options(parser, "200mbit,1gbit,2.5gbit,unshaped", 512)
    add_dilate_option(parser)
    parser.add_argument(
        "--elements",
        type=list_of(whole(1)),
        default=(ELEMENTS,),
        metavar="N,...",
        help=f"numbers of float32 elements of a tensor (default {ELEMENTS}); documented figures: 25000000",
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, default="fabric",
        help="place of the switches of the benchmark (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=whole(2, 16), default=4, help="number of workers, 2 to 16 (default %(default)s)"
    )
    parser.add_argument(
        "--round-trip", type=time_s, default=0.0, metavar="TIME",
        help="round-trip time added between two hosts, as in 10ms (default: none)",
    )  # fmt: skip
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
        help="codec to measure in addition to the others, as in thc:bits=2; may be repeated",
    )
    return parser


def add_common_options(parser: argparse.ArgumentParser, rates: str, window: int) -> None:
    """Add the options that all benchmarks of all-reduces take, with these defaults of --rates and --window.

    A rate of None, in the parsed --rates, is for links that are not shaped.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--rates", type=list_of(_rate), default=rates, metavar="RATE,...",
        help=f"rates of every link, as tc writes them, or {UNSHAPED} (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=whole(1), default=window,
        help="packets in flight per worker and switch, fewer where its subjects need more slots than a switch has "
        "(default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--buckets", type=whole(1), default=8,
        help="vectors that hopsum's tensor is cut into, as DDP does (default %(default)s); gloo has it whole",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=whole(1), default=3, help="runs of each subject at each rate (default %(default)s)"
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the vectors (default %(default)s)")


def _rate(text: str) -> str | None:
    if text == UNSHAPED:
        return None
    rate_bits_per_s(text)
    return text


def main(arguments: Sequence[str]) -> int:
    """Run the command: measure, and print tables or JSON. Return 0. A failure prints a message and exits with 1."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.buckets > min(options.elements):
        parser.error(f"--buckets {options.buckets}: no more than elements")
    for codec in options.codec:
        check_codec(parser, codec, options.workers)
    if reason := links_unavailable():
        parser.exit(1, f"hopsum bench allreduce: {reason}\n")
    try:
        report = measure(options, Console(stderr=True))
    except (ControlPlaneError, TopologyError, WorkerDiedError, WrongMeanError, OSError) as error:
        parser.exit(1, f"hopsum bench allreduce: {error}\n")
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure as the command's arguments say. Return the object of --json. Raises as `run` does.

    Prints the progress to `console`. Without torch it leaves out the subjects over gloo, and says so on stderr.
    """
    subjects = [name for name in CHOICES if name in (options.only or SUBJECTS)]
    subjects += [codec for codec in dict.fromkeys(options.codec) if codec not in subjects]
    if find_spec("torch") is None:
        subjects = [name for name in subjects if not needs_gloo(name)]
        print("torch is not installed: no gloo to compare with", file=sys.stderr)
    window = window_of(options.window, sum(not needs_gloo(name) for name in subjects))
    setting = AllReduceSetting(
        options.rates, options.workers, options.elements, options.buckets, window, options.runs, options.seed,
        subjects, options.placement, round_trip_s=options.round_trip, dilate=options.dilate,
    )  # fmt: skip
    start = time.perf_counter()
    findings = run(setting, console)
    return as_json(findings, setting, time.perf_counter() - start)


@dataclass(slots=True)
class RateFinding:
    """All turns of one subject with one size of tensors at one rate of the links."""

    subject: str
    elements: int
    rate: str | None
    """The rate in tc's words. None: not shaped."""
    rate_bits_per_s: float | None
    seconds: list[float] = field(default_factory=list)
    """By turn: seconds of an all-reduce in the tight loop, the slowest rank's, as the median."""
    first_seconds: list[float] = field(default_factory=list)
    """By turn: seconds of the first all-reduce, the slowest rank's."""
    all_reduces: int = 0
    """The number of all-reduces in all turns, first ones included."""
    passed: list[list[tuple[float, float]]] = field(default_factory=list)
    """By turn: bytes of an all-reduce at each link, up and down, as the mean. Links of workers come first."""
    dropped: int = 0
    """Frames that the queues of all links dropped."""
    peak_rss_bytes: int = 0
    """The most resident bytes of any rank in any turn."""
    ready_rss_bytes: int = 0
    """The most resident bytes of any rank before the first all-reduce of the size."""
    retransmits: int = 0
    """Datagrams that were sent again, of all ranks in all turns."""
    worker_cpu_s: list[float] = field(default_factory=list)
    """By turn: processor time of a worker for an all-reduce, own code and kernel: mean over ranks."""
    switch_cpu_s: list[float] = field(default_factory=list)
    """By turn: processor time of all switches for an all-reduce."""
    nmse: list[float] = field(default_factory=list)
    """By turn: error of the first mean."""

    def add(self, done: Sequence[TurnFigures], links: Sequence[LinkCounts], switch_cpu_s: float, nmse: float) -> None:
        """Add one turn: measurements of every rank, counts of links, processor time of switches, error of a mean."""
        count = 1 + len(done[0].calls_s)
        self.seconds.append(median(map(max, zip(*(measured.calls_s for measured in done), strict=True))))
        self.first_seconds.append(max(measured.first_s for measured in done))
        self.all_reduces += count
        self.passed.append([(link.wire_bytes_up / count, link.wire_bytes_down / count) for link in links])
        self.dropped += sum(link.dropped for link in links)
        self.peak_rss_bytes = max(self.peak_rss_bytes, *(measured.peak_rss_bytes for measured in done))
        self.ready_rss_bytes = max(measured.ready_rss_bytes for measured in done)
        self.retransmits += sum(measured.retransmits for measured in done)
        self.worker_cpu_s.append(fmean(measured.cpu_s for measured in done))
        self.switch_cpu_s.append(switch_cpu_s / count)
        self.nmse.append(nmse)

    @property
    def busiest_wire_bytes(self) -> float:
        """Bytes of an all-reduce in the busier direction of the busiest link, as the mean over turns."""
        return fmean(max(map(max, links)) for links in self.passed)

    def as_json(self, workers: int) -> dict[str, Any]:
        """Return a summary of all turns for JSON: medians of times, means of bytes.

        `workers` is the number of workers, whose links come first in `passed`.
        """
        seconds, wire_s, busiest = median(self.seconds), None, self.busiest_wire_bytes
        if self.rate_bits_per_s is not None:
            wire_s = 8 * busiest / self.rate_bits_per_s
        report: dict[str, Any] = {
            "seconds": round(seconds, 6),
            "seconds_min": round(min(self.seconds), 6),
            "seconds_max": round(max(self.seconds), 6),
            "first_seconds": round(median(self.first_seconds), 6),
            "wire_seconds": None if wire_s is None else round(wire_s, 6),
            "over_wire": None if wire_s is None else round(seconds / wire_s, 3),
            "worker_cpu_s": round(median(self.worker_cpu_s), 6),
            "switch_cpu_s": round(median(self.switch_cpu_s), 6),
            "peak_rss_bytes": self.peak_rss_bytes,
            "ready_rss_bytes": self.ready_rss_bytes,
            "all_reduces": self.all_reduces,
            "retransmits": self.retransmits,
            "dropped": self.dropped,
            "busiest_wire_bytes": round(busiest),
            "busiest_bits_per_element": round(8 * busiest / self.elements, 3),
            "nmse": float(f"{median(self.nmse):.3g}"),
        }
        # Of workers' links only: in placement server the last link is the switch's.
        ours = [link for links in self.passed for link in links[:workers]]
        report["wire_bytes_up"] = round(fmean(up for up, _ in ours))
        report["wire_bytes_down"] = round(fmean(down for _, down in ours))
        return report


def as_json(findings: list[RateFinding], setting: AllReduceSetting, elapsed_s: float) -> dict[str, Any]:
    """Make the object of --json: under "rates" one entry per size and rate."""
    rates = []
    for elements, rate in setting.cases:
        found_here = [found for found in findings if (found.elements, found.rate) == (elements, rate)]
        here = {found.subject: found.as_json(setting.workers) for found in found_here}
        entry: dict[str, Any] = {
            "elements": elements,
            "tensor_bytes": 4 * elements,
            "rate": rate or "unshaped",
            "rate_bits_per_s": found_here[0].rate_bits_per_s,
            "subjects": here,
        }
        for found in here.values():
            found["speedup_over"] = {
                theirs: round(here[theirs]["seconds"] / found["seconds"], 3) for theirs in OTHERS if theirs in here
            }
        rates.append(entry)
    names = ("workers", "buckets", "window", "placement", "round_trip_s", "runs", "seed", "dilate")
    where = machine()
    switches = default_switch_count(setting.placement, setting.workers)
    return {
        "benchmark": "allreduce",
        "processors": processors_of(setting.workers, switches, where["cores"], setting.dilate),
        "elements": list(setting.elements),
        **{name: getattr(setting, name) for name in names},
        "rates": rates,
        "machine": where,
        "versions": versions("hopsum", "numpy", "numba", "torch", "llvmlite"),
        "commit": source_commit(),
        "elapsed_s": round(elapsed_s, 1),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table for each size and rate."""
    console.print(report["processors"], highlight=False)
    console.print(
        f"all-reduce, {report['workers']} workers, placement {report['placement']}, side channels, error "
        "feedback; times in ms, medians"
    )
    for entry in report["rates"]:
        console.print(_table(entry, report["dilate"]))
    where = report["machine"]
    console.print("first: ranks begin as each is told; wire: bytes of the busier direction of the busiest link by rate")
    console.print("/wire: ms divided by wire")
    console.print("bits: of an element, in that direction; error: NMSE of a mean, with the rest of the one before")
    console.print("worker, switch: processor time; MB: peak resident memory of a worker")
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {report['elapsed_s']} s")


def _table(entry: dict[str, Any], dilate: float) -> Table:
    """Tabulate the subjects with one size at one rate, a row each."""
    dilated = f", dilated {dilate:g} times" if dilate > 1 else ""
    title = f"{entry['elements']:,} float32, {entry['rate']}{dilated}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for column in ("ms", "min-max", "first", "wire", "/wire", "bits", "error", "worker", "switch", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    for subject, found in entry["subjects"].items():
        wire_s, over_wire = found["wire_seconds"], found["over_wire"]
        table.add_row(
            subject,
            _ms(found["seconds"]),
            f"{_ms(found['seconds_min'])}-{_ms(found['seconds_max'])}",
            _ms(found["first_seconds"]),
            "" if wire_s is None else _ms(wire_s),
            "" if over_wire is None else f"{over_wire:.2f}",
            f"{found['busiest_bits_per_element']:.2f}",
            f"{found['nmse']:.0e}",
            _ms(found["worker_cpu_s"]),
            _ms(found["switch_cpu_s"]),
            f"{found['peak_rss_bytes'] / 1e6:.0f}",
        )
    return table


def _ms(seconds: float) -> str:
    """Write milliseconds, to the whole one from 100 on, else with three digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class WrongMeanError(Exception):
    """A mean is not the vectors' mean, or differs between ranks: the figures would be worthless."""


@dataclass(frozen=True, slots=True)
class AllReduceSetting:
    """Links, job and subjects of a benchmark of all-reduces.

    rates: of every link, in tc's words. None: not shaped.
    workers: 2 to 16.
    elements: sizes of the tensor that is summed, float32.
    buckets: vectors into which hopsum's workers cut a tensor.
    window: slots of a job at each switch.
    runs: turns of each subject.
    subjects: of SUBJECTS or OTHERS, or codecs.
    placement: of the switches, one of `placements.PLACEMENTS`.
    shards: number of hosts with a switch, in placement hosts. None: all.
    round_trip_s: delay added between two hosts, there and back. A switch in the middle is half way.
    dilate: factor of time dilation, see `dilation`.
    """

    rates: Sequence[str | None]
    workers: int
    elements: Sequence[int]
    buckets: int
    window: int
    runs: int
    seed: int
    subjects: Sequence[str]
    placement: str = "fabric"
    shards: int | None = None
    round_trip_s: float = 0.0
    dilate: float = 1.0

    @property
    def cases(self) -> list[tuple[int, str | None]]:
        """Sizes and rates in the order in which they are measured."""
        return [(elements, rate) for rate in self.rates for elements in self.elements]


def run(setting: AllReduceSetting, console: Console) -> list[RateFinding]:
    """Start links, switches and workers, and measure all subjects in turn, with every size at every rate.

    Returns a finding for each rate, size and subject. Prints the progress to `console`.
    Raises ControlPlaneError, TopologyError, WorkerDiedError or WrongMeanError.
    """
    # Kernels are compiled here, once: workers find them in the cache.
    codecs = {name: make_codec(name, workers=setting.workers) for name in setting.subjects if name not in GLOO}
    compiled_kernel()
    with ExitStack() as stack:
        quotas = stack.enter_context(ProcessorQuotas(setting.dilate))
        folder = stack.enter_context(OwnedFolder("bench"))
        round_trip_s = setting.dilate * setting.round_trip_s / 2
        console.print(f"starting switches ({setting.placement}) and {setting.workers} workers a subject ...")
        cluster = LocalCluster(
            setting.workers, placement=setting.placement, round_trip_s=round_trip_s, switches=setting.shards
        )
        stack.enter_context(cluster)
        assert cluster.star is not None
        seats, switches = cluster.seats, cluster.switches
        plan = AllReducePlan(
            setting.workers, setting.buckets, setting.seed, CHECKED, "eth0", folder,
            services=tuple(switch.service for switch in switches), timing=dilated_timing(setting.dilate),
        )  # fmt: skip
        pools: dict[str, WorkerPool] = {}
        for subject in setting.subjects:
            if not needs_gloo(subject):
                pool = pools[subject] = stack.enter_context(WorkerPool(seats, work, replace(plan, codec=subject)))
                path = folder / f"job{len(pools)}.json"
                stack.push(make_job(cluster, pool, codecs[subject], setting.window, path))
        gloo = [subject for subject in setting.subjects if needs_gloo(subject)]
        if gloo:
            # Here, not above: torch is installed where gloo is asked for, and the other processes shall not hold it.
            from hopsum_evaluation.torch.gloo_bench import work as work_gloo

            pool = stack.enter_context(WorkerPool(seats, work_gloo, plan))
            pools.update(dict.fromkeys(gloo, pool))
        for pool in dict.fromkeys(pools.values()):
            pool.gather("ready")
        # After the imports of all, which no figure counts. A rank's processes take turns: they share its processor.
        ranks = zip(*(pool.processes for pool in dict.fromkeys(pools.values())), strict=True)
        quotas.assign([*([process.pid for process in own] for own in ranks), *([switch.pid] for switch in switches)])
        turns = _Turns(setting, plan, cluster.star, pools, [switch.pid for switch in switches], codecs, console)
        findings = [found for elements, rate in setting.cases for found in turns.measure(elements, rate)]
        for pool in dict.fromkeys(pools.values()):
            pool.send(None)
            pool.gather("finished")
        return findings


@dataclass(frozen=True, slots=True)
class _Turns:
    """Turns of all subjects: workers are ready, and links and switches are there."""

    setting: AllReduceSetting
    plan: AllReducePlan
    star: Star
    pools: Mapping[str, WorkerPool]
    switch_pids: Sequence[int]
    codecs: Mapping[str, Codec]
    console: Console

    def measure(self, elements: int, rate: str | None) -> list[RateFinding]:
        """Measure all subjects in turn with one size at one rate, once to warm up."""
        dilate = self.setting.dilate
        self.star.shape(dilated_rate(rate, dilate))
        slow = self.star.rate_bits_per_s()
        bits_per_s = None if slow is None else dilate * slow
        checked = min(self.plan.checked, elements)
        truth = np.mean([gradient_of(self.plan.seed, rank, checked) for rank in range(self.plan.workers)], axis=0)
        findings = [RateFinding(subject, elements, rate, bits_per_s) for subject in self.pools]
        calls = dict.fromkeys(self.pools, 1)
        for number in range(self.setting.runs + 1):
            for finding in findings:
                subject = finding.subject
                took = self._take(Turn(subject, elements, calls[subject]), truth)
                # The first turn warms up: sockets, caches, and the window of retransmissions.
                if number:
                    finding.add(*took)
                    self.console.print(
                        f"{elements:11,} {rate or UNSHAPED:10} {subject:15} {_ms(finding.seconds[-1])} ms"
                    )
                else:
                    # Ranks take equally many: the slowest one's time decides.
                    slowest_s = max(measured.calls_s[0] for measured in took[0])
                    calls[subject] = min(MAX_CALLS, max(1, round(LOOP_S / slowest_s)))
        return findings

    def _take(self, turn: Turn, truth: NDArray[np.float32]) -> tuple[list[TurnFigures], list[LinkCounts], float, float]:
        """Let the workers take a turn. Return their figures, counts of links and switches meanwhile, and the error."""
        before, used_s = self.star.read_counts(), sum(map(processor_s, self.switch_pids))
        pool = self.pools[turn.subject]
        pool.send(tuple(turn))
        done = [TurnFigures(*message).undilated(self.setting.dilate) for message in pool.gather("done")]
        used_s = sum(map(processor_s, self.switch_pids)) - used_s
        passed = [now.since(then) for now, then in zip(self.star.read_counts(), before, strict=True)]
        return done, passed, used_s, _error(turn.subject, self.codecs.get(turn.subject), done, truth)


def needs_gloo(subject: str) -> bool:
    """Return True if a subject runs over gloo, without a switch: the rings of GLOO, and codec two-shot."""
    return subject in GLOO or parse_codec(subject).name == TwoShot.name


def nmse_limit(subject: str, codec: Codec | None) -> float:
    """Return the largest NMSE with which a subject's mean counts as right.

    It is far above the error that the subject promises, and far below that of a wrong sum. `codec` is None for the
    rings of gloo. By error feedback a mean has the error of this all-reduce and of the one before it.
    """
    if isinstance(codec, LookupTableCodec):
        return 2 * (1 + feeds_back(codec)) * _independent_nmse(codec)
    if isinstance(codec, TwoShot):
        # Twice a step of a block of 512 normal elements, of which the largest is below 4.5, has been rounded.
        step = 4.5 / ((1 << codec.bits - 1) - 1)
        return 4 * step**2 / 12
    return 1e-5 if subject == "gloo-fp16" else 1e-12


def _independent_nmse(codec: Codec) -> float:
    """Measure the error of the mean of independent normal vectors in memory, without error feedback."""
    vectors = [gradient_of(0, rank, CHECKED) for rank in range(codec.workers)]
    means = simulate_allreduce(codec, vectors, seed=0, step=1)
    assert means is not None
    truth = np.mean(vectors, axis=0)
    return float(np.sum((means[0] - truth) ** 2) / np.sum(truth**2))


def _error(subject: str, codec: Codec | None, done: Sequence[TurnFigures], truth: NDArray[np.float32]) -> float:
    """Return the NMSE of a turn's first mean. Raises WrongMeanError."""
    most, mean = nmse_limit(subject, codec), done[0].first_mean
    if len({(measured.first_mean.tobytes(), measured.last_mean.tobytes()) for measured in done}) > 1:
        raise WrongMeanError(f"{subject}: the ranks have different means")
    nmse = float(np.sum((mean - truth) ** 2) / np.sum(truth**2))
    if not nmse <= most:
        raise WrongMeanError(f"{subject}: a mean with an NMSE of {nmse:.3g}, beyond {most:.3g}")
    return nmse
