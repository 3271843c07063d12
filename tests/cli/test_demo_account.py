# SPDX-License-Identifier: Apache-2.0
"""The demo's account of frames: losses in any queue are shown and forgiven, frames from nowhere are not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_evaluation.demo.counted_testbed import DemoCounts, LostFrames, read_quiet
from hopsum_evaluation.demo.training_demo import DemoReport
from hopsum_topologies.switch_testbed import InterfaceCounters
from hopsum_wire import Event

UP_BYTES, DOWN_BYTES = 586, 1098
PLACES = LostFrames._fields


@dataclass
class Way:
    """Rounds of a job whose frames cross four queues, each of which loses some; counted as the real places count."""

    rng: Random
    share: dict[str, float]
    workers: int

    def __post_init__(self) -> None:
        self.lost = dict.fromkeys(PLACES, 0)
        self.sent = self.again = self.at_interfaces = self.out = self.received = self.replies = 0
        self.events = {event.name.lower(): 0 for event in Event}

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._sum()

    def _passes(self, place: str) -> bool:
        lost = self.rng.random() < self.share[place]
        self.lost[place] += lost
        return not lost

    def _up(self, again: bool) -> bool:
        """Send one frame of a worker; return whether the program had it."""
        self.sent += 1
        self.again += again
        if not self._passes("before_interfaces"):
            return False
        self.at_interfaces += 1
        return self._passes("before_program")

    def _down(self) -> bool:
        """Send one reply of the program; return whether the worker had it."""
        self.replies += 1
        if not self._passes("behind_program"):
            return False
        self.out += 1
        got = self._passes("before_workers")
        self.received += got
        return got

    def _sum(self) -> None:
        """Let every worker send until the round is complete, then until all have its sum."""
        for _ in range(self.workers):
            again = False
            while not self._up(again):
                again = True
            self.events["added"] += 1
        self.events["completed"] += 1
        waiting = [worker for worker in range(self.workers) if not self._down()]
        for _ in waiting:
            while not (self._answered() and self._down()):
                pass

    def _answered(self) -> bool:
        arrived = self._up(again=True)
        self.events["answered"] += arrived
        return arrived

    def report(self) -> DemoReport:
        report = DemoReport("bmv2", "thc", self.workers, 1, "digits", 1, retransmits=self.again)
        report.updates = self.sent - self.again
        report.agents = InterfaceCounters(self.sent, self.sent * UP_BYTES, self.received, self.received * DOWN_BYTES)
        interfaces = InterfaceCounters(
            self.at_interfaces, self.at_interfaces * UP_BYTES, self.out, self.out * DOWN_BYTES
        )
        report.counts = DemoCounts(interfaces, {}, self.events, self.replies, {})
        return report


shares = st.fixed_dictionaries({place: st.sampled_from([0.0, 0.01, 0.3]) for place in PLACES})


@given(shares, st.integers(1, 4), st.integers(1, 30), st.integers(0, 1 << 30))
def test_what_any_queue_loses_is_named_and_forgiven(
    share: dict[str, float], workers: int, rounds: int, seed: int
) -> None:
    way = Way(Random(seed), share, workers)
    way.run(rounds)
    report = way.report()
    assert report.lost._asdict() == way.lost
    assert report.counters_agree
    assert report.as_json()["lost"] == way.lost


def moved(report: DemoReport, **changes: int) -> DemoReport:
    """Return the report with other frames at the interfaces, of their right sizes."""
    there = report.interfaces
    up, down = there.packets_up + changes.get("up", 0), there.packets_down + changes.get("down", 0)
    interfaces = InterfaceCounters(up, up * UP_BYTES, down, down * DOWN_BYTES)
    return replace(report, counts=replace(report.counts, interfaces=interfaces))


def with_event(report: DemoReport, name: str, more: int = 1) -> DemoReport:
    events = {**report.counts.events, name: report.counts.events[name] + more}
    return replace(report, counts=replace(report.counts, events=events))


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_frame_that_nobody_sent_is_a_difference(share: float) -> None:
    way = Way(Random(7), dict.fromkeys(PLACES, share), 3)
    way.run(40)
    report = way.report()
    assert report.counters_agree
    lost, more = report.lost, dict[str, Any]()
    more["an interface saw more than workers sent"] = moved(report, up=lost.before_interfaces + 1)
    more["the program saw more than interfaces"] = with_event(report, "answered", lost.before_program + 1)
    more["an interface sent more than the program"] = moved(report, down=lost.behind_program + 1)
    more["a chunk was added twice"] = with_event(with_event(report, "added"), "answered", -(share > 0))
    more["a round was opened over another"] = with_event(report, "fault")
    got = report.agents._replace(packets_down=report.interfaces.packets_down + 1)
    more["a worker had more than interfaces"] = replace(report, agents=got)
    for what, changed in more.items():
        assert not changed.counters_agree, what


def test_bytes_are_accounted_for_as_frames_are() -> None:
    way = Way(Random(7), dict.fromkeys(PLACES, 0.0), 2)
    way.run(3)
    report = way.report()
    for change in ({"bytes_up": 1}, {"bytes_down": -1}, {"bytes_up": -1}, {"bytes_down": 1}):
        ((name, more),) = change.items()
        agents = report.agents._replace(**{name: getattr(report.agents, name) + more})
        assert not replace(report, agents=agents).counters_agree, change


def test_an_answer_may_come_too_late_only_where_something_was_sent_again() -> None:
    way = Way(Random(7), dict.fromkeys(PLACES, 0.0), 2)
    way.run(2)
    way._answered()
    way.replies += 1
    way.out += 1
    report = way.report()
    assert report.lost.before_workers == 1
    assert report.counters_agree
    assert not replace(report, retransmits=0).counters_agree
    assert replace(report, retransmits=0, repaired=1).counters_agree


class Moving:
    """Counters of which each is read in its turn, while frames move for some readings."""

    def __init__(self, readings: int) -> None:
        self.left, self.reads = readings, 0

    def read_counts(self) -> DemoCounts:
        self.reads += 1
        self.left = max(self.left - 1, 0)
        return DemoCounts(InterfaceCounters(100 - self.left, 0, 0, 0), {}, {}, 0, {})


def test_counters_are_read_until_they_stand_still() -> None:
    place = Moving(4)
    assert read_quiet(place.read_counts).interfaces.packets_up == 100
    assert place.reads == 5
    assert read_quiet(Moving(1 << 30).read_counts, quiet_s=0.0).interfaces.packets_up < 100, (
        "whatever does not end is read once"
    )


def test_only_drops_since_then_are_named() -> None:
    zero = InterfaceCounters(0, 0, 0, 0)
    earlier = DemoCounts(zero, {"a-b": 3}, {"added": 1}, 5, {"simulated": 2, "not_admitted": 1})
    later = DemoCounts(
        InterfaceCounters(9, 90, 8, 80), {"a-b": 5}, {"added": 4}, 6, {"simulated": 7, "not_admitted": 1}
    )
    found = later.since(earlier)
    assert found == DemoCounts(InterfaceCounters(9, 90, 8, 80), {"a-b": 2}, {"added": 3}, 1, {"simulated": 5})
