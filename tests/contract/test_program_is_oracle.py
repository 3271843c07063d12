# SPDX-License-Identifier: Apache-2.0
"""The compiled program on both back ends of the embedded engine, against the oracle: random frames, many broken.

HOPSUM_SCALE (make test SCALE=...) multiplies the number of schedules.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from hopsum.protocol.aggregator import JobConfig, SwitchConfig, WorkerConfig
from hopsum.protocol.frame_aggregator import FrameAggregator
from hopsum.wire import JOB_EVENTS, Drop, Event, Header, Kind, Op, up_bytes
from hopsum.wire.frames import FramePath, build_frame, ipv4_checksum
from hopsum_controlplane.artifacts import compiled_program
from hopsum_switch.engine import Engine
from hopsum_switch.native.engine import NativeEngine
from hopsum_switch.program import load_program
from hopsum_switch.state.match import Exact
from hopsum_switch.state.multicast import Replica

SEEDS = range(8 * int(os.environ.get("HOPSUM_SCALE", "1")))
FRAMES = 400
TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 30)
OPS = (Op.LOOKUP_ADD8, Op.ADD32, Op.MAX32)
PROGRAM = load_program(compiled_program()[0].read_text())
SWITCH = SwitchConfig(forwarding={0xAA: 3}, floods={0xFFFFFFFFFFFF: (1, 2, 10, 11)})
FLOOD_GROUP = 99


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_program_does_what_the_oracle_says(backend: type[Engine | NativeEngine]) -> None:
    """And meets every drop reason and every event."""
    met: set[tuple[str, Drop | Event]] = set()
    for seed in SEEDS:
        rng = random.Random(seed)
        bed = Bed.make(rng, backend)
        for number, (port, frame) in enumerate(bed.traffic(rng)):
            expected = bed.oracle.receive_frame(port, frame)
            got = [(output.port, output.frame) for output in bed.engine.process(port, frame)]
            assert got == expected, f"seed {seed}, frame {number}, port {port}: {frame.hex()}"
        assert bed.counters() == bed.oracle_counters(), f"seed {seed}"
        met |= {("drop", reason) for reason in bed.oracle.drops} | {("event", e) for _, e in bed.oracle.job_events}
    reasons = {("drop", reason) for reason in Drop if reason is not Drop.NONE}
    assert met == reasons | {("event", event) for event in Event}


@dataclass
class Bed:
    """The program and the oracle, configured alike."""

    engine: Engine | NativeEngine
    oracle: FrameAggregator
    jobs: tuple[JobConfig, ...]

    @classmethod
    def make(cls, rng: random.Random, backend: type[Engine | NativeEngine] = Engine) -> Bed:
        count = rng.randint(1, 4)
        jobs = (
            JobConfig(7, 0, 0, 2, tuple(map(worker, range(count))), quorum=rng.randint(1, count), table=TABLE),
            JobConfig(8, 5, 2, 1, tuple(map(worker, range(2))), quorum=2),
        )
        bed = cls(backend(PROGRAM), FrameAggregator(SWITCH, jobs), jobs)
        bed._configure()
        return bed

    def _configure(self) -> None:
        self._insert("switch_address", (SWITCH.ip,), "local")
        for mac, port in SWITCH.forwarding.items():
            self._insert("l2", (mac,), "forward", port)
        for mac, ports in SWITCH.floods.items():
            self._insert("l2", (mac,), "flood", FLOOD_GROUP)
            self.engine.multicast.insert(FLOOD_GROUP, [Replica(port, 0) for port in ports])
        for group, job in enumerate(self.jobs, 1):
            self._insert("jobs", (job.epoch,), "job", job.job_index, job.slot_base, job.slots, job.quorum, group)
            self.engine.multicast.insert(group, [Replica(w.port, w.rank) for w in job.workers])
            if job.table is not None:
                self._insert("lookup", (job.epoch,), "load_table", *broadcast(job.table))
            for w in job.workers:
                key = (job.epoch, w.rank)
                self._insert("workers", key, "admit", 1 << w.rank, w.port, w.ip, w.udp_port)
                self._insert("rewrite", key, "to_worker", SWITCH.mac, w.mac, SWITCH.ip, w.ip, w.udp_port)

    def _insert(self, table: str, key: tuple[int, ...], action: str, *params: int) -> None:
        name = one(self.engine.program.tables, table)
        match = tuple(Exact(value) for value in key)
        self.engine.tables[name].insert(match, one(self.engine.program.actions, action), params, 0)

    def traffic(self, rng: random.Random) -> Iterator[tuple[int, bytes]]:
        sent: list[tuple[int, bytes]] = []
        for number in range(FRAMES):
            if not sent or rng.random() > 0.25:
                sent.append(mangled(rng, *self._update(rng, number)))
                yield sent[-1]
            else:
                yield rng.choice(sent)

    def _update(self, rng: random.Random, number: int) -> tuple[WorkerConfig, Header, bytes]:
        job = rng.choice(self.jobs)
        sender = rng.choice(job.workers)
        op = rng.choice(OPS)
        rare = (1, 2, 3, 4, (1 << 32) - 1)
        round_ = rng.choice(rare) if rng.random() < 0.2 else 1 + number // 25 + rng.randrange(3)
        payload = bytearray(rng.randbytes(up_bytes(op)))
        if op is Op.MAX32 and rng.random() < 0.93:
            payload[::4] = bytes(byte & 0x7F for byte in payload[::4])
        header = Header(
            kind=Kind.UPDATE, op=op, worker=sender.rank, slot=rng.randrange(job.slots), epoch=job.epoch,
            round=round_, count=rng.randrange(1 << 16), length=len(payload),
        )  # fmt: skip
        return sender, header, bytes(payload)

    def counters(self) -> tuple[dict[int, int], dict[int, int]]:
        drops, events = (
            {index: value.packets for index, value in enumerate(self.engine.counters.read_all(name)) if value.packets}
            for name in (one(PROGRAM.counters, "drops"), one(PROGRAM.counters, "job_events"))
        )
        return drops, events

    def oracle_counters(self) -> tuple[dict[int, int], dict[int, int]]:
        events = {index * JOB_EVENTS + event: count for (index, event), count in self.oracle.job_events.items()}
        return {int(reason): count for reason, count in self.oracle.drops.items()}, events


def worker(rank: int) -> WorkerConfig:
    return WorkerConfig(rank, 10 + rank, 0x020000000100 + rank, 0x0A000001 + rank, 5000 + rank)


def broadcast(table: tuple[int, ...]) -> list[int]:
    lanes = [int.from_bytes(bytes([value]) * 256, "big") for value in table]
    return [word for even in range(0, 16, 2) for word in (lanes[even], lanes[even] ^ lanes[even + 1])]


def one(names: object, last: str) -> str:
    (name,) = [str(name) for name in names if str(name).rsplit(".", 1)[-1] == last]  # type: ignore[attr-defined]
    return name


def mangled(rng: random.Random, sender: WorkerConfig, header: Header, payload: bytes) -> tuple[int, bytes]:
    """Return the frame and its port, now and then with one thing wrong."""
    faults = {"none": 60, "field": 14, "port": 6, "cut": 6, "tail": 4, "bit": 8, "destination": 3}
    fault = rng.choices(list(faults), list(faults.values()))[0]
    if fault == "field":
        field = rng.choice(["version", "kind", "flags", "op", "worker", "slot", "epoch", "round", "count", "length"])
        header = replace(header, **{field: rng.choice([0, 1, 2, 5, 7, 9, 255])})
    path = FramePath(sender.mac, SWITCH.mac, sender.ip, SWITCH.ip, sender.udp_port)
    frame = bytearray(build_frame(path, replace(header, length=len(payload)), payload))
    frame[72:74] = header.length.to_bytes(2, "big")
    port = rng.choice([1, 10, 11, 12]) if fault == "port" else sender.port
    if fault == "cut":
        del frame[rng.choice([14, 20, 33, 34, 41, 42, 60, 73, 74, 100, 585, len(frame) - 1]) :]
    elif fault == "tail":
        frame += rng.randbytes(rng.randrange(1, 30))
    elif fault == "bit":
        frame[rng.randrange(42)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.7:
            frame[24:26] = bytes(2)
            frame[24:26] = ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    elif fault == "destination":
        frame[:6], frame[33] = rng.choice([bytes(5) + b"\xaa", b"\xff" * 6]), frame[33] ^ 1
    return port, bytes(frame)


def test_broadcast_is_what_the_program_wants() -> None:
    words = broadcast(TABLE)
    assert [word & 0xFF for word in words[::2]] == list(TABLE[::2])
    assert [(a ^ b) & 0xFF for a, b in zip(words[::2], words[1::2], strict=True)] == list(TABLE[1::2])
