# SPDX-License-Identifier: Apache-2.0
"""Arguments of `hopsum demo`, and the run from the switch's start to the verdict."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hopsum.codec import job_tables, make_codec
from hopsum.codec.range_codec import RangeCodec
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.codec_argument import codec_argument
from hopsum_evaluation.demo.account import read_quiet
from hopsum_evaluation.demo.model import MissingDataError, load_images
from hopsum_evaluation.demo.report import DemoReport
from hopsum_evaluation.demo.testbed import demo_testbed, network_of
from hopsum_evaluation.demo.worker import DemoPlan, DemoResult, work
from hopsum_evaluation.link_options import add_link_options, check_link_options
from hopsum_topologies.description import Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.switch_testbed import InterfaceCounters
from hopsum_topologies.tempdirs import temporary_directory
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

BATCH = 32
DEADLINE_S = 60.0
MAX_WORKERS = 16
STEPS = 200
WORKERS = 4
MAX_LOSS = 0.3


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum demo",
        description="Train a small convolutional network under torch DDP, gradients summed by a switch; then the same "
        "training under plain fp32 all-reduce, and compare.",
    )
    parser.add_argument(
        "--target",
        choices=("native", "bmv2", "mininet"),
        default="native",
        help="switch: embedded (native), bmv2, or bmv2 in Mininet (default %(default)s)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="network of `hopsum topology list`, or a description, FILE.json, in namespaces or Mininet, in place of "
        "one switch; two_rack is a tree",
    )
    parser.add_argument(
        "--workers",
        type=int,
        help=f"number of workers, 1 to {MAX_WORKERS} (default {WORKERS}, or as many as the file of --topology has)",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="number of training steps (default %(default)s)")
    parser.add_argument(
        "--codec", type=codec_argument, default="thc", help="codec of the workers: thc:bits=2 (default %(default)s)"
    )
    parser.add_argument(
        "--data", choices=("digits", "fashion"), default="digits", help="data set (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the data, the model and the rotations (default %(default)s)"
    )
    parser.add_argument("--quorum", type=int, help="workers that complete a sum (default: all of them)")
    parser.add_argument(
        "--loss",
        type=float,
        default=0.0,
        help="share of frames, 0 to 0.3, that the switch drops in each direction (default 0)",
    )
    parser.add_argument(
        "--no-peer-repair", action="store_true", help="no repair between workers of what the switch no longer has"
    )
    add_link_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Return 0 if every check holds."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        network = _network(options)
    except TopologyError as error:
        print(f"hopsum demo: {error}", file=sys.stderr)
        return 1
    _check(parser, options)
    console = Console(stderr=options.json)
    report = DemoReport(
        options.target, options.codec, options.workers, options.steps, options.data, options.seed,
        quorum=options.quorum, loss=options.loss, peers=not options.no_peer_repair,
    )  # fmt: skip
    start = time.perf_counter()
    try:
        load_images(options.data)
        if network is not None:
            report.topology = network.name
            report.loss = max(link.loss for link in network.links)
        with temporary_directory("demo") as folder:
            plan = make_plan(report, folder)
            plan = replace(plan, link=options.link, pcap=options.pcap, show=options.show)
            run(plan, report, console, network)
    except (ControlPlaneError, TopologyError, WorkerDiedError, MissingDataError) as error:
        print(f"hopsum demo: {error}", file=sys.stderr)
        return 1
    report.seconds = time.perf_counter() - start
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        report.print(console)
    return 0 if report.good else 1


def _network(options: argparse.Namespace) -> Topology | None:
    """Return the network of --topology, and say how many workers there are. Raises TopologyError."""
    if options.topology is None:
        options.workers = WORKERS if options.workers is None else options.workers
        return None
    if options.workers is None and not options.topology.endswith(".json"):
        options.workers = WORKERS
    network = network_of(options.topology, options.workers)
    options.workers = len(network.jobs[0].workers)
    return network


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a message when numbers are out of range or options exclude each other."""
    if not 1 <= options.workers <= MAX_WORKERS:
        parser.error(f"--workers {options.workers}: 1 to {MAX_WORKERS}")
    if options.steps < 20:
        parser.error(f"--steps {options.steps}: at least 20, since the first ten and the last ten are compared")
    options.quorum = options.workers if options.quorum is None else options.quorum
    if not 1 <= options.quorum <= options.workers:
        parser.error(f"--quorum {options.quorum}: 1 to {options.workers}, the workers")
    if not 0 <= options.loss <= MAX_LOSS:
        parser.error(f"--loss {options.loss}: 0 to {MAX_LOSS}")
    if options.topology is not None and (options.loss or options.quorum < options.workers):
        parser.error("--topology: its links say what is lost, and all workers complete a sum: no --loss, no --quorum")
    if options.target == "mininet" and options.topology is None:
        parser.error("--target mininet: say which network, --topology NAME")
    check_link_options(parser, options)


def make_plan(report: DemoReport, folder: Path, deadline_s: float = DEADLINE_S) -> DemoPlan:
    """Return the plan of the run that `report` is about."""
    same = (report.workers, report.steps, BATCH, report.codec, report.data, report.seed)
    how = (report.quorum, report.loss, report.peers)
    return DemoPlan(*same, *how, deadline_s=deadline_s, folder=folder)


def run(plan: DemoPlan, report: DemoReport, console: Console, network: Topology | None = None) -> None:
    """Start the switch, or those of a network, make the job, train twice, fill the report."""
    console.print(f"preparing codec {plan.codec} (compiled once, then cached) ...")
    codec = make_codec(plan.codec, workers=plan.workers)  # here, before several processes would compile it at once
    report.chunk_elements = codec.block_elements * codec.chunk_blocks if isinstance(codec, RangeCodec) else None
    what = "switch" if network is None else f"switches of {network.name}"
    console.print(f"starting the {report.target} {what} and {plan.workers} workers ...")
    with demo_testbed(report.target, plan, network) as testbed:
        report.where = testbed.where
        with WorkerPool(testbed.seats, work, plan) as pool:
            paths = testbed.make_job(plan, pool.gather("bound"), job_tables(codec))
            before = testbed.read_counts()
            for pipe, path in zip(pool.pipes, paths, strict=True):
                pipe.send(path)
            with _progress(console) as progress:
                trained = follow(pool, progress, plan, plan.codec, "trained")
                take_in(report, [message[0] for message in trained])
                report.counts = read_quiet(testbed).since(before)
                pool.send(True)
                if nmse := pool.gather("nmse")[0][0]:
                    report.nmse_mean, report.nmse_theory = nmse.measured, nmse.theory
                report.accuracy_fp32 = follow(pool, progress, plan, "fp32", "baseline")[0][0]
        testbed.remove_job()


def follow(pool: WorkerPool, progress: Progress, plan: DemoPlan, phase: str, last: str) -> list[tuple[Any, ...]]:
    """Show the steps of one training until every worker has sent its `last` message. Return those by rank."""
    task = progress.add_task(phase, total=plan.steps * plan.workers, loss="")
    found: dict[int, tuple[Any, ...]] = {}
    while len(found) < plan.workers:
        rank, (kind, *rest) = pool.receive()
        if kind == last:
            found[rank] = tuple(rest)
        elif kind == "step" and rest[0] == phase:
            progress.update(task, advance=1, loss=f"loss {rest[2]:.3f}")
        elif not (kind == "finished" and rank in found):  # which a fast one may be while others still train
            raise WorkerDiedError(f"worker {rank} sent {kind!r} during {phase}")
    return [found[rank] for rank in range(plan.workers)]


def take_in(report: DemoReport, trained: Sequence[DemoResult]) -> None:
    """Fill in what the workers found."""
    report.loss_first = sum(each.loss_first for each in trained) / len(trained)
    report.loss_last = sum(each.loss_last for each in trained) / len(trained)
    report.accuracy = trained[0].accuracy
    report.parameters = trained[0].parameters
    report.replicas_equal = len({each.digest for each in trained}) == 1
    report.fetches = sum(each.statistics.fetches for each in trained)
    report.repaired = sum(each.statistics.repaired for each in trained)
    traffic = [each.statistics.traffic for each in trained]
    report.retransmits = sum(each.retransmits for each in traffic)
    report.updates = sum(each.datagrams_sent - each.retransmits for each in traffic)
    report.agents = InterfaceCounters(
        sum(each.datagrams_sent for each in traffic),
        sum(each.interface_bytes_sent for each in traffic),
        sum(each.datagrams_received for each in traffic),
        sum(each.interface_bytes_received for each in traffic),
    )


def _progress(console: Console) -> Progress:
    label, unit, loss = (TextColumn(text) for text in ("{task.description:8}", "steps", "{task.fields[loss]}"))
    return Progress(label, BarColumn(), MofNCompleteColumn(), unit, loss, TimeElapsedColumn(), console=console)
