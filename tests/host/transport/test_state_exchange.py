# SPDX-License-Identifier: Apache-2.0
"""A transfer of a state may take any time while bytes come, and ends by silence; all-reduces wait for it meanwhile."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from hopsum.errors import HopsumError
from hopsum.protocol import state_transfer
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.state_transfer import StateOffers
from hopsum.transport import state_exchange
from hopsum.transport.state_exchange import TELL_EVERY_S, StateExchange

from ...support.clock import FakeClock

GENERATION, START, WAIT_S, PIECES = 12, 12, 60.0, 20
RANK, OLD, OTHER = 2, 0, 1
STATE = bytes(range(100)) * PIECES
FUTURE_S = 60.0


class Side:
    """The exchange of one rank, with made-up worker and peers. `said` has what it says to these."""

    shards = 2

    def __init__(self, rank: int) -> None:
        self.said: list[tuple[int, PeerMessage]] = []
        self.postponed: list[float] = []
        self.changed = threading.Condition()
        worker: Any = SimpleNamespace(
            membership=SimpleNamespace(rank=rank, generation=GENERATION),
            join_point=SimpleNamespace(generation=START, newcomers=lambda generation: (RANK,)),
            postpone_deadlines=self.postponed.append,
            is_idle=False,
        )
        repair: Any = SimpleNamespace(peers=[peer for peer in (OLD, OTHER, RANK) if peer != rank])
        self.exchange = StateExchange(worker, repair, self, self.changed)  # type: ignore[arg-type]

    def send_all(self, messages: Sequence[tuple[int, PeerMessage]]) -> None:
        with self.changed:
            self.said += messages
            self.changed.notify_all()

    def require_open(self) -> None: ...

    def on_message(self, message: PeerMessage) -> None:
        with self.changed:
            self.exchange.on_message(message)
            self.changed.notify_all()

    def await_said(self, kind: PeerKind, count: int) -> list[tuple[int, PeerMessage]]:
        """Wait until it has said so many messages of a kind."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= count, FUTURE_S), self.said
            return self.of(kind)

    def of(self, kind: PeerKind) -> list[tuple[int, PeerMessage]]:
        return [each for each in self.said if each[1].kind is kind]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(state_exchange, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("hopsum.notice.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(state_transfer, "DATA_BYTES", 100)
    monkeypatch.setattr(state_transfer, "PIECES", 1)
    return clock


def feed(side: Side, clock: FakeClock, pieces: int, step_s: float) -> None:
    """Answer so many of a newcomer's requests, each after some seconds."""
    offers = StateOffers(OLD)
    offers.offer(STATE, hashlib.sha256(STATE).digest(), START, {RANK: START})
    for number in range(pieces):
        # One that is asked anew while the time passes has the same answer; the next piece follows from the last one.
        at = 100 * number
        with side.changed:
            assert side.changed.wait_for(
                lambda at=at: any(each.value == at for _, each in side.of(PeerKind.STATE_ASK)), FUTURE_S  # type: ignore[misc]
            )  # fmt: skip
        clock.now_s += step_s
        ask = next(each for _, each in side.of(PeerKind.STATE_ASK) if each.value == at)
        (piece,) = offers.answer(ask, GENERATION)
        for sender in (OLD, OTHER):  # whichever rank is asked now
            side.on_message(piece._replace(sender=sender))


def fetch(side: Side, pool: ThreadPoolExecutor) -> Future[bytes]:
    return pool.submit(side.exchange.fetch, START, WAIT_S, 1 << 20)


def test_while_bytes_come_there_is_no_limit(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    side = Side(RANK)
    with ThreadPoolExecutor(1) as pool:
        fetched = fetch(side, pool)
        feed(side, clock, PIECES, WAIT_S * 0.75)
        assert fetched.result(FUTURE_S) == STATE
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any(line.startswith("rank 2 gets the state of rank ") for line in lines), lines
    assert any("1000 of 2000 bytes are here, 2.22e-06 MB/s, about 450 s more" in line for line in lines)
    assert lines[-1] == f"rank 2 has the state, {len(STATE)} bytes, after {PIECES * WAIT_S * 0.75:.1f} s"


def test_silence_in_the_middle_ends_it_and_the_error_says_how_far_it_was(clock: FakeClock) -> None:
    side = Side(RANK)
    with ThreadPoolExecutor(1) as pool:
        fetched = fetch(side, pool)
        feed(side, clock, 5, 1.0)
        clock.now_s += WAIT_S - 0.1
        with pytest.raises(TimeoutError):
            fetched.result(1.5)
        clock.now_s += 0.2
        with pytest.raises(HopsumError) as raised:
            fetched.result(FUTURE_S)
    assert str(raised.value).startswith("rank 2 has got no more of the state of another worker for 60 s: 500 of 2000")
    assert "wait_s of StateDictRecovery" in str(raised.value)
    assert "offer it" not in str(raised.value), "they do"


def test_where_nobody_offers_one(clock: FakeClock) -> None:
    side = Side(RANK)
    with ThreadPoolExecutor(1) as pool:
        fetched = fetch(side, pool)
        side.await_said(PeerKind.STATE_ASK, 1)
        clock.now_s += WAIT_S
        with pytest.raises(HopsumError, match=r"within 60 s: no worker has answered. The others offer it once"):
            fetched.result(FUTURE_S)


def test_the_all_reduces_of_the_others_wait_for_a_newcomer_that_gets_on(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """At every shard, and for each further byte once."""
    side, waiting = Side(RANK), Side(OLD)
    with ThreadPoolExecutor(1) as pool:
        fetched = fetch(side, pool)
        feed(side, clock, PIECES, TELL_EVERY_S)
        fetched.result(FUTURE_S)
    told = side.of(PeerKind.STATE_NONE)
    assert {(peer, each.shard) for peer, each in told} == {(peer, shard) for peer in (OLD, OTHER) for shard in (0, 1)}
    mine = [each for peer, each in told if (peer, each.shard) == (OLD, 0)]
    bytes_told = [each.value for each in mine]
    assert bytes_told == sorted(set(bytes_told))
    assert len(mine) > PIECES / 2
    for each in mine:
        waiting.on_message(each)
        waiting.on_message(each)
    assert len(waiting.postponed) == len(mine)
    waiting.on_message(mine[-1]._replace(round=START - 1, value=1 << 40))
    waiting.on_message(mine[-1]._replace(round=START + 1, value=1 << 40))
    assert len(waiting.postponed) == len(mine), "of another generation"
    assert any("rank 0 waits for rank 2, which has 0.0 MB" in record.getMessage() for record in caplog.records)
