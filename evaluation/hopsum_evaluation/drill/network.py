# SPDX-License-Identifier: Apache-2.0
"""Drills in which one worker is cut off: the network to everybody else goes down, or its own interfaces and routes."""

from __future__ import annotations

import time
from typing import Final

from hopsum_evaluation.drill.base import Context, DrillError, DrillReport
from hopsum_evaluation.drill.crew import Crew
from hopsum_evaluation.drill.news import require_no_break
from hopsum_evaluation.drill.place import WAYS, Veths
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.stage import Stage, first_sign, staged
from hopsum_evaluation.drill.workers import comes_back, judge, longest_pause_s, require_refusal

LEASE_S: Final = 6.0
FLAPPING: Final = 1
FLAP_S: Final = 1.0


def split(context: Context) -> DrillReport:
    """Cut one worker off, for less than its lease: sums wait for it, and go on. Then for longer: it joins anew."""
    with staged(context, "split", seats=3, lease_s=LEASE_S) as stage:
        crew = Crew(stage, "train", 3)
        crew.train(20)
        short = _shorter(stage, crew)
        crew.train(20)
        if len(crew.epochs()) > 1:
            raise DrillError(f"{len(crew.epochs())} epochs: a split shorter than the lease ended one")
        place = veths(stage)
        place.cut(1)
        at_s = stage.happened("links of rank 1 down")
        first_sign(lambda: stage.lost("train", 1), "loss of rank 1 in the controller's database")
        place.mend(1)
        stage.happened("links of rank 1 up")
        comes_back(stage, crew, 1, at_s)
        require_refusal(crew, 1)
        stage.report.recovered = f"shorter than the lease: {short}; longer: {stage.report.recovered}"
        judge(stage, crew)
    return stage.report


def _shorter(stage: Stage, crew: Crew) -> str:
    """Cut rank 1 off for a third of its lease; return what became of it."""
    place = veths(stage)
    place.cut(1)
    cut_s = stage.happened("links of rank 1 down")
    time.sleep(LEASE_S / 3)
    place.mend(1)
    mended_s = stage.happened("links of rank 1 up")
    before = crew.steps(0)

    def going_on() -> float | None:
        steps = crew.journal(0, "step")
        return float(steps[before]["at"]) if len(steps) > before else None

    again_s = first_sign(going_on, "step after the split")
    stage.report.numbers |= {"split_s": round(mended_s - cut_s, 3), "stood_s": round(again_s - cut_s, 3)}
    return f"training stood for {again_s - cut_s:.1f} s, {1e3 * (again_s - mended_s):.0f} ms of them with the links up"


def flaps(context: Context) -> DrillReport:
    """Take one worker's own interfaces and routes away for a while, again and again: sums wait, and lose nothing."""
    with staged(context, "route-flaps", seats=3) as stage:
        crew = Crew(stage, "train", 3)
        crew.train(10)
        place, stood_s = veths(stage), []
        for way in WAYS * context.steps(1):
            place.leave_network(FLAPPING, way)
            gone_s = stage.happened(f"rank {FLAPPING} has no way to the switch: {way}")
            time.sleep(FLAP_S)
            place.enter_network(FLAPPING)
            stage.happened(f"rank {FLAPPING} has it again")
            crew.train(10)
            stood_s.append(longest_pause_s(crew, 0, gone_s))
        crew.finish()
        require_no_break(crew)
        report = stage.report
        report.recovered = (
            f"{len(stood_s)} times without a way for {FLAP_S:g} s; training stood for {max(stood_s):.1f} s at most, "
            "in one epoch"
        )
        report.numbers = {"flaps": len(stood_s), "stood_at_most_s": round(max(stood_s), 3)}
        judge(stage, crew)
        if report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = same_bits(crew, report.steps)
    return report


def veths(stage: Stage) -> Veths:
    """Return the stage's place, which has links. Raises DrillError on loopback."""
    if not isinstance(stage.place, Veths):
        raise DrillError("loopback has no links to cut")
    return stage.place
