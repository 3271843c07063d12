# SPDX-License-Identifier: Apache-2.0
"""Drills in which one worker is cut off: the network to everybody else goes down, or its own interfaces and routes."""

from __future__ import annotations

import time
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.news import require_no_break
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.testbed_network import WAYS, VethNetwork
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import comes_back, judge, longest_pause_s, require_refusal

LEASE_S: Final = 6.0
FLAPPING: Final = 1
FLAP_S: Final = 1.0


def split(context: DrillContext) -> DrillReport:
    """Cut one worker off, for less than its lease: sums wait for it, and go on. Then for longer: it joins anew."""
    with drill_testbed(context, "split", seats=3, lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        short = _shorter(testbed, training)
        training.train(20)
        if len(training.generations()) > 1:
            raise DrillError(f"{len(training.generations())} generations: a split shorter than the lease ended one")
        network = veths(testbed)
        network.cut(1)
        at_s = testbed.happened("links of rank 1 down")
        first_sign(lambda: testbed.lost("train", 1), "loss of rank 1 in the controller's database")
        network.mend(1)
        testbed.happened("links of rank 1 up")
        comes_back(testbed, training, 1, at_s)
        require_refusal(training, 1)
        testbed.report.recovered = f"shorter than the lease: {short}; longer: {testbed.report.recovered}"
        judge(testbed, training)
    return testbed.report


def _shorter(testbed: DrillTestbed, training: TrainingJob) -> str:
    """Cut rank 1 off for a third of its lease. Return what became of it."""
    network = veths(testbed)
    network.cut(1)
    cut_s = testbed.happened("links of rank 1 down")
    time.sleep(LEASE_S / 3)
    network.mend(1)
    mended_s = testbed.happened("links of rank 1 up")
    before = training.steps(0)

    def going_on() -> float | None:
        steps = training.journal(0, "step")
        return float(steps[before]["at"]) if len(steps) > before else None

    again_s = first_sign(going_on, "step after the split")
    testbed.report.numbers |= {"split_s": round(mended_s - cut_s, 3), "stood_s": round(again_s - cut_s, 3)}
    return f"training stood for {again_s - cut_s:.1f} s, {1e3 * (again_s - mended_s):.0f} ms of them with the links up"


def flaps(context: DrillContext) -> DrillReport:
    """Take one worker's own interfaces and routes away for a while, again and again: sums wait, and lose nothing."""
    with drill_testbed(context, "route-flaps", seats=3) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(10)
        network, stood_s = veths(testbed), []
        for way in WAYS * context.steps(1):
            network.leave_network(FLAPPING, way)
            gone_s = testbed.happened(f"rank {FLAPPING} has no way to the switch: {way}")
            time.sleep(FLAP_S)
            network.enter_network(FLAPPING)
            testbed.happened(f"rank {FLAPPING} has it again")
            training.train(10)
            stood_s.append(longest_pause_s(training, 0, gone_s))
        training.finish()
        require_no_break(training)
        report = testbed.report
        report.recovered = (
            f"{len(stood_s)} times without a way for {FLAP_S:g} s; training stood for {max(stood_s):.1f} s at most, "
            "in one generation"
        )
        report.numbers = {"flaps": len(stood_s), "stood_at_most_s": round(max(stood_s), 3)}
        judge(testbed, training)
        if report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = same_bits(training, report.steps)
    return report


def veths(testbed: DrillTestbed) -> VethNetwork:
    """Return the testbed's network, which has links. Raises DrillError on loopback."""
    if not isinstance(testbed.network, VethNetwork):
        raise DrillError("loopback has no links to cut")
    return testbed.network
