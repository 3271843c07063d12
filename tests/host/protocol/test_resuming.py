# SPDX-License-Identifier: Apache-2.0
"""One worker and its change of generation, by hand: what it reports, sends, asks for, discards and refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsum.errors import AllReduceTimeoutError, FellBehindError, GenerationEndedError, WorkersReplacedError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, Membership, RepairPolicy, Timing, Worker
from hopsum_wire import Header, Kind, Op, split_datagram
from hopsum_wire.generations import Decided, Resume, Sealed

from ...support.jobs import error_of

TIMING = Timing(retransmit_s=1.0, retransmit_max_s=8.0, deadline_s=100.0)
EVERYBODY = 0b1111


def make(resume: Resume | None = None, slots: int = 4, **more: Any) -> Worker:
    return Worker(Membership(7, 1, 4, slots), TIMING, repair=RepairPolicy(), resume=resume, **more)


def submit(worker: Worker, chunks: int, now: float = 0.0, fill: int = 3) -> int:
    handle = worker.submit(Op.ADD32, np.full((chunks, 1024), fill, np.uint8), now=now, counts=256)
    worker.datagrams_to_send(now)
    return handle


def sent(worker: Worker, now: float) -> list[tuple[int, int, int]]:
    """Return (generation, slot, round) of what is sent now."""
    headers = [split_datagram(bytes(datagram))[0] for datagram in worker.datagrams_to_send(now)]
    return [(header.generation, header.slot, header.round) for header in headers]


def results(worker: Worker, *positions: int, now: float = 0.1, generation: int | None = None, fill: int = 5) -> None:
    for position in positions:
        slot, round_ = worker.stream.place(position)
        header = Header(
            kind=Kind.RESULT, op=Op.ADD32, worker=1, slot=slot,
            generation=generation or worker.membership.generation, round=round_,
            contributors=EVERYBODY, length=1024,
        )  # fmt: skip
        worker.receive_datagram(header.pack() + bytes([fill]) * 1024, now)
        worker.datagrams_to_send(now)


def hear(worker: Worker, rank: int, kind: PeerKind, position: int, now: float = 5.0, **more: Any) -> None:
    slot, round_ = worker.stream.place(position)
    worker.receive_peer(PeerMessage(kind, rank, worker.membership.generation, slot, round_, **more), now)


def said(worker: Worker, kind: PeerKind) -> list[tuple[int, int]]:
    """Return (to, position) of what is said of a kind."""
    return [
        (to, worker.stream.position(message.slot, message.round))
        for to, message in worker.messages_to_peers()
        if message.kind is kind
    ]


def resume(base: int = 0, *decided: Decided, start: int | None = None, start_generation: int = 0) -> Resume:
    return Resume(base, start, start_generation, None if start is None else 1, () if start is None else (3,), decided)


def test_a_sealed_worker_only_answers() -> None:
    worker = make()
    submit(worker, 6)
    results(worker, 0, 1)
    assert worker.seal() == Sealed(7, 0, 6, ((0, 2),))
    results(worker, 2, 3)
    hear(worker, 0, PeerKind.FOUND, 2, op=Op.ADD32, value=EVERYBODY, payload=bytes(1024))
    hear(worker, 0, PeerKind.GONE, 2)
    worker.handle_timer(1000.0)
    assert (worker.next_event(), worker.get_timer(), worker.datagrams_to_send(1000.0)) == (None, None, [])
    assert worker.seal() == Sealed(7, 0, 6, ((0, 2),)), "a retry reports the same"
    assert not worker.waits_for_peers
    worker.messages_to_peers()
    hear(worker, 2, PeerKind.FETCH, 1)
    hear(worker, 2, PeerKind.FETCH, 2)
    assert [message.kind for _, message in worker.messages_to_peers()] == [PeerKind.FOUND]
    with pytest.raises(GenerationEndedError, match="generation 7 is sealed"):
        submit(worker, 1)
    assert worker.stream.end == 6


def test_what_is_reported() -> None:
    """In progress and kept, not what came for exchanges that are still to come."""
    worker = make(slots=8)
    submit(worker, 3)
    submit(worker, 4)
    results(worker, 3, 4, 5, 6, 0, 2, 7, 8)
    assert worker.seal() == Sealed(7, 0, 7, ((0, 1), (2, 7)))


def test_it_continues_where_it_was_with_the_same_bytes() -> None:
    worker = make()
    submit(worker, 10)
    results(worker, *range(6))
    first = [bytes(row) for row in worker.state.active[0].datagrams]
    worker.seal()
    worker.resume(9, resume(0, Decided(0, 6, (1,))), 50.0)
    assert sent(worker, 50.0) == [(9, 2, 2), (9, 3, 2), (9, 0, 3), (9, 1, 3)]
    again = [bytes(row) for row in worker.state.active[0].datagrams]
    assert [row[32:] for row in again] == [row[32:] for row in first]
    headers = [(split_datagram(old)[0], split_datagram(new)[0]) for old, new in zip(first, again, strict=True)]
    assert all((old.count, old.slot, old.op) == (new.count, new.slot, new.op) for old, new in headers)
    worker.handle_timer(149.0)
    assert worker.next_event() is None, "the deadline begins anew"
    results(worker, 6, now=149.0, generation=7)
    assert worker.statistics.results == 6, "results of the old generation are late"
    results(worker, 6, 7, 8, 9, now=149.0)
    event = worker.next_event()
    assert isinstance(event, AllReduceDone)
    assert event.results[:, 0].tolist() == [5] * 10


def test_rounds_begin_again_at_the_base() -> None:
    """And so a job outlives the rounds of a generation (N4)."""
    worker = make()
    worker.stream.end = worker.stream.capacity - 1
    worker.seal()
    worker.resume(8, resume(base := worker.stream.capacity - 4), 0.0)
    assert worker.stream.base == base
    submit(worker, 5, now=1.0)
    assert worker.state.open_position.tolist() == [base + 4, base + 5, base + 6, base + 3]
    results(worker, base + 3)
    assert worker.stream.place(base + 7) == (3, 2)


def test_no_more_is_asked_for_at_a_time_than_may_be() -> None:
    worker = make(slots=64)
    submit(worker, 100)
    worker.seal()
    worker.resume(8, resume(0, Decided(0, 100, (0,))), 0.0)
    asked = said(worker, PeerKind.FETCH)
    assert len(asked) == 32
    for position in (31, *range(31), 32):
        hear(worker, 0, PeerKind.FOUND, position, 0.0, op=Op.ADD32, value=EVERYBODY, payload=bytes(1024))
        asked += said(worker, PeerKind.FETCH)
        assert len(asked) == (33 if position < 32 else 65)
    assert asked == [(0, position) for position in range(65)]


def test_no_source_is_left() -> None:
    """Until the deadline, since another change of generation may decide again; at once if all say that it is gone."""
    worker = make()
    submit(worker, 1)
    worker.seal()
    worker.resume(8, resume(0, Decided(0, 1, (0,))), 0.0)
    worker.handle_timer(100.0)
    error = error_of(worker, AllReduceTimeoutError)
    assert "lacks 1 results that were decided when generation 8 began, the first of them slot 0, round 1" in str(error)
    with pytest.raises(GenerationEndedError, match="generation 8 has ended"):
        worker.seal()
    worker = make()
    submit(worker, 1)
    worker.seal()
    worker.resume(8, resume(0, Decided(0, 1, (0,))), 0.0)
    for rank in (0, 2, 3):
        hear(worker, rank, PeerKind.GONE, 0)
    error_of(worker, FellBehindError)


def test_what_is_kept_is_served_by_its_new_number() -> None:
    worker = make()
    submit(worker, 6)
    results(worker, *range(6))
    assert isinstance(worker.next_event(), AllReduceDone)
    assert worker.seal() == Sealed(7, 6, 6, ((0, 6),))
    worker.resume(8, resume(4, Decided(4, 6, (1,))), 1.0)
    worker.messages_to_peers()
    assert worker.stream.place(5) == (1, 1)
    hear(worker, 2, PeerKind.FETCH, 5)
    ((to, found),) = worker.messages_to_peers()
    assert (to, found.kind, found.generation, found.slot, found.round) == (2, PeerKind.FOUND, 8, 1, 1)
    assert worker.repair.store.unproved() == [0, 2, 3], "who said to hold it may have been replaced"


def test_a_program_that_continues_early_leaves_out_what_lies_before() -> None:
    worker = make()
    submit(worker, 2)
    worker.seal()
    worker.resume_at(8, 8)
    assert worker.stream.end == 2, "a report was made"
    worker.resume(8, resume(0, start=8, start_generation=8), 1.0)
    assert worker.stream.end == 8
    with pytest.raises(WorkersReplacedError):
        submit(worker, 1)
    worker.resume_at(8, 8)
    submit(worker, 1)
    assert worker.stream.end == 9


def test_a_void_all_reduce_takes_no_position_of_the_newcomers() -> None:
    """Others had a shorter one there, or the zeros of an all-reduce that is void here."""
    worker = make()
    submit(worker, 2)
    worker.seal()
    worker.resume(8, resume(0, start=5, start_generation=8), 1.0)
    error_of(worker, WorkersReplacedError)
    submit(worker, 4)
    error_of(worker, WorkersReplacedError)
    assert worker.stream.end == 5
    with pytest.raises(WorkersReplacedError):
        submit(worker, 1)
    worker.resume_at(8, 5)
    submit(worker, 1)
    assert worker.stream.end == 6


def test_an_answer_to_older_newcomers() -> None:
    worker = make()
    worker.seal()
    worker.resume(8, resume(0, start=6, start_generation=8), 1.0)
    worker.seal()
    worker.resume(9, resume(0, start=4, start_generation=9), 2.0)
    worker.resume_at(8, 6)
    assert worker.stream.end == 4
    with pytest.raises(WorkersReplacedError):
        submit(worker, 1)


def test_a_newcomer_begins_at_the_start() -> None:
    worker = make(resume(8, Decided(8, 10, (0,)), start=11, start_generation=7))
    assert (worker.stream.base, worker.stream.end) == (8, 11)
    assert [(to, message.kind, message.value) for to, message in worker.messages_to_peers()] == [
        (rank, PeerKind.DONE, 11) for rank in (0, 2, 3)
    ]
    submit(worker, 2)
    assert worker.state.open_position.tolist() == [12, 13, 14, 11]
    hear(worker, 2, PeerKind.FETCH, 9)
    assert [message.kind for _, message in worker.messages_to_peers()] == [PeerKind.GONE]
    assert worker.seal() == Sealed(7, 11, 13, ())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (resume(6), "with base 6 for a worker of 4 slots that has delivered up to position 5"),
        (resume(8), "with base 8"),
        (resume(-4), "with base -4"),
        (
            resume(0, start=6, start_generation=8),
            "newcomers begin at position 6, but this worker has submitted up to 7",
        ),
        (resume(0, Decided(3, 3, (0,))), "sorted, disjoint, not empty"),
    ],
)
def test_what_does_not_fit_changes_nothing(given: Resume, message: str) -> None:
    worker = make()
    submit(worker, 5)
    results(worker, *range(5))
    submit(worker, 2)
    report = worker.seal()
    with pytest.raises(ValueError, match=message):
        worker.resume(8, given, 1.0)
    with pytest.raises(ValueError, match="in another generation than 7"):
        worker.resume(7, resume(0), 1.0)
    assert (worker.seal(), worker.stream.base, worker.membership.generation) == (report, 0, 7)
    worker.resume(8, resume(4, Decided(4, 5, (1,))), 1.0)
    assert sent(worker, 1.0) == [(8, 1, 1), (8, 2, 1)]


def test_without_peers_no_generation_follows() -> None:
    worker = Worker(Membership(7, 0, 2, 4), TIMING)
    assert worker.seal() == Sealed(7, 0, 0, ())
    with pytest.raises(ValueError, match="a sealed worker with peers"):
        worker.resume(8, resume(0), 1.0)
    with pytest.raises(ValueError, match="multiple of the 4 slots"):
        make(resume(2))
