# SPDX-License-Identifier: Apache-2.0
"""Drills in which workers die."""

from __future__ import annotations

import signal

from hopsum.cli.drill.base import Context, DrillFailed, DrillReport
from hopsum.cli.drill.checks import mass, replicas_equal
from hopsum.cli.drill.crew import Crew
from hopsum.cli.drill.stage import Stage, first_sign, staged
from hopsum.cli.drill.worker import FAILED

MEMBERSHIP_WAIT_S = 6.0


def missing(context: Context) -> DrillReport:
    """Kill a worker of a job whose sums need all: the all-reduces of all others fail, and name it, in time."""
    with staged(context, "worker-missing", seats=seats_for(context, 3)) as stage:
        crew = Crew(stage, "train", 3, membership_wait_s=MEMBERSHIP_WAIT_S)
        crew.train(20)
        at_s = stage.signal(crew.name(1), signal.SIGKILL)
        told = []
        for rank in (0, 2):
            crew.ended(rank, FAILED)
            told.append(crew.journal(rank, "failed")[-1])
        for entry in told:
            if "rank 1" not in entry["text"] and "ranks 1" not in entry["text"]:
                raise DrillFailed(f"an all-reduce failed without naming rank 1: {entry['text']}")
        last_s = max(entry["at"] for entry in told) - at_s
        bound_s = stage.lease_s + MEMBERSHIP_WAIT_S
        if last_s > bound_s + SLACK_S:
            raise DrillFailed(f"all-reduces failed after {last_s:.1f} s, with {bound_s:g} s of lease and wait")
        report = stage.report
        report.detected_ms, report.detected = 1e3 * (min(entry["at"] for entry in told) - at_s), told[0]["error"]
        report.recovered = f"both survivors failed within {last_s:.1f} s, naming rank 1; {bound_s:g} s allowed"
        report.numbers = {"failed_after_s": round(last_s, 3), "allowed_s": bound_s}
        report.steps = min(crew.steps(rank) for rank in (0, 2))
        judge(stage, crew)
    return report


SLACK_S = 10.0
"""Beyond what was asked for: heartbeats, and a busy machine."""


def judge(stage: Stage, crew: Crew) -> None:
    """Compute the checks of the journals, and delete the job."""
    journals = crew.journals()
    stage.report.checks["replicas_equal"] = replicas_equal(journals)
    found = mass(journals)
    stage.report.checks["mass_conserved"] = found.check
    if found.lost_norms:
        stage.report.numbers |= {
            f"lost_norm_of_rank_{rank}": round(norm, 4) for rank, norm in sorted(found.lost_norms.items())
        }
    crew.delete()


def seats_for(context: Context, workers: int) -> int:
    """Return how many namespaces workers need on the target: none on loopback."""
    return workers if context.target == "bmv2" else 0


__all__ = ["first_sign", "judge", "missing", "seats_for"]
