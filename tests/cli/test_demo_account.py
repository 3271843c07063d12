# SPDX-License-Identifier: Apache-2.0
"""The demo's account of frames: losses in any queue are forgiven, frames from nowhere are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.agent.allreduce_results import CommunicatorStatistics, SocketTraffic
from hopsum_evaluation.demo.counted_testbed import DemoCounts, read_until_stable
from hopsum_evaluation.demo.demo_worker import DemoResult
from hopsum_evaluation.demo.training_demo import DemoReport, fill_report
from hopsum_topologies.local_cluster import InterfaceCounters
from hopsum_wire import Event

UP_BYTES, DOWN_BYTES = 586, 1098
few = st.integers(0, 3)


def account(workers: int, rounds: int, lost: tuple[int, int, int, int], late: int = 0) -> DemoReport:
    """Return the report of rounds of which frames were lost before interfaces, program, interfaces and workers.

    Each is sent again, and a lost reply is answered again. `late` answers come after the last result.
    """
    before_interfaces, before_program, behind_program, before_workers = lost
    updates, answered = workers * rounds, behind_program + before_workers + late
    sent, replies = updates + answered + before_interfaces + before_program, updates + answered
    out, at = replies - behind_program, sent - before_interfaces
    got = out - before_workers - late
    events = dict.fromkeys((event.name.lower() for event in Event), 0)
    events.update(added=updates, completed=rounds, answered=answered)
    report = DemoReport("bmv2", "thc", workers, 1, "digits", 1, retransmits=sent - updates, updates=updates)
    report.agents = InterfaceCounters(sent, sent * UP_BYTES, got, got * DOWN_BYTES)
    interfaces = InterfaceCounters(at, at * UP_BYTES, out, out * DOWN_BYTES)
    report.counts = DemoCounts(interfaces, {}, events, replies, {})
    return report


@given(st.integers(1, 4), st.integers(1, 30), st.tuples(few, few, few, few), few)
def test_what_any_queue_loses_is_forgiven_where_it_was_sent_again(
    workers: int, rounds: int, lost: tuple[int, int, int, int], late: int
) -> None:
    report = account(workers, rounds, lost, late)
    assert report.counters_agree
    nothing_lost = report.retransmits == 0
    assert replace(report, retransmits=0).counters_agree == nothing_lost
    # Late answers without anything sent again are of results that peers repaired.
    if late and not any(lost):
        assert replace(report, retransmits=0, repaired=late).counters_agree


@pytest.mark.parametrize("lost", [(0, 0, 0, 0), (2, 3, 4, 5)])
def test_a_frame_that_nobody_sent_is_a_difference(lost: tuple[int, int, int, int]) -> None:
    report = account(3, 40, lost)
    counts, there, agents = report.counts, report.interfaces, report.agents

    def at_interfaces(up: int, down: int) -> DemoReport:
        up, down = there.packets_up + up, there.packets_down + down
        moved = InterfaceCounters(up, up * UP_BYTES, down, down * DOWN_BYTES)
        return replace(report, counts=replace(counts, interfaces=moved))

    def with_events(**more: int) -> DemoReport:
        events = {name: count + more.get(name, 0) for name, count in counts.events.items()}
        return replace(report, counts=replace(counts, events=events))

    def at_workers(name: str, value: int) -> DemoReport:
        return replace(report, agents=agents._replace(**{name: value}))

    wrong = {
        "an interface saw more than workers sent": at_interfaces(lost[0] + 1, 0),
        "the program saw more than interfaces": with_events(answered=lost[1] + 1),
        "an interface sent more than the program": at_interfaces(0, lost[2] + 1),
        "a worker had more than interfaces": at_workers("packets_down", there.packets_down + 1),
        "a chunk was added twice": with_events(added=1, answered=-any(lost)),
        "a round was opened over another": with_events(fault=1),
        "workers counted fewer bytes up": at_workers("bytes_up", there.bytes_up - 1),
        "workers counted more bytes down": at_workers("bytes_down", there.bytes_down + 1),
    }
    if not any(lost):
        wrong["bytes up are missing, and no frame"] = at_workers("bytes_up", agents.bytes_up + 1)
        wrong["bytes down are missing, and no frame"] = at_workers("bytes_down", agents.bytes_down - 1)
    for what, changed in wrong.items():
        assert not changed.counters_agree, what


def test_a_probe_is_no_contribution() -> None:
    """On a slow machine a rank asks the switch for a late sum: the program answers, and adds nothing."""
    report = account(2, 40, (0, 0, 0, 0))
    probes = 3
    up, down = 80 + probes, 80 + probes
    report.counts.events["probed"] = probes
    at_interfaces = InterfaceCounters(up, up * UP_BYTES, down, down * DOWN_BYTES)
    report.counts = replace(report.counts, interfaces=at_interfaces, replies=down)
    ranks = [
        SocketTraffic(datagrams_sent=40, datagrams_received=40),
        SocketTraffic(datagrams_sent=40 + probes, datagrams_received=40 + probes, probes=probes),
    ]
    fill_report(report, [DemoResult(2, 1, 1, 1, "", CommunicatorStatistics(traffic=traffic), 1) for traffic in ranks])
    assert report.updates == 80
    report.agents = at_interfaces
    assert report.counters_agree
    assert not replace(report, updates=report.updates + probes).counters_agree


def test_counters_are_read_until_they_stand_still() -> None:
    reads = 0

    def moving(until: int) -> DemoCounts:
        nonlocal reads
        reads += 1
        return DemoCounts(InterfaceCounters(min(reads, until), 0, 0, 0), {}, {}, 0, {})

    assert read_until_stable(lambda: moving(4)).interfaces.packets_up == 4
    assert reads == 5
    assert read_until_stable(lambda: moving(1 << 30), quiet_s=0.0).interfaces.packets_up == 6


def test_only_drops_since_then_are_named() -> None:
    zero = InterfaceCounters(0, 0, 0, 0)
    earlier = DemoCounts(zero, {"a-b": 3}, {"added": 1}, 5, {"simulated": 2, "not_admitted": 1})
    now = InterfaceCounters(9, 90, 8, 80)
    later = DemoCounts(now, {"a-b": 5}, {"added": 4}, 6, {"simulated": 7, "not_admitted": 1})
    assert later.since(earlier) == DemoCounts(now, {"a-b": 2}, {"added": 3}, 1, {"simulated": 5})
