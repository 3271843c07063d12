# SPDX-License-Identifier: Apache-2.0
"""The drill in which the holder of one job's token joins it again and again."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.errors import ControllerError
from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that
from hopsum_evaluation.drill.controller_probe import Probe
from hopsum_evaluation.drill.news import MARGIN_S, require_within
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

_CHURNS: Final = "aaa"
"""First of all jobs, by name."""
_LATER: Final = "zzz"
_PACE_S: Final = 0.05
_LEASE_S: Final = 60.0
"""The lease of the jobs that do not train."""
_THREADS: Final = 4
"""The threads that join the first job."""
_JOINS: Final = 20
"""The joins of the first job before anything is asked of the controller."""


def job_churn(context: DrillContext) -> DrillReport:
    """Join one job again and again: another one starts in time, and a third outlives its switch."""
    with drill_testbed(context, "job-churn", seats=seats_for(context, 2)) as testbed:
        training = TrainingJob(testbed, "train", 2, pace_s=_PACE_S)
        training.train(10)
        (generation,) = training.generations()
        later = Probe(testbed, _LATER, _LEASE_S)
        with _churning(Probe(testbed, _CHURNS, _LEASE_S)) as joins:
            await_that(lambda: len(joins) >= _JOINS, f"{_JOINS} joins of job {_CHURNS}")
            began_s = testbed.happened(f"job {_LATER} is joined, while {_CHURNS} is all the time")
            later.generation()
            started_s = testbed.now() - began_s
            healed_s = _restart_switch(testbed, training, generation)
            asked_s = testbed.now() - began_s
            rate = sum(at_s >= began_s for at_s in joins) / asked_s
        training.train(10)
        training.finish()
        bound_s = testbed.lease_s + MARGIN_S
        require_within(f"job {_LATER} had started", started_s, bound_s)
        require_within("the other job went on on the restarted switch", healed_s, bound_s)
        report = testbed.report
        report.detected_ms = 1e3 * started_s
        report.detected = f"a generation of job {_LATER}, from when it was joined"
        report.recovered = f"beside {rate:.0f} joins/s; the job that trains went on {healed_s:.1f} s after a new switch"
        report.numbers = {
            "started_s": round(started_s, 3),
            "healed_s": round(healed_s, 3),
            "joins_per_s": round(rate, 1),
        }
        with testbed.operator() as operator:
            operator.delete(_CHURNS)
            operator.delete(_LATER)
        judge(testbed, training)
    return report


def _restart_switch(testbed: DrillTestbed, training: TrainingJob, generation: int) -> float:
    """Start the switch again, empty. Return the seconds until the job that trains went on there."""
    testbed.signal("switch", signal.SIGKILL)
    testbed.start_switch()
    restarted_s = testbed.happened("switch started again, empty")

    def going_on() -> float | None:
        return next((entry["at"] for entry in training.journal(0, "step") if entry["generation"] != generation), None)

    return first_sign(going_on, "step in another generation") - restarted_s


@contextmanager
def _churning(probe: Probe) -> Iterator[list[float]]:
    """Join a job again and again for the block, and yield when it was joined. Raises DrillError."""
    joined: list[float] = []
    failed: list[BaseException] = []
    ending = threading.Event()

    def churn() -> None:
        try:
            with Channel(ControllerAddress.of(probe.address, tls=False)) as channel:
                while not ending.is_set():
                    with suppress(ControllerError):  # too many at a time, or told to wait
                        probe.join(channel)
                        joined.append(time.monotonic())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=churn, name="drill-churn", daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield joined
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    if failed:
        raise DrillError(f"joining again and again failed: {failed[0]}")
