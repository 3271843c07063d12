# SPDX-License-Identifier: Apache-2.0
"""Retransmissions, the window, FLUSH, and the timeout, which is checked against RFC 6298 written down again."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopsum.protocol.congestion import CongestionWindow, RttEstimator
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.worker import Membership, Timing, Worker
from hopsum.protocol.worker_state import WorkerStatistics
from hopsum_wire import Flag, Header, Kind, Op, split_datagram

TIMING: dict[str, Any] = {"retransmit_s": 1.0, "retransmit_max_s": 8.0, "deadline_s": 1000.0}


def make(slots: int = 4, chunks: int = 12, **timing: float) -> Worker:
    worker = Worker(Membership(7, 0, 2, slots), Timing(**{**TIMING, **timing}))
    worker.submit(Op.OR, np.arange(chunks * 1024).astype(np.uint8).reshape(chunks, 1024), now=0.0)
    return worker


def sent(worker: Worker, now: float) -> list[int]:
    """Send what is due: positions, with FLUSH negative and less one."""
    worker.handle_timer(now)
    found = []
    for datagram in worker.datagrams_to_send(now):
        header, _ = split_datagram(datagram)
        position = worker.stream.position(header.slot, header.round)
        found.append(-1 - position if header.flags & Flag.FLUSH else position)
    return found


def answer(worker: Worker, position: int, now: float) -> None:
    slot, round_ = worker.stream.place(position)
    header = Header(
        kind=Kind.RESULT, op=Op.OR, slot=slot, generation=7, round=round_, contributors=3, length=1024
    )  # fmt: skip
    worker.receive_datagram(header.pack() + bytes(1024), now)


def test_the_timeout_follows_the_round_trips() -> None:
    worker = make(slots=1, chunks=40, retransmit_min_s=0.05)
    now = 0.0
    for position in range(30):
        assert sent(worker, now) == [position]
        now += 0.02
        answer(worker, position, now)
    assert abs(worker.queue.rtt.srtt_s - 0.02) < 1e-9
    assert sent(worker, now) == [30]
    assert abs((worker.get_timer() or 0) - (now + 0.05)) < 1e-9
    assert sent(worker, now + 0.0501) == [30]
    assert abs((worker.get_timer() or 0) - (now + 0.1501)) < 1e-9, "twice as long"


def test_least_wait_is_the_initial_one_unless_told() -> None:
    worker = make(slots=1, chunks=2)
    sent(worker, 0.0)
    answer(worker, 0, 0.01)
    sent(worker, 0.01)
    assert worker.get_timer() == 1.01


def test_karn() -> None:
    worker = make(slots=1, chunks=3, retransmit_min_s=0.05)
    sent(worker, 0.0)
    assert sent(worker, 1.0) == [0]
    answer(worker, 0, 1.001)
    assert worker.queue.rtt.srtt_s == inf


def test_a_loss_halves_the_window_and_results_open_it() -> None:
    worker = make()
    assert sent(worker, 0.0) == [0, 1, 2, 3]
    assert sent(worker, 1.0) == [0, 1, 2, 3]
    assert worker.queue.congestion.size == 2
    for position in (3, 2):
        answer(worker, position, 1.1)
    assert (worker.queue.congestion.size, sent(worker, 1.1)) == (3, [6])
    answer(worker, 1, 1.1)
    answer(worker, 0, 1.2)
    assert sent(worker, 1.2) == [4, 5]
    for position in (4, 5, 6):
        answer(worker, position, 1.3)
    assert worker.queue.congestion.size == 4, "the most"
    assert sent(worker, 1.3) == [7, 8, 9, 10]


def test_the_oldest_goes_whatever_the_window() -> None:
    """Else two workers whose windows hold different chunks would wait for each other."""
    queue = RetransmitQueue(8, Timing(), WorkerStatistics())
    queue.congestion = CongestionWindow(1)
    for position, expected in [(5, [5]), (7, []), (2, [2]), (1, [1]), (3, [])]:
        queue.open(position)
        assert queue.pop_due(0.0)[0].tolist() == expected
    for position, expected in [(1, []), (2, [3]), (3, []), (5, [7])]:
        queue.mark_acked(position, 0.1)
        assert queue.pop_due(0.1)[0].tolist() == expected


def test_flush_when_it_took_too_long() -> None:
    worker = make(slots=2, flush_after_s=2.5)
    plain = [bytes(each) for each in worker.datagrams_to_send(0.0)]
    assert sent(worker, 1.0) == [0, 1]
    assert worker.get_timer() == 2.5
    worker.handle_timer(2.5)
    flushed = [bytearray(each) for each in worker.datagrams_to_send(2.5)]
    assert [each[2] for each in flushed] == [Flag.FLUSH] * 2
    for each in flushed:
        each[2] = 0
    assert [bytes(each) for each in flushed] == plain, "W2"
    assert worker.statistics.flushes == 2
    assert worker.get_timer() == 2.5 + 4
    assert sent(worker, 6.5) == [-1, -2]
    answer(worker, 0, 6.6)
    assert sent(worker, 6.6) == [2], "its own time begins when it is sent"


def test_a_flush_is_no_loss() -> None:
    worker = make(slots=4, flush_after_s=0.5)
    sent(worker, 0.0)
    assert sent(worker, 0.5) == [-1, -2, -3, -4]
    assert worker.queue.congestion.size == 4


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=50))
def test_it_is_rfc_6298(samples: list[float]) -> None:
    rtt = RttEstimator(1.0, 0.0, 1e9)
    srtt, rttvar = samples[0], samples[0] / 2
    rtt.update(samples[0])
    for sample in samples[1:]:
        rttvar = (1 - 1 / 4) * rttvar + 1 / 4 * abs(srtt - sample)
        srtt = (1 - 1 / 8) * srtt + 1 / 8 * sample
        rtt.update(sample)
    assert abs(rtt.srtt_s - srtt) < 1e-6
    assert abs(rtt.rto_s - (srtt + 4 * rttvar)) < 1e-6


def test_bounds_of_the_timeout() -> None:
    rtt = RttEstimator(0.5, 0.01, 2.0)
    assert (rtt.rto_s, rtt.srtt_s) == (0.5, inf)
    rtt.update(1e-5)
    assert rtt.rto_s == 0.01
    rtt.update(100.0)
    assert rtt.rto_s == 2.0


def test_the_window_grows_by_one_a_window() -> None:
    window = CongestionWindow(4)
    window.on_loss(1.0)
    window.on_loss(1.5)
    assert window.size == 2, "once a round trip"
    sizes = []
    for _ in range(9):
        window.on_ack(None)
        sizes.append(window.size)
    assert sizes == [2, 3, 3, 3, 4, 4, 4, 4, 4]


def test_the_window_halves_again_after_a_round_trip() -> None:
    window = CongestionWindow(64)
    window.on_loss(1.0)
    window.on_ack(0.9)
    window.on_loss(2.0)
    assert window.size == 32, "that result says nothing about what was sent since"
    window.on_ack(1.0)
    window.on_loss(2.0)
    assert window.size == 16
    for turn in range(10):
        window.on_ack(3.0 + turn)
        window.on_loss(3.0 + turn)
    assert window.size == 1
