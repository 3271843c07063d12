# SPDX-License-Identifier: Apache-2.0
"""Drills in which a worker's program ends by an error of its own, or forks."""

from __future__ import annotations

import signal
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.news import MARGIN_S, is_back, others_know, require_within
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training import WorkerOrder
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for
from hopsum_wire.control import control_pb2 as pb

WORKERS: Final = 3
RAISES: Final = 1
"""The rank that ends, and comes again."""
ENDS_S: Final = 5.0
"""The time that a program which raises may take to end: its traceback is to be seen. It takes far less on an idle
machine."""
_UNHANDLED: Final = 1
"""Exit status of Python after an exception that nobody handled."""


def raises(context: DrillContext) -> DrillReport:
    """Let a worker's program raise, inside `with` and without it: the others know at once, its rank can be taken."""
    with drill_testbed(context, "worker-raises", seats=seats_for(context, WORKERS)) as testbed:
        training = TrainingJob(testbed, "train", WORKERS)
        training.train(20)
        known_with_s, ended_with_s = _raise(testbed, training, WorkerOrder.RAISE)
        _come_back(testbed, training, bare=True)
        known_bare_s, ended_bare_s = _raise(testbed, training, WorkerOrder.RAISE_IN_FLIGHT)
        _come_back(testbed, training)
        training.finish()
        report = testbed.report
        report.detected_ms = 1e3 * max(known_with_s, known_bare_s)
        report.detected = "all other ranks knew, counted from the exception"
        report.recovered = (
            f"inside `with`: known after {known_with_s:.2f} s, closed after {ended_with_s:.2f} s; without it: known "
            f"after {known_bare_s:.2f} s, process ended after {ended_bare_s:.2f} s; both times the rank came back"
        )
        report.numbers = {
            "known_with_s": round(known_with_s, 3),
            "closed_with_s": round(ended_with_s, 3),
            "known_bare_s": round(known_bare_s, 3),
            "ended_bare_s": round(ended_bare_s, 3),
        }
        judge(testbed, training)
    return report


def forks(context: DrillContext) -> DrillReport:
    """Let a worker fork a child that exits normally: the worker keeps its place, and its death is still noticed."""
    with drill_testbed(context, "worker-forks", seats=seats_for(context, WORKERS)) as testbed:
        training = TrainingJob(testbed, "train", WORKERS)
        training.train(20)
        told_s = testbed.now()
        training.order(RAISES, WorkerOrder.FORK)
        child = first_sign(lambda: _at(training, told_s, "forked"), f"end of the child of rank {RAISES}")
        (entry,) = training.journal(RAISES, "forked")
        if entry["status"] != 0:
            raise DrillError(f"the child of rank {RAISES} ended with {entry['status']}")
        training.train(20)
        _require_place(testbed, training)
        killed_s = testbed.signal(training.name(RAISES), signal.SIGKILL)
        known_s = others_know(training, RAISES, killed_s, testbed.lease_s + MARGIN_S)
        _come_back(testbed, training)
        training.finish()
        report = testbed.report
        report.detected_ms = 1e3 * known_s
        report.detected = "all other ranks knew of the SIGKILL to the parent"
        report.recovered = f"the parent had its place {killed_s - child:.1f} s after its child's end, till its own"
        report.numbers = {"known_s": round(known_s, 3)}
        judge(testbed, training)
    return report


def _raise(testbed: DrillTestbed, training: TrainingJob, order: WorkerOrder) -> tuple[float, float]:
    """Let the rank raise. Return the seconds until the others knew, and until it had closed its job, or ended."""
    told_s = testbed.now()
    process = training.process(RAISES)
    training.order(RAISES, order)
    raised_s = first_sign(lambda: _at(training, told_s, "raised"), f"exception in rank {RAISES}")
    await_that(lambda: not process.running(), f"the end of rank {RAISES}")
    ended_s = (_at(training, told_s, "closed") or testbed.now()) - raised_s
    known_s = others_know(training, RAISES, raised_s, testbed.lease_s + MARGIN_S)
    require_within(f"the program of rank {RAISES} ended", ended_s, ENDS_S)
    if (status := process.stop()) != _UNHANDLED or "UserCodeError: " not in process.log_text():
        raise DrillError(f"rank {RAISES} ended with {status}, and wrote {process.log_text()[-1500:].strip()}")
    return known_s, ended_s


def _come_back(testbed: DrillTestbed, training: TrainingJob, *, bare: bool = False) -> None:
    """Start the rank again, and train on."""
    again_s = testbed.happened(f"rank {RAISES} started again")
    training.start(RAISES, bare=bare)
    is_back(training, RAISES, again_s)
    training.train(20)


def _require_place(testbed: DrillTestbed, training: TrainingJob) -> None:
    with testbed.operator() as operator:
        (phase,) = (member.phase for member in operator.job(training.job).members if member.rank == RAISES)
    if phase != pb.MEMBER_PHASE_IN:
        raise DrillError(f"after a child exited, rank {RAISES} is {pb.MemberPhase.Name(phase)} in the database")


def _at(training: TrainingJob, since_s: float, kind: str) -> float | None:
    entry = training.since(since_s, RAISES, kind)
    return None if entry is None else float(entry["at"])
