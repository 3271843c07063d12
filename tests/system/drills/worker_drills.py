# SPDX-License-Identifier: Apache-2.0
"""Drills in which a worker dies, stops, raises or forks."""

from __future__ import annotations

import functools
import operator
import re
import signal
from collections.abc import Mapping
from typing import Any, Final

from hopsum_wire.control import control_pb2 as pb

from .drill import DrillContext, DrillError, DrillReport, await_that, first_sign, require_within
from .drill_testbed import drill_testbed
from .drill_training import WorkerOrder
from .training_job import MARGIN_S, TrainingJob

LEASE_S: Final = 3.0
MEMBERSHIP_WAIT_S: Final = 8.0
LONG_LEASE_S: Final = 30.0
"""A death is known long before this lease ends: the kernel closes the dead process's connection."""
SLACK_S: Final = 10.0
"""The time beyond their wait that an overloaded machine may need."""
ENDS_S: Final = 5.0
"""The time in which a program that raises has to end, so that its traceback is seen. An idle machine takes far less."""
FEWER_S: Final = 3.0
"""The time beyond a lease in which a job of MIN:MAX workers sums without those that died."""
_UNHANDLED: Final = 1
"""The exit status of Python after an exception without a handler."""
_WORKERS, _RANK = 3, 1
"""The rank that ends."""


def killed(context: DrillContext) -> DrillReport:
    """Kill a worker that the quorum can do without: the others continue in the same generation, also past its lease."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS, quorum=2)
        training.train(20)
        at_s = testbed.signal(training.name(2), signal.SIGKILL)

        def without() -> float | None:
            steps = training.journal(0, "step")
            return next((step["at"] for step in steps if step["at"] > at_s and not _all_bits(step) >> 2 & 1), None)

        testbed.report.took(first_sign(without, "sum without rank 2") - at_s, "a sum without rank 2")
        testbed.report.took(testbed.await_lost("train", 2) - at_s, "its lease ran out")
        training.train(40, 0, 1)
        training.finish(0, 1)
        if len(generations := training.generations(0, 1)) > 1:
            raise DrillError(f"generations {generations}: the loss of a worker that is not needed ended one")
        testbed.report.took(training.longest_pause_s(at_s), "the longest pause of the others")
        training.judge()
    return testbed.report


def missing(context: DrillContext) -> DrillReport:
    """Kill a worker of a job whose sums need all: the all-reduces of all others fail, and name it, in time."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS), lease_s=LONG_LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS, membership_wait_s=MEMBERSHIP_WAIT_S)
        training.train(20)
        at_s = testbed.signal(training.name(_RANK), signal.SIGKILL)
        known_s = training.others_know(_RANK, at_s, LONG_LEASE_S / 2)
        told = [training.await_failed(rank) for rank in (0, 2)]
        for entry in told:
            if not re.search(rf"\branks? {_RANK}\b", entry["text"]):
                raise DrillError(f"an all-reduce failed without naming rank {_RANK}: {entry['text']}")
        last_s = max(entry["at"] for entry in told) - at_s
        require_within("all-reduces failed", last_s, known_s + MEMBERSHIP_WAIT_S + SLACK_S)
        testbed.report.took(known_s, f"both others knew; the lease is {LONG_LEASE_S:g} s")
        testbed.report.took(last_s, f"both others failed, {MEMBERSHIP_WAIT_S:g} s of them their wait")
        testbed.report.steps = min(training.steps(rank) for rank in (0, 2))
        training.judge()
    return testbed.report


def rejoins(context: DrillContext) -> DrillReport:
    """Kill a worker and start it again, on the same rank: it continues from the state of the others."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS)
        training.train(20)
        at_s = testbed.signal(training.name(_RANK), signal.SIGKILL)
        training.start(_RANK)
        testbed.happened(f"rank {_RANK} of train started again")
        training.comes_back(_RANK, at_s)
        training.judge()
    return testbed.report


def lost_for_good(context: DrillContext) -> DrillReport:
    """Kill a worker of a job of MIN:MAX workers: no all-reduce fails, others continue in a generation without it."""
    return _continue_without(context, _WORKERS, (_RANK,))


def half_gone(context: DrillContext) -> DrillReport:
    """Kill half of the workers of a job of MIN:MAX workers at once: the other half continues without an error."""
    return _continue_without(context, 4, (1, 3))


def _continue_without(context: DrillContext, workers: int, lost: tuple[int, ...]) -> DrillReport:
    with drill_testbed(context, seats=context.seats_for(workers), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", workers, min_workers=workers - len(lost))
        training.train(20)
        before = training.generations()[-1]
        at_s = testbed.now()
        for rank in lost:
            testbed.signal(training.name(rank), signal.SIGKILL)
        took_s = training.continues_after(before) - at_s
        require_within("a step of fewer workers", took_s, LEASE_S + FEWER_S)
        others = [rank for rank in range(workers) if rank not in lost]
        training.train(20, *others)
        training.finish(*others)
        if failed := [entry for rank in others if (entry := training.since(at_s, rank, "void", "failed"))]:
            raise DrillError(f"an all-reduce without a result: {failed[0]['error']}: {failed[0]['text']}")
        testbed.report.took(took_s, "the first step of fewer workers")
        training.judge()
    return testbed.report


def joins_late(context: DrillContext) -> DrillReport:
    """Start a worker of a job of MIN:MAX workers while the others train: it continues from their state."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS, min_workers=2, starts=2)
        training.train(20, 0, 1)
        at_s = testbed.happened("rank 2 of train started")
        training.start(2)
        training.comes_back(2, at_s)
        training.judge()
    return testbed.report


def paused(context: DrillContext) -> DrillReport:
    """Stop a worker for longer than its lease: it is evicted, refused when it continues, and joins anew."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS), lease_s=LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS)
        training.train(20)
        at_s = testbed.signal(training.name(_RANK), signal.SIGSTOP)
        testbed.await_lost("train", _RANK)
        testbed.signal(training.name(_RANK), signal.SIGCONT)
        training.comes_back(_RANK, at_s)
        training.require_refusal(_RANK)
        training.judge()
    return testbed.report


def raises(context: DrillContext) -> DrillReport:
    """Let a worker's program raise, inside `with` and without it: the others know at once, its rank can be taken."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS)) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS)
        training.train(20)
        _raise(training, WorkerOrder.RAISE)
        _come_back(training, bare=True)
        _raise(training, WorkerOrder.RAISE_IN_FLIGHT)
        _come_back(training)
        training.finish()
        training.judge()
    return testbed.report


def forks(context: DrillContext) -> DrillReport:
    """Let a worker fork a child that exits normally: the worker keeps its place, and its death is still noticed."""
    with drill_testbed(context, seats=context.seats_for(_WORKERS)) as testbed:
        training = TrainingJob(testbed, "train", _WORKERS)
        training.train(20)
        told_s = testbed.now()
        training.order(_RANK, WorkerOrder.FORK)
        first_sign(lambda: _at(training, told_s, "forked"), f"end of the child of rank {_RANK}")
        (entry,) = training.journal(_RANK, "forked")
        if entry["status"] != 0:
            raise DrillError(f"the child of rank {_RANK} ended with {entry['status']}")
        training.train(20)
        with testbed.operator() as operator:
            (phase,) = (member.phase for member in operator.job("train").members if member.rank == _RANK)
        if phase != pb.MEMBER_PHASE_IN:
            raise DrillError(f"after a child exited, rank {_RANK} is {pb.MemberPhase.Name(phase)} in the database")
        killed_s = testbed.signal(training.name(_RANK), signal.SIGKILL)
        known_s = training.others_know(_RANK, killed_s, testbed.lease_s + MARGIN_S)
        _come_back(training)
        training.finish()
        testbed.report.took(known_s, "all other ranks knew of the SIGKILL to the parent")
        training.judge()
    return testbed.report


def _raise(training: TrainingJob, order: WorkerOrder) -> None:
    """Let the rank raise, and wait until the others know, and the rank has closed its job or ended."""
    testbed, process = training.testbed, training.process(_RANK)
    told_s = testbed.now()
    training.order(_RANK, order)
    raised_s = first_sign(lambda: _at(training, told_s, "raised"), f"exception in rank {_RANK}")
    await_that(lambda: not process.running(), f"the end of rank {_RANK}")
    ended_s = (_at(training, told_s, "closed") or testbed.now()) - raised_s
    known_s = training.others_know(_RANK, raised_s, testbed.lease_s + MARGIN_S)
    require_within(f"the program of rank {_RANK} ended", ended_s, ENDS_S)
    if (status := process.stop()) != _UNHANDLED or "UserCodeError: " not in process.log_text():
        raise DrillError(f"rank {_RANK} ended with {status}, and wrote {process.log_text()[-1500:].strip()}")
    testbed.report.took(known_s, f"all other ranks knew of: {order}")


def _come_back(training: TrainingJob, *, bare: bool = False) -> None:
    """Start the rank again, and train on."""
    again_s = training.testbed.happened(f"rank {_RANK} started again")
    training.start(_RANK, bare=bare)
    training.is_back(_RANK, again_s)
    training.train(20)


def _at(training: TrainingJob, since_s: float, kind: str) -> float | None:
    entry = training.since(since_s, _RANK, kind)
    return None if entry is None else float(entry["at"])


def _all_bits(step: Mapping[str, Any]) -> int:
    """Return the bitmap of the ranks that contributed to any chunk of a step."""
    return functools.reduce(operator.or_, map(int, step["contributors"]))
