# SPDX-License-Identifier: Apache-2.0
"""Drills over several switches: a host dies with a worker and a shard, and shards move to other switches."""

from __future__ import annotations

import signal

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import LEASE_S, DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import comes_back, judge, seats_for

_RANK, _SHARD, _SHARDS = 1, 1, 2
_SPARE = 2
"""The switch that the job is not on at first."""


def lost(context: DrillContext) -> DrillReport:
    """Kill a worker and the switch of a shard at once, then start both again: the others and the newcomer go on.

    The other shard has summed its part of the step in progress, the one that died has not: the step is void on all
    ranks, and every error feedback has its vector back.
    """
    with drill_testbed(
        context, "host-lost", seats=seats_for(context, 3), lease_s=LEASE_S, shards=_SHARDS
    ) as testbed:
        training = TrainingJob(testbed, "train", 3, shards=_SHARDS)
        training.train(20)
        at_s = testbed.signal(training.name(_RANK), signal.SIGKILL)
        testbed.signal(f"switch {_SHARD}", signal.SIGKILL)
        testbed.start_switch(_SHARD)
        training.start(_RANK)
        testbed.happened("the host is there again: its switch, empty, and its worker")
        comes_back(testbed, training, _RANK, at_s)
        with testbed.operator() as operator:
            parts = operator.job("train").parts
        if len(parts) != _SHARDS:
            raise DrillError(f"the job was over {len(parts)} switches, not {_SHARDS}")
        judge(testbed, training)
    return testbed.report


def moved(context: DrillContext) -> DrillReport:
    """Move a shard to a spare switch while the job runs. Then kill a switch for good, and move its shard as well.

    No worker is replaced, so no step is void, and the sums have the bits of a run without moves. A switch that the job
    has left is cleared as soon as it answers. Nobody waits for that.
    """
    with drill_testbed(context, "shard-moved", seats=seats_for(context, 3), shards=_SHARDS + 1) as testbed:
        training = TrainingJob(testbed, "train", 3, shards=_SHARDS)
        training.train(20)
        stood = [_move(testbed, training, testbed.switch_name(_SHARD), testbed.switch_name(_SPARE))]
        training.train(20)
        testbed.signal("switch", signal.SIGKILL)
        stood.append(_move(testbed, training, testbed.switch_name(0), testbed.switch_name(_SHARD)))
        training.train(20)
        training.finish()
        testbed.start_switch()
        testbed.happened("the first switch is there again, empty")
        with testbed.operator() as operator:
            names = list(operator.job("train").switches)
            if names != [testbed.switch_name(_SHARD), testbed.switch_name(_SPARE)]:
                raise DrillError(f"the job is over {names}")
            await_that(
                lambda: not {each.name: each.slots_used for each in operator.switches()}[testbed.switch_name(0)],
                "free slots on the switch that the job has left",
            )
        ends = [entry for rank in range(3) for kind in ("void", "failed") for entry in training.journal(rank, kind)]
        if ends or len(training.generations()) != 1 + len(stood):
            raise DrillError(f"{len(training.generations())} generations, and all-reduces without a result: {ends[:1]}")
        testbed.report.recovered = (
            f"training stood for {stood[0]:.1f} s at the move, and {stood[1]:.1f} s at that from a dead switch"
        )
        testbed.report.numbers = {
            "stood_s": round(stood[0], 3),
            "stood_after_a_death_s": round(stood[1], 3),
            "generations": len(training.generations()),
        }
        judge(testbed, training)
        if testbed.report.checks["replicas_equal"].ok:
            testbed.report.checks["replicas_equal"] = same_bits(training, testbed.report.steps)
    return testbed.report


def _move(testbed: DrillTestbed, training: TrainingJob, away: str, to: str) -> float:
    """Move a shard, and wait for a step in the next generation. Return for how many seconds training stood."""
    before = training.generations()[-1]
    at_s = testbed.happened(f"a shard of train is to move from {away} to {to}")
    with testbed.operator() as operator:
        operator.move("train", away, to)

    def over() -> float | None:
        with testbed.operator() as operator:
            job = operator.job("train")
        return testbed.now() if job.generation not in (0, before) else None

    def going_on() -> float | None:
        return next((entry["at"] for entry in training.journal(0, "step") if entry["generation"] > before), None)

    begun_s = first_sign(over, "another generation")
    again_s = first_sign(going_on, "step in another generation")
    testbed.report.detected_ms = 1e3 * (begun_s - at_s)
    testbed.report.detected = "the next generation stood on the switches, counted from the operator's order"
    return again_s - at_s
