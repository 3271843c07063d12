# SPDX-License-Identifier: Apache-2.0
"""A drill in which a host dies with a worker and a shard: the job is over two switches, one of them on that host."""

from __future__ import annotations

import signal

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.testbed import LEASE_S, drill_testbed
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import comes_back, judge

_RANK, _SHARD, _SHARDS = 1, 1, 2


def needs_two_switches(target: str) -> str:
    """Return why a drill with several switches cannot run on a target."""
    return "" if target == "native" else "the drills' network has one bmv2 switch; several run on loopback, natively"


def lost(context: DrillContext) -> DrillReport:
    """Kill a worker and the switch of a shard at once, then start both again: the others and the newcomer go on.

    The other shard has summed its part of the step in progress, the one that died has not: the step is void on all
    ranks, and every error feedback has its vector back.
    """
    with drill_testbed(context, "host-lost", lease_s=LEASE_S, shards=_SHARDS) as testbed:
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
