# SPDX-License-Identifier: Apache-2.0
"""One worker, by hand: what it sends and accepts, when it gives up, and what it says then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.errors import AllReduceTimeoutError, GenerationEndedError, ResultLostError
from hopsum.protocol.stream import MAX_ROUND
from hopsum.protocol.worker import Membership, Timing, Worker
from hopsum_wire import Drop, Header, Kind, Op, WireError, split_datagram

from ...support.jobs import done, error_of, failed

TIMING = Timing(retransmit_s=1.0, backoff=2.0, retransmit_max_s=5.0, deadline_s=100.0)
MEMBERSHIP = Membership(generation=7, rank=1, workers=3, slots=2, switch="switch 192.0.2.1:24677")


def make(**changes: Any) -> Worker:
    return Worker(replace(MEMBERSHIP, **changes), TIMING)


def payloads(chunks: int, fill: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    array = np.full((chunks, 1024), fill, np.uint8)
    array[:, 0] = np.arange(chunks)
    return array


def result(slot: int, round_: int, *, fill: int = 9, contributors: int = 0b111, **changes: int) -> bytes:
    header = Header(
        kind=Kind.RESULT,
        op=Op.ADD32,
        worker=1,
        slot=slot,
        generation=7,
        round=round_,
        contributors=contributors,
        length=1024,
    )
    header = replace(header, **changes)
    return header.pack() + bytes([fill]) * header.length


def stale(slot: int, asked: int, held: int) -> bytes:
    return result(slot, asked, kind=Kind.STALE, held=held, contributors=0b101, length=0)


def sent(worker: Worker, now: float = 0.0) -> list[tuple[int, int]]:
    """Send what there is: (slot, round) of each datagram."""
    headers = [split_datagram(view)[0] for view in worker.datagrams_to_send(now)]
    return [(header.slot, header.round) for header in headers]


@pytest.mark.parametrize("kind", [Kind.STALE, Kind.STATE])
@pytest.mark.parametrize("held", [2, 1_073_741_844])
def test_a_later_round_in_its_name_ends_a_worker_at_once(kind: Kind, held: int) -> None:
    """One forged UPDATE, or a process that was started twice."""
    worker = make()
    worker.submit(Op.ADD32, payloads(4), now=0.0)
    assert sent(worker) == [(0, 1), (1, 1)]
    told = result(0, 1, kind=kind, held=held, contributors=0b010, length=0)
    worker.receive_datagram(told, 1.0)
    message = str(error_of(worker, ResultLostError))
    assert message.startswith(
        f"somebody else sends as rank 1: switch 192.0.2.1:24677 has round {held} of slot 0 from it"
    )


def test_a_later_round_of_others_is_no_forgery() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(4), now=0.0)
    sent(worker)
    worker.receive_datagram(result(0, 1, kind=Kind.STATE, held=2, contributors=0b101, length=0), 1.0)
    worker.receive_datagram(result(0, 1), 1.0)
    # Held by now: a late answer says nothing.
    worker.receive_datagram(result(0, 1, kind=Kind.STATE, held=2, contributors=0b111, length=0), 1.0)
    assert worker.next_event() is None
    assert worker.runs


def test_an_update_on_the_wire() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1, fill=4), now=0.0, counts=[200])
    (datagram,) = worker.datagrams_to_send(0.0)
    header, payload = split_datagram(datagram)
    assert header == Header(kind=Kind.UPDATE, op=Op.ADD32, worker=1, generation=7, round=1, count=200, length=1024)
    assert bytes(payload) == payloads(1, fill=4).tobytes()


def test_the_window_is_one_round_per_slot_across_all_reduces() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(3), now=0.0)
    worker.submit(Op.ADD32, payloads(2), now=0.0)
    assert sent(worker) == [(0, 1), (1, 1)]
    worker.receive_datagram(result(1, 1), 0.1)
    assert sent(worker) == [(1, 2)]
    worker.receive_datagram(result(1, 2), 0.2)
    assert sent(worker) == []
    worker.receive_datagram(result(0, 1), 0.3)
    assert sent(worker) == [(0, 2)]
    assert worker.next_event() is None
    worker.receive_datagram(result(0, 2), 0.4)
    assert sent(worker) == [(0, 3)]
    assert done(worker).handle == 1


def test_results_and_settlement() -> None:
    worker = make()
    handle = worker.submit(Op.ADD32, payloads(2), now=0.0)
    worker.receive_datagram(result(1, 1, fill=6, contributors=0b101), 0.1)
    worker.receive_datagram(result(0, 1, fill=5, contributors=0b111), 0.1)
    event = done(worker)
    assert event.handle == handle
    assert event.results.tolist() == [[5] * 1024, [6] * 1024]
    assert event.contributors.tolist() == [0b111, 0b101]


def test_the_last_rank_of_sixty_four() -> None:
    worker = Worker(Membership(7, 63, 64, 1))
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    worker.receive_datagram(result(0, 1, worker=63, contributors=1 << 63), 0.1)
    assert done(worker).contributors.tolist() == [1 << 63]


def test_retransmission_backs_off() -> None:
    worker = make(slots=1)
    worker.submit(Op.ADD32, payloads(1), now=10.0)
    times = []
    now = 10.0
    while len(times) < 6:
        times += [now] * len(sent(worker, now))
        timer = worker.get_timer()
        assert timer is not None
        now = timer
        worker.handle_timer(now)
    assert times == [10, 11, 13, 17, 22, 27]
    assert (worker.statistics.updates, worker.statistics.retransmits) == (1, 5)


def test_a_timer_that_comes_early_sends_nothing() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    sent(worker, 0.0)
    worker.handle_timer(0.99)
    assert sent(worker, 0.99) == []
    assert worker.get_timer() == 1.0


def test_the_deadline_of_payloads_that_follow_from_sums_counts_from_these() -> None:
    worker = make(slots=2)
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    codes = worker.submit(Op.ADD32, payloads(1), now=0.0, ready=0)
    sent(worker, 0.0)
    worker.handle_timer(90.0)
    worker.receive_datagram(result(0, 1), 95.0)
    assert worker.next_event() is not None
    worker.fill(codes, payloads(1))
    worker.handle_timer(189.0)
    assert worker.next_event() is None, "it has the whole time"
    worker.handle_timer(190.0)
    error_of(worker, AllReduceTimeoutError)


def test_no_timer_without_work() -> None:
    worker = make()
    assert worker.get_timer() is None
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    assert worker.get_timer() == 99.0, "the first PROBE, a second before the deadline"
    sent(worker, 0.0)
    worker.receive_datagram(result(0, 1), 0.5)
    assert worker.get_timer() is None


def test_results_of_an_all_reduce_that_is_still_to_come() -> None:
    worker = make()
    worker.receive_datagram(result(0, 1, fill=5, contributors=0b101), 0.0)
    worker.receive_datagram(result(0, 2, fill=6, contributors=0b101), 0.0)
    worker.submit(Op.ADD32, payloads(3), now=1.0)
    assert sent(worker) == [(1, 1)]
    worker.receive_datagram(result(1, 1, fill=7), 1.0)
    event = done(worker)
    assert event.results[:, 0].tolist() == [5, 7, 6]
    assert event.contributors.tolist() == [0b101, 0b111, 0b101]


def test_early_results_of_another_op_are_no_results() -> None:
    worker = make()
    worker.receive_datagram(result(0, 1, op=Op.MAX32), 0.0)
    worker.receive_datagram(result(0, 2, op=Op.MAX32), 0.0)
    worker.submit(Op.ADD32, payloads(4), now=1.0)
    assert sent(worker) == [(0, 1), (1, 1)]
    assert worker.statistics.ignored == {Drop.OP_MISMATCH: 2}


def test_results_are_not_kept_for_any_distance() -> None:
    worker = make()
    worker.receive_datagram(result(1, 2), 0.0)
    worker.receive_datagram(result(0, 3), 0.0)
    worker.receive_datagram(result(0, MAX_ROUND), 0.0)
    assert worker.statistics.ignored == {Drop.BAD_ROUND: 2}


IGNORED = [
    (b"", Drop.TRUNCATED),
    (result(0, 1)[:-1], Drop.TRUNCATED),
    (result(0, 1) + b"x", Drop.BAD_LENGTH),
    (result(0, 1, version=2), Drop.BAD_VERSION),
    (result(0, 1, kind=Kind.UPDATE), Drop.BAD_KIND),
    (result(0, 1, kind=Kind.PROBE), Drop.BAD_KIND),
    (result(0, 1, kind=77), Drop.BAD_KIND),
    (result(0, 1, op=99), Drop.BAD_OP),
    (result(0, 1, op=0), Drop.BAD_OP),
    (result(0, 1, op=Op.OR), Drop.OP_MISMATCH),
    (result(0, 1, op=Op.MAX32), Drop.OP_MISMATCH),
    (result(0, 1, generation=6), Drop.UNKNOWN_GENERATION),
    (result(0, 1, worker=0), Drop.UNKNOWN_WORKER),
    (result(0, 1, length=1020), Drop.BAD_LENGTH),
    (result(0, 1, kind=Kind.STALE), Drop.BAD_LENGTH),
    (result(0, 1, kind=Kind.STATE), Drop.BAD_LENGTH),
    (result(0, 1, kind=Kind.STATE, contributors=0b1000, length=0), Drop.BAD_VALUE),
    (result(0, 1, contributors=0), Drop.BAD_VALUE),
    (result(0, 1, contributors=0b1000), Drop.BAD_VALUE),
    (result(2, 1), Drop.BAD_SLOT),
    (result(0, 0), Drop.BAD_ROUND),
    (result(0, 2**32 - 1), Drop.BAD_ROUND),
]


@pytest.mark.parametrize(("data", "reason"), IGNORED)
def test_malformed_and_foreign_datagrams(data: bytes, reason: Drop) -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    worker.receive_datagram(data, 0.0)
    assert worker.statistics.ignored == {reason: 1}
    assert worker.next_event() is None
    worker.receive_datagram(result(0, 1), 0.0)
    assert done(worker).results[0, 0] == 9


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, 31))
def test_garbage_never_hurts(tail: bytes, keep: int) -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    sent(worker)
    worker.receive_datagram(result(0, 1)[:keep] + tail, 0.0)
    assert worker.next_event() is None
    assert sum(worker.statistics.ignored.values()) == 1


def test_stale_about_anything_else_is_nothing() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(4), now=0.0)
    sent(worker)
    worker.receive_datagram(result(0, 1), 0.0)
    for slot, asked in [(0, 1), (1, 2), (0, 2), (1, 9)]:  # held, queued, open but not sent, not submitted
        worker.receive_datagram(stale(slot, asked, 3), 0.0)
    assert worker.statistics.stale_ignored == 4
    assert worker.next_event() is None


def test_stale_about_the_round_awaited_ends_the_generation() -> None:
    worker = make()
    first = worker.submit(Op.ADD32, payloads(1), now=0.0)
    second = worker.submit(Op.ADD32, payloads(1), now=0.0)
    sent(worker)
    worker.receive_datagram(stale(1, 1, 3), 0.0)
    failures = [failed(worker), failed(worker)]
    assert [failure.handle for failure in failures] == [first, second]
    assert isinstance(failures[0].error, ResultLostError)
    assert str(failures[0].error) == (
        "rank 1 lacks the result of generation 7, slot 1, round 1, and switch 192.0.2.1:24677 no longer has it: "
        "the slot has moved on to round 3 with workers [0, 2]. "
        "Connect all ranks again; the job of a membership file has to be made again before that"
    )


def test_a_generation_that_has_ended() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    sent(worker)
    worker.receive_datagram(stale(0, 1, 3), 0.0)
    failed(worker)
    worker.receive_datagram(result(0, 1), 0.0)
    worker.handle_timer(1000.0)
    assert (worker.next_event(), sent(worker), worker.get_timer()) == (None, [], None)
    with pytest.raises(GenerationEndedError, match="generation 7 has ended: rank 1 lacks the result"):
        worker.submit(Op.ADD32, payloads(1), now=0.0)


def no_answer(worker: Worker) -> str:
    """Play the caller until the deadline; return the message."""
    now: float | None = 0.0
    while now is not None:
        sent(worker, now)
        now = worker.get_timer()
        if now is not None:
            worker.handle_timer(now)
    return str(error_of(worker, AllReduceTimeoutError))


def test_silence_at_the_deadline() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(3), now=0.0)
    worker.receive_datagram(result(0, 1), 0.0)
    worker.receive_datagram(result(0, 2), 0.0)
    assert no_answer(worker) == (
        "no result from switch 192.0.2.1:24677 within 100 s: generation 7, rank 1, slot 1, round 1, UPDATE sent "
        "22 times, 1056 bytes each; "
        "nothing came back. 1 of 3 chunks lack their result. 4 PROBEs about it had no answer: the switch cannot be "
        "reached, does not know this worker, or is busy. The switch is silent until its quorum is in: check that "
        "all 3 workers run this all-reduce with the codec, the options and the vector lengths of the others, that the "
        "switch has the entries of generation 7, and its drop counters. "
        "Connect all ranks again; the job of a membership file has to be made again before that"
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([stale(1, 9, 11)] * 2, "came back: 2 x STALE(slot 1, asked 9, held 11)."),
        ([result(0, 1, generation=6)], "1 x a datagram refused as UNKNOWN_GENERATION (RESULT of generation 6)."),
        ([result(0, 1, op=Op.MAX32)], "1 x RESULT of op 7 where this rank submitted op 5."),
        ([result(0, 9)], "1 x RESULT far ahead (slot 0, round 9)."),
        ([b"hello"], "1 x a datagram refused as TRUNCATED (5 bytes are no 32-byte hopsum header)."),
        ([b"x" * size for size in range(6)], ", 2 more."),
        ([b"x" * (size % 32) + bytes(size // 32 % 2) for size in range(64)], " more."),
    ],
)
def test_what_came_back_at_the_deadline(data: list[bytes], text: str) -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    for datagram in data:
        worker.receive_datagram(datagram, 0.0)
    assert text in no_answer(worker)


def test_strangers_do_not_fill_the_memory() -> None:
    worker = make()
    worker.submit(Op.ADD32, payloads(1), now=0.0)
    for generation in range(1000, 1100):
        worker.receive_datagram(result(0, 1, generation=generation), 0.0)
    assert len(worker._ignored_packets.seen) == 33
    assert worker._ignored_packets.seen["other"] == 68


def test_a_refused_submission_changes_nothing() -> None:
    worker = make()
    for op, array in [
        (99, payloads(1)),
        (Op.LOOKUP_ADD16, payloads(1)),
        (Op.ADD32, payloads(1)[:, :512]),
        (Op.ADD32, payloads(0)),
    ]:
        with pytest.raises(WireError):
            worker.submit(op, array, now=0.0)
    with pytest.raises(WireError, match="counts from 65536"):
        worker.submit(Op.ADD32, payloads(1), now=0.0, counts=65536)
    assert (worker.stream.end, sent(worker), worker.get_timer()) == (0, [], None)


def test_a_generation_whose_rounds_are_used_up() -> None:
    worker = make()
    worker.stream.end = worker.stream.capacity - 1
    with pytest.raises(GenerationEndedError, match="2 chunks do not fit"):
        worker.submit(Op.ADD32, payloads(2), now=0.0)


@pytest.mark.parametrize(
    "changes", [{"generation": 0}, {"generation": 2**32}, {"rank": 3}, {"rank": -1}, {"workers": 65}]
)
def test_impossible_memberships(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"generation|rank"):
        replace(MEMBERSHIP, **changes)


@pytest.mark.parametrize("changes", [{"retransmit_s": 0.0}, {"backoff": 0.5}, {"deadline_s": -1.0}])
def test_impossible_timings(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="times must be positive"):
        replace(TIMING, **changes)
