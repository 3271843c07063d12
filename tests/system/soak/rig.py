# SPDX-License-Identifier: Apache-2.0
"""A switch process that loses packets both ways, four workers on UDP sockets, and a long stream of rounds.

    members 0..3 -- UDP over loopback -- ports 1..4 of the switch process: each loses 5 % in and 5 % out

Every all-reduce is compared when the last member has it: all of them hold the same values, which are numpy's sum of
what all ranks sent. When the stream has ended, every datagram is accounted for: see `close`.
"""

from __future__ import annotations

import math
import random
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker import Membership, Timing
from hopsum_controlplane import Job, JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch
from hopsum_wire import HOPSUM_UDP_PORT, Op
from hopsum_wire.payload import lanes

from ...support.contributions import Values, draw, result_of
from ...support.jobs import RESULT_TABLES, TABLE, TABLE16
from .member import Member

WORKERS, SLOTS, CHUNKS, AHEAD = 4, 64, 256, 3
SWITCH = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")
TIMING = Timing(retransmit_s=0.05, backoff=1.5, retransmit_max_s=0.4, deadline_s=300.0)
STANDSTILL_S = 60.0
LOOK_S = 0.005
"""A transport may have found, at the end of a step, that a datagram is due: its next step sends it."""
OPS = (
    Op.LOOKUP_ADD8, Op.MAX32, Op.LOOKUP_ADD8, Op.ADD32, Op.LOOKUP_ADD8, Op.OR, Op.LOOKUP_ADD8, Op.LOOKUP_ADD16,
    Op.LOOKUP_ADD8, Op.ADD8, Op.LOOKUP_ADD_LOOKUP4, Op.ADD16, Op.LOOKUP_ADD_LOOKUP3, Op.LOOKUP_ADD_LOOKUP2,
)  # fmt: skip
"""Of the all-reduces, in turn."""
PATTERNS = 61
"""A position of the stream has the payloads of position mod PATTERNS: a prime above the number of rounds that can be
confused, so that rounds which share a slot's copy never carry the same bytes."""


@dataclass(frozen=True)
class Bench:
    """The running system: a switch, its job, and the sockets around it."""

    switch: NativeSwitch
    management: ManagementClient
    controller: SwitchController
    job: Job
    members: list[Member]


@contextmanager
def bench(loss: float, seed: int) -> Iterator[Bench]:
    """Start a switch with a job of all members; all of it ends with the block."""
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
            members.append(Member(rank, (host, int(number))))
            stack.callback(members[-1].link.close)
            endpoints.append(WorkerEndpoint(rank, port, f"02:00:00:00:01:{port:02x}", *members[-1].address))
        controller = SwitchController(device, SWITCH)
        tables = {"table": TABLE, "table16": TABLE16, **RESULT_TABLES}
        job = controller.create_job(JobSpec("soak", tuple(endpoints), SLOTS, tables))
        for port in range(1, WORKERS + 1):
            controller.set_loss(port, loss, loss)
        yield Bench(switch, management, controller, job, members)


class Given(NamedTuple):
    """The contributions of PATTERNS positions."""

    payloads: NDArray[np.uint8]
    """[rank, pattern, bytes]."""
    expected: Values
    """[pattern, element], of all ranks together."""

    @classmethod
    def draw(cls, op: Op, source: np.random.Generator) -> Given:
        """Draw what each rank gives."""
        values, payloads = zip(*(draw(op, PATTERNS, source) for _ in range(WORKERS)), strict=True)
        return cls(np.array(payloads), result_of(op, np.array(values)))


@dataclass
class Soak:
    """One stream of all-reduces through a bench."""

    bench: Bench
    tasks: dict[Op, Given]
    rng: random.Random
    opened: int = 0
    """All-reduces that somebody has submitted."""
    settled: int = 0
    """All-reduces that everybody has: compared and forgotten."""

    def run(self, updates: int) -> None:
        """Continue until the members have sent so many datagrams and hold all results."""
        members = self.bench.members
        for member in members:
            own = Membership(self.bench.job.generation, member.rank, WORKERS, SLOTS)
            member.join(own, TIMING)
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

    def _sent(self) -> int:
        return sum(member.sent for member in self.bench.members)

    def _sweep(self, more: bool) -> int:
        """Give every member a turn, in any order; return how many datagrams came."""
        arrived = 0
        members = self.bench.members
        for member in self.rng.sample(members, len(members)):
            submitted = member.worker.stream.end // CHUNKS
            if submitted < self.opened or (more and submitted < self.settled + AHEAD):
                self._submit(member, submitted)
            arrived += member.turn()
        return arrived

    def _submit(self, member: Member, number: int) -> None:
        op = OPS[number % len(OPS)]
        member.transport.submit(op, self.tasks[op].payloads[member.rank, patterns(number)])
        self.opened = max(self.opened, number + 1)

    def settle(self) -> None:
        """Compare what all members have."""
        while all(self.settled in member.done for member in self.bench.members):
            self._compare(self.settled)
            self.settled += 1

    def _compare(self, number: int) -> None:
        one, *others = [member.done.pop(number) for member in self.bench.members]
        for rank, other in enumerate(others, 1):
            assert np.array_equal(one.contributors, other.contributors), f"all-reduce {number}: ranks 0 and {rank}"
            assert np.array_equal(one.results, other.results), f"all-reduce {number}: ranks 0 and {rank}"
        assert set(one.contributors.tolist()) == {(1 << WORKERS) - 1}, f"all-reduce {number}: some ranks are not in it"
        op = OPS[number % len(OPS)]
        sums = lanes(op, one.results).astype(np.uint32)
        wrong = np.flatnonzero((sums != self.tasks[op].expected[patterns(number)]).any(axis=1))
        assert not len(wrong), f"all-reduce {number}, op {op.name}: chunks {wrong} are no sums"

    def _where(self) -> str:
        again = sum(member.worker.statistics.retransmits for member in self.bench.members)
        return f"{again:,} sent again"


def patterns(number: int) -> NDArray[np.int64]:
    """Return the patterns of the chunks of an all-reduce."""
    return np.arange(number * CHUNKS, (number + 1) * CHUNKS) % PATTERNS


def next_job(stage: Bench) -> Bench:
    """End the job and begin it anew, in a new generation."""
    stage.controller.delete_job(stage.job)
    return replace(stage, job=stage.controller.create_job(stage.job.spec))


def make_soak(stage: Bench, seed: int) -> Soak:
    source = np.random.default_rng(seed)
    return Soak(stage, {op: Given.draw(op, source) for op in Op}, random.Random(seed))


QUIET_S = 60.0
POLL_S = 0.02


def bound(draws: int, probability_of_alarm: float = 1e-9) -> float:
    """Return how far from its mean the count of `draws` draws may be, by Hoeffding."""
    return math.sqrt(draws * math.log(2 / probability_of_alarm) / 2)


def close(soak: Soak, loss: float) -> dict[str, int]:
    """Wait until nothing is under way, and find every datagram again, as delivered or as lost. Return figures.

    of every port       sent by its member = received + dropped by the kernel (socket buffer full)
                        sent by the port   = received by its member + dropped by the kernel
    of the way in       received by ports  = SIMULATED + added + duplicate + answered + stale;  no other drop
    of the way out      RESULTs and STALEs = sent by ports + lost by the simulator
    of the losses       as far from the set probability as chance allows (Hoeffding)
    """
    bench = soak.bench
    ports = _quiet(soak)
    drops, lost = bench.controller.drop_counters(), bench.controller.loss_counters()
    events = bench.controller.job_counters(bench.job)
    received = {port: shown["received"] for port, shown in ports.items()}
    lost_in, lost_out = (sum(way) for way in zip(*lost.values(), strict=True)) if lost else (0, 0)
    replies = WORKERS * events["completed"] + events["answered"] + events["stale"]
    assert {name for name, count in drops.items() if count} <= {"simulated"}, drops
    assert drops["simulated"] == lost_in
    arrived = sum(events[name] for name in ("added", "duplicate", "answered", "stale"))
    assert sum(received.values()) == lost_in + arrived, (received, lost, events)
    assert (events["fault"], events["probed"]) == (0, 0), events
    assert events["completed"] == soak.settled * CHUNKS, (events, soak.settled)
    sent_by_ports = {port: shown["sent"] for port, shown in ports.items()}
    assert replies == sum(sent_by_ports.values()) + lost_out, (ports, lost, events)
    for port, (in_, out) in lost.items():
        assert abs(in_ - loss * received[port]) <= bound(received[port]), (port, in_, received[port])
        wanted = sent_by_ports[port] + out
        assert abs(out - loss * wanted) <= bound(wanted), (port, out, wanted)
    statistics = [member.worker.statistics for member in bench.members]
    assert not any(each.ignored or each.probes for each in statistics), statistics
    again = sum(each.retransmits for each in statistics)
    sent = sum(member.sent for member in bench.members)
    return {"sent": sent, "again": again, "lost_in": lost_in, "lost_out": lost_out, **events}


def _quiet(soak: Soak) -> dict[int, dict[str, Any]]:
    """Wait until every datagram has arrived or is known as dropped; return the switch's ports."""
    give_up = time.monotonic() + QUIET_S
    while True:
        for member in soak.bench.members:
            while member.receive():
                pass
        ports = soak.bench.management.list_ports()
        dropped = kernel_drops()
        missing = []
        for member in soak.bench.members:
            port = ports[member.rank + 1]
            switch_udp = int(port["address"].rpartition(":")[2])
            missing.append(member.sent - port["received"] - dropped.get(switch_udp, 0))
            missing.append(port["sent"] - member.received - dropped.get(member.address[1], 0))
            assert not port["dropped"], port
        if not any(missing):
            return ports
        assert time.monotonic() < give_up, f"datagrams unaccounted for, by rank and direction: {missing}"
        time.sleep(POLL_S)


def kernel_drops() -> dict[int, int]:
    """Return what the kernel dropped for want of buffer, by local UDP port, where this thread is."""
    rows = [line.split() for line in Path("/proc/thread-self/net/udp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16): int(row[-1]) for row in rows}
