# SPDX-License-Identifier: Apache-2.0
"""A state in pieces: it arrives whole or not at all, from any rank that has it, over connections that break."""

from __future__ import annotations

import hashlib
import random

import pytest

from hopsum.protocol import state_transfer
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.state_transfer import PIECES, STALLED_S, StateFetch, StateOffers

GENERATION, START_GENERATION = 12, 9
NEWCOMER = 3


def state_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def offer(
    offers: StateOffers,
    state: bytes,
    generation: int = START_GENERATION,
    newcomers: tuple[int, ...] = (NEWCOMER, NEWCOMER + 1),
) -> None:
    offers.offer(state, hashlib.sha256(state).digest(), generation, dict.fromkeys(newcomers, generation))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "DATA_BYTES", 100)


class Ways:
    """A newcomer, those that may have its state, and what is between them."""

    def __init__(self, seed: int = 0, ranks: int = 3, loss: float = 0.0) -> None:
        self.rng, self.loss = random.Random(seed), loss
        self.offers = [StateOffers(rank) for rank in range(ranks)]
        self.fetch = StateFetch(NEWCOMER, START_GENERATION, range(ranks))
        self.now, self.in_flight_most = 0.0, 0

    def step(self) -> None:
        """Let what is asked now be answered, or be lost, and time pass if nothing was asked."""
        ask = self.fetch.ask(GENERATION, self.now)
        if ask is None:
            self.now = max(self.now, self.fetch.due)
            return
        answers = self.offers[self.fetch.source].answer(PeerMessage.unpack(ask.pack()), GENERATION)
        self.in_flight_most = max(self.in_flight_most, len(answers))
        for answer in answers:
            if self.rng.random() >= self.loss:
                self.fetch.on_message(PeerMessage.unpack(answer.pack()), self.now)

    def run(self, steps: int = 5000) -> bytes:
        for _ in range(steps):
            if self.fetch.state is not None:
                return self.fetch.state
            self.step()
        raise AssertionError(f"not there after {steps} steps: {self.fetch}")


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 12345])
def test_a_state_arrives_as_it_is(size: int) -> None:
    ways = Ways()
    offer(ways.offers[1], state_of(size))
    assert ways.run() == state_of(size)
    assert ways.in_flight_most <= PIECES


@pytest.mark.parametrize("seed", range(20))
def test_over_connections_that_break(seed: int) -> None:
    ways = Ways(seed, loss=0.1)
    for offers in ways.offers[1:]:
        offer(offers, state_of(9_876))
    assert ways.run() == state_of(9_876)


def test_nobody_has_it_yet() -> None:
    ways = Ways()
    for _ in range(50):
        ways.step()
    assert str(ways.fetch) == "no worker has offered it yet"
    assert ways.now > 0.5, "it asks with pauses"
    offer(ways.offers[2], state_of(500))
    assert ways.run() == state_of(500)


def test_states_of_other_newcomers_are_none() -> None:
    ways = Ways()
    offer(ways.offers[0], state_of(500), generation=START_GENERATION - 1)
    for _ in range(20):
        ways.step()
    assert ways.fetch.state is None


@pytest.mark.parametrize("size", [2_000, PIECES * 100, 5_000])
def test_equal_states_in_other_bytes_are_not_mixed(size: int) -> None:
    """The source dies in the middle; another has the state pickled differently."""
    ways = Ways(ranks=2)
    first = ways.fetch.source
    offer(ways.offers[first], state_of(6_000, 2))
    ways.step()
    ways.offers[first] = StateOffers(first)
    offer(ways.offers[1 - first], state_of(size, 1))
    assert ways.run() == state_of(size, 1)


def test_damaged_bytes_are_asked_for_again() -> None:
    ways = Ways(ranks=1)
    state = state_of(1_000)
    ways.offers[0].offer(
        state[:-1] + b"?", hashlib.sha256(state).digest(), START_GENERATION, {NEWCOMER: START_GENERATION}
    )
    for _ in range(60):
        ways.step()
    assert ways.fetch.state is None
    offer(ways.offers[0], state)
    assert ways.run() == state


def test_what_is_no_use_is_ignored() -> None:
    ways = Ways(ranks=2)
    offer(ways.offers[0], state_of(300))
    offer(ways.offers[1], state_of(300))
    to, ask = ways.fetch.source, ways.fetch.ask(GENERATION, 0.0)
    assert ask is not None
    piece = ways.offers[to].answer(ask, GENERATION)[0]
    ways.fetch.on_message(piece._replace(sender=1 - to), 0.0)
    ways.fetch.on_message(piece._replace(round=START_GENERATION + 1), 0.0)
    ways.fetch.on_message(PeerMessage(PeerKind.STATE_NONE, 1 - to, GENERATION, round=START_GENERATION), 0.0)
    assert str(ways.fetch) == "no worker has answered"
    ways.fetch.on_message(piece, 0.0)
    ways.fetch.on_message(piece, 0.0)
    assert str(ways.fetch) == "100 of 300 bytes are here"
    assert ways.run() == state_of(300)


def test_one_that_says_nothing_is_left() -> None:
    ways = Ways(ranks=2)
    silent = ways.fetch.source
    offer(ways.offers[1 - silent], state_of(200))
    assert ways.fetch.ask(GENERATION, 0.0) is not None
    assert ways.fetch.ask(GENERATION, 0.5) is None
    assert ways.fetch.source == silent
    assert ways.fetch.ask(GENERATION, ways.fetch.due) is not None
    assert ways.fetch.source == 1 - silent


def test_a_slow_source_is_not_asked_for_the_same_again_and_again() -> None:
    """Each of its pieces takes longer than STALLED_S. What a link has to carry twice makes it slower still."""
    ways, asked, in_flight = Ways(ranks=1), 0, list[PeerMessage]()
    offer(ways.offers[0], state_of(PIECES * 100))
    tick = 0
    while ways.fetch.state is None and tick < 100 * PIECES:
        tick, now = tick + 1, tick * STALLED_S / 2
        if (ask := ways.fetch.ask(GENERATION, now)) is not None:
            asked += 1
            in_flight += ways.offers[0].answer(ask, GENERATION)
        if tick % 6 == 0:
            ways.fetch.on_message(in_flight.pop(0), now)
    assert ways.fetch.state == state_of(PIECES * 100)
    assert asked <= 5
    assert tick == 6 * PIECES, "the link carried each piece once"


def test_bytes_that_are_fetched_again_are_no_progress() -> None:
    """Two that offer other bytes, and stall in turn, end by silence."""
    ways = Ways(ranks=2)
    assert ways.fetch.moved_at is None
    for rank in range(2):
        offer(ways.offers[rank], state_of(300, rank))
    for now, pieces, moved_at in ((0.0, 2, 0.0), (5.0, 2, 0.0), (50.0, 1, 0.0), (70.0, 3, 70.0)):
        ask = ways.fetch.ask(GENERATION, now)
        assert ask is not None
        for piece in ways.offers[ways.fetch.source].answer(ask._replace(value=0), GENERATION)[:pieces]:
            ways.fetch.on_message(piece, now)
        assert ways.fetch.moved_at == moved_at


def test_what_all_have_taken_is_dropped() -> None:
    offers = StateOffers(0)
    offer(offers, b"state", newcomers=(2, 3))
    for rank, left in ((2, b"state"), (2, b"state"), (3, None)):
        assert not offers.answer(
            PeerMessage(PeerKind.STATE_TAKEN, rank, GENERATION, round=START_GENERATION), GENERATION
        )
        assert offers.state == left
    offer(offers, b"state", newcomers=(2, 3))
    assert offers.state is None, "they have it from others"


def test_newcomers_of_an_older_generation_may_take_a_later_state() -> None:
    offers = StateOffers(0)
    offer(offers, b"older", newcomers=(2,))
    offer(offers, b"newer", generation=START_GENERATION + 1, newcomers=(3,))
    taken = PeerMessage(PeerKind.STATE_TAKEN, 3, GENERATION, round=START_GENERATION + 1)
    offers.answer(taken, GENERATION)
    assert offers.state == b"newer", "rank 2 has none yet"
    offers.answer(taken._replace(sender=2), GENERATION)
    assert offers.state is None


def test_what_is_remembered_of_takers_is_bounded() -> None:
    """One number a rank, whatever they say; and nobody has a state of a generation to come."""
    offers = StateOffers(0)
    for round_ in range(1, 2000):
        for rank in (1, 2):
            offers.answer(PeerMessage(PeerKind.STATE_TAKEN, rank, GENERATION, round=round_), GENERATION)
    assert offers._taken == {1: GENERATION, 2: GENERATION}
    offer(offers, b"state", generation=GENERATION + 1, newcomers=(2,))
    assert offers.state == b"state", "rank 2 is new in the next generation, and did not have that state"


def test_a_state_that_is_too_long_is_refused_at_its_first_piece() -> None:
    fetch = StateFetch(1, START_GENERATION, [0], bytes_max=50)
    offers = StateOffers(0)
    offer(offers, bytes(51))
    ask = fetch.ask(GENERATION, 0.0)
    assert ask is not None
    (piece,) = offers.answer(ask, GENERATION)
    fetch.on_message(piece, 0.0)
    assert fetch.too_large == (0, 51)
    assert fetch.state is None
    assert not fetch.held
    within = StateFetch(1, START_GENERATION, [0], bytes_max=51)
    within.ask(GENERATION, 0.0)
    within.on_message(piece, 0.0)
    assert (within.too_large, within.state) == (None, bytes(51))
