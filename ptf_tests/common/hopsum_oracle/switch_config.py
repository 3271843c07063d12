# SPDX-License-Identifier: Apache-2.0
"""The configuration of a switch: its address, its jobs, their workers, its place in a tree.

In a tree a switch has children: workers, leaves or both. A leaf's number is its `rank` at its parent, as if it were a
worker there. No worker and no other leaf of that parent has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from hopsum_wire import CODE_GROUPS, HOPSUM_UDP_PORT, LANE_GROUP_CODES, MAX_JOBS, MAX_SLOTS, MAX_WORKERS, Op
from hopsum_wire._layout import TABLE_ENTRIES
from hopsum_wire.payload import SHAPES, TABLE_NAMES

TREE_OPS: Final = frozenset(Op) - {Op.LOOKUP_ADD_LOOKUP3, Op.LOOKUP_ADD_LOOKUP2}
"""The operations of trees of switches. With others a leaf's PARTIAL would be longer than its worker's UPDATE by more
than bmv2 has room for."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The location of one worker. Its UPDATEs must come from here, and its replies go here."""

    rank: int
    port: int
    """The switch port, for ingress and egress."""
    mac: int
    ip: int
    udp_port: int


@dataclass(frozen=True, slots=True)
class LeafConfig(WorkerConfig):
    """A leaf as its parent sees it. `rank` is the leaf's number."""

    udp_port: int = HOPSUM_UDP_PORT
    members: int = 0
    """Bitmap of the workers below the leaf. The sums of the leaf may have no other workers."""


@dataclass(frozen=True, slots=True)
class ParentConfig(WorkerConfig):
    """The parent as a leaf sees it. `rank` is the leaf's number at the parent."""

    udp_port: int = HOPSUM_UDP_PORT


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One generation of one job.

    Raises:
        ValueError: a value is out of the program's limits. The message names it.
    """

    generation: int
    job_index: int
    """The part of the `job_events` counter that belongs to this job."""
    slot_base: int
    slots: int
    workers: tuple[WorkerConfig, ...]
    """The workers, in the order of the multicast group's replicas."""
    quorum: int
    """The number of children that complete a round. Without leaves the children are the workers."""
    min_quorum: int = 1
    """The number of children that complete a round after a FLUSH."""
    table: tuple[int, ...] | None = None
    """16 values of 0..255 for LOOKUP_ADD8, or none."""
    table16: tuple[int, ...] | None = None
    """16 values of 0..65535 for LOOKUP_ADD16, or none."""
    table4: tuple[int, ...] | None = None
    """For LOOKUP_ADD_LOOKUP4: 16 values of -128..127, then 15 thresholds of 1..127 that do not fall. Or none."""
    table3: tuple[int, ...] | None = None
    """For LOOKUP_ADD_LOOKUP3: 8 values, then 7 thresholds. Or none."""
    table2: tuple[int, ...] | None = None
    """For LOOKUP_ADD_LOOKUP2: 4 values, then 3 thresholds. Or none."""
    observers: tuple[WorkerConfig, ...] = ()
    """The observers. An observer may PROBE and is no worker. Its rank is above the rank of every worker."""
    leaves: tuple[LeafConfig, ...] = ()
    """Switches below this one, in the order of the multicast group's replicas, after the workers."""
    parent: ParentConfig | None = None
    """The switch above this one, or None at the root."""
    code_group: int = LANE_GROUP_CODES
    """The number of codes that the program handles as a group."""

    def __post_init__(self) -> None:
        ranks = [child.rank for child in self.children]
        below = [*(1 << worker.rank for worker in self.workers), *(leaf.members for leaf in self.leaves)]
        observers = [observer.rank for observer in self.observers]
        checks = {
            f"generation {self.generation} is not in 1..2^32-1": 1 <= self.generation < 1 << 32,
            f"job_index {self.job_index} is not in 0..{MAX_JOBS - 1}": 0 <= self.job_index < MAX_JOBS,
            f"slots {self.slot_base}..{self.slot_base + self.slots - 1} are not within 0..{MAX_SLOTS - 1}": (
                self.slot_base >= 0 and self.slots >= 1 and self.slot_base + self.slots <= MAX_SLOTS
            ),
            f"ranks {ranks} are not distinct in 0..{MAX_WORKERS - 1}": (
                bool(ranks) and len(set(ranks)) == len(ranks) and 0 <= min(ranks) <= max(ranks) < MAX_WORKERS
            ),
            f"members {[f'{members:#x}' for members in below]} are none, above {MAX_WORKERS - 1}, or overlap": (
                all(0 < members < 1 << MAX_WORKERS for members in below)
                and sum(members.bit_count() for members in below) == reduce(or_, below, 0).bit_count()
            ),
            f"quorum {self.quorum} is not in 1..{len(ranks)} (workers)": 1 <= self.quorum <= len(ranks),
            f"min_quorum {self.min_quorum} is not in 1..{self.quorum} (quorum)": (1 <= self.min_quorum <= self.quorum),
            f"table {self.table} is not {TABLE_ENTRIES} values of 0..255": _is_table(self.table, 8),
            f"table16 {self.table16} is not {TABLE_ENTRIES} values of 0..65535": _is_table(self.table16, 16),
            f"table4 {self.table4} is not 16 values of -128..127 and 15 thresholds": _is_table_of_codes(self.table4, 4),
            f"table3 {self.table3} is not 8 values of -128..127 and 7 thresholds": _is_table_of_codes(self.table3, 3),
            f"table2 {self.table2} is not 4 values of -128..127 and 3 thresholds": _is_table_of_codes(self.table2, 2),
            "table3 and table2 are for no tree": (
                (self.parent is None and not self.leaves) or self.table3 is self.table2 is None
            ),
            f"code_group {self.code_group} is none of {CODE_GROUPS}": self.code_group in CODE_GROUPS,
            f"observers' ranks {observers} are not distinct in {MAX_WORKERS}..65535": (
                len(set(observers)) == len(observers) and all(MAX_WORKERS <= rank < 1 << 16 for rank in observers)
            ),
        }
        wrong = [message for message, right in checks.items() if not right]
        if wrong:
            raise ValueError(f"job of generation {self.generation}: {'; '.join(wrong)}")

    @property
    def children(self) -> tuple[WorkerConfig, ...]:
        """All receivers of a RESULT: the workers, then the leaves."""
        return (*self.workers, *self.leaves)

    def leaf(self, number: int) -> LeafConfig | None:
        """Return the leaf of this number, or None."""
        return next((leaf for leaf in self.leaves if leaf.rank == number), None)

    def worker(self, rank: int) -> WorkerConfig | None:
        """Return the worker or observer of this rank, or None."""
        return next((worker for worker in (*self.workers, *self.observers) if worker.rank == rank), None)

    def table_of(self, op: int) -> tuple[int, ...] | None:
        """Return the values of an op's codes in their order, or None where the job has no table for the op."""
        table = self._tables.get(op)
        return None if table is None else table[: 1 << SHAPES[op].code_bits]

    def thresholds_of(self, op: int) -> tuple[int, ...] | None:
        """Return the thresholds by which finished sums of an op are looked up again, None where there are none."""
        table = self._tables.get(op) if SHAPES[op].down_codes else None
        return None if table is None else table[1 << SHAPES[op].code_bits :]

    @property
    def _tables(self) -> dict[int, tuple[int, ...] | None]:
        return {op: getattr(self, name) for op, name in TABLE_NAMES.items()}


def _is_table(table: tuple[int, ...] | None, lane_bits: int) -> bool:
    return table is None or (len(table) == TABLE_ENTRIES and all(0 <= value < 1 << lane_bits for value in table))


def _is_table_of_codes(table: tuple[int, ...] | None, code_bits: int) -> bool:
    if table is None:
        return True
    values, thresholds = table[: 1 << code_bits], table[1 << code_bits :]
    return (
        len(table) == (2 << code_bits) - 1
        and all(-128 <= value <= 127 for value in values)
        and all(1 <= threshold <= 127 for threshold in thresholds)
        and list(thresholds) == sorted(thresholds)
    )


@dataclass(frozen=True, slots=True)
class AggregatorConfig:
    """The switch itself.

    `forwarding` and `floods` are its plain layer-2 table: destination MAC to one port, or to the ports of a
    group (a flood leaves out the port that the frame came from).
    """

    mac: int = 0x02_00_00_00_00_01
    ip: int = 0x0A_00_00_FE
    forwarding: Mapping[int, int] = field(default_factory=dict)
    floods: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
