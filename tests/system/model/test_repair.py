# SPDX-License-Identifier: Apache-2.0
"""The worker's peer side does what the model's worker does: asks where it would, and drops nothing that it may not."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.retransmit_queue import NO_POSITION
from hopsum.protocol.worker import Membership, RepairPolicy, Timing
from hopsum.protocol.worker import Worker as RealWorker
from hopsum_wire import Kind, Op

from .config import Config, make
from .state import Content, Life, Packet, Worker
from .state import Kind as Packets
from .test_worker import Wide, header
from .worker import WorkerRules

EAGER = RepairPolicy(unproved_max=99, ask_after=10**6)
HELD = 9
"""The `held` of every STALE."""


class Pair:
    """Rank 0 twice, real and model, with all all-reduces submitted."""

    def __init__(self, config: Config) -> None:
        self.config, self.rules = config, WorkerRules(config)
        self.streams = ((), tuple(range(config.chunks)))
        self.addresses = self.rules.addresses(self.streams, 1)
        self.model = Worker(1, 1, Life.RUN, (None,) * config.chunks, 0)
        timing = Timing(retransmit_s=1.0, retransmit_max_s=1.0, deadline_s=1000.0)
        self.real = RealWorker(Membership(1, 0, config.n, config.slots), timing, repair=EAGER)
        self.real.queue.congestion = Wide(config.slots)
        self.delivered = 0
        for chunks in config.reduces:
            self.real.submit(Op.ADD32, np.zeros((chunks, 1024), np.uint8), now=0.0)
        self.real.datagrams_to_send(0.0)

    def result(self, position: int, contributors: int, *, from_peer: bool, generation: int = 1) -> None:
        """Give one result to both."""
        slot, version, round_ = self.addresses[position]
        mine = self.rules.dequantize_own(0, self.model, position)
        inside = tuple(mine._replace(worker=rank) for rank in range(self.config.n) if contributors >> rank & 1)
        content = Content(contributors, inside)
        packet = Packet(Packets.RESULT, -1, generation, slot, version, round_, False, content, (1, position))
        taken = self.rules.accept(self.streams, 0, self.model, packet)
        self.model = self.model if taken is None else taken[0]
        if from_peer:
            fields = (PeerKind.FOUND, 1, generation, slot, round_, Op.ADD32, contributors, bytes(1024))
            self.real.receive_peer(PeerMessage(*fields), 0.0)
        else:
            datagram = header(
                Kind.RESULT, slot, round_, generation=generation, contributors=contributors
            ).pack() + bytes(1024)
            self.real.receive_datagram(datagram, 0.0)
        self.real.datagrams_to_send(0.0)
        self.delivered += len([*iter(self.real.next_event, None)])

    def asked(self) -> list[tuple[int, int]]:
        """Return slot and round of the FETCHes that the real worker sends."""
        return [(m.slot, m.round) for _, m in self.real.messages_to_peers() if m.kind is PeerKind.FETCH]

    def say_done(self, position: int) -> None:
        """Let the real worker hear that the others hold everything before a position."""
        for rank in range(1, self.config.n):
            self.real.receive_peer(PeerMessage(PeerKind.DONE, rank, 1, value=position), 0.0)

    def serves(self, position: int) -> bool:
        """Say whether the real worker answers a FETCH with a result."""
        slot, _, round_ = self.addresses[position]
        self.real.messages_to_peers()
        self.real.receive_peer(PeerMessage(PeerKind.FETCH, 1, 1, slot, round_), 0.0)
        ((_, answer),) = self.real.messages_to_peers()
        return answer.kind is PeerKind.FOUND


@pytest.mark.parametrize("slots", [1, 2])
def test_every_stale_between(slots: int) -> None:
    """Peers are asked exactly where the model's worker would ask, for that round and what is lacking behind it."""
    config = make("B", 3, reduces=(2, 2), slots=slots)
    acts = set()
    for length in range(config.chunks):
        for order in itertools.permutations(range(config.chunks), length):
            for slot, round_ in itertools.product(range(slots), range(1, 6)):
                pair = Pair(config)
                for position in order:
                    pair.result(position, 0b111, from_peer=position % 2 == 1)
                packet = Packet(Packets.STALE, 0, 1, slot, round_ & 1, round_, False, Content(6, ()), (1, 0), HELD)
                expected = bool(pair.rules.named_by_stale(pair.streams, pair.model, packet))
                pair.asked()
                stale = header(Kind.STALE, slot, round_, held=HELD, contributors=0b110)
                pair.real.receive_datagram(stale.pack(), 0.0)
                lacking = [a for a, held in zip(pair.addresses, pair.model.held, strict=True) if held is None]
                behind = [(a.slot, a.round) for a in lacking if a.slot == slot and a.round >= round_]
                assert pair.asked() == (behind if expected else []), (order, slot, round_)
                acts.add(expected)
    assert acts == {False, True}


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_results_in_every_order_from_peers(slots: int) -> None:
    config = make("B", 3, reduces=(1, 3), slots=slots)
    for order in itertools.permutations(range(config.chunks)):
        pair = Pair(config)
        for turn, position in enumerate(order):
            pair.result(position, 0b110, from_peer=True, generation=2)
            pair.result(position, 0b011, from_peer=turn % 2 == 0)
            pair.result(position, 0b110, from_peer=turn % 2 == 1)
            waiting = pair.rules.waiting(pair.streams, pair.model)
            assert sorted(each for each in pair.real.queue.arrays.open if each != NO_POSITION) == waiting, (order, turn)
        assert pair.delivered == len(config.reduces)
        assert all(content is not None and content.contributors == 0b011 for content in pair.model.held)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_dropped_too_early(seed: int) -> None:
    """The model's worker may drop results that the real one serves no longer. The real one drops all in the end."""
    rng = random.Random(seed)
    reduces = tuple(rng.randint(1, 3) for _ in range(4))
    config = make("B", 3, reduces=reduces, slots=rng.randint(1, 3))
    pair = Pair(config)
    positions = list(range(config.chunks))
    rng.shuffle(positions)
    for turn, position in enumerate(positions):
        pair.result(position, rng.choice([0b011, 0b101, 0b110, 0b111, 0b111]), from_peer=rng.random() < 0.5)
        droppable = pair.rules.droppable(pair.streams, 0, pair.model, 0b111)
        for held in range(config.chunks):
            if pair.model.held[held] is not None and not pair.serves(held):
                assert droppable >> held & 1, (position, held)
        if turn % 3 == 0:
            # Others hold what the contributors of later results prove, and say so (R2).
            pair.say_done(min((p for p in range(config.chunks) if not droppable >> p & 1), default=config.chunks))
    pair.say_done(config.chunks)
    assert not any(pair.serves(position) for position in range(config.chunks))


def test_something_is_dropped() -> None:
    """Else the test above says nothing."""
    pair = Pair(make("A", 3, reduces=(1, 1, 1), slots=1))
    for position in range(3):
        pair.result(position, 0b111, from_peer=False)
    pair.say_done(2)
    assert [pair.serves(position) for position in range(3)] == [False, False, True]
