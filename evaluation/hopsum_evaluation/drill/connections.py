# SPDX-License-Identifier: Apache-2.0
"""The drill in which TCP connections die in silence: between controller and switch, and a worker and the controller."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.controller_probe import Probe
from hopsum_evaluation.drill.news import MARGIN_S, keeps_places, require_no_break, require_within
from hopsum_evaluation.drill.proxy import Proxy
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

LEASE_S: Final = 15.0
"""A controller's default."""
_PROBE_LEASE_S: Final = 60.0
_PACE_S: Final = 0.05
_FAR: Final = 1
"""The rank that reaches the controller through a proxy."""


def dead(context: DrillContext) -> DrillReport:
    """Let connections die in silence: the worker keeps its place, and the controller writes to its switch again."""
    with (
        drill_testbed(
            context, "connections-dead", seats=seats_for(context, 3), lease_s=LEASE_S, proxied=True
        ) as testbed,
        closing(_proxy_of_workers(testbed)) as workers,
    ):
        assert testbed.proxy is not None
        training = TrainingJob(testbed, "train", 3, pace_s=_PACE_S, controllers={_FAR: workers.address})
        training.train(10)
        worker_s = _die(testbed, training, workers, f"rank {_FAR} and the controller", "first")
        controller_s = _die(testbed, training, testbed.proxy, "controller and switch", "second")
        training.train(10)
        training.finish()
        require_no_break(training)
        report = testbed.report
        report.detected_ms = 1e3 * max(worker_s, controller_s)
        report.detected = "the slower of both: heartbeats of all ranks, or a generation of another job on the switch"
        report.recovered = (
            f"rank {_FAR} was heard again after {worker_s:.1f} s and kept its place; the controller wrote to its "
            f"switch after {controller_s:.1f} s"
        )
        report.numbers = {"worker_s": round(worker_s, 3), "controller_s": round(controller_s, 3)}
        judge(testbed, training)
        if report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = same_bits(training, report.steps)
    return report


def _proxy_of_workers(testbed: DrillTestbed) -> Proxy:
    address = testbed.network.controller_address
    return Proxy(address.rpartition(":")[0], address)


def _die(testbed: DrillTestbed, training: TrainingJob, proxy: Proxy, who: str, job: str) -> float:
    """Let the connections of a proxy die. Return the seconds after which all that goes through them went on.

    A job of this name begins a generation then, which the controller writes to the switch. Waits until a lease is over
    beyond that: a place that was lost shows by then.
    """
    if not proxy.kill_connections():
        raise DrillError(f"{who}: no connection through the proxy")
    at_s = testbed.happened(f"connections die in silence: {who}")
    keeps_places(testbed, training)
    probe = Probe(testbed, job, _PROBE_LEASE_S)
    probe.generation()
    took_s = testbed.now() - at_s
    require_within(f"{who} went on", took_s, LEASE_S + MARGIN_S)
    with testbed.operator() as operator:
        operator.delete(probe.name)
    time.sleep(max(0.0, at_s + LEASE_S + MARGIN_S - testbed.now()))
    keeps_places(testbed, training)
    return took_s
