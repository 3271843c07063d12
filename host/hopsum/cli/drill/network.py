# SPDX-License-Identifier: Apache-2.0
"""Drills in which the network between one worker and everybody else goes down and comes back."""

from __future__ import annotations

import time
from typing import Final

from hopsum.cli.drill.base import Context, DrillFailed, DrillReport
from hopsum.cli.drill.crew import Crew
from hopsum.cli.drill.place import Veths
from hopsum.cli.drill.stage import first_sign, staged
from hopsum.cli.drill.workers import judge

LEASE_S: Final = 8.0


def split(context: Context) -> DrillReport:
    """Cut one worker off, for less than its lease: sums wait for it, and go on."""
    with staged(context, "split", seats=3, lease_s=LEASE_S) as stage:
        crew = Crew(stage, "train", 3)
        assert isinstance(stage.place, Veths)
        crew.train(20)
        stage.place.cut(1)
        cut_s = stage.happened("links of rank 1 down")
        time.sleep(LEASE_S / 4)
        stage.place.mend(1)
        mended_s = stage.happened("links of rank 1 up")
        before = crew.steps(0)

        def going_on() -> float | None:
            steps = crew.journal(0, "step")
            return float(steps[before]["at"]) if len(steps) > before else None

        again_s = first_sign(going_on, "step after the split")
        stage.report.numbers = {"split_s": round(mended_s - cut_s, 3), "stood_s": round(again_s - cut_s, 3)}
        crew.train(20)
        crew.finish()
        epochs = {entry["epoch"] for rank in range(3) for entry in crew.journal(rank, "step")}
        if len(epochs) > 1:
            raise DrillFailed(f"{len(epochs)} epochs: a split shorter than the lease ended one")
        stage.report.recovered = (
            f"training stood for {again_s - cut_s:.1f} s, {1e3 * (again_s - mended_s):.0f} ms of them"
        )
        stage.report.recovered += " after the links were back; same epoch"
        judge(stage, crew)
    return stage.report
