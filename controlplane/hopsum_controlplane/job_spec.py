# SPDX-License-Identifier: Apache-2.0
"""A job: its specification, checked before anything is allocated, and the job with its resources on a switch."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hopsum_controlplane import lanes
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire import HOPSUM_UDP_PORT, LANE_GROUP_CODES, MAX_SLOTS, MAX_WORKERS, Op, up_bytes
from hopsum_wire._layout import LANES_BYTES
from hopsum_wire.payload import SHAPES, TABLE_NAMES

SIDE_KEY_BYTES = 32
# bit<9>, and 511 means drop.
MAX_PORT = 510
MAX_UDP_PORT = 65535
MAX_RANK = 65535
ALL_OPS = tuple(Op)
_PARTIAL_GROWTH: Final = 512
"""Most bytes by which a PARTIAL may exceed the UPDATE that completes it, the room of bmv2."""


def why_no_tree(op: Op) -> str:
    """Return the reason why no tree of switches can sum by an operation, an empty string if a tree can."""
    if op not in lanes.RESULT_CODE_BITS or LANES_BYTES - up_bytes(op) <= _PARTIAL_GROWTH:
        return ""
    return (
        f"a leaf makes a PARTIAL of {LANES_BYTES} bytes from an UPDATE of {up_bytes(op)} bytes for {op.name}, and in "
        f"bmv2 a frame may grow by {_PARTIAL_GROWTH} bytes"
    )


NO_TREE_HINT: Final = "take the codec with bits=4, or use one switch"
"""The remedy for a job that `why_no_tree` refuses."""


@dataclass(frozen=True)
class SwitchEndpoint:
    """The address of a switch's aggregation service, to which workers send."""

    mac: str
    ip: str

    def check(self) -> None:
        """Raise ControlPlaneError for an invalid address."""
        mac_to_int(self.mac)
        ipv4_to_int(self.ip)


@dataclass(frozen=True)
class WorkerEndpoint:
    """The endpoint of a worker: its switch port, and its source addresses at the switch."""

    rank: int
    port: int
    mac: str
    ip: str
    udp_port: int


@dataclass(frozen=True)
class LeafEndpoint:
    """A switch below this one: its number in place of a rank, its port here, its address, and the ranks below it."""

    number: int
    port: int
    mac: str
    ip: str
    members: tuple[int, ...]

    @property
    def bitmap(self) -> int:
        """Return the bitmap of the workers below the leaf: bit r for rank r."""
        return sum(1 << rank for rank in set(self.members))


@dataclass(frozen=True)
class ParentEndpoint:
    """The switch above this one: this one's number there, the port towards it, its address.

    `workers` is the number of workers of the whole tree, whose values a lane adds.
    """

    number: int
    port: int
    mac: str
    ip: str
    workers: int


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job: of a cluster, or of one switch with the endpoints of its workers.

    name: of the job, unique in the cluster and on the switch.
    workers: the workers of a generation on one switch, with the ranks 0 .. n - 1. Empty before they have joined.
    slots: number of slots on each switch, which bounds the packets that a worker has in flight.
    tables: lookup tables by name (`TABLE_NAMES`), for the operations that the workers send. `table` and `table16` have
        16 values (see lanes.check_table), `table4`, `table3` and `table2` values and thresholds (see
        lanes.check_result_table).
    quorum: workers that complete a round, None for all.
    min_quorum: least number of workers with which a packet with FLUSH completes its round. Workers send FLUSH only if
        they have `flush_after_s`.
    ranks: number of the job's ranks, some of which may have no worker now; 0: as many ranks as workers.
    leaves, parent: the switch's neighbours in a tree (see trees.py). Quorums count children: workers and leaves.

    Only a cluster uses the others.

    switch: name of the job's switch, or of its spine; None for the one with most free slots.
    lease_s: seconds that a member may be silent, None for the cluster's.
    tree: whether to use a spine and its leaves also if one switch would reach all workers.
    codec, codec_options: of the workers, the options as a JSON object; both empty if each worker chooses.
    shards: number of switches of the job. shard_switches: their names, empty for those with most free slots.
    min_workers: number of workers with which a generation may begin, None for all. replace_s: seconds to wait for a
        missing worker when so many have joined, None for a lease.
    """

    name: str
    workers: tuple[WorkerEndpoint, ...] = ()
    slots: int = 0
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    quorum: int | None = None
    min_quorum: int = 1
    ranks: int = 0
    leaves: tuple[LeafEndpoint, ...] = ()
    parent: ParentEndpoint | None = None
    switch: str | None = None
    lease_s: float | None = None
    tree: bool = False
    codec: str = ""
    codec_options: str = ""
    shards: int = 1
    shard_switches: tuple[str, ...] = ()
    min_workers: int | None = None
    replace_s: float | None = None

    @property
    def lookups(self) -> dict[Op, tuple[int, ...]]:
        """Return the lookup tables by operation: the switch must have these operations."""
        return {op: self.tables[name] for op, name in TABLE_NAMES.items() if name in self.tables}

    @property
    def children(self) -> int:
        """Return the number of workers and leaves to which this switch sends each RESULT, 0 before workers joined."""
        return len(self.workers) + len(self.leaves)

    @property
    def effective_quorum(self) -> int:
        """Return the number of children that complete a round: `quorum`, or all of them where it is None.

        Before workers have joined, all of them are as many as the job has ranks.
        """
        return (self.children or self.ranks) if self.quorum is None else self.quorum

    @property
    def least_workers(self) -> int:
        """Return the number of workers with which a generation may begin: `min_workers`, or all ranks if it is None."""
        return self.ranks if self.min_workers is None else self.min_workers

    def check(self) -> None:
        """Raise ControlPlaneError for the first error in the job's part on one switch.

        One of the errors is a table with sums that may overflow a lane. The fields that only a cluster uses are not
        checked.
        """
        if not self.name:
            raise ControlPlaneError("a job without a name", hint="give it one")
        children = self.children or self.ranks
        if not 1 <= children <= MAX_WORKERS:
            raise self._wrong(f"{children} workers", f"a job has 1 .. {MAX_WORKERS}")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise self._wrong(f"{self.slots} slots", f"a job has 1 .. {MAX_SLOTS}")
        if self.leaves or self.parent is not None:
            self._check_tree()
        else:
            self._check_ranks()
        quorum = self.effective_quorum
        if not 1 <= quorum <= children:
            raise self._wrong(f"quorum {quorum}", f"of {children} workers it is 1 .. {children}")
        if not 1 <= self.min_quorum <= quorum:
            raise self._wrong(f"min_quorum {self.min_quorum}", f"with quorum {quorum} it is 1 .. {quorum}")
        for worker in self.workers:
            who = f"worker {worker.rank}"
            self._check_place(who, worker)
            if not 1 <= worker.udp_port <= MAX_UDP_PORT:
                raise self._wrong(f"{who}: UDP port {worker.udp_port}", f"ports are 1 .. {MAX_UDP_PORT}")
        counted = Counter(f"{worker.ip}:{worker.udp_port}" for worker in self.workers)
        if shared := [place for place, times in counted.items() if times > 1]:
            raise self._wrong(f"several workers at {shared[0]}", "give each a UDP port of its own")
        if unknown := [name for name in self.tables if name not in TABLE_NAMES.values()]:
            raise self._wrong(f"a table {unknown[0]!r:.80}", f"tables are {', '.join(TABLE_NAMES.values())}")
        for op, table in self.lookups.items():
            # A lane adds the values of all workers: the proof is for the whole tree, not for this switch's part.
            if (code_bits := lanes.RESULT_CODE_BITS.get(op)) is None:
                lanes.check_lane_overflow(self.total, lanes.check_table(table), SHAPES[op].lane_bits)
                continue
            lanes.check_result_table(table, code_bits)
            lanes.check_signed_overflow(self.total, table, code_bits)

    @property
    def total(self) -> int:
        """Return the number of workers whose values a lane adds: all of the tree, or `ranks` before workers joined."""
        if self.parent is not None:
            return self.parent.workers
        return len(self.workers) + sum(len(leaf.members) for leaf in self.leaves) or self.ranks

    def _check_ranks(self) -> None:
        found, count = sorted(worker.rank for worker in self.workers), len(self.workers)
        if found != [rank for rank in range(self.ranks or count) if rank in found]:
            ranks, last = ", ".join(str(worker.rank) for worker in self.workers), (self.ranks or count) - 1
            raise self._wrong(f"ranks {ranks}", f"{count} workers have the ranks 0 .. {last}, each once")

    def _check_tree(self) -> None:
        """Check that ranks and numbers below this switch are unique."""
        ranks = [*(worker.rank for worker in self.workers), *(rank for leaf in self.leaves for rank in leaf.members)]
        numbers = [*(worker.rank for worker in self.workers), *(leaf.number for leaf in self.leaves)]
        for what, values in (("ranks below this switch", ranks), ("numbers of its children", numbers)):
            if len(set(values)) < len(values) or not all(0 <= value < MAX_WORKERS for value in values):
                shown = ", ".join(map(str, values))
                raise self._wrong(f"{what}: {shown}", f"in a tree they are 0 .. {MAX_WORKERS - 1}, each once")
        for leaf in self.leaves:
            if not leaf.members:
                raise self._wrong(f"leaf {leaf.number} without workers", "leave it out, or name the ranks below it")
        for op in self.lookups:
            if why := why_no_tree(op):
                raise self._wrong(f"{TABLE_NAMES[op]} in a tree of switches: {why}", NO_TREE_HINT)
        relatives = (*self.leaves, *(() if self.parent is None else (self.parent,)))
        for relative in relatives:
            self._check_place(f"switch {relative.ip} in the tree", relative)
        if self.parent is not None and not len(ranks) <= self.parent.workers <= MAX_WORKERS:
            raise self._wrong(
                f"a tree of {self.parent.workers} workers with {len(ranks)} below this switch",
                f"it has as many as are below each of its switches together, {MAX_WORKERS} at most",
            )

    def _check_place(self, who: str, place: WorkerEndpoint | LeafEndpoint | ParentEndpoint) -> None:
        if not 0 <= place.port <= MAX_PORT:
            raise self._wrong(f"{who} on switch port {place.port}", f"ports are 0 .. {MAX_PORT}")
        mac_to_int(place.mac)
        ipv4_to_int(place.ip)

    def _wrong(self, what: str, hint: str) -> ControlPlaneError:
        return ControlPlaneError(f"job {self.name!r}: {what}", hint=hint)


@dataclass(frozen=True)
class Job:
    """A job on a switch: one generation, with its resources.

    spec, switch: the specification, and the address of the switch's service. generation: its number in packets.
    job_index, region: the job's number on the switch, 0 .. 63, and its slots. group: its multicast group.
    window: most packets that a worker has in flight.
    events_at_start: values of the switch's event counters of this job index before the job's first packet, by event
        number, because the counters are never reset; empty for zeros.
    code_group: number of codes in a group of the switch's program; workers pack codes in such groups.
    ops: operations of the program, in the order of their numbers.
    side_key: key with which the generation's workers authenticate on side channels, hexadecimal; empty in older
        databases.
    """

    spec: JobSpec
    switch: SwitchEndpoint
    generation: int
    job_index: int
    region: SlotRange
    group: int
    window: int
    events_at_start: tuple[int, ...] = field(default=(), compare=False)
    code_group: int = LANE_GROUP_CODES
    ops: tuple[Op, ...] = ALL_OPS
    side_key: str = field(default_factory=lambda: secrets.token_hex(SIDE_KEY_BYTES), repr=False, compare=False)

    @classmethod
    def build(
        cls,
        spec: JobSpec,
        switch: SwitchEndpoint,
        generation: int,
        job_index: int,
        region: SlotRange,
        max_window: int | None = None,
        code_group: int = LANE_GROUP_CODES,
        ops: tuple[Op, ...] = ALL_OPS,
    ) -> Job:
        """Build the Job for `spec` on `switch`, and draw a new side key. Nothing is allocated or written.

        `max_window` bounds the window below the number of slots, and None does not. `code_group` is of the switch's
        program, `ops` of its Capabilities.
        """
        # A worker has at most one packet in flight for each slot (rule W1).
        window = min(spec.slots, max_window or spec.slots)
        # Multicast group 0 does not exist in P4Runtime.
        group = job_index + 1
        return cls(spec, switch, generation, job_index, region, group, window, code_group=code_group, ops=ops)

    @property
    def slot_base(self) -> int:
        """Return the first slot of the job's region on the switch."""
        return self.region.base

    @property
    def slots(self) -> int:
        """Return the number of slots in the job's region on the switch."""
        return self.region.size

    @property
    def quorum(self) -> int:
        """Return the number of workers that complete a round."""
        return self.spec.effective_quorum

    @property
    def udp_port(self) -> int:
        """Return the UDP port of the aggregation service."""
        return HOPSUM_UDP_PORT
