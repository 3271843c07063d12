# SPDX-License-Identifier: Apache-2.0
"""The drill in which the switch dies."""

from __future__ import annotations

import signal

from hopsum.cli.drill.base import Context, DrillFailed, DrillReport
from hopsum.cli.drill.crew import Crew
from hopsum.cli.drill.reference import same_bits
from hopsum.cli.drill.stage import first_sign, staged
from hopsum.cli.drill.workers import judge, seats_for


def restarted(context: Context) -> DrillReport:
    """Kill the switch and start it again, empty: sums in progress take longer, and have the same bits."""
    with staged(context, "switch-restarted", seats=seats_for(context, 3), lease_s=10.0) as stage:
        crew = Crew(stage, "train", 3)
        crew.train(20)
        (before,) = crew.epochs()
        at_s = stage.signal("switch", signal.SIGKILL)
        stage.start_switch()
        restarted_s = stage.happened("switch started again, empty")

        def noticed() -> float | None:
            with stage.operator() as operator:
                job = operator.job("train")
            return stage.now() if job.epoch != before else None

        def going_on() -> float | None:
            return next((entry["at"] for entry in crew.journal(0, "step") if entry["epoch"] != before), None)

        report = stage.report
        report.detected_ms = 1e3 * (first_sign(noticed, "end of the epoch") - restarted_s)
        report.detected = "the controller had ended the epoch, counted from when the switch listened again"
        again_s = first_sign(going_on, "step in another epoch")
        crew.train(20)
        crew.finish()
        ends = [entry for rank in range(3) for kind in ("void", "failed") for entry in crew.journal(rank, kind)]
        if ends or len(crew.epochs()) != 2:
            raise DrillFailed(f"{len(crew.epochs())} epochs, and all-reduces without a result: {ends[:1]}")
        report.recovered = f"training stood for {again_s - at_s:.1f} s, then went on in the next epoch"
        report.numbers = {"stood_s": round(again_s - at_s, 3), "epochs": 2}
        judge(stage, crew)
        if report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = same_bits(crew, report.steps)
    return report
