# SPDX-License-Identifier: Apache-2.0
"""hopsum.protocol.worker does what the model's worker does: RESULTs in every order, and every STALE between them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hopsum.protocol.congestion import CongestionWindow
from hopsum.protocol.worker import Membership, Timing
from hopsum.protocol.worker import Worker as RealWorker
from hopsum_wire import Header, Kind, Op, split_datagram

from .config import Config, make
from .state import Content, Life, Worker
from .state import Kind as Packets
from .state import Packet as ModelPacket
from .worker import WorkerRules

EVERYBODY = 0b11
REDUCES = [(5,), (1, 1, 3), (2, 3)]


class Wide(CongestionWindow):
    """All that W1 allows: what is compared is what a worker may send."""

    def on_loss(self, now: float) -> None:
        """Stay as wide."""


class Pair:
    """Rank 0 twice, real and model, with all all-reduces submitted."""

    def __init__(self, config: Config) -> None:
        self.rules = WorkerRules(config)
        self.streams = ((), tuple(range(config.chunks)))
        self.model = Worker(1, 1, Life.RUN, (None,) * config.chunks, 0)
        timing = Timing(retransmit_s=1.0, retransmit_max_s=1.0, deadline_s=1000.0)
        self.real = RealWorker(Membership(1, 0, 2, config.slots), timing)
        self.real.queue.congestion = Wide(config.slots)
        self.now = 0.0
        for chunks in config.reduces:
            self.real.submit(Op.ADD32, np.zeros((chunks, 1024), np.uint8), now=self.now)
        self.really_sent()

    def really_sent(self) -> set[tuple[int, int]]:
        """Return slot and round of all that the real worker sends again when its timers run out."""
        sent = set()
        for _ in range(2):  # what has just been opened, and then everything
            self.now += 2.0
            self.real.handle_timer(self.now)
            for datagram in self.real.datagrams_to_send(self.now):
                header, _ = split_datagram(datagram)
                sent.add((header.slot, header.round))
        return sent

    def waiting(self) -> set[tuple[int, int]]:
        addresses = self.rules.addresses(self.streams, 1)
        found = self.rules.waiting(self.streams, self.model)
        return {(addresses[position].slot, addresses[position].round) for position in found}

    def result(self, position: int, generation: int = 1) -> None:
        """Deliver one RESULT to both."""
        slot, version, round_ = self.rules.addresses(self.streams, 1)[position]
        mine = self.rules.dequantize_own(0, self.model, position)
        content = Content(EVERYBODY, (mine, mine._replace(worker=1)))
        packet = ModelPacket(Packets.RESULT, -1, generation, slot, version, round_, False, content, (1, position))
        taken = self.rules.accept(self.streams, 0, self.model, packet)
        self.model = self.model if taken is None else taken[0]
        self.real.receive_datagram(
            header(Kind.RESULT, slot, round_, generation=generation).pack() + bytes(1024), self.now
        )

    def stale_matters(self, slot: int, round_: int) -> bool:
        """Say whether a STALE would make the model's worker act."""
        packet = ModelPacket(Packets.STALE, 0, 1, slot, round_ & 1, round_, False, Content(EVERYBODY, ()), (1, 0), 9)
        return bool(self.rules.named_by_stale(self.streams, self.model, packet))


def header(kind: Kind, slot: int, round_: int, **changes: int) -> Header:
    length = 1024 if kind is Kind.RESULT else 0
    plain = Header(kind=kind, op=Op.ADD32, slot=slot, round=round_, length=length, contributors=EVERYBODY)
    return replace(plain, **{"generation": 1, **changes})


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("reduces", REDUCES)
def test_results_in_every_order(reduces: tuple[int, ...], slots: int) -> None:
    config = make("A", 2, reduces=reduces, slots=slots)
    for order in itertools.permutations(range(config.chunks)):
        pair = Pair(config)
        assert pair.really_sent() == pair.waiting()
        for position in order:
            pair.result(position, generation=2)
            assert pair.really_sent() == pair.waiting(), "another generation's is nothing"
            pair.result(position)
            pair.result(position)
            assert pair.really_sent() == pair.waiting(), (order, position)
        assert len([*iter(pair.real.next_event, None)]) == len(reduces)


@pytest.mark.parametrize("slots", [1, 2])
def test_every_stale_between(slots: int) -> None:
    """It ends the generation of the real worker exactly where the model's would ask a peer."""
    config = make("A", 2, reduces=(2, 2), slots=slots)
    ends = set()
    for length in range(config.chunks):
        for order in itertools.permutations(range(config.chunks), length):
            for slot, round_ in itertools.product(range(slots), range(1, 6)):
                pair = Pair(config)
                for position in order:
                    pair.result(position)
                pair.really_sent()
                expected = pair.stale_matters(slot, round_)
                pair.real.receive_datagram(header(Kind.STALE, slot, round_, held=9).pack(), pair.now)
                assert (pair.really_sent() == set()) == expected, (order, slot, round_)
                ends.add(expected)
    assert ends == {False, True}
