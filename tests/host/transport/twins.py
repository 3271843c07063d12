# SPDX-License-Identifier: Apache-2.0
"""A worker twice, with the same inputs at the same times from a network that loses, copies, reorders and forges.

All that the two say and know must be the same afterwards. With peers they go through changes of generation as well,
with what was still on the way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, RepairPolicy, Timing, Worker
from hopsum_wire import Header, Kind, Op, down_bytes, split_datagram, up_bytes
from hopsum_wire.generations import Decided, Resume

from ...support.world import EarlyBook, Unfilled

GENERATION, RANK, WORKERS = 7, 1, 3
STEPS = 160
OPTIONS: dict[str, dict[str, Any]] = {
    "fail": {},
    "repair": {"repair": RepairPolicy(straggler_s=1.0)},
    "held back": {"repair": RepairPolicy(straggler_s=1.0, unproved_max=2)},
}
COUNTED = ("results", "duplicates", "retransmits", "flushes", "probes", "stale_ignored", "repaired", "served")
OPS = [Op.LOOKUP_ADD8, Op.ADD32, Op.MAX32, Op.LOOKUP_ADD_LOOKUP3]


class Twins:
    """One worker twice, and what a switch and its network may bring them."""

    def __init__(self, rng: random.Random, **options: Any) -> None:
        self.rng = rng
        own = Membership(GENERATION, RANK, WORKERS, rng.choice([1, 3, 16, 64]))
        timing = Timing(
            retransmit_s=0.05,
            retransmit_min_s=0.01,
            deadline_s=rng.choice([3.0, 100.0]),
            flush_after_s=rng.choice([None, 0.07]),
        )
        self.storm = rng.choice([0.0, 0.1, 1.0])
        """How much goes wrong: nothing, some of it, or so much that hardly a batch is plain."""
        self.one = Worker(own, timing, **options)
        self.fast = Worker(own, timing, **options)
        self.now = 0.0
        self.generation = GENERATION
        self.ops: list[int] = []
        """By position."""
        self.in_flight: list[bytes] = []
        self.unfilled: list[Unfilled] = []
        self.book = EarlyBook()
        self.met: Counter[str] = Counter()

    def both(self, call: str, *arguments: Any, **named: Any) -> None:
        """Make one call on both workers; what comes of it must be the same."""
        outcomes = []
        for worker in (self.one, self.fast):
            try:
                outcomes.append(repr(getattr(worker, call)(*arguments, **named)))
            except Exception as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1]

    def submit(self) -> None:
        rng, op = self.rng, self.rng.choice(OPS)
        chunks = rng.choice([1, 2, 5, 40, 200])
        payloads = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (chunks, up_bytes(op)), dtype=np.uint8)
        ready = rng.choice([None, None, None, 1, chunks // 2, chunks - 1])
        before = self.one.stream.end
        self.both("submit", op, payloads, now=self.now, ready=ready)
        if self.one.stream.end == before:
            return
        self.ops += [op] * chunks
        if ready is not None:
            self.unfilled.append(Unfilled(self.one._handles, payloads[ready:]))

    def fill(self) -> None:
        """Let some payloads come that were not there when their all-reduce was submitted."""
        if not self.unfilled:
            return
        handle, payloads = self.unfilled.pop(self.rng.randrange(len(self.unfilled)))
        chunks = self.rng.choice([1, 20, len(payloads)])
        self.both("fill", handle, payloads[:chunks])
        if len(payloads) > chunks:
            self.unfilled.append(Unfilled(handle, payloads[chunks:]))

    def send(self) -> None:
        """Take what both send; it becomes replies."""
        sent = [bytes(datagram) for datagram in self.one.datagrams_to_send(self.now)]
        batches = self.fast.segments_to_send(self.now)
        assert all(not segments.flags.writeable and segments.flags.c_contiguous for segments in batches)
        assert sent == [row.tobytes() for segments in batches for row in segments]
        for datagram in sent:
            self.in_flight += self.replies(split_datagram(datagram)[0])

    def replies(self, sent: Header) -> Iterator[bytes]:
        """Yield what may come of a datagram that reached the switch."""
        rng, position = self.rng, self.one.stream.position(sent.slot, sent.round)
        if sent.kind == Kind.PROBE:
            yield replace(sent, kind=Kind.STATE, held=sent.round, contributors=0b101, count=1).pack()
        elif rng.random() < 0.02 * self.storm:
            yield replace(sent, kind=Kind.STALE, held=sent.round + 2, contributors=0b101, length=0, flags=0).pack()
        elif rng.random() < 0.02 * self.storm:  # a late answer about a round that is probably held
            slot, round_ = self.one.stream.place(rng.randint(self.one.stream.base, position))
            stale = replace(sent, kind=Kind.STALE, slot=slot, round=round_, held=round_ + 2, contributors=0b101)
            yield replace(stale, length=0, flags=0).pack()
        elif rng.random() < 1 - 0.1 * self.storm:
            yield self.result(position)
            if rng.random() < 0.05 and self.storm:
                yield self.result(position + self.one.stream.slots)  # the others are ahead
            if rng.random() < 0.15 * self.storm:
                yield self.forged(position)

    def result(self, position: int, **changes: int) -> bytes:
        slot, round_ = self.one.stream.place(position)
        op = self.ops[position] if position < len(self.ops) else self.rng.choice(OPS)
        header = Header(
            kind=Kind.RESULT, op=op, worker=RANK, slot=slot, generation=self.generation, round=round_,
            length=down_bytes(op),
            contributors=self.rng.choice([0b111, 0b111, 0b101, 0b011]),
        )  # fmt: skip
        return replace(header, **changes).pack() + self.rng.randbytes(down_bytes(op))

    def forged(self, position: int) -> bytes:
        """Return a RESULT with something wrong."""
        change = self.rng.choice(
            [
                {"version": 9}, {"kind": 77}, {"kind": Kind.UPDATE}, {"kind": Kind.STALE}, {"op": 0}, {"op": 99},
                {"op": self.rng.choice(OPS)}, {"worker": 0}, {"slot": 2000},
                {"generation": self.generation + 1}, {"round": 0},
                {"round": 2**32 - 1}, {"contributors": 0}, {"contributors": 0b1000}, {"contributors": 1 << 63},
                {"length": 1023}, {"round": 10**6}, {"flags": 255, "held": 5, "count": 9},
            ]
        )  # fmt: skip
        return self.result(position, **change)

    def receive(self) -> None:
        """Let some of what is on the way arrive."""
        raise NotImplementedError

    def on_message(self) -> None:
        """Let peers say something."""
        rng = self.rng
        for to, message in self.said():
            if message.kind is PeerKind.FETCH and rng.random() < 0.7:
                position = self.one.stream.position(message.slot, message.round)
                op = self.ops[position] if position < len(self.ops) else Op.ADD32
                kind = rng.choice([PeerKind.FOUND] * 4 + [PeerKind.GONE])
                found = (op, 0b101, rng.randbytes(down_bytes(op))) if kind is PeerKind.FOUND else (0, 0, b"")
                self.both(
                    "receive_peer",
                    PeerMessage(kind, to, self.generation, message.slot, message.round, *found),
                    self.now,
                )
        if rng.random() < 0.5:
            position = rng.randrange(max(1, len(self.ops)))
            fetch = PeerMessage(
                PeerKind.FETCH, rng.choice([0, 2]), self.generation, *self.one.stream.place(position), 0, 0, b""
            )
            self.both("receive_peer", fetch, self.now)
        if rng.random() < 0.2:
            upto = rng.randrange(len(self.ops) + 1)
            done = PeerMessage(PeerKind.DONE, rng.choice([0, 2]), self.generation, 0, 0, 0, upto, b"")
            self.both("receive_peer", done, self.now)

    def change(self) -> None:
        """Continue in another generation, sometimes with newcomers; what this worker lacks may be decided or not."""
        if not self.one.repair.has_peers or not self.one.runs:
            return
        self.both("seal")
        self.receive()
        sealed, rng, slots = self.one.seal(), self.rng, self.one.stream.slots
        base = sealed.delivered_to // slots * slots
        held = np.zeros(sealed.submitted_to + 1, np.bool_)
        for first, end in sealed.held:
            held[first:end] = True
        held[:-1] |= np.random.default_rng(rng.getrandbits(32)).random(sealed.submitted_to) < rng.choice(
            [0.0, 0.1, 1.0]
        )
        if rng.random() < 0.3:  # a controller that did not hear of some: what is here and not decided is discarded (E3)
            unheard = np.random.default_rng(rng.getrandbits(32)).random(sealed.submitted_to) < 0.3
            held[:-1] &= ~unheard | (np.arange(sealed.submitted_to) < sealed.delivered_to)
        decided = tuple(Decided(p, p + 1, (0, 2)) for p in np.flatnonzero(held).tolist() if p >= base)
        self.generation += 1
        start = rng.choice([None, None, sealed.submitted_to])
        resume = Resume(base, start, 0 if start is None else self.generation, start, (2,), decided)
        self.both("resume", self.generation, resume, self.now)
        self.both("resume_at", self.generation, sealed.submitted_to)
        self.met["changes"] += 1

    def said(self) -> list[tuple[int, PeerMessage]]:
        said = self.one.messages_to_peers()
        assert said == self.fast.messages_to_peers()
        return said

    def step(self) -> None:
        """Let one thing happen, and compare."""
        rng = self.rng
        self.now += rng.choice([0.0, 0.001, 0.01, 0.2])
        what = rng.choice(["submit", *["receive"] * 8, *["fill"] * 3, "on_message", "timer"])
        if self.one.repair.has_peers and rng.random() < 0.03:
            what = "change"
        if what == "timer":
            self.both("handle_timer", self.now)
        else:
            getattr(self, what)()
        self.send()
        self.compare()

    def compare(self) -> None:
        one, fast = self.one, self.fast
        assert repr(one.statistics) == repr(fast.statistics)
        assert (one.runs, one.get_timer(), one.waits_for_peers) == (fast.runs, fast.get_timer(), fast.waits_for_peers)
        assert str(one._ignored_packets) == str(fast._ignored_packets)
        assert one.queue.arrays.open.tolist() == fast.queue.arrays.open.tolist()
        assert one.state.open_position.tolist() == fast.state.open_position.tolist()
        assert one.state.early.keys() == fast.state.early.keys()
        assert one.state.open_end == fast.state.open_end
        for mine, other in zip(one.state.active, fast.state.active, strict=True):
            assert (mine.handle, mine.missing) == (other.handle, other.missing)
            assert np.array_equal(mine.contributors, other.contributors)
            assert np.array_equal(mine.held, other.held)
            assert np.array_equal(mine.results[mine.held], other.results[other.held])
        self.book.look(one)
        mine_told, other_told = self.told(one), self.told(fast)
        for event in mine_told:
            if isinstance(event, AllReduceDone):
                self.book.end(event)
        assert len(mine_told) == len(other_told)
        for event, other_event in zip(mine_told, other_told, strict=True):
            self.met[type(event).__name__] += 1
            assert event.handle == other_event.handle
            if isinstance(event, AllReduceDone) and isinstance(other_event, AllReduceDone):
                for name in ("results", "contributors"):
                    assert np.array_equal(getattr(event, name), getattr(other_event, name)), name

    def told(self, worker: Worker) -> list[AllReduceDone | AllReduceFailed]:
        """Return what ended at a worker."""
        return list(iter(worker.next_event, None))
