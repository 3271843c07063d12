# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan`: one page of arithmetic about a step of a data-parallel job.

Bytes are counted, costs are measured on this machine, and the rest is arithmetic:

    wire        the busier direction of a worker's link: bytes * 8 / rate
    codec       encoding and decoding of the gradients on one core, measured here
    network     UPDATEs of a step times the time of one UPDATE and its RESULT, and vectors times the shortest
                all-reduce, measured here: one worker and an embedded switch on loopback. A ring has none here:
                `hopsum bench allreduce` compares gloo with hopsum
    all-reduce  the longer of wire, and codec with network: a worker has one thread for both, and the wire works
                meanwhile, but for what the codec does before its first code can be sent, such as finding the ranges of
                a vector
    step        computing, and what of the all-reduce is not hidden behind `--overlap` of it

So an all-reduce is a lower bound: other load, losses and the first and last vector of a step come on top.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from hopsum.agent import Span
from hopsum.codec import Codec, CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.arguments import check_codec, switch_codec_argument
from hopsum.codec.interface import feeds_back
from hopsum.codec.simulate import simulate_phase
from hopsum.codec.thc import LookupTableCodec
from hopsum.codec.two_shot import TwoShot
from hopsum_base.units import count, format_rate, format_time, rate_bits_per_s, real, size_bytes, time_s, whole
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.timing import machine
from hopsum_evaluation.command_options import figure_table
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_evaluation.plan.traffic import (
    PlanError,
    StepTraffic,
    at_hosts,
    ring_traffic,
    summed_traffic,
    two_shot_traffic,
)
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_topologies.errors import TopologyError
from hopsum_wire import MAX_WORKERS, Op

CODECS: Final = ("thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8", "uhc", "fixed", "lossless")
"""The codecs of a page where --codec names none."""
TWO_SHOT_BITS: Final = (4, 8)
MEASURED_ELEMENTS: Final = 1 << 20
"""Elements of the vectors that are measured. Costs are in proportion above some thousand elements."""
_RUNS: Final = 3
_SHORT_RUNS: Final = 50
_SLOTS: Final = 256
_FLOAT_BYTES: Final = 4
_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """The plan of a step with one method to sum gradients: bytes and seconds of one worker."""

    method: str
    up_bytes: float
    down_bytes: float
    wire_s: float
    codec_s: float
    network_s: float
    allreduce_s: float
    step_s: float
    nmse: float | None
    """Expected error of the mean of workers with the same normal vector, by theory, or as measured of two-shot."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum plan",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--elements", type=count, metavar="N", help="number of gradients, like 25000000 or 25M")
    size.add_argument("--bytes", type=size_bytes, metavar="SIZE", help="size of the gradients in float32, like 233MB")
    parser.add_argument(
        "--compute", type=time_s, required=True, metavar="TIME", help="time of a step without communication, like 120ms"
    )
    parser.add_argument(
        "--workers", type=whole(2, MAX_WORKERS), default=4, metavar="N", help="number of workers (default %(default)s)"
    )
    parser.add_argument(
        "--overlap",
        type=real(0, 1),
        default=0.0,
        metavar="SHARE",
        help="share of computing that communication may overlap; DDP: the backward pass (default %(default)s)",
    )
    parser.add_argument(
        "--buckets", type=whole(1), default=8, metavar="N", help="vectors of a step (default %(default)s)"
    )
    parser.add_argument(
        "--density",
        type=real(1e-9, 1),
        default=0.05,
        metavar="SHARE",
        help="share of nonzero gradients, for codec lossless (default %(default)s)",
    )
    parser.add_argument(
        "--rate", type=rate_bits_per_s, default=1e9, metavar="RATE", help="rate of the links (default 1gbit)"
    )
    parser.add_argument(
        "--placement", choices=("fabric", "hosts"), default="fabric",
        help="place of the switches: one in the middle, or one on every worker's host (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--codec",
        action="append",
        type=switch_codec_argument,
        help="codec of a row, as in thc:bits=2; may be repeated (default: all)",
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of what is measured (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command: measure costs, and print a table or JSON. Return 0, or 1 if the measured switch fails."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    elements = int(options.elements or options.bytes // _FLOAT_BYTES)
    if options.buckets > elements:
        parser.error(f"argument --buckets: {options.buckets}: no more than elements, {elements}")
    for codec in options.codec or ():
        check_codec(parser, codec, options.workers)
    # Before measuring: the load that the measurement itself makes is no property of the machine.
    before = machine()
    # Where numba's cache lacks the codecs they are compiled first, which takes longer than measuring.
    print("measuring codecs and sums on this machine ...", file=sys.stderr)
    try:
        costs = measure_costs(options)
        rows = plan_step(options, elements, costs)
    except PlanError as error:
        parser.error(str(error))
    except (ControlPlaneError, TopologyError) as error:  # of the switch that is measured
        print(f"hopsum plan: {error}", file=sys.stderr)
        return 1
    if options.json:
        report = {
            "elements": elements,
            "workers": options.workers,
            "bits_per_s": options.rate,
            "compute_s": options.compute,
            "overlap": options.overlap,
            "placement": options.placement,
            "chunk_s": costs.chunk_s,
            "methods": [asdict(row) for row in rows],
            "refused": costs.refused,
            "machine": before,
        }
        print(json.dumps(report))
    else:
        console = Console()
        console.print(_table(options, elements, rows))
        for name, reason in costs.refused.items():
            console.print(f"{name}: not possible: {reason}", highlight=False)
        if costs.missing:
            console.print(f"network: not measured, counted as 0: {costs.missing}", highlight=False)
        console.print(f"measured on {before['processor']}, load {before['load_1min']}", highlight=False)
    return 0


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """Costs that were measured for a plan.

    chunk_s: network seconds of an all-reduce, for each chunk. 0 where they cannot be measured.
    vector_s: of the shortest all-reduce. 0 where it cannot be measured.
    missing: the reason why these two were not measured, or empty.
    codec_s: to encode and decode an element, by codec.
    first_s: the part of codec_s before the first code can be sent, by codec. A two-shot encodes all before it sends.
    nmse: error of the mean by codec, where it is known.
    refused: codecs of CODECS that a job of so many workers cannot have, with the reason.
    ops: name of the switch's operation, by codec: costs are of that form of the codec.
    """

    chunk_s: float
    vector_s: float
    missing: str
    codec_s: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    nmse: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    ops: dict[str, str] = field(default_factory=dict)


def measure_costs(options: argparse.Namespace) -> PlanCosts:
    """Measure the costs of the codecs that the command's arguments name, and of those that ranks add themselves.

    Of `options` it reads seed, codec (None: all of CODECS), workers and density. Raises as `measure_network` does.
    """
    costs = PlanCosts(*measure_network(options.seed))
    # A job of one rank: it adds as many elements as each of n ranks, n versions of an n-th of the vector.
    for bits in TWO_SHOT_BITS:
        alone = TwoShot(1, bits=bits)
        name = f"two-shot:bits={bits}"
        costs.codec_s[name] = costs.first_s[name] = measure_codec(alone, 1.0, options.seed)[0]
        costs.nmse[name] = measure_nmse(alone, options.seed)
    # A sum has the elements of all workers, whose supports are taken as independent. To encode costs less.
    union = 1 - (1 - options.density) ** options.workers
    for name in options.codec or CODECS:
        try:
            codec = make_codec(name, workers=options.workers)
        except CodecError as error:
            costs.refused[name] = str(error)
            continue
        costs.ops[name] = codec.op.name
        costs.codec_s[name], costs.first_s[name] = measure_codec(codec, union, options.seed)
        if isinstance(codec, LookupTableCodec):
            costs.nmse[name] = expected_normal_nmse(codec)
    return costs


def plan_step(options: argparse.Namespace, elements: int, costs: PlanCosts) -> list[MethodPlan]:
    """Return a row for each method: arithmetic on the costs, without measuring.

    Of `options` it reads workers, rate, buckets, placement, density, overlap and compute. Raises PlanError for a codec
    that declares no sizes.
    """
    workers, rows = options.workers, list[MethodPlan]()

    def add(method: str, traffic: StepTraffic) -> None:
        wire_s = max(traffic.up_bytes, traffic.down_bytes) * _BITS / options.rate
        codec_s = elements * costs.codec_s.get(method, 0.0)
        network_s = traffic.chunks * costs.chunk_s + options.buckets * costs.vector_s * bool(traffic.chunks)
        worker_s = codec_s + network_s
        first_s = elements * costs.first_s.get(method, 0.0)
        allreduce_s = first_s + max(wire_s, worker_s - first_s)
        # The last vector is there only when the backward pass ends, so it is never hidden.
        exposed_s = max(allreduce_s / options.buckets, allreduce_s - options.overlap * options.compute)
        step_s = options.compute + (exposed_s if options.overlap else allreduce_s)
        up, down, nmse = traffic.up_bytes, traffic.down_bytes, costs.nmse.get(method)
        rows.append(MethodPlan(method, up, down, wire_s, codec_s, network_s, allreduce_s, step_s, nmse))

    add("ring fp32", ring_traffic(elements, workers, 4))
    add("ring fp16", ring_traffic(elements, workers, 2))
    for bits in TWO_SHOT_BITS:
        add(f"two-shot:bits={bits}", two_shot_traffic(elements, workers, bits))
    for name in (name for name in costs.codec_s if not name.startswith(TwoShot.name)):
        traffic = summed_traffic(make_codec(name, workers=workers), elements, options.buckets, options.density)
        add(name, at_hosts(traffic, workers) if options.placement == "hosts" else traffic)
    return rows


def measure_codec(codec: Codec, density: float, seed: int, elements: int = MEASURED_ELEMENTS) -> tuple[float, float]:
    """Measure the seconds to encode and decode one element, and the part of them before the first code can be sent.

    They are processor time, the least of a few runs.

    One rank's all-reduce of a vector of N(0, 1), of which a share `density` is not zero for codec lossless, with error
    feedback where the codec has it. The switch's work in between is not counted. Additions by the ranks are.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(elements, dtype=np.float32)
    if codec.name == "lossless":
        # Each element is zero by itself: no runs of zeros help the sketch.
        x[rng.random(elements) >= density] = 0
    taken, feedback = [], ErrorFeedback(elements) if feeds_back(codec) else None
    for step in range(_RUNS + 1):
        begin = time.process_time()
        reduction = codec.start(x, ReductionContext(seed, step, 0), feedback)
        seconds = time.process_time() - begin
        # Codes are encoded while others are on the wire. Ranges are found before.
        first = seconds if reduction.phase is not None and reduction.phase.op is Op.MAX32 else 0.0
        while (phase := reduction.phase) is not None:
            begin = time.process_time()
            results, contributors = simulate_phase(codec, [phase])
            if phase.add is None:
                begin = time.process_time()
            reduction.on_results(results, contributors)
            seconds += time.process_time() - begin
        taken.append((seconds / elements, first / elements))
    # The first run compiles kernels.
    return min(taken[1:])


def measure_nmse(codec: Codec, seed: int) -> float:
    """Measure the NMSE of the mean of all ranks of a job in memory, all with the same N(0, 1) vector."""
    x = np.random.default_rng(seed).standard_normal(MEASURED_ELEMENTS, dtype=np.float32)
    means = simulate_allreduce(codec, [x] * codec.workers, seed=seed, step=0)
    assert means is not None
    return float(np.sum((means[0] - x) ** 2) / np.sum(x**2))


def measure_network(seed: int) -> tuple[float, float, str]:
    """Measure the seconds between an UPDATE and the next on a busy worker, and those of the shortest all-reduce.

    Returns both and "", or two zeros and the reason where a package is missing. One worker sums with codec fixed
    through an embedded switch on loopback, which needs a core of its own. Raises TopologyError or ControlPlaneError
    when the switch does not start.
    """
    try:
        from hopsum_topologies.local_cluster import LocalCluster
    except ModuleNotFoundError as error:
        return 0.0, 0.0, f"{error.name} is missing: pip install 'hopsum[switch,controller]'"
    spans: list[Span] = []
    x = np.random.default_rng(seed).standard_normal(MEASURED_ELEMENTS, dtype=np.float32)
    with ExitStack() as stack:
        codec = make_codec("fixed", workers=1)
        job = stack.enter_context(stack.enter_context(LocalCluster(1)).open_job(codec, slots=_SLOTS))
        (agent,) = job.connect(trace=spans.append)
        for _ in range(_RUNS + 1):
            # One vector at a time, so that spans of two vectors do not overlap.
            agent.submit(x).result()
        shortest = []
        for _ in range(_SHORT_RUNS):
            begin = time.perf_counter()
            agent.allreduce(x[:1])
            shortest.append(time.perf_counter() - begin)
    chunks = summed_traffic(codec, MEASURED_ELEMENTS, 1, 1.0).chunks
    networks = [
        sum(span.stop_s - span.start_s for span in spans if span.number == number and span.stage.startswith("network"))
        for number in range(1, _RUNS + 1)
    ]
    return min(networks) / chunks, min(shortest), ""


def _table(options: argparse.Namespace, elements: int, rows: Sequence[MethodPlan]) -> Table:
    title = (
        f"{elements:,} elements, {options.workers} workers, links of {format_rate(options.rate)}, computing "
        f"{format_time(options.compute)}" + (f", {options.overlap:.0%} of it overlapped" if options.overlap else "")
    )
    table = figure_table(title, "B up", "down", "wire", "codec", "network", "all-reduce", "step", "NMSE")
    for row in rows:
        cells: list[Any] = [row.method, f"{row.up_bytes / elements:.2f}", f"{row.down_bytes / elements:.2f}"]
        cells += map(format_time, (row.wire_s, row.codec_s, row.network_s, row.allreduce_s, row.step_s))
        table.add_row(*cells, "" if row.nmse is None else f"{row.nmse:.4f}")
    return table
