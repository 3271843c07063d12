# SPDX-License-Identifier: Apache-2.0
"""One worker and its peers, by hand: whom it asks, what it answers, what it keeps, and how it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsum.errors import AllReduceTimeoutError, FellBehindError, RankLeftError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, Membership, RepairPolicy, Timing, Worker
from hopsum_wire import Header, Kind, Op, State

from ...support.jobs import done, error_of, failed

TIMING = Timing(retransmit_s=1.0, retransmit_max_s=8.0, deadline_s=1000.0)
EVERYBODY = 0b1111
Said = tuple[int, PeerKind, int, int]


def make(slots: int = 2, timing: Timing = TIMING, **policy: Any) -> Worker:
    return Worker(Membership(7, 1, 4, slots), timing, repair=RepairPolicy(**{"unproved_max": 2, **policy}))


def submit(worker: Worker, chunks: int = 1, now: float = 0.0, op: int = Op.ADD32) -> int:
    handle = worker.submit(op, np.zeros((chunks, 1024), np.uint8), now=now)
    worker.datagrams_to_send(now)
    return handle


def about(worker: Worker, position: int, kind: Kind, **fields: int) -> Header:
    """Return a header of the switch about a position."""
    slot, round_ = worker.stream.place(position)
    return Header(kind=kind, op=Op.ADD32, worker=1, slot=slot, generation=7, round=round_, **fields)


def from_switch(
    worker: Worker, position: int, now: float = 0.1, *, contributors: int = EVERYBODY, fill: int = 5
) -> None:
    header = about(worker, position, Kind.RESULT, contributors=contributors, length=1024)
    worker.receive_datagram(header.pack() + bytes([fill]) * 1024, now)
    worker.datagrams_to_send(now)


def submit_and_sum(worker: Worker, *positions: int, contributors: int = EVERYBODY) -> None:
    """Have all-reduces of one chunk summed, one after the other."""
    for position in positions:
        submit(worker)
        from_switch(worker, position, contributors=contributors)


def stale(worker: Worker, position: int, held: int, contributors: int, now: float = 0.1) -> None:
    worker.receive_datagram(about(worker, position, Kind.STALE, held=held, contributors=contributors).pack(), now)


def hear(worker: Worker, rank: int, kind: PeerKind, position: int | None = None, now: float = 0.2, **more: Any) -> None:
    slot, round_ = (0, 0) if position is None else worker.stream.place(position)
    fields = {"generation": 7, "slot": slot, "round": round_, **more}
    worker.receive_peer(PeerMessage(kind, rank, **fields), now)
    worker.datagrams_to_send(now)


def state(worker: Worker, position: int, contributors: int, held: State = State.COLLECTING, now: float = 0.3) -> None:
    fields = {"held": worker.stream.place(position)[1], "count": held, "contributors": contributors}
    worker.receive_datagram(about(worker, position, Kind.STATE, **fields).pack(), now)


def found(worker: Worker, rank: int, position: int, now: float = 0.2, **more: Any) -> None:
    fields = {"op": Op.ADD32, "value": 0b1101, "payload": bytes([9]) * 1024, **more}
    hear(worker, rank, PeerKind.FOUND, position, now, **fields)


def said(worker: Worker) -> list[Said]:
    """Return (to, kind, slot, round) of what is said; DONE has its position in place of the round."""
    return [
        (to, message.kind, message.slot, message.value if message.kind is PeerKind.DONE else message.round)
        for to, message in worker.messages_to_peers()
    ]


def test_a_named_worker_is_asked_for_all_that_is_lacking_of_the_slot() -> None:
    worker = make()
    submit(worker, 9)
    from_switch(worker, 6)
    stale(worker, 0, held=5, contributors=0b1001)
    assert said(worker) == [(3, PeerKind.FETCH, 0, 1), (3, PeerKind.FETCH, 0, 2), (3, PeerKind.FETCH, 0, 3)]
    stale(worker, 0, held=5, contributors=0b1001, now=0.5)
    assert said(worker) == [], "asked a moment ago"
    stale(worker, 0, held=5, contributors=0b1001, now=1.2)
    assert [to for to, *_ in said(worker)] == [0, 0, 0], "the other one that was named"
    assert worker.statistics.fetches == 6


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"generation": 6}, "generation"),
        ({"slot": 2}, "place"),
        ({"round": 0}, "place"),
        ({"round": 2**32 - 1}, "place"),
        ({"value": 0}, "bad_value"),
        ({"value": 16}, "bad_value"),
        ({"payload": b"x"}, "bad_length"),
        ({"op": 99}, "bad_op"),
    ],
)
def test_what_is_no_result_of_a_peer(more: dict[str, Any], reason: str) -> None:
    worker = make()
    submit(worker)
    found(worker, 0, 0, **more)
    assert (worker.next_event(), worker.statistics.peers_ignored) == (None, {reason: 1})


@pytest.mark.parametrize("rank", [1, 4, 63])
def test_who_is_no_peer(rank: int) -> None:
    worker = make()
    submit(worker)
    found(worker, rank, 0)
    hear(worker, rank, PeerKind.FETCH, 0)
    assert (worker.next_event(), said(worker)) == (None, [])
    assert worker.statistics.peers_ignored == {"sender": 2}


def test_another_op_is_no_result() -> None:
    worker = make()
    submit(worker)
    found(worker, 0, 0, op=Op.MAX32)
    assert worker.next_event() is None
    assert sum(worker.statistics.ignored.values()) == 1


def test_a_worker_without_peers_ignores_them() -> None:
    worker = Worker(Membership(7, 1, 4, 2))
    submit(worker)
    found(worker, 0, 0)
    assert worker.statistics.peers_ignored == {"no peers": 1}
    assert (worker.messages_to_peers(), worker.waits_for_peers) == ([], False)


def test_silence_asks_one_after_the_other() -> None:
    worker = make(slots=1, ask_after=2)
    submit(worker)
    asked = []
    for _ in range(6):
        now = worker.get_timer()
        assert now is not None
        worker.handle_timer(now)
        worker.datagrams_to_send(now)
        asked.append([to for to, *_ in said(worker)])
    assert asked == [[], [], [2], [3], [0], [2]]


def test_gone_everywhere_ends_the_generation() -> None:
    worker = make()
    handle = submit(worker)
    hear(worker, 0, PeerKind.GONE, 0)
    assert said(worker) == [], "nothing was asked"
    stale(worker, 0, held=3, contributors=0b1001)
    asked = [to for to, *_ in said(worker)]
    while len(asked) < 3:
        hear(worker, asked[-1], PeerKind.GONE, 0)
        asked += [to for to, *_ in said(worker)]
    assert asked == [3, 0, 2], "those named first"
    assert worker.next_event() is None
    hear(worker, 2, PeerKind.GONE, 0)
    event = failed(worker)
    assert (event.handle, type(event.error)) == (handle, FellBehindError)
    assert (
        "rank 1 fell behind in generation 7: neither the switch nor any of its peers still has the result of slot 0"
        in str(event.error)
    )


def test_what_a_worker_answers() -> None:
    worker = make()
    submit(worker, 3)
    from_switch(worker, 1, contributors=0b0011)
    for position in (1, 0, 4):
        hear(worker, 2, PeerKind.FETCH, position)
    assert said(worker) == [(2, PeerKind.FOUND, 1, 1)], "what it lacks is asked for again"
    from_switch(worker, 0)
    from_switch(worker, 2, fill=8)
    event = done(worker)
    assert not event.results.flags.writeable
    assert not event.contributors.flags.writeable
    said(worker)
    hear(worker, 3, PeerKind.FETCH, 2)
    ((to, answer),) = worker.messages_to_peers()
    assert (to, answer.kind, answer.op, answer.value) == (3, PeerKind.FOUND, Op.ADD32, EVERYBODY)
    assert answer.payload == bytes([8]) * 1024
    assert worker.statistics.served == 2


def test_results_go_when_everybody_says_to_hold_them() -> None:
    worker = make()
    submit_and_sum(worker, 0)
    assert said(worker) == [(rank, PeerKind.DONE, 0, 1) for rank in (0, 2, 3)]
    for rank in (0, 2, 3):
        hear(worker, 0, PeerKind.FETCH, 0)
        assert [kind for _, kind, *_ in said(worker)] == [PeerKind.FOUND]
        hear(worker, rank, PeerKind.DONE, value=1)
    hear(worker, 0, PeerKind.FETCH, 0)
    assert [kind for _, kind, *_ in said(worker)] == [PeerKind.GONE]


def test_the_third_waits_for_the_first() -> None:
    worker = make(slots=4)
    for position in range(3):
        submit(worker)
        if position < 2:
            from_switch(worker, position, contributors=0b0111)
    assert said(worker)[-1][1] is PeerKind.DONE
    assert (worker.statistics.updates, worker.waits_for_peers) == (2, True)
    worker.handle_timer(1.0)
    assert said(worker) == [(rank, PeerKind.PROGRESS_QUERY, 0, 0) for rank in (0, 2, 3)]
    assert worker.get_timer() == 1.25
    hear(worker, 0, PeerKind.DONE, value=3)
    hear(worker, 2, PeerKind.DONE, value=2)
    assert worker.statistics.updates == 2
    hear(worker, 3, PeerKind.DONE, value=1)
    assert (worker.statistics.updates, worker.waits_for_peers) == (3, False)
    hear(worker, 3, PeerKind.PROGRESS_QUERY)
    assert said(worker) == [(3, PeerKind.DONE, 0, 2)]


def test_done_is_told_seldom_and_before_anybody_waits_for_it() -> None:
    """At once after half of the all-reduces that may be unproved; until then the last one counts."""
    worker = make(unproved_max=8)
    told = []
    for position in range(8):
        submit_and_sum(worker, position)
        told.append((len(said(worker)), worker.done_for_peers()))
    at_once = [number for number, _ in told]
    assert at_once == [0, 0, 0, 3, 0, 0, 0, 3]
    assert [done and done.value for _, done in told] == [1, 2, 3, None, 5, 6, 7, None]
    assert worker.done_for_peers() is None


def test_done_is_told_at_once_after_half_of_the_bytes() -> None:
    worker = make(slots=8, unproved_max=99, unproved_bytes=8 << 10)
    for position in (0, 3, 6):
        submit(worker, 3)
        for chunk in range(3):
            from_switch(worker, position + chunk)
    assert said(worker) == [(rank, PeerKind.DONE, 0, 6) for rank in (0, 2, 3)]
    done = worker.done_for_peers()
    assert done is not None
    assert done.value == 9


def test_many_small_allreduces_are_kept_and_few_large_ones() -> None:
    worker = make(slots=64, unproved_max=6, unproved_bytes=8 << 10, unproved_least=3)
    submit_and_sum(worker, *range(6))
    submit(worker)
    assert (len(worker.repair.store), worker.statistics.updates) == (6, 6), "the seventh is one too many"
    for rank in (0, 2, 3):
        hear(worker, rank, PeerKind.DONE, value=6)
    from_switch(worker, 6)
    submit(worker, 8)
    for position in range(7, 15):
        from_switch(worker, position)
    submit_and_sum(worker, 15)
    submit(worker)
    assert worker.repair.store.kept_bytes == 10 << 10
    assert (len(worker.repair.store), worker.statistics.updates) == (3, 16), (
        "nine thousand bytes, and the least of three"
    )


def test_a_result_may_come_while_it_is_held_back() -> None:
    worker = make(slots=4)
    submit_and_sum(worker, 0, 1, 2, contributors=0b0101)
    assert [done(worker).handle for _ in range(3)] == [1, 2, 3]
    assert worker.statistics.updates == 2


def test_stragglers_are_given_up_on_and_may_come_back() -> None:
    worker = make(slots=4, straggler_s=5.0)
    submit_and_sum(worker, 0, 1)
    submit(worker, now=1.0)
    for rank in (0, 2):
        hear(worker, rank, PeerKind.DONE, value=2)
    worker.handle_timer(5.9)
    assert worker.statistics.updates == 2
    worker.handle_timer(6.0)
    worker.datagrams_to_send(6.0)
    assert (worker.statistics.updates, worker.statistics.given_up) == (3, 0b1000)
    said(worker)
    hear(worker, 3, PeerKind.FETCH, 0)
    assert said(worker) == [(3, PeerKind.GONE, 0, 1)]
    hear(worker, 3, PeerKind.DONE, value=2)
    from_switch(worker, 2)
    hear(worker, 0, PeerKind.DONE, value=3)
    hear(worker, 2, PeerKind.DONE, value=3)
    assert worker.repair.store.unproved() == [3], "it counts again"


def test_a_newcomer_that_gets_its_state_is_no_straggler_and_is_waited_for_beyond_a_deadline() -> None:
    worker = make(slots=4, straggler_s=5.0, timing=Timing(retransmit_s=1.0, retransmit_max_s=8.0, deadline_s=8.0))
    submit_and_sum(worker, 0, 1)
    assert [done(worker).handle for _ in range(2)] == [1, 2]
    submit(worker, now=1.0)
    for now in range(4, 40, 4):
        worker.handle_timer(float(now))
        worker.postpone_deadlines(float(now))
    assert (worker.statistics.updates, worker.statistics.given_up) == (2, 0)
    worker.handle_timer(40.9)
    assert worker.statistics.given_up == 0
    worker.handle_timer(41.0)
    worker.datagrams_to_send(41.0)
    assert (worker.statistics.updates, worker.statistics.given_up) == (3, 0b1101)
    worker.handle_timer(44.0)
    error_of(worker, AllReduceTimeoutError)


def test_who_is_late_itself_gives_up_once() -> None:
    """The second has its result, the first has not and holds the third back: no timer is due again and again."""
    worker = make(slots=4, straggler_s=5.0)
    for _ in range(3):
        submit(worker)
    from_switch(worker, 1)
    worker.handle_timer(6.0)
    worker.datagrams_to_send(6.0)
    assert worker.statistics.given_up == 0b1101
    due = worker.get_timer()
    assert due is not None
    assert due > 6.0


def test_nothing_is_kept_for_who_was_given_up_elsewhere() -> None:
    worker = make(slots=4, straggler_s=5.0)
    submit_and_sum(worker, 0, 1)
    submit(worker, now=1.0)
    for rank in (0, 2):
        hear(worker, rank, PeerKind.DONE, value=2)
        hear(worker, rank, PeerKind.LEAVE)
    for ranks in ((0, 1), (2, 3), (3,)):  # its own rank among them; again
        worker.handle_timer(1.1)
        assert (worker.statistics.updates, worker.repair.all_left) == (2, False)
        worker.repair.on_ranks_lost(ranks)
        if 3 in ranks:
            break
    worker.handle_timer(1.1)
    worker.datagrams_to_send(1.1)
    assert (worker.statistics.updates, worker.statistics.given_up) == (3, 0b1101)
    assert worker.repair.all_left
    assert len(worker.repair.store) == 0


def test_held_back_until_the_deadline() -> None:
    worker = make(slots=4, timing=Timing(retransmit_s=1.0, retransmit_max_s=8.0, deadline_s=4.0))
    submit_and_sum(worker, 0, 1)
    assert [done(worker).handle for _ in range(2)] == [1, 2]
    hear(worker, 0, PeerKind.DONE, value=2)
    submit(worker)
    worker.handle_timer(4.0)
    error = error_of(worker, AllReduceTimeoutError)
    assert error.missing_ranks == (2, 3)
    assert "did not begin an all-reduce of generation 7 within 4 s: ranks 2, 3 did not say" in str(error)
    said(worker)
    hear(worker, 2, PeerKind.FETCH, 0)
    assert said(worker) == [(2, PeerKind.FOUND, 0, 1)], "it still serves"


def test_a_sum_that_waits_for_a_worker_that_has_left_fails_at_once() -> None:
    worker = make()
    submit_and_sum(worker, 0)
    done(worker)
    hear(worker, 2, PeerKind.DONE, value=1)
    submit(worker)
    state(worker, 1, 0b0011)
    assert worker.next_event() is None, "nobody has asked, and nobody has left"
    probes = worker.statistics.probes
    hear(worker, 2, PeerKind.LEAVE, value=2)
    assert worker.statistics.probes == probes + 1, "the switch is asked at once"
    state(worker, 1, 0b1011)
    error = error_of(worker, RankLeftError)
    assert error.ranks == (2,)
    assert "rank 1 waits for rank 2, which has finished and closed: slot 1, round 1" in str(error)


def test_a_worker_that_has_left_is_waited_for_as_long_as_its_update_may_be_there() -> None:
    """Rank 2 holds the result of position 0, so a STATE without it is old; rank 3, which is missing, has not left."""
    worker = make()
    submit(worker)
    hear(worker, 2, PeerKind.LEAVE, value=2)
    state(worker, 0, 0b0011)
    assert worker.next_event() is None
    hear(worker, 0, PeerKind.LEAVE, value=1)
    state(worker, 0, 0b0111)
    assert worker.next_event() is None
    from_switch(worker, 0)
    assert isinstance(worker.next_event(), AllReduceDone)


def test_a_worker_that_leaves_unfinished_may_be_replaced() -> None:
    worker = make()
    submit(worker)
    hear(worker, 2, PeerKind.LEAVE)
    state(worker, 0, 0b1011)
    assert worker.next_event() is None


def test_a_worker_of_another_rack_that_has_left_is_not_waited_for() -> None:
    worker = Worker(Membership(7, 1, 4, 2, rack=(0, 1)), TIMING, repair=RepairPolicy())
    submit(worker)
    hear(worker, 3, PeerKind.LEAVE, value=1)
    state(worker, 0, 0b0010)
    assert worker.next_event() is None, "rank 0 is missing, and has not left"
    worker.probe()
    state(worker, 0, 0b0011, State.CLOSED)
    error = error_of(worker, RankLeftError)
    assert error.ranks == (3,)


def test_leaving() -> None:
    worker = make()
    submit_and_sum(worker, 0)
    said(worker)
    worker.repair.leave(finished=True)
    assert [(to, kind) for to, kind, *_ in said(worker)] == [(rank, PeerKind.LEAVE) for rank in (0, 2, 3)]
    for rank in (0, 3, 2):
        assert not worker.repair.all_left
        hear(worker, rank, PeerKind.LEAVE)
    assert worker.repair.all_left
    assert len(worker.repair.store) == 0


@pytest.mark.parametrize(
    "changes", [{"ask_after": 0}, {"unproved_max": 0}, {"unproved_least": 0}, {"straggler_s": 0.0}]
)
def test_impossible_policies(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="are at least 1"):
        RepairPolicy(**changes)
