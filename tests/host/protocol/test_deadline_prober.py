# SPDX-License-Identifier: Apache-2.0
"""A worker's PROBEs before its deadline, and the missing ranks in its error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum.errors import AllReduceTimeoutError
from hopsum.protocol.worker import Membership, Timing, Worker
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Header, Kind, Op, State, split_datagram

from ...support.jobs import error_of, failed, job, update, worker
from ...support.simulated_network import jobs_of

TIMING = Timing(retransmit_s=40.0, retransmit_max_s=40.0, deadline_s=100.0)
ASK_AT = [99.0, 99.25, 99.5, 99.75]


def make(rank: int = 1, workers: int = 3, rack: tuple[int, ...] | None = None) -> Worker:
    return Worker(Membership(generation=7, rank=rank, workers=workers, slots=4, rack=rack), TIMING)


def submit(subject: Worker, chunks: int = 1, now: float = 0.0) -> None:
    subject.submit(Op.ADD32, np.zeros((chunks, 1024), np.uint8), now=now)


def headers(subject: Worker, now: float) -> list[Header]:
    return [split_datagram(datagram)[0] for datagram in subject.datagrams_to_send(now)]


def answer(asked: Header, **held: Any) -> bytes:
    return replace(asked, kind=Kind.STATE, **held).pack()


def run(subject: Worker, switch: Aggregator | None = None, **state: Any) -> tuple[AllReduceTimeoutError, list[float]]:
    """Play the caller until the deadline; PROBEs go to `switch`, or are answered with `state` if there is any.

    Return the error and the times of the PROBEs.
    """
    asked: list[float] = []
    now: float | None = 0.0
    while now is not None:
        for header in headers(subject, now):
            if header.kind == Kind.PROBE:
                asked.append(now)
                replies = [answer(header, **state)] if state else []
                if switch is not None:
                    where = worker(header.worker)
                    outcome = switch.receive(where.port, where.ip, where.udp_port, header.pack())
                    replies = [output.header.pack() + output.payload for output in outcome.outputs]
                for reply in replies:
                    subject.receive_datagram(reply, now)
        now = subject.get_timer()
        if now is not None:
            subject.handle_timer(now)
    return error_of(subject, AllReduceTimeoutError), asked


def test_the_missing_ranks_are_named() -> None:
    subject, switch = make(), Aggregator(jobs=[job(workers=3)])
    where = worker(0)
    switch.receive(where.port, where.ip, where.udp_port, update(0).pack() + bytes(1024))
    submit(subject, 2)
    error, asked = run(subject, switch)
    assert "2 of 2 chunks lack their result. ranks 1, 2 are missing in slot 0, round 1 (arrived: rank 0). " in str(
        error
    )
    assert error.missing_ranks == (1, 2)
    assert asked == [99.0], "an answer is enough"
    assert subject.statistics.probes == 1


def test_a_question_is_repeated_until_it_is_answered() -> None:
    subject = make()
    submit(subject)
    error, asked = run(subject)
    assert asked == ASK_AT
    assert (
        "4 PROBEs about it had no answer: the switch cannot be reached, does not know this worker, or is busy."
        in str(error)
    )
    assert error.missing_ranks == ()


@pytest.mark.parametrize(
    ("state", "text", "missing"),
    [
        (
            {"held": 1, "contributors": 0b011, "count": State.COLLECTING},
            "rank 2 is missing in slot 0, round 1 (arrived: ranks 0, 1)",
            (2,),
        ),
        ({"held": 0, "count": State.EMPTY}, "no rank's UPDATE of slot 0, round 1 has reached the switch", ()),
        (
            {"held": 1, "contributors": 0b101, "count": State.FINAL},
            "slot 0, round 1 is complete on the switch with ranks 0, 2: its RESULT does not reach this rank",
            (),
        ),
        (
            {"held": 3, "contributors": 0b100, "count": State.COLLECTING},
            "the switch has moved on to round 3 of slot 0 with rank 2",
            (),
        ),
    ],
)
def test_what_the_switch_holds_is_said(state: dict[str, int], text: str, missing: tuple[int, ...]) -> None:
    subject = make()
    submit(subject)
    error, _ = run(subject, **state)
    assert f"{text}" in str(error)
    assert error.missing_ranks == missing
    who = "Check that rank 2 still runs, and runs" if missing else "check that all 3 workers run"
    assert f"{who} this all-reduce with the codec, the options and the vector lengths of the others" in str(error)


@pytest.mark.parametrize(
    ("arrived", "text", "missing"),
    [
        ((1,), "rank 0 is missing in slot 0, round 1 (arrived: rank 1); its leaf does not see ranks 2, 3. ", (0,)),
        (
            (1, 0),
            "slot 0, round 1 has ranks 0, 1 below this leaf, whose sum went to its parent: that waits for another rack "
            "(ranks 2, 3), or does not answer. ",
            (),
        ),
    ],
)
def test_a_leaf_lacks_nobody_of_another_rack(arrived: tuple[int, ...], text: str, missing: tuple[int, ...]) -> None:
    below = (0, 1)
    switch, subject = Aggregator(jobs=[jobs_of(7, (below, (2, 3)))[1]]), make(workers=4, rack=below)
    for where in map(worker, arrived):
        switch.receive(where.port, where.ip, where.udp_port, update(where.rank).pack() + bytes(1024))
    submit(subject)
    error, _ = run(subject, switch)
    assert text in str(error)
    assert error.missing_ranks == missing


@pytest.mark.parametrize("rack", [(0, 2), (1, 3), ()])
def test_a_rack_is_of_the_job_and_has_the_worker(rack: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="of rank 1 of 3 workers"):
        make(rack=rack)


def test_an_older_round_in_the_copy_means_that_nothing_arrived() -> None:
    subject = make()
    submit(subject, 9)
    for position in range(8):
        result = Header(
            kind=Kind.RESULT, op=Op.ADD32, worker=1, slot=position % 4, generation=7, round=position // 4 + 1
        )
        subject.receive_datagram(replace(result, contributors=7, length=1024).pack() + bytes(1024), 0.0)
    error, _ = run(subject, held=1, contributors=7, count=State.FINAL)
    assert "no rank's UPDATE of slot 0, round 3 has reached the switch" in str(error)


def test_only_the_oldest_position_is_asked_about_and_its_answer_counts_for_nothing_else() -> None:
    subject = make()
    submit(subject, 2)
    headers(subject, 0.0)
    subject.handle_timer(99.0)
    (asked,) = (header for header in headers(subject, 99.0) if header.kind == Kind.PROBE)
    assert (asked.slot, asked.round, asked.op, asked.length, asked.worker) == (0, 1, 0, 0, 1)
    subject.receive_datagram(answer(asked, held=1, contributors=0b10, count=State.COLLECTING), 99.1)
    result = Header(kind=Kind.RESULT, op=Op.ADD32, worker=1, generation=7, round=1, contributors=7, length=1024)
    subject.receive_datagram(result.pack() + bytes(1024), 99.2)
    subject.handle_timer(99.5)
    (again,) = (header for header in headers(subject, 99.5) if header.kind == Kind.PROBE)
    assert again.slot == 1
    subject.handle_timer(100.0)
    error = failed(subject).error
    assert "had no answer" in str(error)
    assert "missing" not in str(error), "the answer was about another slot"


def test_an_answer_that_was_not_asked_for_is_nothing() -> None:
    subject = make()
    submit(subject)
    headers(subject, 0.0)
    stray = Header(kind=Kind.STATE, worker=1, generation=7, round=1, held=1, contributors=1, count=State.COLLECTING)
    subject.receive_datagram(stray.pack(), 1.0)
    assert subject.next_event() is None
    assert run(subject)[1] == ASK_AT


def test_each_all_reduce_has_its_own_questions() -> None:
    subject = make()
    submit(subject)
    headers(subject, 0.0)
    for now in ASK_AT:
        subject.handle_timer(now)
        headers(subject, now)
    submit(subject, now=99.8)
    result = Header(kind=Kind.RESULT, op=Op.ADD32, worker=1, generation=7, round=1, contributors=7, length=1024)
    subject.receive_datagram(result.pack() + bytes(1024), 99.9)
    subject.next_event()
    _, asked = run(subject)
    assert [round(now - 99.8, 9) for now in asked] == ASK_AT


def test_a_short_deadline_is_asked_about_in_its_last_quarter() -> None:
    subject = Worker(Membership(7, 0, 2, 1), Timing(retransmit_s=1.0, deadline_s=0.4))
    submit(subject)
    assert subject.get_timer() == pytest.approx(0.3)


def test_ranks_with_different_operations_are_told_so() -> None:
    """The others have another codec: the switch says by what it sums."""
    subject, switch = make(), Aggregator(jobs=[job(workers=3)])
    where = worker(0)
    switch.receive(where.port, where.ip, where.udp_port, update(0, op=Op.MAX32).pack() + bytes(1024))
    submit(subject)
    error, _ = run(subject, switch)
    assert "The switch sums this round by MAX32 and this rank sent ADD32: codecs differ. " in str(error)


def test_the_switch_is_asked_early_and_again_before_the_deadline() -> None:
    """`probe` words a line of the log; what it heard long ago does not word the error."""
    subject = make()
    submit(subject)
    headers(subject, 0.0)
    subject.probe()
    (asked,) = headers(subject, 5.0)
    assert asked.kind == Kind.PROBE
    subject.receive_datagram(answer(asked, held=1, contributors=0b010, count=State.COLLECTING), 5.0)
    assert "ranks 0, 2 are missing in slot 0, round 1 (arrived: rank 1)" in subject.watch.missing_text()
    assert subject.watch.left_s(5.0) == 95.0
    error, asked_at = run(subject, held=1, contributors=0b011, count=State.COLLECTING)
    assert asked_at == [99.0]
    assert error.missing_ranks == (2,)
