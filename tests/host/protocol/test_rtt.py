# SPDX-License-Identifier: Apache-2.0
"""Timeouts from round rtt, against RFC 6298 written down again; and the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopsum.protocol.retransmit_queue import CongestionWindow, RttEstimator


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=50))
def test_it_is_rfc_6298(samples: list[float]) -> None:
    rtt = RttEstimator(1.0, 0.0, 1e9)
    srtt, rttvar = samples[0], samples[0] / 2
    rtt.update(samples[0])
    for sample in samples[1:]:
        rttvar = (1 - 1 / 4) * rttvar + 1 / 4 * abs(srtt - sample)
        srtt = (1 - 1 / 8) * srtt + 1 / 8 * sample
        rtt.update(sample)
    assert rtt.srtt_s is not None
    assert abs(rtt.srtt_s - srtt) < 1e-6
    assert abs(rtt.rto_s - (srtt + 4 * rttvar)) < 1e-6


def test_bounds_of_the_timeout() -> None:
    rtt = RttEstimator(0.5, 0.01, 2.0)
    assert (rtt.rto_s, rtt.srtt_s) == (0.5, None)
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


@given(st.lists(st.tuples(st.lists(st.floats(0, 10), max_size=20), st.integers(0, 20), st.booleans()), max_size=12))
def test_results_at_once_are_results_one_by_one(turns: list[tuple[list[float], int, bool]]) -> None:
    one, many = CongestionWindow(9), CongestionWindow(9)
    for now, (once_sent_at, others, late) in enumerate(turns):
        for sent_at in [*once_sent_at, *[None] * others]:
            one.on_ack(sent_at)
        many.on_ack(max(once_sent_at, default=None), len(once_sent_at) + others)
        if late:
            one.on_loss(float(now))
            many.on_loss(float(now))
        assert vars(one) == vars(many)
