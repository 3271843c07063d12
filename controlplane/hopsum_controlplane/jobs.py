# SPDX-License-Identifier: Apache-2.0
"""What a job is: its specification, checked before anything is allotted, and what it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hopsum.wire import HOPSUM_UDP_PORT, MAX_SLOTS, MAX_WORKERS
from hopsum_controlplane import lanes
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.slots import SlotRange

MAX_PORT = 510  # bit<9>, and 511 means drop
MAX_UDP_PORT = 65535


@dataclass(frozen=True)
class SwitchEndpoint:
    """The address that workers send to: the source of all results."""

    mac: str
    ip: str

    def check(self) -> None:
        """Raise ControlPlaneError when an address is none."""
        mac_to_int(self.mac)
        ipv4_to_int(self.ip)


@dataclass(frozen=True)
class WorkerEndpoint:
    """Where a worker is: its switch port, and the source addresses that the switch sees in its packets."""

    rank: int
    port: int
    mac: str
    ip: str
    udp_port: int


@dataclass(frozen=True)
class JobSpec:
    """A job as its user asks for it.

    `slots` is the number of slots, which bounds the packets that a worker has in flight. `table` is the
    lookup table (16 values, see lanes.check_table) or None for a job without lookup operations.
    """

    name: str
    workers: tuple[WorkerEndpoint, ...]
    slots: int
    table: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise ControlPlaneError naming the first thing that is wrong with the specification."""
        if not self.name:
            raise ControlPlaneError("a job without a name", hint="give it one")
        count = len(self.workers)
        if not 1 <= count <= MAX_WORKERS:
            raise self._wrong(f"{count} workers", f"a job has 1 .. {MAX_WORKERS}")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise self._wrong(f"{self.slots} slots", f"a job has 1 .. {MAX_SLOTS}")
        if sorted(worker.rank for worker in self.workers) != list(range(count)):
            ranks = ", ".join(str(worker.rank) for worker in self.workers)
            raise self._wrong(f"ranks {ranks}", f"{count} workers have the ranks 0 .. {count - 1}, each once")
        for worker in self.workers:
            self._check_worker(worker)
        shared = _repeated((worker.ip, worker.udp_port) for worker in self.workers)
        if shared:
            raise self._wrong(f"several workers at {shared[0]}:{shared[1]}", "give each a UDP port of its own")
        if self.table is not None:
            lanes.prove_lanes(count, lanes.check_table(self.table))

    def _check_worker(self, worker: WorkerEndpoint) -> None:
        if not 0 <= worker.port <= MAX_PORT:
            raise self._wrong(f"worker {worker.rank} on switch port {worker.port}", f"ports are 0 .. {MAX_PORT}")
        if not 1 <= worker.udp_port <= MAX_UDP_PORT:
            raise self._wrong(f"worker {worker.rank}: UDP port {worker.udp_port}", f"ports are 1 .. {MAX_UDP_PORT}")
        mac_to_int(worker.mac)
        ipv4_to_int(worker.ip)

    def _wrong(self, what: str, hint: str) -> ControlPlaneError:
        return ControlPlaneError(f"job {self.name!r}: {what}", hint=hint)


@dataclass(frozen=True)
class Job:
    """A job as it stands on a switch: one epoch."""

    spec: JobSpec
    switch: SwitchEndpoint
    epoch: int
    job_index: int
    region: SlotRange
    group: int
    window: int

    @property
    def slot_base(self) -> int:
        """Return the first slot of the job's region on the switch."""
        return self.region.base

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return self.region.size

    @property
    def quorum(self) -> int:
        """Return how many workers complete a round: all of them."""
        return len(self.spec.workers)

    @property
    def udp_port(self) -> int:
        """Return the UDP port of the aggregation service."""
        return HOPSUM_UDP_PORT


def _repeated(items: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    counted = Counter(items)
    return next((item for item, times in counted.items() if times > 1), None)
