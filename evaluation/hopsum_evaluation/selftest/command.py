# SPDX-License-Identifier: Apache-2.0
"""Arguments of `hopsum selftest`, and the run from the switch's start to the verdict."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hopsum.codec.interface import TABLE_NAMES
from hopsum_controlplane import ControlPlaneError, JobSpec, SwitchController
from hopsum_evaluation.link_options import add_link_options, check_link_options
from hopsum_evaluation.selftest.report import SHOWN, SelftestReport, Sum
from hopsum_evaluation.selftest.vectors import TABLES, Exercise, exercises_for
from hopsum_evaluation.selftest.worker import Assignment, LinkPlan, work
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.switch_testbed import SWITCH, Testbed, open_testbed
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool
from hopsum_wire import Op

SLOTS = 32
DEADLINE_S = 60.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum selftest",
        description="Sum vectors of several worker processes through a switch; compare with numpy.",
    )
    parser.add_argument("--target", choices=("native", "bmv2"), default="native", help="switch (default %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="number of workers, 1 to 15 (default %(default)s)")
    parser.add_argument(
        "--elements", type=int, default=65536, help="number of elements of every vector (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    add_link_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 0 if every sum, every replica and every counter is right."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if not 1 <= options.workers <= 15:
        most = TABLES[Op.LOOKUP_ADD8][-1]
        parser.error(f"--workers {options.workers}: 1 to 15, since 15 * {most} fills an 8-bit lane")
    if options.elements < 1:
        parser.error(f"--elements {options.elements}: at least 1")
    check_link_options(parser, options)
    console = Console(stderr=options.json)
    report = SelftestReport(options.target, "", options.workers, options.elements, options.seed)
    start = time.perf_counter()
    try:
        console.print(f"starting the {options.target} switch and {options.workers} workers ...")
        with open_testbed(options.target, options.workers) as testbed:
            report.where = testbed.where
            perform(testbed, report, console, LinkPlan(options.link, options.pcap, options.show))
    except (ControlPlaneError, TopologyError, WorkerDiedError) as error:
        print(f"hopsum selftest: {error}", file=sys.stderr)
        return 1
    report.seconds = time.perf_counter() - start
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        report.print(console)
    return 0 if report.good else 1


def perform(testbed: Testbed, report: SelftestReport, console: Console, link: LinkPlan) -> None:
    """Make the job, let the workers sum, and fill the report."""
    controller = SwitchController(testbed.device, SWITCH)
    drops_before = controller.drop_counters()
    with WorkerPool(testbed.seats, work, link) as pool:
        bound = pool.gather("bound")
        endpoints = tuple(seat.endpoint(address) for seat, (address,) in zip(testbed.seats, bound, strict=True))
        exercises = exercises_for(testbed.device.capabilities.max_growth_bytes)
        tables: dict[str, Any] = {TABLE_NAMES[e.op]: TABLES[e.op] for e in exercises if e.op in TABLES}
        job = controller.create_job(JobSpec("sum", endpoints, SLOTS, **tables))
        plan = (job.generation, report.workers, job.slots, report.elements, report.seed, DEADLINE_S)
        pool.send(Assignment(*plan, exercises))
        collect(pool, report, console, exercises)
    report.events = controller.job_counters(job)
    drops = controller.drop_counters()
    report.drops = {name: drops[name] - drops_before[name] for name in drops if drops[name] != drops_before[name]}
    controller.delete_job(job)


def collect(pool: WorkerPool, report: SelftestReport, console: Console, exercises: Sequence[Exercise]) -> None:
    """Take in progress, sums and statistics of all workers."""
    label, unit = TextColumn("{task.description:12}"), TextColumn("chunks")
    columns = (label, BarColumn(), MofNCompleteColumn(), unit, TimeElapsedColumn())
    results: dict[Exercise, list[Any]] = {exercise: [None] * report.workers for exercise in exercises}
    by_op = {exercise.op: exercise for exercise in exercises}
    with Progress(*columns, console=console) as progress:
        tasks = {e.op: progress.add_task(e.op.name, total=_chunks(e, report) * report.workers) for e in exercises}
        finished = 0
        while finished < report.workers:
            rank, (kind, *rest) = pool.receive()
            if kind == "progress":
                progress.advance(TaskID(tasks[rest[0]]), rest[1])
            elif kind == "sums":
                results[by_op[rest[0]]][rank] = (rest[1], rest[2])
            elif kind == "statistics":
                _add_statistics(report, *rest)
            else:
                finished += 1
    report.sums = [judge(exercise, done, report) for exercise, done in results.items()]


def judge(exercise: Exercise, done: list[tuple[Any, float]], report: SelftestReport) -> Sum:
    """Compare every worker's result with numpy's."""
    vectors = [exercise.values(rank, report.elements, report.seed) for rank in range(report.workers)]
    expected = exercise.expected(vectors)
    first = exercise.sums(done[0][0], report.elements)
    slowest_s = max(elapsed_s for _, elapsed_s in done)
    return Sum(
        exercise,
        _chunks(exercise, report),
        all(np.array_equal(exercise.sums(results, report.elements), expected) for results, _ in done),
        all(np.array_equal(results, done[0][0]) for results, _ in done),
        report.elements / slowest_s,
        [_head(vector) for vector in (*vectors, first, expected)],
    )


def _head(vector: Any) -> Any:
    head = np.zeros(SHOWN, np.uint32)
    head[: len(vector[:SHOWN])] = vector[:SHOWN]
    return head


def _chunks(exercise: Exercise, report: SelftestReport) -> int:
    return -(-report.elements // exercise.chunk_elements)


def _add_statistics(report: SelftestReport, link: Any, worker: Any) -> None:
    report.packets_up += link.datagrams_sent
    report.packets_down += link.datagrams_received
    report.bytes_up += link.bytes_sent
    report.bytes_down += link.bytes_received
    report.retransmits += worker.retransmits
