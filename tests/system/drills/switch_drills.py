# SPDX-License-Identifier: Apache-2.0
"""Drills of the switch: it dies, a shard moves away from it, and jobs on it come and go."""

from __future__ import annotations

import re
import signal
from typing import Final

from .drill import DrillContext, DrillError, DrillReport, await_that, first_sign, require_within
from .drill_testbed import DrillTestbed, drill_testbed
from .journal import Mass, mass
from .training_job import MARGIN_S, TrainingJob

LIMIT_S: Final = 15.0
"""The `membership_wait_s` of workers whose switch is gone for good."""
_NEVER_S: Final = 600.0
_WORKERS: Final = 3
_RANK, _SHARD, _SHARDS, _SPARE = 1, 1, 2, 2
"""The rank on the host that dies, the shard on it, and the switch that the job is not on at first."""
_SEATS: Final = 5
_LOSSES: Final = {1: 0.02, 2: 0.02, 3: 0.02, 4: 0.1, 5: 0.1}
"""The share of lost frames by switch port. The first three ports are those of the job that continues."""


def restarted(context: DrillContext) -> DrillReport:
    """Kill the switch and start it again, empty: sums in progress take longer, and have the same bits."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS)) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS)
        training.train(20)
        (before,) = training.generations()
        at_s = testbed.signal("switch", signal.SIGKILL)
        testbed.start_switch()
        restarted_s = testbed.happened("switch started again, empty")
        ended_s = first_sign(lambda: _ended(testbed, before), "end of the generation")
        sign = "the controller had ended the generation, counted from when the switch listened again"
        testbed.report.took(ended_s - restarted_s, sign)
        again_s = training.continues_after(before)
        training.train(20)
        training.finish()
        training.require_results(generations=2)
        testbed.report.took(again_s - at_s, "training stood")
        training.judge(bits=True)
    return testbed.report


def gone(context: DrillContext) -> DrillReport:
    """Kill the switch for good: every rank says so within seconds, and fails at the limit that it has chosen.

    The limit is `membership_wait_s`. A rank that hears of another's failure waits no longer for that one than it would
    have waited for the switch.
    """
    with drill_testbed(context, seats=context.seats_for(_WORKERS)) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS, membership_wait_s=LIMIT_S, deadline_s=_NEVER_S)
        training.train(20)
        at_s = testbed.signal("switch", signal.SIGKILL)
        words = "is not there|waited"
        said_s = max(training.hears(rank, at_s, words, f"word of rank {rank}") for rank in range(_WORKERS)) - at_s
        failed = [training.await_failed(rank) for rank in range(_WORKERS)]
        for entry in failed:
            if not re.search(r"\bswitch\b", entry["text"]):
                raise DrillError(f"an all-reduce failed without naming the switch: {entry['text']}")
        last_s = max(entry["at"] for entry in failed) - at_s
        require_within("all ranks said it", said_s, testbed.lease_s + MARGIN_S)
        require_within("all ranks failed", last_s, LIMIT_S + testbed.lease_s + MARGIN_S)
        testbed.start_switch()
        with testbed.operator() as operator:
            await_that(lambda: operator.switches()[0].reachable, "session of the controller with the new switch")
        testbed.report.took(said_s, "all ranks had said in their logs that no switch answers")
        testbed.report.took(last_s, f"all ranks failed, with a limit of {LIMIT_S:g} s")
        testbed.report.steps = min(training.steps(rank) for rank in range(_WORKERS))
        training.judge()
    return testbed.report


def host_lost(context: DrillContext) -> DrillReport:
    """Kill a worker and the switch of a shard at once, then start both again: the others and the newcomer continue.

    The other shard has summed its part of the step in progress, the one that died has not: the step is void on all
    ranks, and every error feedback has its vector back.
    """
    with drill_testbed(context, seats=context.seats_for(_WORKERS), shards=_SHARDS) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS, shards=_SHARDS)
        training.train(20)
        at_s = testbed.signal(training.name(_RANK), signal.SIGKILL)
        testbed.signal(f"switch {_SHARD}", signal.SIGKILL)
        testbed.start_switch(_SHARD)
        training.start(_RANK)
        testbed.happened("the host is there again: its switch, empty, and its worker")
        training.comes_back(_RANK, at_s)
        with testbed.operator() as operator:
            parts = operator.job("train").parts
        if len(parts) != _SHARDS:
            raise DrillError(f"the job was over {len(parts)} switches, not {_SHARDS}")
        training.judge()
    return testbed.report


def shard_moved(context: DrillContext) -> DrillReport:
    """Move a shard to a spare switch while the job runs. Then kill a switch for good, and move its shard as well.

    No worker is replaced, so no step is void, and the sums have the bits of a run without moves. A switch that the job
    has left is cleared as soon as it answers. Nobody waits for that.
    """
    with drill_testbed(context, seats=context.seats_for(_WORKERS), shards=_SHARDS + 1) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS, shards=_SHARDS)
        training.train(20)
        first, second, spare = (testbed.switch_name(shard) for shard in (0, _SHARD, _SPARE))
        testbed.report.took(_move(training, second, spare), "training stood at the move")
        training.train(20)
        testbed.signal("switch", signal.SIGKILL)
        testbed.report.took(_move(training, first, second), "training stood at the move from a dead switch")
        training.train(20)
        training.finish()
        testbed.start_switch()
        testbed.happened("the first switch is there again, empty")
        with testbed.operator() as operator:
            if (names := list(operator.job("train").switches)) != [second, spare]:
                raise DrillError(f"the job is over {names}")
            used = lambda: {each.name: each.slots_used for each in operator.switches()}  # noqa: E731
            await_that(lambda: not used()[first], "free slots on the switch that the job has left")
        training.require_results(generations=3)
        training.judge(bits=True)
    return testbed.report


def two_jobs(context: DrillContext) -> DrillReport:
    """Kill and make a job repeatedly, together with another job that has to train to the same bits as alone."""
    with drill_testbed(context, seats=_SEATS, losses=_LOSSES) as testbed:
        report = testbed.report
        steady = TrainingJob(testbed, "steady", _WORKERS)
        steady.train(10)
        others = [_cycle(testbed, number) for number in range(context.steps(3))]
        steady.train(10)
        steady.finish()
        steady.judge(bits=True)
        if trouble := next((each.check for each in others if not each.check.ok), None):
            report.checks["mass_conserved"] = trouble
    return report


def _cycle(testbed: DrillTestbed, number: int) -> Mass:
    """Make the other job, kill its workers in the middle of training, delete it. Return the balance of its mass."""
    folder, elements = f"other-{number}", 5000 + number
    training = TrainingJob(testbed, "other", 2, first_seat=3, codec="uhc", folder=folder, elements=elements)
    training.train(5)
    for rank in range(2):
        testbed.signal(training.name(rank), signal.SIGKILL)
    training.delete()
    return mass(training.journals())


def _move(training: TrainingJob, away: str, to: str) -> float:
    """Move a shard, and wait for a step in the next generation. Return for how many seconds training stood."""
    testbed, before = training.testbed, training.generations()[-1]
    at_s = testbed.happened(f"a shard of train is to move from {away} to {to}")
    with testbed.operator() as operator:
        operator.move("train", away, to)
    begun_s = first_sign(lambda: _ended(testbed, before, begun=True), "another generation")
    testbed.report.took(begun_s - at_s, "the next generation was on the switches, from the operator's order")
    return training.continues_after(before) - at_s


def _ended(testbed: DrillTestbed, before: int, *, begun: bool = False) -> float | None:
    """Return the time if the controller has ended a generation of the job, and with `begun` has begun another one."""
    with testbed.operator() as operator:
        generation = operator.job("train").generation
    return testbed.now() if generation != before and (generation or not begun) else None
