# SPDX-License-Identifier: Apache-2.0
"""Broken datagrams at a running switch process, from the sockets of its workers and from a stranger's.

Nine in ten are mutations of valid UPDATEs; the others are empty, anything up to the longest that UDP can carry, or
valid. Every datagram that the kernel handed over is accounted for: by a drop reason or as an event of the job.
"""

from __future__ import annotations

import os
import random
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from hopsum_evaluation.bench.timing import memory
from hopsum_wire import Header, Kind, Op, up_bytes
from hopsum_wire._layout import HOPSUM_FIELDS

from ..soak.member import Member
from ..soak.rig import SLOTS, WORKERS, Bench, kernel_drops

LONGEST = 65507
BURST = 128
PATIENCE_S = 60.0


def datagram(rng: random.Random, generation: int, progress: int) -> tuple[int, bytes]:
    """Return a sender and what it sends."""
    rank = rng.randrange(WORKERS)
    what = rng.random()
    if what < 0.02:
        return rng.randrange(WORKERS + 1), b""
    if what < 0.04:
        return rng.randrange(WORKERS + 1), rng.randbytes(rng.choice((1, 31, 32, 1472, 1473, 9000, LONGEST)))
    op = rng.choice(list(Op))
    header = Header(
        kind=Kind.UPDATE, op=op, worker=rank, slot=rng.randrange(SLOTS), generation=generation,
        round=1 + progress // 1000,
        length=up_bytes(op), count=rng.randrange(1 << 16),
    )  # fmt: skip
    valid = header.pack() + rng.randbytes(header.length)
    return (rank, valid) if what < 0.08 else _mutated(rng, rank, header, valid)


def _mutated(rng: random.Random, rank: int, header: Header, valid: bytes) -> tuple[int, bytes]:
    what = rng.randrange(6)
    if what == 0:
        bits = int.from_bytes(valid, "big") ^ 1 << rng.randrange(8 * len(valid))
        return rank, bits.to_bytes(len(valid), "big")
    if what == 1:
        changed = bytearray(valid)
        bit = rng.randrange(256)
        changed[bit // 8] ^= 1 << bit % 8
        return rank, bytes(changed)
    if what == 2:
        one = rng.choice(HOPSUM_FIELDS)
        top = (1 << one.bits) - 1
        changes = {one.name: rng.choice((0, 1, top, top >> 1, rng.getrandbits(one.bits)))}
        return rank, replace(header, **changes).pack() + valid[32:]
    if what == 3:
        return rank, valid[: rng.choice((0, 1, 31, 32, 33, len(valid) - 1, rng.randrange(len(valid))))]
    if what == 4:
        return rank, valid + rng.randbytes(rng.choice((1, 100, 10_000)))
    return rng.choice([other for other in range(WORKERS + 1) if other != rank]), valid


@dataclass
class Siege:
    """The switch under fire."""

    stage: Bench
    rng: random.Random
    sent: int = 0
    memory_kib: list[int] = field(default_factory=list)
    """Resident memory of the switch process, after every burst."""

    def run(self, datagrams: int) -> None:
        """Send so many, burst by burst, each when the one before has been taken in."""
        members, pid = self.stage.members, self.stage.switch.process.pid
        with ExitStack() as stack:
            stranger = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            stranger.connect(members[0].link.switch)
            sockets = [
                *(stack.enter_context(socket.socket(fileno=os.dup(each.fileno()))) for each in members),
                stranger,
            ]
            for _ in range(-(-datagrams // BURST)):
                for _ in range(BURST):
                    sender, data = datagram(self.rng, self.stage.job.generation, self.sent)
                    self.sent += _offer(sockets[sender], data)
                self._await_taken()
                self.memory_kib.append(memory(pid)["rss"] >> 10)

    def received(self) -> int:
        """Return how many datagrams the switch has taken in."""
        return sum(int(port["received"]) for port in self.stage.management.list_ports().values())

    def unaccounted(self) -> tuple[int, int]:
        """Return how many of those neither a drop reason nor an event names, and how many there may be.

        A FLUSH of a worker that is in already completes a round and counts as nothing else.
        """
        events = self.stage.controller.job_counters(self.stage.job)
        named = sum(events[name] for name in ("added", "duplicate", "answered", "stale", "probed"))
        return self.received() - named - sum(self.stage.controller.drop_counters().values()), events["completed"]

    def probe(self, member: Member) -> Header:
        """Return what the switch answers to a member's PROBE."""
        number = self.rng.getrandbits(31) | 1
        asked = Header(kind=Kind.PROBE, worker=member.rank, slot=5, round=number, generation=self.stage.job.generation)
        member.link.send(asked.pack())
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            for data in member.receive():
                header = Header.unpack(data)
                if (header.kind, header.round) == (Kind.STATE, number):
                    return header
        raise AssertionError(f"rank {member.rank}: no STATE in {PATIENCE_S} s")

    def _await_taken(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        addresses = {member.link.switch[1] for member in self.stage.members}
        while True:
            for member in self.stage.members:
                while member.receive():
                    pass
            dropped = sum(count for port, count in kernel_drops().items() if port in addresses)
            taken = self.received()
            if taken + dropped == self.sent:
                return
            assert time.monotonic() < give_up, f"{self.sent} sent, {taken} taken in, {dropped} dropped by the kernel"


def _offer(sock: socket.socket, data: bytes) -> bool:
    """Send a datagram if the kernel takes it."""
    try:
        sock.send(data, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True
