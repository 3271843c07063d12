# SPDX-License-Identifier: Apache-2.0
"""`hopsum selftest`: worker processes sum vectors through a switch, and numpy judges the sums. Needs no torch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.shard import Shard
from hopsum.transport.transport import Transport
from hopsum_base.units import whole
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.command_options import add_link_options, check_link_options, view_of
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import SLOTS, LocalCluster
from hopsum_topologies.seat import LinkKind, Seat, open_seat_link
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool
from hopsum_wire import Op, pack_codes
from hopsum_wire._layout import LANES_BYTES
from hopsum_wire.payload import SHAPES, TABLE_NAMES, lanes

DEADLINE_S = 60.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum selftest",
        description="Sum vectors of several worker processes through a switch; compare with numpy.",
    )
    parser.add_argument("--target", choices=("native", "bmv2"), default="native", help="switch (default %(default)s)")
    # 15 * 17, the largest value of TABLE, fills a lane of 8 bits.
    parser.add_argument(
        "--workers", type=whole(1, 15), default=4, help="number of workers, 1 to 15 (default %(default)s)"
    )
    parser.add_argument(
        "--elements", type=whole(1), default=65536, help="number of elements of every vector (default %(default)s)"
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the vectors (default %(default)s)")
    add_link_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 0 if every sum, every replica and every counter is right, else 1.

    Returns 1 too where the switch or a worker fails.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    check_link_options(parser, options)
    # With --json stdout has the object and nothing else.
    console = Console(stderr=options.json)
    report = SelftestReport(options.target, "", options.workers, options.elements, options.seed)
    start = time.perf_counter()
    try:
        console.print(f"starting the {options.target} switch and {options.workers} workers ...")
        with LocalCluster(options.workers, target=options.target) as cluster:
            report.where = cluster.switch.where
            run_selftest(cluster, report, LinkPlan(options.link, options.pcap, options.show))
    except (ControlPlaneError, TopologyError, WorkerDiedError) as error:
        print(f"hopsum selftest: {error}", file=sys.stderr)
        return 1
    report.seconds = time.perf_counter() - start
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        report.print(console)
    return 0 if report.good else 1


def run_selftest(cluster: LocalCluster, report: SelftestReport, link: LinkPlan) -> None:
    """Make the job, let worker processes sum, fill the report, and remove the job.

    Raises ControlPlaneError or WorkerDiedError.
    """
    controller = cluster.switch.controller
    # Drops are counted by switch, not by job: those from before the job are not of its packets.
    drops_before = controller.drop_counters()
    with WorkerPool(cluster.seats, work, link) as pool:
        bound = pool.gather("bound")
        # bmv2 has no room in a packet for results that are longer than what came in.
        exercises = exercises_for(cluster.switch.device.capabilities.max_growth_bytes)
        tables: dict[str, Any] = {TABLE_NAMES[e.op]: TABLES[e.op] for e in exercises if e.op in TABLES}
        job = cluster.create_job("sum", bound, tables)
        plan = (job.generation, report.workers, SLOTS, report.elements, report.seed, DEADLINE_S)
        pool.send(Assignment(*plan, exercises))
        receive_sums(pool, report, exercises)
    report.events = job.counters()
    drops = controller.drop_counters()
    report.drops = {name: drops[name] - drops_before[name] for name in drops if drops[name] != drops_before[name]}
    job.close()


def receive_sums(pool: WorkerPool, report: SelftestReport, exercises: Sequence[Exercise]) -> None:
    """Receive sums and statistics of all workers until they finish, and put statistics and judged sums in the report.

    Raises WorkerDiedError.
    """
    results: dict[Op, list[Any]] = {exercise.op: [None] * report.workers for exercise in exercises}
    finished = 0
    while finished < report.workers:
        rank, (kind, *rest) = pool.receive()
        if kind == "sums":
            op, sums, elapsed_s = rest
            results[op][rank] = (sums, elapsed_s)
        elif kind == "statistics":
            _add_statistics(report, *rest)
        else:
            finished += 1
    report.sums = [compare_with_numpy(exercise, results[exercise.op], report) for exercise in exercises]


def compare_with_numpy(exercise: Exercise, done: list[tuple[Any, float]], report: SelftestReport) -> ExerciseResult:
    """Compare every worker's result with numpy's sum, and return the verdicts. The report is only read.

    done: by rank, the RESULT payloads and the seconds.
    """
    vectors = [exercise.draw_vector(rank, report.elements, report.seed) for rank in range(report.workers)]
    expected = exercise.expected(vectors)
    # An all-reduce has ended when its last worker has the sum.
    slowest_s = max(elapsed_s for _, elapsed_s in done)
    return ExerciseResult(
        exercise,
        _chunks(exercise, report),
        all(np.array_equal(exercise.unpack(results, report.elements), expected) for results, _ in done),
        all(np.array_equal(results, done[0][0]) for results, _ in done),
        report.elements / slowest_s,
    )


def _chunks(exercise: Exercise, report: SelftestReport) -> int:
    return -(-report.elements // exercise.chunk_elements)


def _add_statistics(report: SelftestReport, link: Any, worker: Any) -> None:
    report.packets_up += link.datagrams_sent
    report.packets_down += link.datagrams_received
    report.bytes_up += link.bytes_sent
    report.bytes_down += link.bytes_received
    report.retransmits += worker.retransmits


TABLE = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17)
"""The optimal table of granularity 17 for normally distributed values: 15 workers fit an 8-bit lane."""
TABLE16 = tuple(range(0, 16 * 273, 273))
"""Steps of 273 up to 4095: 15 workers fit a 16-bit lane."""
TABLE4 = (*range(-8, 8), *range(8, 128, 8))
"""Values of -8 to 7, then thresholds. Sums are looked up again in signed lanes of 8 bits: 15 workers fit."""
TABLE3 = (-8, -6, -4, -1, 1, 4, 6, 8, *range(16, 128, 16))
TABLE2 = (-8, -3, 3, 8, 56, 64, 72)
TABLES = {
    Op.LOOKUP_ADD8: TABLE,
    Op.LOOKUP_ADD16: TABLE16,
    Op.LOOKUP_ADD_LOOKUP4: TABLE4,
    Op.LOOKUP_ADD_LOOKUP3: TABLE3,
    Op.LOOKUP_ADD_LOOKUP2: TABLE2,
}


@dataclass(frozen=True, slots=True)
class Exercise:
    """One kind of sum. An element is a code or a lane; of OR it is a byte."""

    op: Op

    @property
    def lane_bits(self) -> int:
        """Bits of a lane of the sum."""
        return SHAPES[self.op].lane_bits

    @property
    def chunk_elements(self) -> int:
        """Elements that one packet carries: one for each lane of its sum."""
        return LANES_BYTES * 8 // self.lane_bits

    def draw_vector(self, rank: int, elements: int, seed: int) -> NDArray[np.uint32]:
        """Draw a rank's vector, uint32[elements]: lanes, or codes for the lookups."""
        rng = np.random.default_rng([seed, rank, self.op])
        if code_bits := SHAPES[self.op].code_bits:
            return rng.integers(0, 1 << code_bits, elements, dtype=np.uint32)
        # The bits of non-negative floats order like the floats: the switch compares integers.
        if self.op == Op.MAX32:
            return np.abs(rng.standard_normal(elements, dtype=np.float32)).view(np.uint32)
        # One bit an element: with more of them every union would be all ones.
        if self.op == Op.OR:
            return np.left_shift(np.uint32(1), rng.integers(0, 8, elements, dtype=np.uint32))
        if self.op == Op.ADD32:
            return rng.integers(-100_000, 100_000, elements, dtype=np.int32).view(np.uint32)
        return rng.integers(0, 1 << self.lane_bits, elements, dtype=np.uint32)

    def pack(self, values: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Pack a vector into UPDATE payloads, uint8[chunks, bytes], the last chunk padded with zeros."""
        shape = SHAPES[self.op]
        chunks = -(-len(values) // self.chunk_elements)
        padded = np.zeros(chunks * self.chunk_elements, np.uint32)
        padded[: len(values)] = values
        if shape.has_codes:
            codes = padded.astype(np.uint8).reshape(chunks, self.chunk_elements)
            return pack_codes(codes, self.lane_bits, bits=shape.code_bits)
        return padded.astype(shape.lane_dtype).view(np.uint8).reshape(chunks, shape.up_bytes)

    def unpack(self, results: NDArray[np.uint8], elements: int) -> NDArray[np.uint32]:
        """Unpack the lanes of RESULT payloads, or the codes, uint32[elements]."""
        return lanes(self.op, results).reshape(-1)[:elements].astype(np.uint32)

    def expected(self, vectors: list[NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return the result that the switch must have for all ranks' vectors, by numpy, uint32[elements]."""
        stacked = np.stack(vectors)
        if self.op == Op.MAX32:
            return np.asarray(stacked.max(axis=0), np.uint32)
        if self.op == Op.OR:
            return np.asarray(np.bitwise_or.reduce(stacked), np.uint32)
        if SHAPES[self.op].down_codes:
            values, thresholds = np.split(np.asarray(TABLES[self.op]), [1 << SHAPES[self.op].code_bits])
            # A code is the number of thresholds that a sum has reached.
            reached = (values[stacked].sum(axis=0) + 128 >> 1) >= thresholds[:, None]
            return np.asarray(reached.sum(axis=0), np.uint32)
        if SHAPES[self.op].has_codes:
            stacked = np.asarray(TABLES[self.op], np.uint32)[stacked]
        return np.asarray(stacked.sum(axis=0, dtype=np.uint32) & np.uint32((1 << self.lane_bits) - 1), np.uint32)


EXERCISES = tuple(map(Exercise, Op))


def exercises_for(max_growth_bytes: int | None) -> tuple[Exercise, ...]:
    """Return the exercises of a switch in which frames grow by at most so many bytes. None: by any number."""
    growth = {exercise: SHAPES[exercise.op].down_bytes - SHAPES[exercise.op].up_bytes for exercise in EXERCISES}
    return tuple(e for e, more in growth.items() if max_growth_bytes is None or more <= max_growth_bytes)


@dataclass(frozen=True, slots=True)
class ExerciseResult:
    """The result of one exercise.

    equal: True if all workers have numpy's sum. replicas_equal: True if all workers have the same bytes.
    elements_per_s: of the slowest worker.
    """

    exercise: Exercise
    chunks: int
    equal: bool
    replicas_equal: bool
    elements_per_s: float


@dataclass(slots=True)
class SelftestReport:
    """The report of a selftest: settings, figures and checks."""

    target: str
    where: str
    workers: int
    elements: int
    seed: int
    sums: list[ExerciseResult] = field(default_factory=list)
    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    retransmits: int = 0
    events: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """True if every sum is numpy's."""
        return bool(self.sums) and all(result.equal for result in self.sums)

    @property
    def replicas_equal(self) -> bool:
        """True if all workers hold the same bytes."""
        return bool(self.sums) and all(result.replicas_equal for result in self.sums)

    @property
    def counters_agree(self) -> bool:
        """True if the switch counted every chunk once, and every packet of a worker under one event or drop."""
        chunks = sum(result.chunks for result in self.sums)
        arrived = sum(self.events[name] for name in ("added", "duplicate", "answered", "stale", "probed"))
        return (
            self.events["added"] == chunks * self.workers
            and self.events["completed"] == chunks
            and self.events["fault"] == 0
            # Every packet has one fate: a sum above would be a packet counted twice, a sum below a packet lost
            # unseen.
            and arrived + sum(self.drops.values()) == self.packets_up
        )

    @property
    def good(self) -> bool:
        """True if every check holds."""
        return self.equal and self.replicas_equal and self.counters_agree

    def as_json(self) -> dict[str, Any]:
        """Make the object of --json."""
        names = ("target", "workers", "elements", "seed", "equal", "replicas_equal", "counters_agree")
        return {
            **{name: getattr(self, name) for name in (*names, "bytes_up", "bytes_down", "retransmits")},
            "ops": {
                result.exercise.op.name: {
                    "chunks": result.chunks,
                    "equal": result.equal,
                    "elements_per_s": round(result.elements_per_s),
                }
                for result in self.sums
            },
            "packets": self.packets_up + self.packets_down,
            "switch_events": self.events,
            "switch_drops": self.drops,
            "seconds": round(self.seconds, 3),
        }

    def print(self, console: Console) -> None:
        """Print the table and the verdicts. Counts are in `as_json`."""
        console.print(self._summary())
        console.print(f"workers and switch count the same packets: {_yes(self.counters_agree)}")
        verdict = "[bold green]all sums equal numpy's, bit for bit" if self.good else "[bold red]something differs"
        console.print(f"{verdict}[/]  ({self.where}; {self.seconds:.1f} s)")

    def _summary(self) -> Table:
        table = Table(title=f"{self.workers} workers, {self.elements:,} elements each", title_justify="left")
        table.add_column("op")
        for name in ("chunks", "is numpy's", "same on all", "elements/s"):
            table.add_column(name, justify="right")
        for result in self.sums:
            table.add_row(
                result.exercise.op.name,
                f"{result.chunks:,}",
                _yes(result.equal),
                _yes(result.replicas_equal),
                f"{result.elements_per_s:,.0f}",
            )
        return table


def _yes(value: bool) -> str:
    return "[green]yes[/]" if value else "[red]NO[/]"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The job of a worker, as the controller made it, and the vectors to sum."""

    generation: int
    workers: int
    slots: int
    elements: int
    seed: int
    deadline_s: float
    exercises: tuple[Exercise, ...]


class LinkPlan(NamedTuple):
    """The kind of the link of every worker, and the places of its packets."""

    kind: LinkKind
    pcap: Path | None
    """Folder for each worker's packets."""
    show: bool
    """Print every packet."""


def work(seat: Seat, plan: LinkPlan, pipe: Connection) -> None:
    """Run one worker in a process of its own: open its link, do the exercises, and send sums and statistics.

    Messages to the parent: ("bound", address) · ("sums", op, results, seconds) for each exercise · ("statistics", ...).
    From the parent: an Assignment.
    """
    # Bound before the job is made: the switch admits a worker by its address and port.
    link = open_seat_link(seat, plan.kind, view_of(plan.pcap, seat.rank, show=plan.show))
    pipe.send(("bound", link.local))
    assignment: Assignment = pipe.recv()
    switch = f"switch {seat.switch[0]}:{seat.switch[1]}"
    # Without the controller's service: the parent hands over what a membership document says.
    membership = Membership(assignment.generation, seat.rank, assignment.workers, assignment.slots, switch)
    timing = Timing(retransmit_s=0.25, deadline_s=assignment.deadline_s)
    with Transport([Shard(link, membership, timing)]) as transport:
        for exercise in assignment.exercises:
            _sum(exercise, seat.rank, assignment, transport, pipe)
        statistics = transport.statistics
        pipe.send(("statistics", statistics.link, statistics.worker))


def _sum(exercise: Exercise, rank: int, plan: Assignment, transport: Transport, pipe: Connection) -> None:
    payloads = exercise.pack(exercise.draw_vector(rank, plan.elements, plan.seed))
    start = time.perf_counter()
    results = transport.allreduce(exercise.op, payloads).results
    pipe.send(("sums", exercise.op, results, time.perf_counter() - start))
