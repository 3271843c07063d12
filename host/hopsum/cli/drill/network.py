# SPDX-License-Identifier: Apache-2.0
"""Drills in which the network between one worker and everybody else goes down and comes back."""

from __future__ import annotations

import time
from typing import Final

from hopsum.cli.drill.base import Context, DrillFailed, DrillReport
from hopsum.cli.drill.crew import Crew
from hopsum.cli.drill.place import Veths
from hopsum.cli.drill.stage import Stage, first_sign, staged
from hopsum.cli.drill.workers import comes_back, judge, require_refusal

LEASE_S: Final = 6.0


def split(context: Context) -> DrillReport:
    """Cut one worker off, for less than its lease: sums wait for it, and go on. Then for longer: it joins anew."""
    with staged(context, "split", seats=3, lease_s=LEASE_S) as stage:
        crew = Crew(stage, "train", 3)
        crew.train(20)
        short = _shorter(stage, crew)
        crew.train(20)
        if len(crew.epochs()) > 1:
            raise DrillFailed(f"{len(crew.epochs())} epochs: a split shorter than the lease ended one")
        place = veths(stage)
        place.cut(1)
        at_s = stage.happened("links of rank 1 down")
        first_sign(lambda: stage.lost("train", 1), "loss of rank 1 in the controller's books")
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


def veths(stage: Stage) -> Veths:
    """Return the stage's place, which has links. Raises DrillFailed on loopback."""
    if not isinstance(stage.place, Veths):
        raise DrillFailed("loopback has no links to cut")
    return stage.place
