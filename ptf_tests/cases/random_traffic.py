# SPDX-License-Identifier: Apache-2.0
"""Hundreds of packets of several jobs with random faults, each step compared with the oracle. Seeds are fixed.

All operations, FLUSH, questions of workers and observers, late and broken packets.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hopsum_controlplane import Job
from hopsum_ptf.case import TABLES, SwitchCase
from hopsum_ptf.case_places import PORTS, make_observer
from hopsum_ptf.frames import PAYLOAD_AT, altered, hopsum_header, probe, update
from hopsum_wire import Drop, Event, Flag, Op, up_bytes

OPS = tuple(Op)
PACKETS = 400
POOL = 24  # different payloads of each operation

Fault = Callable[[random.Random, Job, bytes], bytes]


def _any_field(rng: random.Random, job: Job, frame: bytes) -> bytes:
    """Replace one field of the hopsum header by a small or a large number."""
    name, bits = rng.choice(
        [("version", 8), ("kind", 8), ("flags", 8), ("op", 8), ("worker", 16), ("slot", 16), ("length", 16)]
    )
    return altered(frame, "hopsum", **{name: rng.choice((rng.randrange(8), rng.getrandbits(bits)))})


def _other_generation(rng: random.Random, job: Job, frame: bytes) -> bytes:
    return altered(frame, "hopsum", generation=job.generation + rng.choice((-2, -1, 1, 2)))


def _cut(rng: random.Random, job: Job, frame: bytes) -> bytes:
    """End the frame before its datagram does."""
    return frame[: rng.randrange(15, PAYLOAD_AT + hopsum_header(frame).length)]


def _flip(rng: random.Random, job: Job, frame: bytes) -> bytes:
    """Flip one bit below the payload, checksum left as it was."""
    bit = rng.randrange(8 * 74)
    flipped = bytearray(frame)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _round_zero(rng: random.Random, job: Job, frame: bytes) -> bytes:
    return altered(frame, "hopsum", round=0)


def _top_bit(rng: random.Random, job: Job, frame: bytes) -> bytes:
    """Set the top bit of one lane, which only MAX32 minds; a PROBE has none."""
    spoilt = bytearray(frame)
    lanes = hopsum_header(frame).length // 4
    if lanes:
        spoilt[PAYLOAD_AT + 4 * rng.randrange(lanes)] |= 0x80
    return bytes(spoilt)


def _trailer(rng: random.Random, job: Job, frame: bytes) -> bytes:
    return frame + rng.randbytes(rng.randrange(1, 64))


FAULTS: tuple[Fault, ...] = (
    _any_field,
    _any_field,
    _other_generation,
    _cut,
    _flip,
    _round_zero,
    _top_bit,
    _trailer,
)

FLAT_EVENTS = tuple(event for event in Event if event < Event.CLOSED)
"""What a switch without relatives counts; the cases of tree.py show the others."""


class _RandomTraffic(SwitchCase):
    """Workers that send what they should, late, twice, ahead, or broken."""

    seed: int
    fault_rate: float
    full_quorum = True
    flush_rate = 0.03
    shows: tuple[Event | Drop, ...]

    def traffic(self) -> None:
        """Send it, and see that it was varied. (A `runTest` here would make this base a case.)"""
        self._send_all()
        seen = {event.name for _, event in self.oracle.job_events} | {drop.name for drop in self.oracle.drops}
        missing = {what.name for what in self.shows} - seen
        self.assertEqual(missing, set(), "seed and rates no longer show what they should")

    def _send_all(self) -> None:
        print(f"seed {self.seed}", flush=True)
        # The seed is printed, and fixed: recordings of these cases are replayed elsewhere.
        rng = random.Random(self.seed)
        pool = {op: [rng.randbytes(up_bytes(op)) for _ in range(POOL)] for op in Op}
        pool[Op.MAX32] = [self._small(payload) for payload in pool[Op.MAX32]]
        jobs = [self._job(index) for index in range(3)]
        rounds = {(job.generation, slot): 1 for job in jobs for slot in range(job.slots)}
        for number in range(PACKETS):
            # A job ends in the middle of its rounds, and the next one gets its slots with all leftovers.
            if number == PACKETS // 2:
                jobs[0] = self._replace(jobs[0], rounds)
            job = rng.choice(jobs)
            slot = rng.randrange(job.slots)
            now = rounds[job.generation, slot]
            # Mostly the present round, sometimes a late packet, rarely one ahead.
            round_ = max(1, now + rng.choices((0, -1, -2, 1, 2), (40, 6, 4, 1, 1))[0])
            op = OPS[(slot + round_) % len(OPS)]
            senders = job.spec.workers
            if rng.random() < 0.2:
                senders += self.observers.get(job.generation, ())
            sender = rng.choice(senders)
            if rng.random() < 0.08:
                frame = probe(job, sender, slot=slot, round=round_)
            else:
                flags = Flag.FLUSH if rng.random() < self.flush_rate else 0
                payload = rng.choice(pool[op])
                frame = update(job, sender, payload, op=op, slot=slot, round=round_, flags=flags)
            port = sender.port
            if rng.random() < self.fault_rate:
                frame = rng.choice(FAULTS)(rng, job, frame)
                port = rng.choice((port, port, port, rng.choice(PORTS)))
            self.send(port, frame)
            if self.outcome.drop is Drop.NONE and self._complete(job, slot, now):
                rounds[job.generation, slot] += 1

    def _job(self, index: int) -> Job:
        workers = (2, 3, 5)[index]
        tables = {} if index == 1 else TABLES
        quorum = None if self.full_quorum else max(1, workers - 1)
        observer = make_observer(job=self._jobs_made)
        job = self.job(workers, slots=(4, 2, 3)[index], quorum=quorum, **tables)
        if index != 1:
            self.observe(job, observer)
        return job

    def _replace(self, job: Job, rounds: dict[tuple[int, int], int]) -> Job:
        """End a job in the middle of its rounds; the next one gets its slots."""
        self.end_job(job)
        successor = self._job(0)
        rounds.update({(successor.generation, slot): 1 for slot in range(successor.slots)})
        return successor

    def _complete(self, job: Job, slot: int, round_: int) -> bool:
        copy = self.oracle.registers.copies[(job.slot_base + slot) * 2 + (round_ & 1)]
        return (copy.generation, copy.round, copy.ctr) == (job.generation, round_, 255)

    def _small(self, payload: bytes) -> bytes:
        return bytes(byte & 0x7F if i % 4 == 0 else byte for i, byte in enumerate(payload))


class MostlyGoodTraffic(_RandomTraffic):
    """One packet in ten is broken."""

    seed = 20240501
    fault_rate = 0.1

    shows = FLAT_EVENTS

    def runTest(self) -> None:
        self.traffic()


class MostlyBrokenTraffic(_RandomTraffic):
    """Six packets in ten are broken."""

    seed = 20240512
    fault_rate = 0.6

    shows = (*FLAT_EVENTS, *(drop for drop in Drop if drop not in (Drop.NONE, Drop.SIMULATED, Drop.BAD_CONTRIBUTORS)))

    def runTest(self) -> None:
        self.traffic()


class TrafficWithSmallQuorum(_RandomTraffic):
    """All but one worker complete a round."""

    seed = 20240504
    fault_rate = 0.1
    full_quorum = False

    shows = FLAT_EVENTS

    def runTest(self) -> None:
        self.traffic()
