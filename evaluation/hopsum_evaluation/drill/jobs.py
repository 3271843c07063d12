# SPDX-License-Identifier: Apache-2.0
"""Drills with several jobs on one switch."""

from __future__ import annotations

import signal
from typing import Final

from hopsum_evaluation.drill.base import Check, DrillContext, DrillReport
from hopsum_evaluation.drill.checks import Mass, mass, replicas_equal
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed
from hopsum_evaluation.drill.training_job import TrainingJob

SEATS: Final = 5
LOSSES: Final = {1: 0.02, 2: 0.02, 3: 0.02, 4: 0.1, 5: 0.1}
"""The losses by switch port. The first three ports are of the job that goes on."""
CYCLES: Final = 3


def two(context: DrillContext) -> DrillReport:
    """Kill and make a job repeatedly, beside another job that has to train to the same bits as alone."""
    with drill_testbed(context, "two-jobs", seats=SEATS, losses=LOSSES) as testbed:
        report = testbed.report
        steady = TrainingJob(testbed, "steady", 3)
        steady.train(10)
        others = [_cycle(testbed, number) for number in range(context.steps(CYCLES))]
        during = steady.steps(0)
        steady.train(10)
        steady.finish()
        journals = steady.journals()
        equal = replicas_equal(journals)
        report.checks["replicas_equal"] = same_bits(steady, report.steps) if equal.ok else equal
        found = [mass(journals), *others]
        worst = max(each.error for each in found)
        trouble = next((each.check for each in found if not each.check.ok), None)
        told = f"largest error of {sum(each.steps for each in found)} steps of all jobs {worst:.1e}; "
        lost = sum(len(each.lost_norms) for each in others)
        report.checks["mass_conserved"] = trouble or Check(
            True, f"{told}lost with {lost} killed workers of the other job"
        )
        report.recovered = f"{during} steps of the steady job while the other was killed {len(others)} times"
        report.numbers = {"kills": 2 * len(others), "steps_meanwhile": during, "jobs_made": len(others) + 1}
        steady.delete()
    return report


def _cycle(testbed: DrillTestbed, number: int) -> Mass:
    """Make the other job, kill its workers in the middle of training, delete it. Return what became of its mass."""
    training = TrainingJob(
        testbed, "other", 2, first_seat=3, codec="uhc", folder=f"other-{number}", elements=5000 + number
    )
    training.train(5)
    for rank in range(2):
        testbed.signal(training.name(rank), signal.SIGKILL)
    training.delete()
    return mass(training.journals())
