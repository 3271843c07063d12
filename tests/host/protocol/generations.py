# SPDX-License-Identifier: Apache-2.0
"""Plain workers over a bad network, generation after generation on the same registers, under a Witness.

A worker here knows only what a switch needs to be exercised: one open round per slot (W1), the same bytes every time
(W2), FLUSH now and then, RESULTs of its generation (W3), and results of its peers when it is told STALE (W4) or, if it
is the silent one, now and then (W6). A crash takes all from one of them: the job is deleted and goes on in a new
generation, from round 1, over what lies in the registers, with what is still in flight.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

from hopsum_oracle.aggregator import Aggregator, AggregatorConfig, JobConfig
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_wire import Flag, Header, Kind, Op
from hopsum_wire.frames import FramePath, build_frame
from hopsum_wire.payload import SHAPES

from .jobs import TABLES, job, worker
from .network import Network, Weather
from .witness import Reply, Witness

SWITCH = AggregatorConfig()
BAD = Weather(drop=0.15, duplicate=0.2, delay_s=0.02, straggle=0.08)
TURN_S = 0.002
TURNS_MAX = 20_000
ASKS = 0.02
"""Of the turns of a silent worker."""
ROUNDS = 6


@dataclass(frozen=True)
class Mode:
    """How rounds complete: quorum = workers - below; FLUSH with this probability; one worker never sends."""

    below: int = 0
    flush: float = 0.0
    silent: bool = False


@dataclass
class Rank:
    """One worker in one generation."""

    rank: int
    generation: int
    slots: int
    held: set[tuple[int, int]] = field(default_factory=set)
    """(slot, round)."""

    def open_round(self, slot: int) -> int:
        """Return the only round that may be sent for a slot."""
        return next(round_ for round_ in range(1, ROUNDS + 2) if (slot, round_) not in self.held)

    @property
    def done(self) -> bool:
        """Whether all results are here."""
        return len(self.held) == self.slots * ROUNDS

    def receive(self, reply: Header, peers: list[Rank]) -> None:
        """Take a reply; STALE about the open round sends to the peers."""
        if reply.generation != self.generation:
            return
        if reply.kind == Kind.RESULT:
            self.held.add((reply.slot, reply.round))
        elif reply.round == self.open_round(reply.slot):
            self.ask(reply.slot, peers)

    def ask(self, slot: int, peers: list[Rank]) -> None:
        """Fetch the open round of a slot from a peer, if one has it."""
        here = (slot, self.open_round(slot))
        if any(here in peer.held for peer in peers):
            self.held.add(here)


def datagrams(switch: Aggregator, header: Header, payload: bytes) -> list[Reply]:
    """Deliver one UPDATE as a datagram."""
    where = worker(header.worker)
    outcome = switch.receive(where.port, where.ip, where.udp_port, header.pack() + payload)
    return [Reply(output.worker.rank, output.header, output.payload) for output in outcome.outputs]


def frames(switch: FrameAggregator, header: Header, payload: bytes) -> list[Reply]:
    """Deliver one UPDATE as an Ethernet frame."""
    where = worker(header.worker)
    path = FramePath(where.mac, switch.switch.mac, where.ip, switch.switch.ip, where.udp_port)
    replies = []
    for port, frame in switch.receive_frame(where.port, build_frame(path, header, payload)):
        reply = Header.unpack(frame[42:])
        assert port == worker(reply.worker).port
        assert frame[:6] == worker(reply.worker).mac.to_bytes(6, "big")
        replies.append(Reply(reply.worker, reply, frame[74:]))
    return replies


class World:
    """One switch, one job at a time."""

    ops: Collection[int] = SHAPES.keys()
    """The ops that there are."""

    def __init__(self, seed: int, op: int | None, mode: Mode, *, as_frames: bool = False) -> None:
        self.rng = random.Random(seed)
        self.op, self.mode, self.flush = op, mode, mode.flush
        """The op of every round, or None: any."""
        self.network = Network(self.rng, BAD)
        self.switch: Aggregator = FrameAggregator(SWITCH) if as_frames else Aggregator(SWITCH)
        self.deliver: Callable[..., list[Reply]] = frames if as_frames else datagrams
        self.witness = Witness(TABLES)
        self.ranks: list[Rank] = []
        self.job: JobConfig | None = None
        self.seed = seed
        self._updates: dict[tuple[int, int, int, int], tuple[Header, bytes]] = {}

    def run(self, generations: int) -> None:
        """Run generations 1, 2, ..., each to its end or to a crash; the last one to its end."""
        for generation in range(1, generations + 1):
            self._begin(generation)
            crash_at = self.rng.randrange(400) if generation < generations and self.rng.random() < 0.7 else TURNS_MAX
            self._go_on(crash_at)

    def _go_on(self, turns: int) -> None:
        """Let workers send until all have all results, or for so many turns."""
        for _ in range(turns):
            if all(rank.done for rank in self.ranks):
                return
            self._transmit()
            turn_ends = self.network.now + TURN_S
            while self.network.now < turn_ends:
                self.network.step(turn_ends)
        assert turns < TURNS_MAX, f"seed {self.seed}: a generation never ends: {self.ranks}"

    def _begin(self, generation: int) -> None:
        """Delete the job; make it anew with other workers' memories, and perhaps another size."""
        if self.job is not None:
            self.switch.remove_job(self.job.generation)
        workers, slots = self.rng.randint(2, 4), self.rng.randint(1, 2)
        quorum = workers - self.mode.below
        min_quorum = self.rng.randint(1, workers - 1) if self.mode.silent else self.rng.randint(1, quorum)
        settings = {"quorum": quorum, "min_quorum": min(min_quorum, quorum), "slots": slots}
        self.job = job(generation, workers, **settings)
        self.switch.add_job(self.job)
        self.ranks = [Rank(rank, generation, slots) for rank in range(workers)]

    def _transmit(self) -> None:
        """Let one worker send what is open in one slot, again or for the first time."""
        sender = self.rng.choice(self.ranks)
        slot = self.rng.randrange(sender.slots)
        round_ = sender.open_round(slot)
        if round_ > ROUNDS:
            return
        if self._is_silent(sender, slot):
            return
        where = (sender.generation, slot, round_, sender.rank)
        if where not in self._updates:
            self._updates[where] = self._update(sender, slot, round_)
        header, payload = self._updates[where]
        self.witness.sent(header, payload)
        if self.rng.random() < self.flush:
            header = replace(header, flags=Flag.FLUSH)
        self.network.send(partial(self._at_switch, header, payload))

    def _is_silent(self, sender: Rank, slot: int) -> bool:
        """Say whether a worker sends nothing now. Such a one may ask its peers."""
        if not (self.mode.silent and sender is self.ranks[-1]):
            return False
        if self.rng.random() < ASKS:
            sender.ask(slot, self.ranks)
        return True

    def _update(self, sender: Rank, slot: int, round_: int) -> tuple[Header, bytes]:
        """Return an UPDATE: bytes that depend on who, where and when only, ops that all ranks agree on."""
        place = f"{self.seed} {sender.generation} {slot} {round_}"
        op = random.Random(place).choice(sorted(self.ops)) if self.op is None else self.op
        payload = bytearray(random.Random(f"{place} {sender.rank}").randbytes(SHAPES[op].up_bytes))
        if op == Op.MAX32:
            payload[::4] = bytes(byte & 0x7F for byte in payload[::4])
        header = Header(
            kind=Kind.UPDATE, op=op, worker=sender.rank, slot=slot, generation=sender.generation, round=round_,
            length=len(payload),
        )  # fmt: skip
        return header, bytes(payload)

    def _at_switch(self, header: Header, payload: bytes) -> None:
        assert self.job is not None
        replies = self.deliver(self.switch, header, payload)
        self.witness.arrived(self.job if header.generation == self.job.generation else None, header, replies)
        for reply in replies:
            self.network.send(partial(self._at_worker, reply))

    def _at_worker(self, reply: Reply) -> None:
        """Deliver to whoever has that rank now."""
        if reply.rank < len(self.ranks):
            self.ranks[reply.rank].receive(reply.header, self.ranks)
