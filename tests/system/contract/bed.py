# SPDX-License-Identifier: Apache-2.0
"""The compiled program and the oracle side by side, configured alike and compared in everything that they keep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor

from hopsum_controlplane.artifacts import compiled_program
from hopsum_oracle.aggregator import AggregatorConfig, JobConfig, LeafConfig, ParentConfig, WorkerConfig
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.program import load_program
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact
from hopsum_wire import JOB_EVENTS, Op
from hopsum_wire.payload import SHAPES

TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 255)
TABLE16 = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 255, 256, 0x7FFF, 0xFFFF)
TABLE4 = (
    -128, -100, -64, -33, -32, -7, -2, -1, 0, 1, 5, 42, 63, 64, 100, 127,
    *(1, 2, 16, 30, 31, 48, 63, 64, 65, 80, 96, 97, 110, 126, 127),
)  # fmt: skip
TABLE3 = (-128, -65, -31, -1, 0, 10, 64, 127, 20, 40, 63, 64, 64, 81, 127)
TABLE2 = (-128, -1, 3, 127, 1, 65, 100)
PROGRAM = load_program(compiled_program()[0].read_text())
STATION, BROADCAST = 0xAA, 0xFFFFFFFFFFFF
SWITCH = AggregatorConfig(forwarding={STATION: 3}, floods={BROADCAST: (1, 2, 10, 11)})
FLOOD_GROUP = 99
LOADS = {
    Op.LOOKUP_ADD8: "load_table8",
    Op.LOOKUP_ADD16: "load_table16",
    Op.LOOKUP_ADD_LOOKUP4: "load_table8",
    Op.LOOKUP_ADD_LOOKUP3: "load_table3",
    Op.LOOKUP_ADD_LOOKUP2: "load_table2",
}
VECTORS = 4
VECTOR_BYTES = 256

AnyEngine = Engine | NativeEngine


def worker(rank: int) -> WorkerConfig:
    return WorkerConfig(rank, 10 + rank % 8, 0x020000000100 + rank, 0x0A000001 + rank, 5000 + rank % 100)


def leaf(number: int, members: int) -> LeafConfig:
    """Return a switch below this one."""
    return LeafConfig(number, 20 + number % 8, 0x020000000500 + number, 0x0A000500 + number, members=members)


def parent(number: int) -> ParentConfig:
    """Return the switch above this one, where this one has a number."""
    return ParentConfig(number, 30, 0x020000000600, 0x0A000600)


def make_jobs(rng: random.Random, generation: int = 7) -> tuple[JobConfig, ...]:
    """Five jobs, of this generation and the next ones: of any quorum and all tables; without tables; of ranks at both
    ends of the bitmap; of a leaf; of a spine with a worker of its own and, now and then, a parent.
    """
    count = rng.randint(1, 4)
    quorum = rng.randint(1, count)
    first = JobConfig(
        generation, 0, 0, 2, tuple(map(worker, range(count))), quorum=quorum, min_quorum=rng.randint(1, quorum),
        table=TABLE, table16=TABLE16, table4=TABLE4, table3=TABLE3, table2=TABLE2, observers=(worker(64),),
    )  # fmt: skip
    second = JobConfig(generation + 1, 5, 2, 1, tuple(map(worker, range(2))), quorum=2)
    ranks = (0, 31, 32, 63)
    third = JobConfig(
        generation + 2, 63, 2046, 2, tuple(map(worker, ranks)), quorum=rng.randint(2, 4), min_quorum=2,
        table16=TABLE16, table3=TABLE3, observers=(worker(0xFFFF), worker(65)),
    )  # fmt: skip
    fourth = JobConfig(
        generation + 3, 7, 3, 2, tuple(map(worker, (4, 5))), quorum=rng.randint(1, 2), table=TABLE, table16=TABLE16,
        table4=TABLE4, parent=parent(4),
    )  # fmt: skip
    quorum = rng.randint(1, 3)
    fifth = JobConfig(
        generation + 4, 8, 5, 1, (worker(6),), quorum=quorum, min_quorum=rng.randint(1, quorum), table=TABLE,
        leaves=(leaf(0, 0b0011), leaf(63, 1 << 63 | 0b1100)), parent=parent(0) if rng.random() < 0.4 else None,
        table4=TABLE4,
    )  # fmt: skip
    return first, second, third, fourth, fifth


@dataclass
class Bed:
    """The program and the oracle, configured alike."""

    engine: AnyEngine
    oracle: FrameAggregator
    jobs: tuple[JobConfig, ...]

    @classmethod
    def make(cls, rng: random.Random, backend: Callable[..., AnyEngine] = Engine, *, seed: int = 0) -> Bed:
        jobs = make_jobs(rng)
        bed = cls(backend(PROGRAM, seed=seed), FrameAggregator(SWITCH, jobs), jobs)
        bed.configure()
        return bed

    def replace_jobs(self, jobs: tuple[JobConfig, ...]) -> None:
        """End all jobs and begin these, which may have the slots of the others but none of their generations."""
        for old in self.jobs:
            self.oracle.remove_job(old.generation)
        for name in ("jobs", "workers", "lookup", "requantize", "rewrite", "leaves", "parents", "parent_rewrite"):
            table = self.engine.tables[one(PROGRAM.tables, name)]
            for entry in table.entries():
                table.delete(entry.handle)
        for group in range(1, len(self.jobs) + 1):
            self.engine.multicast.delete(group)
        self.jobs = jobs
        for group, job in enumerate(jobs, 1):
            self.oracle.add_job(job)
            self._configure_job(job, group)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return [(output.port, output.frame) for output in self.engine.process(port, frame)]

    def lose(self, direction: str, port: int, threshold: int) -> None:
        """Let the loss simulator `ingress_loss` or `egress_loss` drop a port's frames: threshold of 2^32."""
        self._insert(f"{direction}.loss", (port,), f"{direction}.drop_with_probability", threshold)

    def lost(self, direction: str) -> dict[int, int]:
        return self._counter(f"{direction}.lost")

    def counters(self) -> dict[str, dict[int, int]]:
        return {name: self._counter(name) for name in ("drops", "job_events")}

    def oracle_counters(self) -> dict[str, dict[int, int]]:
        events = {index * JOB_EVENTS + event: count for (index, event), count in self.oracle.job_events.items()}
        return {"drops": {int(reason): n for reason, n in self.oracle.drops.items()}, "job_events": events}

    def registers(self) -> list[tuple[int, ...]]:
        """Every copy: tag, op, seen, ctr, contributors, values."""
        names = ["tag", "op", "seen", "ctr", "contributors", *(f"values{i}" for i in range(VECTORS))]
        return list(zip(*(self.engine.registers.read_all(one(PROGRAM.registers, name)) for name in names), strict=True))

    def oracle_registers(self) -> list[tuple[int, ...]]:
        held = self.oracle.registers
        return [
            (
                copy.generation << 32 | copy.round,
                held.ops[index],
                copy.seen,
                copy.ctr,
                copy.contributors,
                *_vectors(held.values[index].tobytes()),
            )
            for index, copy in enumerate(held.copies)
        ]

    def _counter(self, name: str) -> dict[int, int]:
        cells = self.engine.counters.read_all(one(PROGRAM.counters, name))
        return {index: cell.packets for index, cell in enumerate(cells) if cell.packets}

    def configure(self) -> None:
        """Write all entries and groups into the engine, whose tables are empty."""
        self._insert("switch_address", (SWITCH.ip,), "set_switch_mac", SWITCH.mac)
        for mac, port in SWITCH.forwarding.items():
            self._insert("l2", (mac,), "forward", port)
        for mac, ports in SWITCH.floods.items():
            self._insert("l2", (mac,), "flood", FLOOD_GROUP)
            self.engine.multicast.insert(FLOOD_GROUP, [PortCopy(port, 0) for port in ports])
        for group, job in enumerate(self.jobs, 1):
            self._configure_job(job, group)

    def _configure_job(self, job: JobConfig, group: int) -> None:
        params = (job.job_index, job.slot_base, job.slots, job.quorum, job.min_quorum, group)
        if job.parent is None:
            self._insert("jobs", (job.generation,), "job", *params)
        else:
            above = job.parent
            self._insert("jobs", (job.generation,), "leaf_job", *params, above.port)
            self._insert("parents", (job.generation,), "parent", above.port, above.ip)
            self._insert(
                "parent_rewrite", (job.generation,), "to_parent", above.rank, SWITCH.mac, above.mac, SWITCH.ip, above.ip
            )
        self.engine.multicast.insert(group, [PortCopy(w.port, w.rank) for w in job.children])
        for below in job.leaves:
            key, bit = (job.generation, below.rank), 1 << below.rank
            self._insert("leaves", key, "leaf", bit, below.members, below.port, below.ip)
            self._insert("rewrite", key, "to_worker", SWITCH.mac, below.mac, SWITCH.ip, below.ip, below.udp_port)
        for op, action in LOADS.items():
            if (values := job.table_of(op)) is not None:
                lane_bytes = SHAPES[op].lane_bits // 8
                self._insert("lookup", (job.generation, op), action, *broadcast(values, lane_bytes))
            thresholds = job.thresholds_of(op)
            if thresholds is not None and job.parent is None:
                action = f"load_thresholds{SHAPES[op].code_bits}"
                self._insert("requantize", (job.generation, op), action, *of_levels(thresholds))
        for members, bit in ((job.workers, 1), (job.observers, 0)):
            for w in members:
                key = (job.generation, w.rank)
                self._insert("workers", key, "admit", bit << w.rank, w.port, w.ip, w.udp_port)
                self._insert("rewrite", key, "to_worker", SWITCH.mac, w.mac, SWITCH.ip, w.ip, w.udp_port)

    def _insert(self, table: str, key: tuple[int, ...], action: str, *params: int) -> None:
        match = tuple(Exact(value) for value in key)
        name, call = one(PROGRAM.tables, table), one(PROGRAM.actions, action)
        self.engine.tables[name].insert(match, call, params, 0)


def broadcast(table: Sequence[int], lane_bytes: int) -> list[int]:
    """Return the parameters of a table's action: in every lane coefficient i, of all values whose code is part of i."""
    repeated, lane = VECTOR_BYTES // lane_bytes, 1 << 8 * lane_bytes
    lanes = [int.from_bytes((value % lane).to_bytes(lane_bytes, "big") * repeated, "big") for value in table]
    return [reduce(xor, (lanes[j] for j in range(len(lanes)) if i & j == j)) for i in range(len(lanes))]


def of_levels(thresholds: Sequence[int]) -> list[int]:
    """Return the parameters of the action of thresholds, level by level of the tree: its root is the middle one."""
    found: list[int] = []
    step = len(thresholds) + 1
    while step > 1:
        # The thresholds in the middles of the parts that the levels above leave.
        found += broadcast([128 - each for each in thresholds[step // 2 - 1 :: step]], 1)
        step //= 2
    return found


def one(names: Iterable[str], last: str) -> str:
    """Return the one name that ends in these words."""
    (name,) = [name for name in map(str, names) if name == last or name.endswith(f".{last}")]
    return name


def _vectors(values: bytes) -> list[int]:
    assert len(values) == VECTORS * VECTOR_BYTES
    return [int.from_bytes(values[at : at + VECTOR_BYTES], "big") for at in range(0, len(values), VECTOR_BYTES)]
