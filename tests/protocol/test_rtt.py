# SPDX-License-Identifier: Apache-2.0
"""Timeouts from round trips, against RFC 6298 written down again; and the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopsum.protocol.rtt import RoundTrips
from hopsum.protocol.window import Window


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=50))
def test_it_is_rfc_6298(samples: list[float]) -> None:
    trips = RoundTrips(1.0, 0.0, 1e9)
    srtt, rttvar = samples[0], samples[0] / 2
    trips.measure(samples[0])
    for sample in samples[1:]:
        rttvar = (1 - 1 / 4) * rttvar + 1 / 4 * abs(srtt - sample)
        srtt = (1 - 1 / 8) * srtt + 1 / 8 * sample
        trips.measure(sample)
    assert trips.srtt_s is not None
    assert abs(trips.srtt_s - srtt) < 1e-6
    assert abs(trips.timeout_s - (srtt + 4 * rttvar)) < 1e-6


def test_bounds_of_the_timeout() -> None:
    trips = RoundTrips(0.5, 0.01, 2.0)
    assert (trips.timeout_s, trips.srtt_s) == (0.5, None)
    trips.measure(1e-5)
    assert trips.timeout_s == 0.01
    trips.measure(100.0)
    assert trips.timeout_s == 2.0


def test_the_window_grows_by_one_a_window() -> None:
    window = Window(4)
    window.shrink(1.0)
    window.shrink(1.5)
    assert window.size == 2, "once a round trip"
    sizes = []
    for _ in range(9):
        window.grow(None)
        sizes.append(window.size)
    assert sizes == [2, 3, 3, 3, 4, 4, 4, 4, 4]


def test_the_window_halves_again_after_a_round_trip() -> None:
    window = Window(64)
    window.shrink(1.0)
    window.grow(0.9)
    window.shrink(2.0)
    assert window.size == 32, "that result says nothing about what was sent since"
    window.grow(1.0)
    window.shrink(2.0)
    assert window.size == 16
    for turn in range(10):
        window.grow(3.0 + turn)
        window.shrink(3.0 + turn)
    assert window.size == 1


@given(st.lists(st.tuples(st.lists(st.floats(0, 10), max_size=20), st.integers(0, 20), st.booleans()), max_size=12))
def test_results_at_once_are_results_one_by_one(turns: list[tuple[list[float], int, bool]]) -> None:
    one, many = Window(9), Window(9)
    for now, (once_sent_at, others, late) in enumerate(turns):
        for sent_at in [*once_sent_at, *[None] * others]:
            one.grow(sent_at)
        many.grow(max(once_sent_at, default=None), len(once_sent_at) + others)
        if late:
            one.shrink(float(now))
            many.shrink(float(now))
        assert vars(one) == vars(many)
