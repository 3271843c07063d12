# SPDX-License-Identifier: Apache-2.0
"""A switch that executes the Tofino program, the oracle that it is compared with, and what may leave when packets meet.

The oracle takes every packet in the order in which the switch decides. Packets are decided when they come back from
their loop port, and so in the order in which they were stored in the queue of the loop port. What the switch sends must
be what the oracle sends, frame by frame, in any order, with one exception. A reply with values takes as many
passes as the packet, and then as many again; when a newer round takes the copy before it is out, it becomes one STALE
to the packet's sender. It is then as if the reply had been lost and the sender had asked again.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hopsum_controlplane import Job, JobSpec, SwitchController
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_oracle.aggregator import AggregatorConfig, PacketOutcome
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_ptf import control, frames
from hopsum_ptf.case_places import SWITCH, make_workers
from hopsum_ptf.tna_device import EngineDevice, dump_path, regroup
from hopsum_tna import dump
from hopsum_tna.tna_switch import SentFrame, Switch
from hopsum_wire import Event, Kind, Op
from hopsum_wire._layout import LANES_BYTES
from hopsum_wire.payload import up_bytes

from ...support.jobs import spec_options

TABLES = (tuple(range(16)), tuple(min(2 * value, 11) for value in range(16)))
SMALL_BYTES = 64
"""Of a payload: what the small program sums. Its packets make too few passes for the rest, which stays as it came."""


def program(name: str) -> dump.Node:
    """Return a program as the compiler left it, to do with what one likes."""
    return copy.deepcopy(dump.load(dump_path(name)))


@dataclass(frozen=True)
class Arrival:
    """One frame for the switch."""

    port: int
    frame: bytes
    """With codes in the groups of the program."""
    standard: bytes
    """With codes in groups of 512, as the oracle takes them."""
    job: Job
    rank: int
    slot: int
    round: int


@dataclass(frozen=True)
class ToldArrival:
    """An arrival, and what the oracle makes of it."""

    arrival: Arrival
    outcome: PacketOutcome
    expected: tuple[SentFrame, ...]


class Bed:
    """One switch with jobs, and its oracle. `device`: another driver of the program than that of its executor."""

    def __init__(self, name: str, loaded: dump.Node | None = None, device: Any = None) -> None:
        self.device = device or EngineDevice(name, loaded)
        self.controller = SwitchController(self.device, SWITCH, clock=lambda: control.CLOCK_S)
        addresses = {"mac": mac_to_int(SWITCH.mac), "ip": ipv4_to_int(SWITCH.ip)}
        self.oracle = FrameAggregator(AggregatorConfig(**addresses, forwarding={}, floods={}))
        self._values_bytes = SMALL_BYTES if name == "small" else LANES_BYTES

    @property
    def switch(self) -> Switch:
        return self.device.switch

    def job(self, workers: int, *, slots: int = 2, **options: Any) -> Job:
        number = len(self.controller.jobs)
        spec = JobSpec(f"job {number}", make_workers(workers, job=number), slots, **spec_options(**options))
        job = self.controller.create_job(spec)
        self.oracle.add_job(control.oracle_job(job))
        return job

    def arrival(self, job: Job, rank: int, frame: bytes) -> Arrival:
        """Return a worker's frame as the switch will get it."""
        port, header = job.spec.workers[rank].port, frames.hopsum_header(frame)
        packed = regroup(frame, self.device.program.code_group)
        return Arrival(port, packed, frame, job, rank, header.slot, header.round)

    def tell(self, arrivals: Iterable[Arrival]) -> list[ToldArrival]:
        """Tell the oracle of frames, in the order in which the switch decides."""
        return [self._told(self.oracle, arrival) for arrival in arrivals]

    def foretell(self, arrivals: Iterable[Arrival]) -> list[ToldArrival]:
        """Return what the oracle would make of frames. The oracle stays as it is."""
        oracle = copy.deepcopy(self.oracle)
        return [self._told(oracle, arrival) for arrival in arrivals]

    def told_counters(self) -> Any:
        """Return the counters that the switch should have, by what the oracle was told."""
        uncounted = control.UNCOUNTED_EVENTS["tofino"]
        told = {key: packets for key, packets in self.oracle.job_events.items() if key[1] not in uncounted}
        return control.oracle_counters(self.oracle.drops, told)

    def settle(self, arrival: Arrival) -> list[str]:
        """Take one frame into the idle switch. Return what is wrong with all that leaves."""
        return self.problems(self.tell([arrival]), self.switch.process(arrival.port, arrival.frame))

    def problems(self, told: Sequence[ToldArrival], sent: Sequence[SentFrame]) -> list[str]:
        """Return what is wrong with all that left the switch because of these arrivals, in the order of decisions."""
        left = Counter(map(self._short, sent))
        waiting = []
        for number, arrival in enumerate(told):
            wanted = Counter(arrival.expected)
            if wanted - left:
                waiting.append(number)
            else:
                left -= wanted
        found = []
        for number in waiting:
            stale = self._late(told, number, left)
            if stale is None:
                found.append(f"missing of packet {number}: {[frames.describe(f) for _, f in told[number].expected]}")
            else:
                left[stale] -= 1
        return found + [f"unexpected on port {port}: {frames.describe(frame)}" for port, frame in +left]

    def _told(self, oracle: FrameAggregator, arrival: Arrival) -> ToldArrival:
        outcome, out = oracle.explain_frame(arrival.port, arrival.standard)
        return ToldArrival(arrival, outcome, tuple(self._short(SentFrame(*sent)) for sent in out))

    def _late(self, told: Sequence[ToldArrival], number: int, left: Counter[SentFrame]) -> SentFrame | None:
        """Return the STALE that stands for a packet's RESULT, if a newer round took its copy behind it."""
        asked = told[number].arrival
        if frames.hopsum_header(told[number].expected[0].frame).kind != Kind.RESULT:
            return None
        newer = {
            later.round
            for later, outcome in ((each.arrival, each.outcome) for each in told[number + 1 :])
            if (later.job, later.slot, later.round % 2) == (asked.job, asked.slot, asked.round % 2)
            and later.round > asked.round
            and Event.ADDED in outcome.events
        }
        for candidate in +left:
            header = frames.hopsum_header(candidate.frame)
            same = (header.worker, header.slot, header.round) == (asked.rank, asked.slot, asked.round)
            if header.kind == Kind.STALE and same and candidate.port == asked.port and header.held in newer:
                return candidate
        return None

    def _short(self, sent: SentFrame) -> SentFrame:
        values = min(self._values_bytes, frames.hopsum_header(sent.frame).length)
        return SentFrame(sent.port, sent.frame[: frames.PAYLOAD_AT + values])


class Stream:
    """Random packets of some jobs: rounds in any order, lost and repeated ones, FLUSH, PROBE, wrong ops."""

    OPS = (Op.LOOKUP_ADD8, Op.ADD8, Op.ADD32, Op.OR, Op.MAX32)

    def __init__(self, bed: Bed, jobs: Sequence[Job], seed: int, *, rounds: int = 3) -> None:
        self._bed = bed
        self._jobs = jobs
        self._rng = random.Random(seed)
        self._rounds = rounds
        self._first = 1

    def take(self, count: int) -> list[Arrival]:
        """Return so many packets; the rounds that they are of move on slowly."""
        return [self._next() for _ in range(count)]

    def _next(self) -> Arrival:
        rng = self._rng
        if rng.random() < 0.1:
            self._first += 1
        job = rng.choice(list(self._jobs))
        rank, slot = rng.randrange(len(job.spec.workers)), rng.randrange(job.slots)
        round_ = self._first + rng.randrange(self._rounds)
        if rng.random() < 0.1:
            return self._bed.arrival(job, rank, frames.probe(job, job.spec.workers[rank], slot=slot, round=round_))
        op = self.OPS[(round_ + slot) % len(self.OPS)]
        if rng.random() < 0.03:
            op = rng.choice(self.OPS)
        # So small that no sum of ADD8 leaves its lane: the program's carry, see hopsum_ptf.tna_skips.
        largest = 255 // len(job.spec.workers) if op is Op.ADD8 else 127
        payload = bytes(rng.choices(range(largest + 1), k=up_bytes(op)))
        flags = int(rng.random() < 0.15)
        frame = frames.update(job, rank, payload, op=op, slot=slot, round=round_, flags=flags)
        return self._bed.arrival(job, rank, frame)


def follow_one_by_one(bed: Bed) -> None:
    """Give a switch 150 packets, each alone in it: all replies are the oracle's, and so are the counters."""
    kinds = set()
    for arrival in three_jobs(bed).take(150):
        sent = bed.device.exchange(arrival.port, arrival.standard)
        (answered,) = bed.tell([arrival])
        assert sorted(map(tuple, sent)) == sorted(map(tuple, answered.expected)), arrival
        kinds.add(answered.outcome.events)
    assert len(kinds) >= 7, "too little happened"
    assert control.read_counters(bed.device) == bed.told_counters()


def three_jobs(bed: Bed) -> Stream:
    """Make jobs of 2, 3 and 5 workers with two tables and two quorums below all, and return packets of them."""
    jobs = [
        bed.job(2, slots=1, table=TABLES[0]),
        bed.job(3, slots=2, table=TABLES[1], quorum=2, min_quorum=1),
        bed.job(5, slots=1, table=TABLES[0], quorum=1),
    ]
    return Stream(bed, jobs, seed=7)
