# SPDX-License-Identifier: Apache-2.0
"""Drills in which links, interfaces and routes of a worker go away, and TCP connections die in silence."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

from .controller_probe import Probe
from .drill import DrillContext, DrillError, DrillReport, first_sign, require_within
from .drill_network import WAYS, VethNetwork
from .drill_testbed import DrillTestbed, drill_testbed
from .silent_proxy import SilentProxy
from .training_job import MARGIN_S, TrainingJob

SPLIT_LEASE_S: Final = 6.0
DEAD_LEASE_S: Final = 15.0
"""A controller's default."""
FLAP_S: Final = 1.0
_PROBE_LEASE_S: Final = 60.0
_PACE_S: Final = 0.05
_RANK: Final = 1
"""The rank that loses its network, and the one that reaches the controller through a proxy."""


def split(context: DrillContext) -> DrillReport:
    """Cut one worker off, for less than its lease: sums wait for it, and continue. Then for longer: it joins anew."""
    with drill_testbed(context, seats=3, lease_s=SPLIT_LEASE_S) as testbed:
        network = _veths(testbed)
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        network.cut(_RANK)
        cut_s = testbed.happened(f"links of rank {_RANK} down")
        time.sleep(SPLIT_LEASE_S / 3)
        network.mend(_RANK)
        testbed.happened(f"links of rank {_RANK} up")
        before = training.steps(0)

        def continued_at() -> float | None:
            steps = training.journal(0, "step")
            return float(steps[before]["at"]) if len(steps) > before else None

        again_s = first_sign(continued_at, "step after the split")
        testbed.report.took(again_s - cut_s, f"training stood, of them {SPLIT_LEASE_S / 3:g} s cut off")
        training.train(20)
        training.require_results(generations=1)
        network.cut(_RANK)
        at_s = testbed.happened(f"links of rank {_RANK} down")
        testbed.await_lost("train", _RANK)
        network.mend(_RANK)
        testbed.happened(f"links of rank {_RANK} up")
        training.comes_back(_RANK, at_s)
        training.require_refusal(_RANK)
        training.judge()
    return testbed.report


def flaps(context: DrillContext) -> DrillReport:
    """Take one worker's own interfaces and routes away for a while, again and again: sums wait, and lose nothing."""
    with drill_testbed(context, seats=3) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(10)
        network, stood_s = _veths(testbed), []
        for way in WAYS * context.steps(1):
            network.leave_network(_RANK, way)
            gone_s = testbed.happened(f"rank {_RANK} has no way to the switch: {way}")
            time.sleep(FLAP_S)
            network.enter_network(_RANK)
            testbed.happened(f"rank {_RANK} has it again")
            training.train(10)
            stood_s.append(training.longest_pause_s(gone_s))
        training.finish()
        training.require_results(generations=1)
        testbed.report.took(max(stood_s), f"training stood, of them {FLAP_S:g} s without a way")
        training.judge(bits=True)
    return testbed.report


def connections_dead(context: DrillContext) -> DrillReport:
    """Let connections die in silence: the worker keeps its place, and the controller writes to its switch again."""
    with drill_testbed(context, seats=context.seats_for(3), lease_s=DEAD_LEASE_S, proxied=True) as testbed:
        address = testbed.network.controller_address
        with closing(SilentProxy(address.rpartition(":")[0], address)) as workers:
            assert testbed.proxy is not None
            training = TrainingJob(testbed, "train", 3, pace_s=_PACE_S, controllers={_RANK: workers.address})
            training.train(10)
            worker_s = _die(training, workers, f"rank {_RANK} and the controller", "first")
            controller_s = _die(training, testbed.proxy, "controller and switch", "second")
            training.train(10)
            training.finish()
            training.require_results(generations=1)
            testbed.report.took(worker_s, f"rank {_RANK} was heard again")
            testbed.report.took(controller_s, "the controller wrote to its switch again")
            training.judge(bits=True)
    return testbed.report


def _die(training: TrainingJob, proxy: SilentProxy, between: str, job: str) -> float:
    """Let the connections of a proxy die. Return the seconds until heartbeats and writes to the switch continued.

    A generation of another job, `job`, is written to the switch. Waits until a lease has passed beyond that, in which
    a place that was lost would show.
    """
    testbed = training.testbed
    if not proxy.kill_connections():
        raise DrillError(f"{between}: no connection through the proxy")
    at_s = testbed.happened(f"connections die in silence: {between}")
    training.keeps_places()
    probe = Probe(testbed, job, _PROBE_LEASE_S)
    probe.generation()
    took_s = testbed.now() - at_s
    require_within(f"{between} went on", took_s, DEAD_LEASE_S + MARGIN_S)
    with testbed.operator() as operator:
        operator.delete(probe.name)
    time.sleep(max(0.0, at_s + DEAD_LEASE_S + MARGIN_S - testbed.now()))
    training.keeps_places()
    return took_s


def _veths(testbed: DrillTestbed) -> VethNetwork:
    assert isinstance(testbed.network, VethNetwork), "loopback has no links to cut"
    return testbed.network
