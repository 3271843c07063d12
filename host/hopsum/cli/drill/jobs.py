# SPDX-License-Identifier: Apache-2.0
"""Drills with several jobs on one switch."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import hopsum
from hopsum.cli.drill.base import Check, Context, DrillReport
from hopsum.cli.drill.checks import Mass, mass, replicas_equal
from hopsum.cli.drill.crew import Crew
from hopsum.cli.drill.journal import digest
from hopsum.cli.drill.stage import Stage, staged
from hopsum.cli.drill.training import Model, Plan
from hopsum.codec import ErrorFeedback

SEATS: Final = 5
LOSSES: Final = {1: 0.02, 2: 0.02, 3: 0.02, 4: 0.1, 5: 0.1}
"""By switch port: the first three are of the job that goes on."""
CYCLES: Final = 3


def two(context: Context) -> DrillReport:
    """Kill and make a job again and again; another one on the same switch has the same bits as without a switch."""
    with staged(context, "two-jobs", seats=SEATS, losses=LOSSES) as stage:
        report = stage.report
        steady = Crew(stage, "steady", 3)
        steady.train(10)
        others = [_cycle(stage, number) for number in range(context.steps(CYCLES))]
        during = steady.steps(0)
        steady.train(10)
        steady.finish()
        journals = steady.journals()
        equal = replicas_equal(journals)
        if equal.ok:
            equal = _same_bits(steady, report.steps)
        report.checks["replicas_equal"] = equal
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


def _cycle(stage: Stage, number: int) -> Mass:
    """Make the other job, kill its workers in the middle of training, delete it; return what became of its mass."""
    crew = Crew(stage, "other", 2, first_seat=3, codec="uhc", folder=f"other-{number}", elements=5000 + number)
    crew.train(5)
    for rank in range(2):
        stage.signal(crew.name(rank), signal.SIGKILL)
    crew.delete()
    return mass(crew.journals())


def _same_bits(crew: Crew, steps: int) -> Check:
    """Compare a job's models with those of the same training in memory, without a switch, step by step."""
    expected = reference(crew.plan, steps)
    found = [entry["digest"] for entry in crew.journal(0, "step")]
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one != other:
            return Check(False, f"step {step}: another model than the same training in memory, without a switch")
    return Check(True, f"all replicas bit for bit those of the same training in memory, after each of {steps} steps")


def reference(plan: Plan, steps: int) -> list[str]:
    """Return the digests of the model after each step of a plan's training, summed in this process's memory."""

    def train(rank: int) -> list[str]:
        model, feedback, found = Model(plan, rank), ErrorFeedback(plan.elements), []
        url = f"memory://reference?workers={plan.workers}"
        options = {"codec_options": plan.options(), "backend": plan.backend, "seed": plan.seed}
        with hopsum.connect(url, rank=rank, codec=plan.codec, deadline_s=plan.deadline_s, **options) as job:
            for step in range(steps):
                result = job.allreduce(model.gradient(step), feedback=feedback, step=step)
                model.apply(result.mean)
                found.append(digest(model.weights))
        return found

    with ThreadPoolExecutor(plan.workers) as pool:
        return next(iter(pool.map(train, range(plan.workers))))
