# SPDX-License-Identifier: Apache-2.0
"""A switch process that loses packets both ways, four workers on UDP sockets, and a long stream of rounds.

    members 0..3 -- UDP over loopback -- ports 1..4 of the switch process: each loses 5 % in and 5 % out

Every all-reduce is compared when the last member has it: all of them hold the same contributors and values, the
contributors suffice, and the values are numpy's sum of what those ranks sent. When the stream has ended, every datagram
is accounted for: see `ledger.py`.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from hopsum.protocol.worker import Membership, Timing
from hopsum_controlplane import Job, JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch
from hopsum_wire import HOPSUM_UDP_PORT, Op

from ...support.memory import resident_kib
from .member import Member, Place
from .payloads import TABLE, TABLE6, TABLE16, Payloads

WORKERS, SLOTS, CHUNKS, AHEAD = 4, 64, 256, 3
SWITCH = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")
TIMING = Timing(retransmit_s=0.05, backoff=1.5, retransmit_max_s=0.4, deadline_s=300.0)
STANDSTILL_S = 60.0
LOOK_S = 0.005
"""A transport may have found, at the end of a step, that a datagram is due: its next step sends it."""
OPS = (
    Op.LOOKUP_ADD8, Op.MAX32, Op.LOOKUP_ADD8, Op.ADD32, Op.LOOKUP_ADD8, Op.OR, Op.LOOKUP_ADD8, Op.LOOKUP_ADD16,
    Op.LOOKUP_ADD8, Op.ADD8, Op.LOOKUP_ADD6, Op.ADD16,
)  # fmt: skip
"""Of the all-reduces, in turn."""


@dataclass(frozen=True)
class Bench:
    """The running system: a switch, its job, and the sockets around it."""

    switch: NativeSwitch
    management: ManagementClient
    controller: SwitchController
    job: Job
    members: list[Member]


@contextmanager
def bench(quorum: int, loss: float, seed: int, member: type[Member] = Member) -> Iterator[Bench]:
    """Start a switch with a job of all members, of one class; all of it ends with the block."""
    json, p4info = compiled_program()
    extra = "--backend", "native", "--seed", str(seed)
    with ExitStack() as stack:
        switch = stack.enter_context(NativeSwitch(json, p4info, grpc="unix", extra=extra))
        device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
        ensure_pipeline(device, PipelineConfig.load(json, p4info))
        management = stack.enter_context(ManagementClient(switch.address))
        members, endpoints = [], []
        for rank in range(WORKERS):
            port = rank + 1
            host, _, number = management.bind_udp(port, "127.0.0.1:0", f"{SWITCH.ip}:{HOPSUM_UDP_PORT}").rpartition(":")
            members.append(member(rank, (host, int(number))))
            stack.callback(members[-1].close)
            endpoints.append(WorkerEndpoint(rank, port, f"02:00:00:00:01:{port:02x}", *members[-1].address))
        controller = SwitchController(device, SWITCH)
        tables = {"table16": TABLE16, "table6": TABLE6}
        job = controller.create_job(JobSpec("soak", tuple(endpoints), SLOTS, TABLE, quorum=quorum, **tables))
        for port in range(1, WORKERS + 1):
            controller.set_loss(port, loss, loss)
        yield Bench(switch, management, controller, job, members)


@dataclass
class Soak:
    """One stream of all-reduces through a bench."""

    bench: Bench
    payloads: Payloads
    rng: random.Random
    opened: int = 0
    """All-reduces that somebody has submitted."""
    settled: int = 0
    """All-reduces that everybody has: compared and forgotten."""
    contributors: dict[int, int] = field(default_factory=dict)
    """Rounds by the contributors in them."""
    memory_kib: list[int] = field(default_factory=list)
    """Resident memory of the switch process, at every hundredth of the stream."""

    def run(self, updates: int) -> None:
        """Go on until the members have sent so many datagrams and hold all results."""
        members = self.bench.members
        for member in members:
            own = Membership(self.bench.job.generation, member.rank, WORKERS, SLOTS)
            member.join(own, TIMING, self._is_settled)
        moved_at = time.monotonic()
        while (sent := self._sent()) < updates or self.settled < self.opened:
            before = self.settled
            arrived = self._sweep(sent < updates)
            self.settle()
            now = time.monotonic()
            moved_at = now if self.settled > before else moved_at
            assert now < moved_at + STANDSTILL_S, f"no all-reduce ended in {STANDSTILL_S} s: {self._where()}"
            if not arrived:
                timers = [timer for member in members if (timer := member.worker.get_timer()) is not None]
                select.select(members, [], [], max(0.0, min([*timers, now + LOOK_S]) - now))
            if sent >= updates * len(self.memory_kib) // 100 and len(self.memory_kib) < 100:
                self.memory_kib.append(resident_kib(self.bench.switch.process.pid))
        self.memory_kib.append(resident_kib(self.bench.switch.process.pid))

    def _sent(self) -> int:
        return sum(member.sent for member in self.bench.members)

    def _sweep(self, more: bool) -> int:
        """Give every member a turn, in any order; return how many datagrams came."""
        arrived = 0
        members = self.bench.members
        for member in self.rng.sample(members, len(members)):
            now = time.monotonic()
            submitted = member.worker.stream.end // CHUNKS
            if submitted < self.opened or (more and submitted < self.settled + AHEAD):
                self._submit(member, submitted, now)
            arrived += member.turn(now, members)
        return arrived

    def _submit(self, member: Member, number: int, now: float) -> None:
        op = OPS[number % len(OPS)]
        member.worker.submit(op, self.payloads.sent(op, member.rank, number * CHUNKS, CHUNKS), now=now)
        self.opened = max(self.opened, number + 1)

    def settle(self) -> None:
        """Compare what all members have."""
        while all(self.settled in member.done for member in self.bench.members):
            self._compare(self.settled)
            first = self.settled * CHUNKS
            self.settled += 1
            for member in self.bench.members:
                for position in range(first, first + CHUNKS):
                    member.kept.pop((position % SLOTS, position // SLOTS + 1), None)

    def _compare(self, number: int) -> None:
        one, *others = [member.done.pop(number) for member in self.bench.members]
        for rank, other in enumerate(others, 1):
            assert np.array_equal(one.contributors, other.contributors), f"all-reduce {number}: ranks 0 and {rank}"
            assert np.array_equal(one.results, other.results), f"all-reduce {number}: ranks 0 and {rank}"
        ranks, rounds = np.unique(one.contributors, return_counts=True)
        for group, count in zip(ranks.tolist(), rounds.tolist(), strict=True):
            assert group.bit_count() >= self.bench.job.quorum, f"all-reduce {number}: only {group:#x} in a round"
            self.contributors[group] = self.contributors.get(group, 0) + count
        expected = self.payloads.summed(OPS[number % len(OPS)], one.contributors, number * CHUNKS)
        wrong = np.flatnonzero((one.results != expected).any(axis=1))
        assert not len(wrong), f"all-reduce {number}, op {OPS[number % len(OPS)].name}: chunks {wrong} are no sums"

    def _is_settled(self, place: Place) -> bool:
        return (place[1] - 1) * SLOTS + place[0] < self.settled * CHUNKS

    def _where(self) -> str:
        asked = sum(member.asked for member in self.bench.members)
        again = sum(member.worker.statistics.retransmits for member in self.bench.members)
        return f"{again:,} sent again, {asked:,} results from peers, switch {self.memory_kib[-1:]} KiB"


def next_job(stage: Bench) -> Bench:
    """End the job and begin it anew, in a new generation."""
    stage.controller.delete_job(stage.job)
    return replace(stage, job=stage.controller.create_job(stage.job.spec))


def make_soak(stage: Bench, seed: int) -> Soak:
    return Soak(stage, Payloads(WORKERS, seed), random.Random(seed))
