# SPDX-License-Identifier: Apache-2.0
"""Drills in which workers die."""

from __future__ import annotations

import functools
import operator
import re
import signal
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.checks import mass, replicas_equal
from hopsum_evaluation.drill.news import others_know, require_within
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.worker import FAILED

LEASE_S: Final = 3.0
MEMBERSHIP_WAIT_S: Final = 8.0
"""Also for each other at the start."""
LONG_LEASE_S: Final = 30.0
"""The lease of a job whose workers hear of a death long before it is over: by the connection, which the kernel closes.
"""
SLACK_S: Final = 10.0
"""The time beyond their wait that a busy machine may need."""


def missing(context: DrillContext) -> DrillReport:
    """Kill a worker of a job whose sums need all: the all-reduces of all others fail, and name it, in time."""
    with drill_testbed(context, "worker-missing", seats=seats_for(context, 3), lease_s=LONG_LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", 3, membership_wait_s=MEMBERSHIP_WAIT_S)
        training.train(20)
        at_s = testbed.signal(training.name(1), signal.SIGKILL)
        known_s = others_know(training, 1, at_s, LONG_LEASE_S / 2)
        told = []
        for rank in (0, 2):
            training.ended(rank, FAILED)
            told.append(training.journal(rank, "failed")[-1])
        for entry in told:
            if not re.search(r"\branks? 1\b", entry["text"]):
                raise DrillError(f"an all-reduce failed without naming rank 1: {entry['text']}")
        last_s = max(entry["at"] for entry in told) - at_s
        require_within("all-reduces failed", last_s, known_s + MEMBERSHIP_WAIT_S + SLACK_S)
        report = testbed.report
        report.detected_ms = 1e3 * known_s
        report.detected = f"both others knew; the lease is {LONG_LEASE_S:g} s"
        report.recovered = (
            f"both others failed within {last_s:.1f} s, {MEMBERSHIP_WAIT_S:g} s of them their wait: {told[0]['text']}"
        )
        report.numbers = {"known_s": round(known_s, 3), "failed_after_s": round(last_s, 3)}
        report.steps = min(training.steps(rank) for rank in (0, 2))
        judge(testbed, training)
    return report


def killed(context: DrillContext) -> DrillReport:
    """Kill a worker that the quorum can do without: the others go on, in the same generation, also past its lease."""
    with drill_testbed(context, "worker-killed", seats=seats_for(context, 3), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", 3, quorum=2)
        training.train(20)
        at_s = testbed.signal(training.name(2), signal.SIGKILL)

        def without() -> float | None:
            steps = training.journal(0, "step")
            return next((step["at"] for step in steps if step["at"] > at_s and not crowd(step) >> 2 & 1), None)

        testbed.report.detected_ms = 1e3 * (first_sign(without, "sum without rank 2") - at_s)
        testbed.report.detected = "a sum without rank 2"
        lost_s = first_sign(lambda: testbed.lost("train", 2), "loss of rank 2 in the controller's database")
        training.train(40, 0, 1)
        training.finish(0, 1)
        generations = training.generations(0, 1)
        if len(generations) > 1:
            raise DrillError(f"{len(generations)} generations: the loss of a worker that is not needed ended one")
        stood_s = longest_pause_s(training, 0, at_s)
        testbed.report.recovered = (
            f"the others went on, in the same generation; their longest pause was {stood_s:.1f} s, its lease ran "
            f"out after {lost_s - at_s:.1f} s"
        )
        testbed.report.numbers = {
            "longest_pause_s": round(stood_s, 3),
            "lease_ran_out_after_s": round(lost_s - at_s, 3),
        }
        judge(testbed, training)
    return testbed.report


def rejoins(context: DrillContext) -> DrillReport:
    """Kill a worker and start it again, on the same rank: it goes on from the state of the others."""
    with drill_testbed(context, "worker-rejoins", seats=seats_for(context, 3), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        at_s = testbed.signal(training.name(1), signal.SIGKILL)
        training.start(1)
        testbed.happened("rank 1 of train started again")
        comes_back(testbed, training, 1, at_s)
        judge(testbed, training)
    return testbed.report


def paused(context: DrillContext) -> DrillReport:
    """Stop a worker for longer than its lease: it is evicted, refused when it goes on, and joins anew."""
    with drill_testbed(context, "worker-paused", seats=seats_for(context, 3), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        at_s = testbed.signal(training.name(1), signal.SIGSTOP)
        first_sign(lambda: testbed.lost("train", 1), "loss of rank 1 in the controller's database")
        testbed.signal(training.name(1), signal.SIGCONT)
        comes_back(testbed, training, 1, at_s)
        require_refusal(training, 1)
        judge(testbed, training)
    return testbed.report


def comes_back(testbed: DrillTestbed, training: TrainingJob, rank: int, at_s: float) -> None:
    """Wait until a rank that was lost at a time goes on as a newcomer, then train to the end, and report."""

    def told() -> float | None:
        return next(
            (entry["at"] for other in range(3) if other != rank for entry in training.journal(other, "void")), None
        )

    def back() -> float | None:
        return next((entry["at"] for entry in training.journal(rank, "life") if entry["is_newcomer"]), None)

    report = testbed.report
    report.detected_ms = 1e3 * (first_sign(told, "WorkersReplacedError in another worker") - at_s)
    report.detected = "WorkersReplacedError in the first of the others"
    back_s = first_sign(back, f"newcomer on rank {rank}")
    training.train(20)
    training.finish()
    life = training.journal(rank, "life")[-1]
    report.recovered = (
        f"rank {rank} went on at step {life['step']} with the state of the others, {back_s - at_s:.1f} s later"
    )
    report.numbers |= {
        "back_after_s": round(back_s - at_s, 3),
        "generations": len(training.generations(0)),
        "at_step": life["step"],
    }


def require_refusal(training: TrainingJob, rank: int) -> None:
    """Raise DrillError unless a rank was told that it had been evicted."""
    texts = [entry["text"] for entry in training.journal(rank, "failed") if entry["error"] == "GenerationEndedError"]
    if not any("evicted" in text for text in texts):
        raise DrillError(f"rank {rank} was not told that it had been evicted: {texts}")


def judge(testbed: DrillTestbed, training: TrainingJob) -> None:
    """Compute the checks of the journals, and delete the job."""
    journals = training.journals()
    testbed.report.checks["replicas_equal"] = replicas_equal(journals)
    found = mass(journals)
    testbed.report.checks["mass_conserved"] = found.check
    testbed.report.numbers |= {
        f"lost_norm_of_rank_{rank}": round(norm, 4) for rank, norm in sorted(found.lost_norms.items())
    }
    training.delete()


def longest_pause_s(training: TrainingJob, rank: int, since_s: float) -> float:
    """Return the longest time between two steps of a rank, the first of which may be before `since_s`."""
    at: list[float] = [entry["at"] for entry in training.journal(rank, "step")]
    return max(after - before for before, after in pairwise(at) if after > since_s)


def crowd(step: Mapping[str, Any]) -> int:
    """Return the bitmap of all who contributed anything to a step."""
    return functools.reduce(operator.or_, map(int, step["contributors"]))


def seats_for(context: DrillContext, workers: int) -> int:
    """Return how many namespaces workers need on the target: none on loopback."""
    return workers if context.target == "bmv2" else 0
