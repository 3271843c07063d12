# SPDX-License-Identifier: Apache-2.0
"""A switch whose host answers 'port unreachable': an error when that lasts, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.errors import AllReduceTimeoutError, GenerationEndedError
from hopsum.protocol.worker import AllReduceFailed, Membership, Timing, Worker
from hopsum_wire import Op

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
    event = worker.next_event()
    assert isinstance(event, AllReduceFailed)
    assert isinstance(event.error, AllReduceTimeoutError)
    assert str(event.error).startswith(
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
    assert worker.absence.answers == 1


def test_whatever_the_switch_says_ends_an_absence() -> None:
    worker = make()
    answers(worker, 0.0, LIMIT_S - 1)
    worker.receive_datagram(b"anything", LIMIT_S - 0.5)
    answers(worker, LIMIT_S, 2 * LIMIT_S - 1)
    assert worker.next_event() is None
    worker.receive_datagram(bytes(96), 2 * LIMIT_S)
    assert worker.absence.answers == 0


def test_without_a_limit_the_deadline_is_the_error() -> None:
    worker = make(None)
    answers(worker, 0.0, 299.0)
    assert worker.next_event() is None
    assert worker.absence.lasted_s == 299.0
    worker.handle_timer(300.0)
    event = worker.next_event()
    assert isinstance(event, AllReduceFailed)
    assert "300 x 'port unreachable'" in str(event.error)


def test_nobody_waits_nobody_fails() -> None:
    worker = Worker(Membership(generation=7, rank=0, workers=2, slots=4), Timing(unreachable_s=1.0))
    answers(worker, 0.0, 20.0)
    worker.submit(Op.ADD32, np.zeros((1, 1024), np.uint8), now=100.0)
    assert worker.next_event() is None
    worker.note_unreachable(100.0)
    assert worker.next_event() is None, "that was long ago"
