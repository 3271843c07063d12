# SPDX-License-Identifier: Apache-2.0
"""A cluster of one switch, a process, with workers that sum through it: the embedded one, and bmv2 where it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hopsum.agent import Agent
from hopsum.protocol.worker import Timing
from hopsum_controlplane.cluster import JobState, ResourceExhaustedError, SwitchUnavailableError

from ...support.processes import await_that
from .rigs import DEADLINE_S, Rig, agents_of, check_sum
from .world import LEASE_S, Cluster, Worker, state_of

pytestmark = pytest.mark.system
TIMING = Timing(retransmit_s=0.05, retransmit_max_s=0.2, deadline_s=DEADLINE_S)


@pytest.fixture(params=["native", "bmv2"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, request.param, workers=2)


@pytest.fixture
def cluster(rig: Rig, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, (rig.config,), {"s1": rig.open})  # type: ignore[dict-item]
    cluster.start(pipeline=rig.pipeline)
    yield cluster
    cluster.controller.close()


def enter(stack: ExitStack, rig: Rig, crew: list[Worker]) -> list[Agent]:
    """Let a crew, as ones that know nothing any more, into the next generation; return an agent for each."""
    return agents_of(stack, crew, [rig.join(worker) for worker in crew], TIMING)


def beat(*workers: Worker) -> None:
    """Let a lease pass in which only these are heard."""
    worker = workers[0]
    worker.cluster.clock.sleep(LEASE_S / 2)
    for each in workers:
        each.beat()
    worker.cluster.clock.sleep(LEASE_S / 2)
    worker.cluster.controller.tick()


def test_a_lease_runs_out_during_a_round(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew, other = cluster.make(), cluster.make("other")
        agents, others = enter(stack, rig, crew), enter(stack, rig, other)
        check_sum(agents)
        agents[0].submit(np.ones(3000, dtype=np.float32))  # the other one never does
        await_that(lambda: cluster.controller.job("job").counters["duplicate"] > 0)
        check_sum(others)
        beat(crew[0], *other)
        assert "lease of rank 1 ran out" in crew[0].beat().reason
        # The evicted worker asks on, in vain.
        await_that(lambda: cluster.controller.switches()[0].drops["unknown_generation"] > 0)
        check_sum(others)
        for agent in agents:
            agent.close()
        check_sum(enter(stack, rig, crew))
        assert other[0].beat().generation == other[0].generation
        for worker in (*crew, *other):
            worker.leave()
        assert {state_of(job) for job in cluster.controller.jobs()} == {JobState.FORMING}


def test_a_switch_restarts(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew = cluster.make()
        check_sum(enter(stack, rig, crew))
        old = crew[0].generation
        rig.restart()
        give_up_s = time.monotonic() + DEADLINE_S
        while state_of(cluster.controller.job("job")) is not JobState.FORMING:  # the program is pushed again
            assert time.monotonic() < give_up_s, cluster.controller.job("job")
            beat(*crew)
            time.sleep(0.1)
        assert "switch s1 does not have it any more" in crew[0].beat().reason
        check_sum(enter(stack, rig, crew))
        assert crew[0].generation > old


def test_a_controller_restarts_during_a_job(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew = cluster.make()
        agents = enter(stack, rig, crew)
        check_sum(agents)
        added = cluster.controller.job("job").counters["added"]
        cluster.controller.close()
        check_sum(agents)  # nobody needs a controller for that
        cluster.start(pipeline=rig.pipeline)
        assert crew[0].beat().generation == crew[0].generation
        check_sum(agents)
        assert cluster.controller.job("job").counters["added"] == 3 * added > 0


def test_another_controller_takes_the_switch(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew = cluster.make()
        agents = enter(stack, rig, crew)
        theirs = rig.open(election_id=2)
        stack.callback(theirs.close)
        with pytest.raises(SwitchUnavailableError, match="primary"):
            cluster.controller.delete_job("job")
        assert "primary" in cluster.controller.switches()[0].condition
        check_sum(agents)  # what stands there stays
        theirs.close()
        cluster.devices = {"s1": lambda: rig.open(election_id=3)}  # type: ignore[dict-item]
        cluster.start(pipeline=rig.pipeline)
        assert cluster.controller.jobs() == []


def test_slot_memory_is_full(cluster: Cluster, rig: Rig) -> None:
    slots = 64
    with ExitStack() as stack:
        full = [cluster.make(f"job{number}", slots=slots) for number in range(rig.config.slots // slots)]
        with pytest.raises(ResourceExhaustedError, match=r"s1: .*0 of 2048 slots"):
            cluster.make("more", slots=1)
        check_sum(enter(stack, rig, full[0]))
        check_sum(enter(stack, rig, full[-1]))  # the last slots of all
        cluster.controller.delete_job("job7")
        with pytest.raises(ResourceExhaustedError, match="64"):
            cluster.make("more", slots=slots + 1)
        check_sum(enter(stack, rig, cluster.make("more", slots=slots)))
        assert cluster.controller.switches()[0].slots_used == rig.config.slots
