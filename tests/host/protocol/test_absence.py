# SPDX-License-Identifier: Apache-2.0
"""A switch that is not there, or answers and lacks this worker's part: an error when that lasts, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.errors import AllReduceTimeoutError, GenerationEndedError
from hopsum.protocol.worker import Membership, Timing, Worker
from hopsum_wire import Header, Kind, Op, State

from ...support.jobs import error_of, failed

LIMIT_S = 10.0


def make(limit_s: float | None = LIMIT_S) -> Worker:
    timing = Timing(retransmit_s=0.1, deadline_s=300.0, unreachable_s=limit_s)
    worker = Worker(Membership(generation=7, rank=1, workers=2, slots=4, switch="switch 192.0.2.1:24677"), timing)
    worker.submit(Op.ADD32, np.zeros((1, 1024), np.uint8), now=0.0)
    return worker


def answers(worker: Worker, first_s: float, last_s: float, every_s: float = 1.0) -> None:
    now = first_s
    while now <= last_s:
        worker.note_unreachable(now)
        now += every_s


def test_an_absence_that_lasts_is_the_error() -> None:
    worker = make()
    answers(worker, 0.0, LIMIT_S - 1)
    assert worker.next_event() is None
    worker.note_unreachable(LIMIT_S)
    error = error_of(worker, AllReduceTimeoutError)
    assert str(error).startswith(
        "switch 192.0.2.1:24677 is not there: all that rank 1 sent to it for 10 s came back as 'port unreachable' (11 "
        "times), and nothing came from the switch."
    )
    with pytest.raises(GenerationEndedError, match="is not there"):
        worker.submit(Op.ADD32, np.zeros((1, 1024), np.uint8), now=11.0)


@pytest.mark.parametrize("times", [(0.0, 100.0), (0.0, 20.0, 40.0, 60.0), (5.0,)])
def test_single_answers_end_nothing(times: tuple[float, ...]) -> None:
    worker = make()
    for now in times:
        worker.note_unreachable(now)
    assert worker.next_event() is None
    assert worker.watch.absences.refused.answers == 1


def test_whatever_the_switch_says_ends_an_absence() -> None:
    worker = make()
    answers(worker, 0.0, LIMIT_S - 1)
    worker.receive_datagram(b"anything", LIMIT_S - 0.5)
    answers(worker, LIMIT_S, 2 * LIMIT_S - 1)
    assert worker.next_event() is None
    worker.receive_datagram(bytes(96), 2 * LIMIT_S)
    assert worker.watch.absences.refused.answers == 0


def waits(worker: Worker, until_s: float, probe_s: float = 5.0) -> None:
    """Let a worker wait for its switch, and ask every five seconds as a blocking all-reduce does."""
    now = 0.0
    while now < until_s:
        worker.handle_timer(now)
        if now % probe_s == 0:
            worker.probe()
        worker.segments_to_send(now)
        now += 0.5


def test_a_switch_that_never_answered_does_not_know_this_worker() -> None:
    worker = make(20.0)
    waits(worker, 20.0)
    assert worker.next_event() is None
    worker.handle_timer(20.0)
    told = str(error_of(worker, AllReduceTimeoutError))
    assert told.startswith("switch 192.0.2.1:24677 has never answered rank 1: 20 s, 4 PROBEs.")
    assert "address translation" in told


@pytest.mark.parametrize("heard", [True, False])
def test_one_answer_or_no_limit_leaves_it_to_the_deadline(heard: bool) -> None:
    worker = make(20.0 if heard else None)
    if heard:
        worker.receive_datagram(b"anything", 0.0)
    waits(worker, 299.0)
    assert worker.next_event() is None


def test_an_address_that_stays_away_is_the_error() -> None:
    worker = make()
    for now in range(int(LIMIT_S)):
        worker.note_address_gone("192.0.2.9", float(now))
    assert worker.next_event() is None
    worker.note_address_gone("192.0.2.9", LIMIT_S)
    assert str(error_of(worker, AllReduceTimeoutError)).startswith("192.0.2.9, by which switch 192.0.2.1:24677 knows")


def test_without_a_limit_the_deadline_is_the_error() -> None:
    worker = make(None)
    answers(worker, 0.0, 299.0)
    assert worker.next_event() is None
    assert worker.watch.absences.refused.lasted_s == 299.0
    worker.handle_timer(300.0)
    error = failed(worker).error
    assert "300 x 'port unreachable'" in str(error)


def test_nobody_waits_nobody_fails() -> None:
    worker = Worker(Membership(generation=7, rank=0, workers=2, slots=4), Timing(unreachable_s=1.0))
    answers(worker, 0.0, 20.0)
    worker.submit(Op.ADD32, np.zeros((1, 1024), np.uint8), now=100.0)
    assert worker.next_event() is None
    worker.note_unreachable(100.0)
    assert worker.next_event() is None, "that was long ago"


def state(
    worker: Worker, now: float, contributors: int = 0b01, held: int = 1, op: int = 0, count: int = State.COLLECTING
) -> None:
    """Have the switch asked, and let it answer about the first round of slot 0."""
    worker.probe()
    worker.datagrams_to_send(now)
    count = count if held else State.EMPTY
    about = {"worker": 1, "generation": 7, "slot": 0, "round": 1, "held": held, "contributors": contributors}
    worker.receive_datagram(Header(kind=Kind.STATE, count=count, op=op, **about).pack(), now)


@pytest.mark.parametrize("held", [1, 0])
def test_a_switch_that_answers_and_never_has_this_workers_part_is_an_error(held: int) -> None:
    worker = make()
    for now in (0.0, 5.0):
        state(worker, now, 0b01 if held else 0, held)
    assert worker.next_event() is None
    state(worker, LIMIT_S, 0b01 if held else 0, held)
    error = error_of(worker, AllReduceTimeoutError)
    assert error.missing_ranks == (1,)
    assert "So long datagrams sent to the switch are lost, and short ones are not" in str(error)


def test_a_switch_that_has_the_sum_and_whose_result_never_comes_is_an_error() -> None:
    worker = make()
    for now in (0.0, LIMIT_S):
        state(worker, now, 0b11, count=State.FINAL)
    error = failed(worker).error
    assert "RESULT does not arrive here" in str(error)
    assert "So long datagrams sent by the switch are lost" in str(error)
    assert "--udp ...,gso=off at the switch" in str(error)


def test_a_leaf_whose_copy_has_an_older_closed_round_lacks_this_workers_part() -> None:
    """The copy's round before was closed and never answered: it says nothing of the round that is asked about."""
    worker = make()
    worker.submit(Op.ADD32, np.zeros((8, 1024), np.uint8), now=0.0)
    for position in range(8):
        place = {"slot": position % 4, "round": position // 4 + 1}
        result = Header(kind=Kind.RESULT, op=Op.ADD32, worker=1, generation=7, contributors=0b11, length=1024, **place)
        worker.receive_datagram(result.pack() + bytes(1024), 0.0)
    worker.next_event()
    closed = {"worker": 1, "generation": 7, "slot": 0, "round": 3, "held": 1, "contributors": 0b11}
    for now in (0.0, LIMIT_S):
        worker.probe()
        worker.datagrams_to_send(now)
        worker.receive_datagram(Header(kind=Kind.STATE, count=State.CLOSED, op=Op.ADD32, **closed).pack(), now)
    assert "So long datagrams sent to the switch are lost" in str(failed(worker).error)


def test_one_codec_on_a_rank_and_another_on_the_switch_are_no_matter_of_length() -> None:
    worker = make()
    for now in (0.0, LIMIT_S):
        state(worker, now, op=Op.MAX32)
    error = failed(worker).error
    assert "codecs differ" in str(error)


@pytest.mark.parametrize(
    "answers", [[(0.0, 0b01), (20.0, 0b01)], [(0.0, 0b01), (5.0, 0b10), (10.0, 0b01)], [(0.0, 0b10), (10.0, 0b10)]]
)
def test_a_part_that_came_in_between_or_was_not_asked_about_for_long_is_no_error(
    answers: list[tuple[float, int]],
) -> None:
    worker = make()
    for now, contributors in answers:
        state(worker, now, contributors)
    assert worker.next_event() is None
