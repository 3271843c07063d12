# SPDX-License-Identifier: Apache-2.0
"""The same training in this process's memory, without switch, network or trouble: the bits to end with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import hopsum
from hopsum.codec import ErrorFeedback
from hopsum_evaluation.drill.base import Check
from hopsum_evaluation.drill.journal import digest
from hopsum_evaluation.drill.training import DrillModel, DrillPlan
from hopsum_evaluation.drill.training_job import TrainingJob


def same_bits(training: TrainingJob, steps: int) -> Check:
    """Compare a job's models, of which no step is missing and to which all ranks contributed, with the reference."""
    expected = reference(training.plan, steps)
    found = [entry["digest"] for entry in training.journal(0, "step")]
    if len(found) != steps:
        return Check(False, f"{len(found)} steps in the journal of rank 0, not {steps}")
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one != other:
            return Check(False, f"step {step}: another model than the same training in memory, without a switch")
    return Check(True, f"all replicas bit for bit those of the same training in memory, after each of {steps} steps")


def reference(plan: DrillPlan, steps: int) -> list[str]:
    """Return the digests of the model after each step of a plan's training."""

    def train(rank: int) -> list[str]:
        model, feedback, found = DrillModel(plan, rank), ErrorFeedback(plan.elements), []
        url = f"memory://reference?workers={plan.workers}"
        with hopsum.connect(url, rank=rank, **plan.settings()) as job:
            for step in range(steps):
                result = job.allreduce(model.gradient(step), feedback=feedback, step=step)
                model.apply(result.mean)
                found.append(digest(model.weights))
        return found

    with ThreadPoolExecutor(plan.workers) as pool:
        return next(iter(pool.map(train, range(plan.workers))))
